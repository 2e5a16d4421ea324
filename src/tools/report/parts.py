"""Parts of the report that are words and tables: records of the pipeline in, HTML out."""

import json
import re
import subprocess
from pathlib import Path

from tools.common.revisions import flatten
from tools.report import html

BOOKS = {"data.source": "sources", "tokenizer.name": "tokenizers", "model.name": "models"}
SPLITS = ("train", "validation")


def readable(value) -> str:
    """A figure with as many digits as one reads."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) else "–" if value is None else str(value)


def figures_table(record: dict) -> str:
    """Dotted names and readable values of a record; nothing of an empty one."""
    rows = [[name, readable(value)] for name, value in flatten(record).items()]
    return html.table(rows) if rows else ""


def took(timed: dict) -> str:
    """The seconds of training, as the end of a sentence; nothing where they are not known."""
    seconds = timed.get("train_seconds")
    return "" if seconds is None else f", {seconds:,.{0 if seconds >= 10 else 1}f} seconds of training"


def verdict_scored(scored: dict, trained: dict, timed: dict) -> str:
    """How good the model is, of metrics/eval.json, train.json and timing.json; the latter two may be empty."""
    error = "" if scored["bits_per_byte_se"] is None else f" ± {scored['bits_per_byte_se']:.3f}"
    tokens = f", {trained['tokens_seen']:,} tokens seen" if trained else ""
    line = f"{scored['bits_per_byte']:.3f}{error} bits per byte{tokens}{took(timed)}."
    return html.paragraph(line, "verdict") + html.paragraph(meaning(scored), "note")


def meaning(scored: dict) -> str:
    """What the figure and its error are."""
    if scored["bits_per_byte_se"] is None:
        text = "One validation document has no standard error."
    else:
        text = (
            f"± is one standard error over the {scored['documents']:,} validation documents: how far other documents "
            "of the kind would move the figure. It says nothing of other seeds; a difference between two runs on the "
            "same documents is known far better (python src compare)."
        )
    if "entropy" in scored:
        text += f" {scored['entropy']['floor_bits_per_byte']:.3f} of it is the entropy of the text itself."
    return text


def verdict_training(validation: dict, planned_tokens: int, timed: dict, finished: bool) -> str:
    """How far a run has come, of validation.csv as `figure.read_csv` gives it."""
    if not validation:
        return html.paragraph("Nothing is trained yet.", "verdict")
    state = "Trained, not evaluated yet" if finished else "Not finished"
    line = f"{state}: {validation['val_loss'][-1]:.3f} nats per token on validation text"
    tokens = f"after {validation['tokens'][-1]:,.0f} of {planned_tokens:,} tokens"
    return html.paragraph(f"{line} {tokens}{took(timed)}.", "verdict")


def samples(text: str) -> str:
    """What eval wrote as Markdown: a title, facts and the text of each sample; of any other form as it stands."""
    settings, *drawn = re.split(r"^## (?=\d+\. `)", text, flags=re.M)
    if not drawn:
        return html.preformatted(text)
    parts = [html.paragraph(settings.removeprefix("# Samples").strip(), "note")]
    for each in drawn:
        name, _, rest = each.partition("\n")
        facts, _, fenced = rest.partition("```text\n")
        parts += [html.heading(name.replace("`", "")), html.paragraph(facts.strip(), "note")]
        parts.append(html.preformatted(fenced.rpartition("\n```")[0]))
    return "".join(parts)


def origin(manifest: dict) -> str:
    """What data/raw/manifest.json says but for its files."""
    return figures_table({name: value for name, value in manifest.items() if name not in ("splits", "format_version")})


def counts(card: dict) -> str:
    """Of metrics/data.json: documents, text and duplicates by split, and what concerns both."""
    names = dict.fromkeys(name for split in SPLITS for name in card[split])
    rows = [[name, *(readable(card[split].get(name)) for split in SPLITS)] for name in names]
    kinds = card["duplicates"]["train"]
    rows += [
        [f"duplicates, {kind}", *(readable(card["duplicates"][split][kind]) for split in SPLITS)] for kind in kinds
    ]
    both = {name: value for name, value in card.items() if name not in (*SPLITS, "source", "duplicates")}
    return html.table(rows, ["documents and text", *SPLITS]) + figures_table(both)


def parameters(params: dict, recorded: dict, lock: Path) -> str:
    """The chosen ones of params.yaml, and those that `lock` records its results with where they differ."""
    tables, num_changed = [], 0
    for section in chosen(params):
        rows = []
        for name, value in flatten(section).items():
            changed = recorded.get(name, value) != value
            rows.append([name, json.dumps(value, ensure_ascii=False) + (f", was {recorded[name]}" if changed else "")])
            num_changed += changed
        tables.append(html.table(rows))
    words = f"{num_changed} of them are not what {lock} records of the last results."
    return (html.paragraph(words) if num_changed else "") + html.columns(*tables)


def chosen(params: dict) -> tuple[dict, dict]:
    """Two mappings: the sections that each run uses, and of each book the chosen entry under its dotted name."""
    own = {name: value for name, value in params.items() if name not in BOOKS.values()}
    picked = flatten({section: params[section] for section in ("data", "tokenizer", "model")})
    return own, {f"{book}.{picked[selector]}": params[book][picked[selector]] for selector, book in BOOKS.items()}


def commit() -> str:
    """HEAD, and whether files differ from it."""
    try:
        head, changes = (
            subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout.strip()
            for words in (("rev-parse", "HEAD"), ("status", "--porcelain"))
        )
    except (OSError, subprocess.CalledProcessError):
        return "not known: no git repository with a commit is here"
    count = len(changes.splitlines())
    return f"{head}, {f'dirty, files that differ: {count}' if count else 'clean'}"
