"""Write the curves of a run as TensorBoard events, after it or while it trains.

    python src to_tensorboard --follow    # in one terminal, during dvc repro
    tensorboard --logdir events           # in another

The step of an event is the number of tokens seen. Needs `pip install -r requirements/tensorboard.txt`.
"""

import time
from pathlib import Path

from lm.core.errors import EnvironmentFailure, ParamsError, exit_with_status
from lm.plots import read_csv
from tools.record.arguments import tool_parser

CURVES = ("training", "validation")
PAUSE_S = 5.0


def add_rows(writer, plots: Path, written: dict[str, int]) -> None:
    """Write the rows of the curves after those already `written`. Raise ParamsError if a curve became shorter."""
    for name in CURVES:
        curve = read_csv(plots / f"{name}.csv") if (plots / f"{name}.csv").exists() else {}
        tokens = curve.pop("tokens", [])
        if len(tokens) < written[name]:
            raise ParamsError(f"{plots / name}.csv became shorter: another run began; give its events another folder")
        for i in range(written[name], len(tokens)):
            for column in [each for each in curve if each != "step"]:
                writer.add_scalar(f"{name}/{column}", curve[column][i], int(tokens[i]))
        written[name] = len(tokens)
    writer.flush()


@exit_with_status
def main(argv: list[str]) -> None:
    """Write all rows, and with --follow those that are added later."""
    parser = tool_parser("to_tensorboard", __doc__)
    parser.add_argument("events", type=Path, nargs="?", default="events", help="the folder to write (events)")
    parser.add_argument("--plots", type=Path, default="plots", help="folder of the curves (plots)")
    parser.add_argument("--follow", action="store_true", help="write new rows until Ctrl-C")
    args = parser.parse_args(argv)
    if args.events.exists():
        raise ParamsError(f"{args.events} exists; name another folder, or delete it")
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise EnvironmentFailure(
            "tensorboard is not installed; run `pip install -r requirements/tensorboard.txt`"
        ) from None
    with SummaryWriter(args.events) as writer:
        written: dict[str, int] = dict.fromkeys(CURVES, 0)
        add_rows(writer, args.plots, written)
        while args.follow:
            time.sleep(PAUSE_S)
            add_rows(writer, args.plots, written)
