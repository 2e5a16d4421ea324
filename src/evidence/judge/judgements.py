"""judgements.csv: a row for each judgement, in Git; every row's level and answer follow from the rows before it."""

import csv
import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from evidence.errors import Forged
from evidence.judge.decision import DIGITS, EMPTY, Decision, Figures, Pool, decide
from evidence.judge.levels import next_level

JUDGEMENTS = Path("judgements.csv")
RESTORE = f"`git restore {JUDGEMENTS}` brings the committed file back"
CONFLICT = "<<<<<<< "


class Pair(NamedTuple):
    """What was judged: two commits, with the same seeds and on the same text."""

    base: str
    candidate: str
    base_tree: str  # hash of the files of the commit, which is equal for a change that was made and undone
    candidate_tree: str
    change: str  # first line of the candidate's message
    text: str  # hash of the validation documents
    first_seed: int
    least_gain: float  # a smaller gain is not worth keeping


class Judgement(NamedTuple):
    """A row of the file."""

    number: int
    pair: Pair
    figures: Figures
    decision: Decision

    @property
    def is_kept(self) -> bool:
        """Return whether the change was kept."""
        return self.decision.answer == "keep"

    def is_of(self, pair: Pair, seeds: int) -> bool:
        """Return whether it judged the files of these commits by the same rule with these seeds."""
        own = self.pair
        same_files = (own.base_tree, own.candidate_tree) == (pair.base_tree, pair.candidate_tree)
        same_rule = (own.first_seed, own.least_gain) == (pair.first_seed, pair.least_gain)
        return same_files and same_rule and self.figures.seeds == seeds

    def as_dict(self) -> dict[str, object]:
        """Return the columns of the row by name."""
        measured = self.decision.measured
        return {
            "judgement": self.number,
            **self.pair._asdict(),
            **self.figures._asdict(),
            **measured._asdict(),
            "p": self.decision.p,
            "level": self.decision.level,
            "answer": self.decision.answer,
            "more_seeds": self.decision.more_seeds,
        }


class Side(NamedTuple):
    """The standard deviation of one side, or of pairs, and whether it is far wider than the others."""

    sd: float
    seeds: int
    is_wide: bool


def judge(former: Sequence[Judgement], pair: Pair, figures: Figures) -> Judgement:
    """Return the judgement that follows on `former`."""
    pairs, sides = pools_of(former, pair)
    level = next_level([each.is_kept for each in former])
    return Judgement(len(former) + 1, pair, figures, decide(figures, pairs, sides, level, pair.least_gain))


def pools_of(former: Sequence[Judgement], pair: Pair) -> tuple[Pool, Pool]:
    """Return the spread of the other pairs, and that of the other sides, in the judgements of this text.

    Of each the judgement with the most seeds counts, and none that is far wider than the others.
    """
    pairs: dict[tuple[str, str], Side] = {}
    sides: dict[str, Side] = {}
    for judged in former:
        if judged.pair.text == pair.text:
            figures = judged.figures
            base = judged.pair.base_tree
            candidate = judged.pair.candidate_tree
            of_base = Side(figures.base_sd, figures.base_seeds, False)
            of_candidate = Side(figures.candidate_sd, figures.seeds, judged.decision.has_wide_candidate)
            pairs[base, candidate] = Side(figures.pairs_sd, figures.seeds, judged.decision.has_wide_pairs)
            for tree, side in ((base, of_base), (candidate, of_candidate)):
                if tree not in sides or sides[tree].seeds <= side.seeds:
                    sides[tree] = side
    pairs.pop((pair.base_tree, pair.candidate_tree), None)
    for tree in (pair.base_tree, pair.candidate_tree):
        sides.pop(tree, None)
    return pool_of(pairs.values()), pool_of(sides.values())


def pool_of(sides: Iterable[Side]) -> Pool:
    """Return the pool of those that are not too wide."""
    pool = EMPTY
    for side in sides:
        if not side.is_wide:
            pool = pool.joined(side.sd, side.seeds)
    return pool


def columns() -> list[str]:
    """Return the names of the columns."""
    decided = ["method", "difference", "standard_error", "degrees_of_freedom", "p", "level", "answer", "more_seeds"]
    return ["judgement", *Pair._fields, *Figures._fields, *decided]


