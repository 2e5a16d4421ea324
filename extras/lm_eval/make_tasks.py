"""Make two tasks for lm_eval from text: the perplexity of documents, and which ending follows a beginning.

    python src make_tasks tasks/stories --source stories/ more.parquet --column text

The folder's name begins the names of the tasks, stories_perplexity and stories_endings. The second one shows text from
the middle of a document and four endings: the one that follows, and those of three other documents, in an order that
has the right one at each place equally often. Files are read as for data.source local. The same files, options and
seed give the same bytes.
"""

import argparse
import json
import re
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml

from lm.core.errors import DataError, ParamsError, exit_with_status
from lm.core.files import write_text
from lm.text.sources.local import find_files
from lm.text.sources.text_files import TextFile
from tools.common.arguments import tool_parser

NUM_ENDINGS = 4
SPACE = re.compile(r"(?<=\S) (?=\S)")  # between two words: every pre-tokenizer cuts before it

# Metrics and how lm-eval aggregates them. acc_norm divides the log-likelihood of an ending by its characters.
PERPLEXITY = {f"{unit}_perplexity": "weighted_perplexity" for unit in ("word", "byte")}
PERPLEXITY |= {"bits_per_byte": "bits_per_byte"}
ACCURACY = {"acc": "mean", "acc_norm": "mean"}
TEXT = {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "text"}
CHOICES = {"output_type": "multiple_choice", "doc_to_text": "beginning", "doc_to_target": "label"}
CHOICES |= {"doc_to_choice": "endings", "target_delimiter": ""}
TASKS = (("perplexity", "documents.jsonl", TEXT, PERPLEXITY), ("endings", "endings.jsonl", CHOICES, ACCURACY))


class Item(NamedTuple):
    """Text from the middle of a document and the text that follows it, from a space on."""

    beginning: str
    ending: str


def parse(argv: list[str]) -> argparse.Namespace:
    parser = tool_parser("make_tasks", __doc__)
    add = parser.add_argument
    add("folder", type=Path, help="the folder to write; its name begins the names of the tasks")
    add("--source", type=Path, nargs="+", required=True, help="files, or folders of files")
    add("--column", default="text", help="column of the text in .parquet, .csv and .jsonl files (text)")
    add("--num_documents", type=int, default=500, help="documents to draw from all (500)")
    add("--beginning_chars", type=int, default=200, help="characters of a beginning (200)")
    add("--ending_chars", type=int, default=100, help="characters of an ending, up to the next space (100)")
    add("--seed", type=int, default=1, help="seed of the draw and of the wrong endings (1)")
    args = parser.parse_args(argv)
    for name in ("num_documents", "beginning_chars", "ending_chars", "seed"):
        if (value := getattr(args, name)) < (least := int(name != "seed")):
            raise ParamsError(f"--{name} is {value}; it must be at least {least}")
    if not re.fullmatch(r"[\w-]+", args.folder.resolve().name):
        raise ParamsError(f"{args.folder}: its name must be of letters, digits, - and _, as it begins the task names")
    if missing := [path for path in args.source if not path.exists()]:
        raise ParamsError(f"--source: {missing[0]} does not exist")
    return args


def read_texts(sources: list[Path], column: str) -> list[str]:
    """Return all documents with text, in the order of the sources and of their paths."""
    try:
        files = [file for source in sources for file in find_files(source, "**/*")]
        texts = [text for file in files for text in TextFile(file, column, None).documents()]
    except DataError as error:  # names the parameter of the stage fetch
        raise DataError(str(error).replace("sources.local.fetch.column", "--column")) from None
    return [text for text in texts if text and text.strip()]


def cut_in_the_middle(text: str, beginning_chars: int, ending_chars: int) -> Item | None:
    """Return the text before and after the middle, about of these lengths, cut at spaces; None if it is too short."""
    middle = SPACE.search(text, len(text) // 2)
    end = middle and SPACE.search(text, middle.start() + ending_chars)
    if not middle or not end:
        return None
    first = middle.start() - beginning_chars
    start = SPACE.search(text, first) if first > 0 else None
    beginning = text[start.end() if start else 0 : middle.start()]
    return Item(beginning, text[middle.start() : end.start()]) if beginning.strip() else None


def make_choices(items: list[Item], rng: np.random.Generator) -> list[dict]:
    """Return a question per item: the endings, and as `label` the place of the right one, each place equally often."""
    endings = [item.ending for item in items]
    if (num_found := len(set(endings))) < NUM_ENDINGS:
        needed = f"{NUM_ENDINGS} different endings are needed"
        raise DataError(f"the documents have {num_found}, and {needed}; give more or longer documents")
    rows = []
    for item, label in zip(items, rng.permutation(np.arange(len(items)) % NUM_ENDINGS).tolist(), strict=True):
        others = dict.fromkeys(endings[other] for other in rng.permutation(len(items)))
        choices = list(islice((ending for ending in others if ending != item.ending), NUM_ENDINGS - 1))
        choices.insert(label, item.ending)
        rows.append({"beginning": item.beginning, "endings": choices, "label": label})
    return rows


def describe_task(name: str, data: str, fields: dict[str, str], metrics: dict[str, str]) -> str:
    """Return a task's YAML; `fields` name what lm-eval takes from a row of the data, `metrics` their aggregations."""
    task = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": data}},
        "test_split": "test",
        **fields,
        "metric_list": [
            {"metric": metric, "aggregation": aggregation, "higher_is_better": metrics is ACCURACY}
            for metric, aggregation in metrics.items()
        ],
        "metadata": {"version": 1},
    }
    return yaml.safe_dump(task, sort_keys=False)


def write_rows(path: Path, rows: list[dict]) -> None:
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


@exit_with_status
def main(argv: list[str]) -> None:
    args = parse(argv)
    folder = args.folder.resolve()
    rng = np.random.default_rng(args.seed)

    # Draw documents; they stay in order.
    texts = read_texts(args.source, args.column)
    drawn = [texts[i] for i in sorted(rng.permutation(len(texts))[: args.num_documents].tolist())]

    # Cut a beginning and its ending out of each that is long enough.
    cut = (cut_in_the_middle(text, args.beginning_chars, args.ending_chars) for text in drawn)
    questions = make_choices([item for item in cut if item], rng)

    # Write the data first, so that a description never lacks it.
    write_rows(folder / "documents.jsonl", [{"text": text} for text in drawn])
    write_rows(folder / "endings.jsonl", questions)
    for name, data, fields, metrics in TASKS:
        write_text(folder / f"{name}.yaml", describe_task(f"{folder.name}_{name}", data, fields, metrics))
    print(f"{folder}: {len(drawn)} documents of {len(texts)}, {len(questions)} questions")
