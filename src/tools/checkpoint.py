"""Rebuild the checkpoint of a validation, and compare it with its recorded digest.

    python src checkpoint 450              # into .runs/, where `verify --recompute` and longer runs find it
    python src checkpoint 450 data/early   # also write its weights, as a folder like data/models

Each validation of a run is a checkpoint that takes no space: plots/validation.csv has its step and the digest of its
weights and optimizers, data/models/model.json the fingerprint of the run. This command trains from the nearest stored
checkpoint before it, or from the initial weights. In exact numerics, the bits are the same on every device.
"""

import time
from pathlib import Path

from lm.core.errors import ParamsError, exit_with_status
from lm.core.files import output_lock, scratch_folder
from lm.core.paths import RUNS
from lm.model.weights import save_weights
from lm.train.checkpoints import Checkpoint, link_checkpoint, list_checkpoints, load_checkpoint
from tools.common.arguments import count, tool_parser
from tools.common.retrain import CURVE, DIGEST, check_checkpoint, read_run, train_again

OF_FINISHED_RUN = ("training", "best", "last", "kept_weights")  # entries of model.json that a checkpoint does not have


@exit_with_status
def main(argv: list[str]) -> None:
    """Rebuild the checkpoint of a step, unless it is stored; write its weights if a folder is given."""
    parser = tool_parser("checkpoint", __doc__)
    parser.add_argument("step", type=count, help="the step of a validation")
    parser.add_argument("folder", type=Path, nargs="?", help="folder to write with the weights; it must be new")
    args = parser.parse_args(argv)
    if args.folder and args.folder.exists():
        raise ParamsError(f"{args.folder}: exists; name a new folder")
    model, recorded = read_run()
    if args.step == 0 or args.step not in recorded:
        steps = ", ".join(str(step) for step in sorted(recorded) if step)
        raise ParamsError(f"step is {args.step}; it must be the step of a validation: {steps}")

    checkpoint = Checkpoint(RUNS / model["fingerprint"], args.step)
    with output_lock(checkpoint.run):
        if not checkpoint.record.exists():
            rebuild(checkpoint)
        check_checkpoint(checkpoint, recorded, f"and run `python src checkpoint {args.step}`")
    print(f"{checkpoint.path}: has the digest {recorded[args.step][DIGEST]} of {CURVE}")
    if args.folder:
        write_weights(args.folder, load_checkpoint(checkpoint), model)
        print(f"{args.folder}: has its weights")


def rebuild(checkpoint: Checkpoint) -> None:
    """Train from the nearest stored checkpoint before this one, and store this one."""
    earlier = [stored for stored in list_checkpoints(checkpoint.run) if stored.step < checkpoint.step]
    nearest = earlier[-1] if earlier else None
    origin = nearest.path if nearest else "the initial weights"
    print(f"training {checkpoint.step - (nearest.step if nearest else 0)} steps from {origin}", flush=True)
    start_s = time.monotonic()
    with scratch_folder(checkpoint.run / "rebuild") as folder:
        run = train_again(nearest, checkpoint.step, checkpoint.run.name, folder)
        link_checkpoint(Checkpoint(run, checkpoint.step), checkpoint.run)
    print(f"rebuilt in {time.monotonic() - start_s:.0f} s", flush=True)


def write_weights(folder: Path, state: dict, model: dict) -> None:
    """Write the weights of a state and their model.json, which has of the run's model.json what holds for them."""
    step, tokens, loss = state["history"]["validation"][-1]
    here = {"step": step, "tokens_seen": tokens, "val_loss": loss}
    record = {name: value for name, value in model.items() if name not in OF_FINISHED_RUN}
    save_weights(folder, dict(state["model"]), {**record, "segments": state["segments"], "best": here})