def written(value: object) -> str:
    """Return a value as the file has it."""
    if value is None:
        return ""
    return f"{value:.{DIGITS}f}" if isinstance(value, float) else str(value)


def row_of(judgement: Judgement) -> list[str]:
    """Return a row of the file; p and level have four significant digits."""
    row = judgement.as_dict()
    row |= {name: f"{getattr(judgement.decision, name):.4g}" for name in ("p", "level")}
    row["degrees_of_freedom"] = f"{judgement.decision.measured.degrees_of_freedom:g}"
    return [written(row[name]) for name in columns()]


def write_judgements(judgements: Sequence[Judgement], path: Path = JUDGEMENTS) -> None:
    """Write the file, complete or not at all."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns())
    writer.writerows(row_of(judgement) for judgement in judgements)
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "w", encoding="utf-8", newline="") as file:
        file.write(text.getvalue())
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def read_judgements(path: Path = JUDGEMENTS) -> list[Judgement]:
    """Read the file, [] if there is none.

    Raise Forged if a line is not a row, or what was decided does not follow from the rows before. A row that is missing
    at the end is not noticed: the history of the file in Git shows it.
    """
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    if any(line.startswith(CONFLICT) for line in text.splitlines()):
        remedy = "keep the rows of one side, and judge the changes of the other side again"
        raise Forged(f"{path}: a merge left conflicts in it; {remedy}")
    rows = list(csv.reader(io.StringIO(text)))
    if not rows or rows[0] != columns():
        raise Forged(f"{path}: line 1 must be {','.join(columns())}; {RESTORE}")

    judgements: list[Judgement] = []
    for line, row in enumerate(rows[1:], start=2):
        pair, figures = parse(row, f"{path}: line {line}")
        judgement = judge(judgements, pair, figures)
        reject_difference(row, row_of(judgement), f"{path}: line {line}", "the rows above and its own figures")
        judgements.append(judgement)
    return judgements


def parse(row: list[str], where: str) -> tuple[Pair, Figures]:
    """Return what a row judged and its figures; Forged if a value is missing or of another type."""
    if len(row) != len(columns()):
        raise Forged(f"{where}: {len(row)} values; there must be {len(columns())}; {RESTORE}")
    texts = dict(zip(columns(), row, strict=True))
    try:
        pair = Pair(
            base=texts["base"],
            candidate=texts["candidate"],
            base_tree=texts["base_tree"],
            candidate_tree=texts["candidate_tree"],
            change=texts["change"],
            text=texts["text"],
            first_seed=int(texts["first_seed"]),
            least_gain=float(texts["least_gain"]),
        )
        figures = Figures(
            seeds=int(texts["seeds"]),
            base_seeds=int(texts["base_seeds"]),
            base_mean=float(texts["base_mean"]),
            candidate_mean=float(texts["candidate_mean"]),
            pairs_mean=float(texts["pairs_mean"]),
            base_sd=float(texts["base_sd"]),
            candidate_sd=float(texts["candidate_sd"]),
            pairs_sd=float(texts["pairs_sd"]),
            documents_low=number_or_none(texts["documents_low"]),
            documents_high=number_or_none(texts["documents_high"]),
        )
    except ValueError as error:
        raise Forged(f"{where}: {error}; {RESTORE}") from None
    if not 2 <= figures.seeds <= figures.base_seeds:
        found = f"seeds is {figures.seeds} and base_seeds {figures.base_seeds}"
        raise Forged(f"{where}: {found}; there must be 2 or more, and the base must have as many; {RESTORE}")
    return pair, figures


def number_or_none(text: str) -> float | None:
    """Return the number in a column that may be empty."""
    return float(text) if text else None


def reject_difference(recorded: list[str], found: list[str], where: str, source: str) -> None:
    """Raise Forged if a recorded row is not the row that was found; `source` says from what."""
    for name, old, new in zip(columns(), recorded, found, strict=True):
        if old != new:
            raise Forged(f"{where}: {name} is {old}, and {source} give {new}: the file was edited; {RESTORE}")
