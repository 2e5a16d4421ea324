"""judgements.csv: a row for each judgement, in Git; every row's level and answer follow from the rows before it."""

import csv
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from evidence.errors import Forged
from evidence.judge.decision import DIGITS, Decision, Figures, Fresh, Measured, confirm, decide
from evidence.judge.levels import next_level
from evidence.spread import Spread, pooled

JUDGEMENTS = Path("judgements.csv")
TEMPORARY = f".{JUDGEMENTS}.tmp"
RESTORE = f"`git restore {JUDGEMENTS}` brings the committed file back"
FRESH = ("fresh_seed", "fresh_base", "fresh_candidate")
NONE = Spread(0.0, 0)


class Pair(NamedTuple):
    """What was judged: two commits, with the same seeds and on the same text."""

    base: str
    candidate: str
    base_tree: str  # hash of the files of the commit, which is equal for a change that was made and undone
    candidate_tree: str
    change: str  # first line of the candidate's message
    text: str  # hash of the validation documents, or of the name of the metric
    metric: str  # the number that runs print, "" if they write losses of documents
    first_seed: int
    least_gain: float  # a smaller gain is not worth keeping

    @property
    def rule(self) -> tuple:
        """Return what decides the figures and the answer of a judgement, with the number of seeds."""
        return self.base_tree, self.candidate_tree, self.metric, self.first_seed, self.least_gain


class Judgement(NamedTuple):
    """A row of the file."""

    number: int
    pair: Pair
    figures: Figures
    decision: Decision
    fresh: Fresh | None  # of a change that was about to be kept
    earns: bool  # whether it raises the levels after it

    @property
    def is_kept(self) -> bool:
        """Return whether the change was kept."""
        return self.decision.answer == "keep"

    def as_dict(self) -> dict[str, object]:
        """Return the columns of the row by name."""
        decision = self.decision
        decided = [*decision.measured, decision.p, decision.level]
        fresh = self.fresh or [None] * len(FRESH)
        values = [self.number, *self.pair, *self.figures, *decided, *fresh, decision.answer]
        return dict(zip(columns(), values, strict=True))


def judge(previous: Sequence[Judgement], pair: Pair, figures: Figures, fresh: Fresh | None = None) -> Judgement:
    """Return the judgement that follows on `previous`; `fresh` may confirm a change that is about to be kept."""
    pairs, sides = spreads_of_others(previous, pair)
    level = next_level([each.earns for each in previous])
    decision = decide(figures, pairs, sides, level, pair.least_gain)
    if fresh and decision.answer == "keep":
        decision = confirm(decision, figures.seeds, fresh)
    earns = decision.answer == "keep" and may_earn(previous, pair)
    return Judgement(len(previous) + 1, pair, figures, decision, fresh, earns)


def may_earn(previous: Sequence[Judgement], pair: Pair) -> bool:
    """Return whether a change that is kept raises later levels.

    Each base does so once: the first base of this text, and each change that was kept since. Otherwise a program could
    judge against a base that is known to be bad, and earn each time.
    """
    of_text = [each for each in previous if each.pair.text == pair.text]
    bases = {of_text[0].pair.base_tree if of_text else pair.base_tree}
    for each in of_text:
        if each.is_kept and each.pair.base_tree in bases:
            bases.add(each.pair.candidate_tree)
    have_earned = {each.pair.base_tree for each in of_text if each.earns}
    return pair.base_tree in bases - have_earned


def spreads_of_others(previous: Sequence[Judgement], pair: Pair) -> tuple[Spread, Spread]:
    """Return the spread of the other pairs, and that of the other sides, in the judgements of this text.

    Of each the judgement with the most seeds counts, and none that is far wider than the others.
    """
    own = (pair.base_tree, pair.candidate_tree)
    pairs: dict[tuple[str, str], Spread] = {}
    sides: dict[str, Spread] = {}
    for judged in previous:
        if judged.pair.text != pair.text:
            continue
        figures = judged.figures
        base = judged.pair.base_tree
        candidate = judged.pair.candidate_tree
        if (base, candidate) != own:
            pairs[base, candidate] = NONE if judged.decision.are_pairs_wide else figures.pairs
        of_candidate = NONE if judged.decision.is_candidate_wide else figures.candidate
        for tree, side in ((base, figures.base), (candidate, of_candidate)):
            has_more = sides.get(tree, NONE).degrees_of_freedom <= side.degrees_of_freedom
            if has_more and tree not in own:
                sides[tree] = side
    return pooled([*pairs.values()]), pooled([*sides.values()])


def columns() -> list[str]:
    """Return the names of the columns."""
    decided = ["p", "level", *FRESH, "answer"]
    return ["judgement", *Pair._fields, *Figures._fields, *Measured._fields, *decided]


def row_of(judgement: Judgement) -> list[str]:
    """Return a row of the file. Eight digits are the same on every machine."""
    return [written(value) for value in judgement.as_dict().values()]


def written(value: object) -> str:
    """Return a value as the file has it."""
    if value is None:
        return ""
    return f"{value:.{DIGITS}g}" if isinstance(value, float) else str(value)


def write_judgements(judgements: Sequence[Judgement]) -> None:
    """Write the file, complete or not at all."""
    with open(TEMPORARY, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns())
        writer.writerows(row_of(judgement) for judgement in judgements)
        file.flush()
        os.fsync(file.fileno())
    os.replace(TEMPORARY, JUDGEMENTS)


def read_judgements() -> list[Judgement]:
    """Read the file, [] if there is none.

    Raise Forged if a line is not a row, or what was decided does not follow from the rows before. A row that is missing
    at the end is not noticed: the history of the file in Git shows it.
    """
    if not JUDGEMENTS.exists():
        return []
    with open(JUDGEMENTS, encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    if not rows or rows[0] != columns():
        raise Forged(f"{JUDGEMENTS}: line 1 must be {','.join(columns())}; {RESTORE}")

    judgements: list[Judgement] = []
    for line, row in enumerate(rows[1:], start=2):
        where = f"{JUDGEMENTS}: line {line}"
        try:
            judgement = judge(judgements, *parse(row))
        except (TypeError, ValueError) as error:
            raise Forged(f"{where} is no judgement: {error}; {RESTORE}") from None
        reject_difference(row, row_of(judgement), where, "the rows above and its own figures")
        judgements.append(judgement)
    return judgements


def parse(row: list[str]) -> tuple[Pair, Figures, Fresh | None]:
    """Return what a row judged, its figures and its fresh runs; ValueError if a value is missing, or no number."""
    values: dict[str, Any] = dict(zip(columns(), row, strict=True))
    for name in ("first_seed", "least_gain", *Figures._fields, *FRESH):
        kind = int if name.endswith(("seed", "seeds")) else float
        values[name] = kind(values[name]) if values[name] else None
    pair = Pair(*(values[name] for name in Pair._fields))
    figures = Figures(*(values[name] for name in Figures._fields))
    fresh = Fresh(*(values[name] for name in FRESH))
    return pair, figures, fresh if fresh.seed else None


def reject_difference(recorded: list[str], found: list[str], where: str, source: str) -> None:
    """Raise Forged if a recorded row is not the row that was found; `source` says from what."""
    for name, old, new in zip(columns(), recorded, found, strict=True):
        if old != new:
            raise Forged(f"{where}: {name} is {old}, and {source} give {new}: the file was edited; {RESTORE}")
