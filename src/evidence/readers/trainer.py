"""trainer_state.json of the Trainer of transformers, in the folder of a run and in its checkpoints."""

from collections.abc import Mapping
from pathlib import Path

from evidence.errors import WrongInput
from evidence.rows import Choice, is_higher_better


def read(rows_of: Mapping[Path, list[dict]], choice: Choice) -> tuple[list[dict], str]:
    """Return a single loss of each run: at the best step if all runs know theirs, otherwise at the last one."""
    # Each state has the whole history, so that the newest one of a folder counts.
    newest: dict[Path, dict] = {}
    for path, (state,) in rows_of.items():
        is_checkpoint = path.parent.name.startswith("checkpoint-")
        folder = path.parent.parent if is_checkpoint else path.parent
        if state["global_step"] >= newest.get(folder, state)["global_step"]:
            newest[folder] = state

    metric = choice.metric or "eval_loss"
    is_best = all(state.get("best_global_step") for state in newest.values())
    which = "best" if is_best else "last"
    rows = []
    steps = set()
    for folder, state in newest.items():
        measured = {entry["step"]: entry[metric] for entry in state["log_history"] if metric in entry}
        step = state["best_global_step"] if is_best else max(measured, default=0)
        if step not in measured:
            raise WrongInput(f"{folder}: has no {metric} at its {which} step; name another one with --metric")
        steps.add(step)
        higher = is_higher_better(folder, metric, choice)
        loss = {"loss": measured[step], "metric": metric, "higher_is_better": higher}
        rows.append({"path": folder, "run": folder.as_posix()} | loss)
    return rows, f"states of the Trainer, {metric} at the {which} step ({', '.join(map(str, sorted(steps)))})"
