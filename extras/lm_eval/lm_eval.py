"""Run tasks of EleutherAI's lm-eval with an exported model, as `lm-eval run` does.

    python src lm_eval exported --tasks blimp --limit 100
    python src lm_eval exported --tasks stories --include_path tasks --output_path results --log_samples

The first argument is a folder of export_hf. All others are those of `lm-eval run`, which its --help lists. A task of
lm-eval downloads its data; a task file can name Python code, so run only tasks that you trust.
Needs `pip install -r requirements/lm-eval.txt`.
"""

import sys
from pathlib import Path

from lm.core.errors import ParamsError, exit_with_status
from tools.record.environment import explain_missing


@exit_with_status
def main(argv: list[str]) -> None:
    """Run lm-eval with the model of an exported folder."""
    if not argv or argv[0] in ("-h", "--help"):
        print(__doc__)
        return
    folder, *arguments = argv
    if not Path(folder).is_dir():
        raise ParamsError(f"{folder}: is not a folder; name one that `python src export_hf` wrote")
    with explain_missing("lm_eval", "run `pip install -r requirements/lm-eval.txt`"):
        from lm_eval.__main__ import cli_evaluate

        import extras.lm_eval.harness  # noqa: F401 - which registers the model
    model = ["--model", "reprolm", "--model_args", f"pretrained={folder}", "--device", "cpu", "--batch_size", "16"]
    sys.argv = ["lm-eval", "run", *model, *arguments]
    cli_evaluate()
