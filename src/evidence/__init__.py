"""Compare trained models by their losses or scores, with error bars over seeds and documents.

    import evidence

    runs = evidence.read(["losses.csv"])
    found = evidence.compare(runs, within=0.005)
    print(evidence.text(found))                # what the command prints
    (difference,) = found.differences
    difference.verdict                         # "better", "worse" or "not shown"
    difference.seeds.low, difference.p_value   # of the interval over seeds; corrected for all comparisons
    evidence.noise(evidence.read(["base.csv"])).standard_deviation

`evidence.citation.citation(found)` is the table of --cite, `evidence.forest.forest(found, path)` the picture of --plot,
and `evidence.record.record(found)` the document of --json. What cannot be read or asked raises
`evidence.errors.WrongInput`. Importing this module imports nothing else; its functions do.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evidence.difference import Comparisons
    from evidence.runs import Run
    from evidence.spread import Power


def read(paths: Sequence[str | Path], metric: str = "", filter: str = "", better: str = "") -> list[Run]:
    """Return the runs of files or folders of one kind: tables, W&B's export, states of a Trainer, samples of lm-eval.

    `metric` and `filter` (of lm-eval) choose one of several; `better` says `higher` or `lower` if that is not usual.
    """
    from evidence.reading import read_runs
    from evidence.rows import Choice

    return read_runs([Path(path) for path in paths], Choice(metric, filter, better))


def compare(
    runs: Sequence[Run], baseline: str | None = None, within: float | None = None, confidence: float = 0.95
) -> Comparisons:
    """Compare each group of runs with the baseline, the first one if none is named.

    `within` is a margin: also say whether the difference is smaller.
    """
    from evidence import difference

    return difference.compare(runs, difference.Options(baseline, within, confidence))


def noise(runs: Sequence[Run], confidence: float = 0.95) -> Power | None:
    """Return the spread over the seeds of one group, and the differences it can show; None with fewer than three."""
    from evidence.runs import make_groups
    from evidence.spread import noise_of

    return noise_of(make_groups(runs)[:1], confidence)


def text(found: Comparisons) -> str:
    """Return the answers, what limits them, and the signatures, as the command prints them."""
    from evidence.answer import answers, explanations

    return "\n".join(dict.fromkeys([*answers(found), *explanations(found)]))
