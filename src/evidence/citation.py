"""A comparison as a table to cite, in Markdown or LaTeX."""

import re

from evidence.answer import interval, p_text, percent_of, signature
from evidence.difference import Comparisons
from evidence.runs import Group

LATEX = {sign: f"\\{sign}" for sign in "&%$#_{}"}  # characters that mean something else in LaTeX
LATEX |= {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}
LATEX |= {"≤": r"$\le$", "<": "$<$", "±": r"$\pm$", "…": r"\dots{}", "`": ""}


def citation(found: Comparisons, is_latex: bool = False, source: str = "", where: str = "") -> list[str]:
    """Return the lines of a table with its caption, a row for each group.

    source, where: what the documents are of; which code and text were used.
    """
    first = found.groups[0]
    run = first.runs[0]
    header = ["run", "seeds", run.measure.unit, "difference", "over documents", "over seeds", "p"]
    rows = [header, [*cells_of(first), *"––––"]]
    for each in found.differences:
        p = p_text(each).removeprefix("= ")
        delta = f"{each.deciding.value:+.4f}"
        rows.append([*cells_of(each.whole_b), delta, interval(each.documents), interval(each.seeds), p])

    # The row of a group counts all of its runs, a difference only those with a partner.
    partners = ""
    for each in found.differences:
        if each.left_out:
            left_out = ", ".join(f"`{name}`" for name in each.left_out)
            partners += f" The difference of `{each.b.name}` leaves out {left_out}, without a partner."

    # A single loss of each run has no documents.
    documents = f" on {len(run.sizes):,} documents{source}"
    over_documents = "over documents for these models, and "
    if len(run.sizes) == 1:
        documents = over_documents = ""
        for row in rows:
            del row[4]

    percent = percent_of(found.options.confidence)
    caption = (
        f"Values in {run.measure.unit}{documents}; {run.measure.better} is better. Differences are to "
        f"`{first.name}`, with {percent} intervals {over_documents}over seeds (of pairs of equal seeds, or Welch "
        "1947). ± is the standard deviation over seeds, and p that of the interval over seeds if it is known, after "
        f"Holm's correction.{partners}{where}"
    )
    signatures = dict.fromkeys(f"Signature: {signature(each)}" for each in found.differences)
    if not is_latex:
        rows.insert(1, ["---"] * len(header))
        lines = [f"| {' | '.join(cells)} |" for cells in rows]
        return [*lines, "", f"Table: {caption}", *signatures]

    first_row, *others = [" & ".join(in_latex(cell) for cell in cells) + r" \\" for cells in rows]
    return [
        *[f"% {each}" for each in signatures],
        r"\begin{table}",
        rf"\caption{{{in_latex(caption)}}}",
        rf"\begin{{tabular}}{{l{'r' * len(header[1:])}}}",
        r"\toprule",
        first_row,
        r"\midrule",
        *others,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]


def in_latex(text: str) -> str:
    """Return text as LaTeX prints it, with minus signs in place of the hyphens of numbers."""
    text = "".join(LATEX.get(sign, sign) for sign in text)
    return re.sub(r"(?<![\w-])-(?=\d)", "$-$", text)


def cells_of(group: Group) -> list[str]:
    """Return the cells of a group that do not compare it."""
    deviation = f" ± {group.scores.std(ddof=1):.4f}" if len(group.runs) > 1 else ""
    return [group.name, str(len(group.runs)), f"{group.scores.mean():.4f}{deviation}"]
