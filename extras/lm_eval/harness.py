"""Run tasks of lm-eval with an exported model; importing this module needs requirements/lm-eval.txt."""

import contextlib
import logging
import sys
from pathlib import Path

from lm_eval.evaluator import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from lm.core.errors import DataError, ParamsError

BATCH_TOKENS = 4096
BOOTSTRAP_RESAMPLES = 1000  # for the standard error of a metric without a formula for it


class ExportedModel(HFLM):
    """lm-eval's model of an exported folder, on the CPU in float32, in windows of the training's `seq_len`.

    Every text begins with one end-of-text id, as in training. HFLM would begin with two where it cuts a text into
    windows, and with none where the text itself begins with the name of that token.
    """

    def __init__(self, folder: Path, seq_len: int):
        super().__init__(
            str(folder),
            device="cpu",
            dtype="float32",
            max_length=seq_len,
            batch_size=max(1, BATCH_TOKENS // seq_len),
            # The cache of lm-eval scores wrong tokens if a text repeats so that two of its windows are equal.
            logits_cache=False,
        )
        self.num_requests = 0
        self.num_truncated = 0

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **options) -> list[int]:
        """Return the ids of a text, after the end-of-text id unless `add_special_tokens` is False."""
        return super().tok_encode(string, add_special_tokens is not False, **options)

    def loglikelihood_rolling(self, requests, disable_tqdm: bool = False) -> list[float]:
        """Return the log-likelihood of each text in nats; its windows do not overlap, the last one moved back."""
        windows = []
        owners = []  # the number of each window's text
        for number, request in enumerate(requests):
            ids = self.tok_encode(request.args[0], add_special_tokens=False)
            for pair in get_rolling_token_windows(ids, self.prefix_token_id, self.max_length, context_len=1):
                context, continuation = make_disjoint_window(pair)
                windows.append((None, context, continuation))
                owners.append(number)

        sums = [0.0] * len(requests)
        for owner, (nats, _) in zip(owners, self._loglikelihood_tokens(windows, disable_tqdm), strict=True):
            sums[owner] += nats
        return sums

    def _loglikelihood_tokens(self, requests, disable_tqdm: bool = False, override_bs: int | None = None):
        """Return (nats, is greedy) of each request; count those that lose the beginning of their context.

        Raise DataError if what is to be scored does not fit into a window.
        """
        longest = max((len(continuation) for _, _, continuation in requests), default=0)
        if longest > self.max_length:
            found = f"a continuation has {longest} tokens, the windows of this model have {self.max_length}"
            raise DataError(f"{found}; choose a task with shorter ones, or a model that was trained in longer windows")
        lengths = [len(context) + len(continuation) - 1 for _, context, continuation in requests]
        self.num_requests += len(requests)
        self.num_truncated += sum(length > self.max_length for length in lengths)
        return super()._loglikelihood_tokens(requests, disable_tqdm, override_bs)


def open_tasks(folder: Path | None, names: list[str]) -> tuple[TaskManager, list[str]]:
    """Return lm-eval's task manager and the tasks to run: `names`, or all of the folder. ParamsError for others."""
    manager = TaskManager(include_path=folder and str(folder), include_defaults=False)
    own = manager.all_tasks
    if not set(names) <= set(own):
        manager = TaskManager(include_path=folder and str(folder))  # takes 10 s: reads the files of 14,000 tasks
    if unknown := [name for name in names if name not in manager.all_tasks]:
        there_are = f"{folder} has {', '.join(own) or 'none'}" if folder else "name the folder of your own tasks"
        raise ParamsError(f"--tasks: {unknown[0]} is unknown; `lm-eval ls tasks` lists lm-eval's, {there_are}")
    if not (names or own):
        raise ParamsError(f"--task_folder: {folder} has no task; extras/lm_eval/README.md shows two to write there")
    return manager, names or own


def run_tasks(export: Path, seq_len: int, folder: Path | None, names: list[str], limit: int | None) -> dict:
    """Return lm-eval's results; the data files that a task names are relative to `folder`."""
    manager, names = open_tasks(folder, names)
    model = ExportedModel(export, seq_len)
    logging.getLogger(HFLM.__module__).setLevel(logging.ERROR)  # a warning for each request that is truncated
    with contextlib.chdir(folder or "."):
        results = simple_evaluate(
            model, tasks=names, task_manager=manager, limit=limit, bootstrap_iters=BOOTSTRAP_RESAMPLES
        )
    if model.num_truncated:
        count = f"{model.num_truncated} of {model.num_requests} requests are longer than the window of {seq_len} tokens"
        print(f"warning: {count} and lost the beginning of their context", file=sys.stderr)
    return results
