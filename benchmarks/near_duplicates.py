"""How well the near-duplicate rule finds planted edits, and what selecting from a gigabyte of text takes.

    PYTHONPATH=src python benchmarks/near_duplicates.py --code ../shared/data/c-sample.parquet

Each edit changes every document of a corpus, which then holds the originals and their edited copies. Recall is the
fraction of copies in a cluster with their originals. Precision is the fraction of dropped documents that are such
copies, or whose exact sets of n-grams are as similar to those of the document that stays as the threshold says. Times
are of the processor, so that other work on the machine matters little. Writes benchmarks/results/near_duplicates.json.
"""

import argparse
import dataclasses
import itertools
import random
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from harness import hardware, versions
from lm.core.files import read_json, write_json
from lm.core.params import read_section
from lm.text.duplicates import digest
from lm.text.near_duplicates import NearDuplicates, find_clusters, ngram_hashes
from lm.text.parquet import describe_split, write_documents
from lm.text.rules import MEASURES, RULES, Selection, alphanumeric_table, first_broken_rules
from lm.text.sources.stories.grammar import story
from stages import ROOT, change_params, run_stage, stage_folder

RESULTS = ROOT / "benchmarks" / "results"
THRESHOLDS = (0.7, 0.8, 0.85, 0.9)
MIN_WORDS = 50  # of a document; 1 % of fewer words is not a whole word
RULES_MEGABYTES, CORPUS_MEGABYTES = 200, (250, 1000)
COPIES = 0.2  # of the documents of the large corpus


def change_words(fraction: float) -> Callable:
    """Return an edit that puts another word of the corpus in the place of a fraction of the words."""

    def edit(words: list[str], others: list[str], draw: random.Random) -> list[str]:
        changed = list(words)
        for i in draw.sample(range(len(words)), max(1, round(fraction * len(words)))):
            changed[i] = draw.choice(others)
        return changed

    return edit


def remove_passage(fraction: float) -> Callable:
    """Return an edit that leaves out a passage."""

    def edit(words: list[str], others: list[str], draw: random.Random) -> list[str]:
        length = round(fraction * len(words))
        begin = draw.randrange(len(words) - length + 1)
        return words[:begin] + words[begin + length :]

    return edit


def append_passage(fraction: float) -> Callable:
    """Return an edit that appends a passage of another document."""

    def edit(words: list[str], others: list[str], draw: random.Random) -> list[str]:
        length = min(round(fraction * len(words)), len(others))
        begin = draw.randrange(len(others) - length + 1)
        return words + others[begin : begin + length]

    return edit


EDITS = {f"{percent} % of the words changed": change_words(percent / 100) for percent in (1, 5, 10, 20)}
EDITS |= {f"{percent} % of the words removed, as one passage": remove_passage(percent / 100) for percent in (10, 25)}
EDITS |= {f"{percent} % appended, from another document": append_passage(percent / 100) for percent in (10, 25)}


def similarity(a: str, b: str, ngram_words: int) -> float:
    """Return the exact Jaccard similarity of the sets of n-grams of two texts."""
    hashes, offsets = ngram_hashes([a, b], ngram_words)
    first, second = (np.unique(hashes[begin:end]) for begin, end in itertools.pairwise(offsets))
    both = len(np.intersect1d(first, second, assume_unique=True))
    return both / (len(first) + len(second) - both)


def is_wrong(texts: list[str], clusters: np.ndarray, dropped: int, params: NearDuplicates) -> bool:
    """Return whether a dropped document is neither similar to the one that stays nor in a cluster with its original."""
    original = dropped - len(texts) // 2  # the copies come after the originals
    if original >= 0 and clusters[original] == clusters[dropped]:
        return False
    return similarity(texts[dropped], texts[clusters[dropped]], params.ngram_words) < params.threshold


def measure_edit(originals: list[str], edit: Callable, params: NearDuplicates) -> dict:
    """Return the mean similarity of the copies, and recall and precision for each threshold."""
    draw = random.Random(1)
    words = [text.split(" ") for text in originals]
    copies = [" ".join(edit(own, draw.choice(words), draw)) for own in words]
    texts, count = [*originals, *copies], len(originals)
    exact = [similarity(a, b, params.ngram_words) for a, b in zip(originals, copies, strict=True)]
    found = {"similarity": float(np.mean(exact)), "recall": {}, "precision": {}}
    for threshold in THRESHOLDS:
        own = dataclasses.replace(params, threshold=threshold)
        clusters = find_clusters([texts], own)
        dropped = np.flatnonzero(clusters != np.arange(len(texts))).tolist()
        num_wrong = sum(is_wrong(texts, clusters, document, own) for document in dropped)
        found["recall"][threshold] = float((clusters[count:] == clusters[:count]).mean())
        found["precision"][threshold] = 1 - num_wrong / len(dropped) if dropped else None
    return found


def measure_originals(originals: list[str], params: NearDuplicates) -> dict:
    """Return for each threshold the fraction of the documents that are dropped although nothing was planted."""
    found = {}
    for threshold in THRESHOLDS:
        clusters = find_clusters([originals], dataclasses.replace(params, threshold=threshold))
        found[threshold] = float((clusters != np.arange(len(originals))).mean())
    return found


