"""judgements.csv: a row for each judgement, in Git; every row's level and answer follow from the rows before it."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from evidence.judge.levels import next_level
from lm.core.errors import IntegrityError
from lm.core.files import write_text
from tools.judge.decision import DIGITS, Decision, Figures, Noise, Spread, decide, pooled_noise

JUDGEMENTS = Path("judgements.csv")
RESTORE = f"`git restore {JUDGEMENTS}` brings the committed file back"
CONFLICT = "<<<<<<< "


class Pair(NamedTuple):
    """What was judged: two commits, with the same seeds, on the same text and with the same number of tokens."""

    base: str
    candidate: str
    base_tree: str  # hash of the files of the commit, which is equal for a change that was made and undone
    candidate_tree: str
    change: str  # first line of the candidate's message
    text: str  # SHA-256 of the validation text
    tokens: int  # of a run of the candidate
    first_seed: int


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
        """Return whether it judged the files of these commits with these seeds."""
        own = (self.pair.base_tree, self.pair.candidate_tree, self.pair.first_seed, self.figures.seeds)
        return own == (pair.base_tree, pair.candidate_tree, pair.first_seed, seeds)

    def as_dict(self) -> dict[str, object]:
        """Return the columns of the row by name."""
        noise, p, level, answer, more_seeds, _ = self.decision
        return {
            "judgement": self.number,
            **self.pair._asdict(),
            **self.figures._asdict(),
            "noise_sd": noise.sd,
            "noise_degrees_of_freedom": noise.degrees_of_freedom,
            "p": p,
            "level": level,
            "answer": answer,
            "more_seeds": more_seeds,
        }


def judge(former: Sequence[Judgement], pair: Pair, figures: Figures) -> Judgement:
    """Return the judgement that follows on `former`."""
    noise = noise_of(former, pair, figures)
    level = next_level([each.is_kept for each in former])
    return Judgement(len(former) + 1, pair, figures, decide(figures, noise, level))


def noise_of(former: Sequence[Judgement], pair: Pair, figures: Figures) -> Noise:
    """Return the noise of seeds in this judgement and in those before it of the same text and number of tokens.

    Of equal files the judgement with the most seeds counts.
    """
    spreads: dict[str, Spread] = {}
    of_this_size = [each for each in former if (each.pair.text, each.pair.tokens) == (pair.text, pair.tokens)]
    for judged, found in [*((each.pair, each.figures) for each in of_this_size), (pair, figures)]:
        sides = {judged.base_tree: found.base_sd, judged.candidate_tree: found.candidate_sd}
        for tree, sd in sides.items():
            if tree not in spreads or spreads[tree].seeds < found.seeds:
                spreads[tree] = Spread(sd, found.seeds)
    return pooled_noise(spreads)


def columns() -> list[str]:
    """Return the names of the columns."""
    decided = ["noise_sd", "noise_degrees_of_freedom", "p", "level", "answer", "more_seeds"]
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
    return [written(row[name]) for name in columns()]


def write_judgements(judgements: Sequence[Judgement], path: Path = JUDGEMENTS) -> None:
    """Write the file, complete or not at all."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns())
    writer.writerows(row_of(judgement) for judgement in judgements)
    write_text(path, file.getvalue())


def read_judgements(path: Path = JUDGEMENTS) -> list[Judgement]:
    """Read the file, [] if there is none.

    Raise IntegrityError if a line is not a row, or if a noise, level or answer does not follow from the rows before.
    """
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    if any(line.startswith(CONFLICT) for line in text.splitlines()):
        remedy = "keep the rows of one side, and judge the changes of the other side again"
        raise IntegrityError(f"{path}: a merge left conflicts in it; {remedy}")
    rows = list(csv.reader(io.StringIO(text)))
    if not rows or rows[0] != columns():
        raise IntegrityError(f"{path}: line 1 must be {','.join(columns())}; {RESTORE}")

    judgements: list[Judgement] = []
    for line, row in enumerate(rows[1:], start=2):
        pair, figures = parse(row, f"{path}: line {line}")
        judgement = judge(judgements, pair, figures)
        reject_difference(row, row_of(judgement), f"{path}: line {line}", "the rows above and its own figures")
        judgements.append(judgement)
    return judgements


def parse(row: list[str], where: str) -> tuple[Pair, Figures]:
    """Return what a row judged and its figures; IntegrityError if a value is missing or of another type."""
    if len(row) != len(columns()):
        raise IntegrityError(f"{where}: {len(row)} values; there must be {len(columns())}; {RESTORE}")
    texts = dict(zip(columns(), row, strict=True))
    try:
        pair = Pair(
            base=texts["base"],
            candidate=texts["candidate"],
            base_tree=texts["base_tree"],
            candidate_tree=texts["candidate_tree"],
            change=texts["change"],
            text=texts["text"],
            tokens=int(texts["tokens"]),
            first_seed=int(texts["first_seed"]),
        )
        figures = Figures(
            seeds=int(texts["seeds"]),
            base_bpb=float(texts["base_bpb"]),
            candidate_bpb=float(texts["candidate_bpb"]),
            difference=float(texts["difference"]),
            base_sd=float(texts["base_sd"]),
            candidate_sd=float(texts["candidate_sd"]),
            seeds_low=number_or_none(texts["seeds_low"]),
            seeds_high=number_or_none(texts["seeds_high"]),
            documents_low=number_or_none(texts["documents_low"]),
            documents_high=number_or_none(texts["documents_high"]),
        )
    except ValueError as error:
        raise IntegrityError(f"{where}: {error}; {RESTORE}") from None
    if abs(figures.candidate_bpb - figures.base_bpb - figures.difference) > 2 * 10**-DIGITS:
        raise IntegrityError(f"{where}: difference is not candidate_bpb - base_bpb: the file was edited; {RESTORE}")
    if figures.seeds < 2:
        raise IntegrityError(f"{where}: seeds is {figures.seeds}; it must be at least 2; {RESTORE}")
    return pair, figures


def number_or_none(text: str) -> float | None:
    """Return the number in a column that may be empty."""
    return float(text) if text else None


def reject_difference(recorded: list[str], found: list[str], where: str, source: str) -> None:
    """Raise IntegrityError if a recorded row is not the row that was found; `source` says from what."""
    for name, old, new in zip(columns(), recorded, found, strict=True):
        if old != new:
            raise IntegrityError(f"{where}: {name} is {old}, and {source} give {new}: the file was edited; {RESTORE}")