def varied(sources: list[str], num_bytes: int) -> Iterator[str]:
    """Yield documents of about 2,000 characters, lines of the sources in random order; some are edited copies."""
    draw, total, edit = random.Random(2), 0, change_words(0.01)
    lines = sorted({line for text in sources for line in text.split("\n") if len(line) > 20})
    text = ""
    while total < num_bytes:
        if text and draw.random() < COPIES:
            text = " ".join(edit(text.split(" "), lines[0].split(" "), draw))
        else:
            numbers = f"{draw.getrandbits(64):x} "
            text = numbers + "\n".join(draw.choices(lines, k=draw.randrange(10, 70)))
        total += len(text.encode())
        yield text


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the seconds of the processor that a function takes."""
    start = time.process_time()
    work()
    return time.process_time() - start


def measure_rules(texts: list[str], filtered: Selection) -> dict[str, float]:
    """Return the megabytes of text per second of each rule, alone."""
    off = read_section(ROOT / "presets.yaml", "selections.none", Selection)
    megabytes, rates = sum(len(text.encode()) for text in texts) / 1e6, {}
    alphanumeric_table()
    batches = [texts[i : i + 500] for i in range(0, len(texts), 500)]
    for rule in MEASURES:
        alone = dataclasses.replace(off, **{rule: getattr(filtered, rule)})
        rates[rule] = megabytes / cpu_seconds(lambda alone=alone: [first_broken_rules(b, alone) for b in batches])
    rates["exact_duplicates"] = megabytes / cpu_seconds(lambda: [digest(text) for text in texts])
    search = filtered.near_duplicates.search(filtered.near_duplicates.threshold)
    rates["near_duplicates"] = megabytes / cpu_seconds(lambda: find_clusters(batches, search))
    return {rule: rates[rule] for rule in RULES}


def measure_stage(folder: Path, texts: Iterator[str]) -> dict:
    """Return what the stage select takes for a corpus, and what it drops."""
    stage_folder(folder)
    names = {"data.source": "large", "selection.name": "filtered"}
    slices = {"train": {"split": "train", "start_char": 0, "num_chars": None}}
    change_params(folder, names, "params.yaml")
    change_params(folder, {"sources.large": slices | {"validation": slices["train"] | {"split": "validation"}}})
    raw = folder / "data" / "raw"
    write_documents(raw / "validation" / "0000.parquet", [next(texts) for _ in range(1000)])
    write_documents(raw / "train" / "0000.parquet", texts)
    splits = {split: describe_split(raw, split, "text") for split in ("train", "validation")}
    write_json(raw / "manifest.json", {"source": "large", "column": "text", "splits": splits})
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ran = run_stage(folder, "select")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    counts = [split for split in read_json(folder / "data/selection/details.json")["documents"]["large"].values()]
    return {
        "utf8_bytes": sum(split["utf8_bytes"] for split in splits.values()),
        "documents": sum(split["documents"] for split in counts),
        "kept": sum(split["kept"] for split in counts),
        "cpu_seconds": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        "peak_rss_gib": ran["peak_rss_gib"],
    }


def main() -> None:
    """Measure recall, precision, the rules and the stage; write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--code", type=Path, required=True, help="parquet file of source files, column `content`")
    parser.add_argument("--out", type=Path, default=RESULTS / "near_duplicates.json")
    args = parser.parse_args()
    filtered = read_section(ROOT / "presets.yaml", "selections.filtered", Selection)
    params = filtered.near_duplicates.search(filtered.near_duplicates.threshold)
    code = [text for text in pq.read_table(args.code)["content"].to_pylist() if text]
    corpora = {"stories": [story(1, i).text for i in range(1000)], "C files": code}
    planted, unchanged = {}, {}
    for name, texts in corpora.items():
        originals = [text for text in texts if len(text.split(" ")) >= MIN_WORDS]
        unchanged[name] = measure_originals(originals, params)
        planted[name] = {label: measure_edit(originals, edit, params) for label, edit in EDITS.items()}
        print(name, unchanged[name], *planted[name].items(), sep="\n", flush=True)
    sample = list(varied(code, RULES_MEGABYTES * 10**6))
    rules = measure_rules(sample, filtered)
    print(rules, flush=True)
    stages = []
    for megabytes in CORPUS_MEGABYTES:
        folder = Path(tempfile.mkdtemp())
        stages.append(measure_stage(folder, varied(code, megabytes * 10**6)))
        shutil.rmtree(folder)
        print(stages[-1], flush=True)
    results = {
        "hardware": hardware(), "versions": versions("rensa", "numpy", "pyarrow"), "parameters": vars(params),
        "documents": {name: sum(len(t.split(" ")) >= MIN_WORDS for t in texts) for name, texts in corpora.items()},
        "unchanged_dropped": unchanged, "planted": planted, "megabytes_per_cpu_second": rules, "stages": stages,
    }  # fmt: skip
    write_json(args.out, results)


if __name__ == "__main__":
    main()
