"""compare_tasks: the difference of two runs on the items of lm-eval, as its --log_samples writes them."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from extras.lm_eval.compare_tasks import main
from support.refusal import refused
from tools.common.statistics import clustered_difference, holm, p_text

NUM_ITEMS = 120


def write(folder: Path, task: str, seed: int, rate: float, **changes) -> np.ndarray:
    """Write the items of a task, four about each passage, that a model has right with a probability of `rate`."""
    right = (np.random.default_rng(seed).random(NUM_ITEMS) < rate).astype(float)
    lines = []
    for number, acc in enumerate(right.tolist()):
        doc = {"passage": f"about {number // 4}\u2028", "question": number}
        hashes = {"doc_hash": f"d{number}", "prompt_hash": f"p{number}"}
        sample = {"doc_id": number, "doc": doc, "filter": "none", "metrics": ["acc"], "acc": acc, **hashes, **changes}
        lines += [sample, sample | {"filter": "strict", "acc": 1 - acc}]
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (folder / f"samples_{task}_2026-11-24T10-00-00.123456.jsonl").write_text(text)
    return right


@pytest.fixture
def compare(tmp_path, monkeypatch, capsys):
    """The command in a folder: (exit status, cells by first cell, standard error)."""
    monkeypatch.chdir(tmp_path)

    def run_it(*arguments: str):
        status, (output, error) = main(list(arguments)), capsys.readouterr()
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in output.splitlines()]
        return status, {row[0]: row[1:] for row in rows if row}, error

    return run_it


def test_items_are_paired_by_document_and_p_is_corrected_for_the_tasks(compare):
    tasks = {"easy": 0.9, "hard": 0.63, "some": 0.5}
    passages = np.arange(NUM_ITEMS) // 4
    found = []
    for seed, (task, rate) in enumerate(tasks.items()):
        a, b = (write(Path(name), task, 10 * seed + i, r) for i, (name, r) in enumerate((("a/m", 0.5), ("b", rate))))
        found.append(clustered_difference(b - a, np.ones(NUM_ITEMS), passages))
    (Path("b") / "samples_alone.jsonl").write_text((Path("b") / next(Path("b").iterdir()).name).read_text())
    status, rows, _ = compare("a", "b", "--document", "passage")
    assert status == 0 and "task, metric" in rows and len(rows) == 2 + len(tasks)
    for task, difference, adjusted in zip(tasks, found, holm(found), strict=True):
        row = rows[f"{task}, acc"]
        assert row[:2] == ["120", "30"] and row[4] == f"{difference.value:+.4f}"
        assert row[5:7] == [f"{difference.low:+.4f} to {difference.high:+.4f}", p_text(adjusted)]
        assert float(row[7]) > (difference.high - difference.low) / 2 and row[8]
    assert compare("a", "b")[1]["hard, acc"][:2] == ["120", "120"]
    write(Path("a"), "other", 1, 0.5, doc={"text": "x"}), write(Path("b"), "other", 2, 0.5, doc={"text": "x"})
    rows = compare("a", "b", "--document", "passage")[1]
    assert rows["other, acc"][:2] == ["120", "120"] and rows["hard, acc"][:2] == ["120", "30"]


def test_bits_per_byte_are_weighed_by_their_bytes(compare):
    for name, nats in (("a", -30.0), ("b", -15.0)):
        write(Path(name), "text", 1, 0.5, bits_per_byte=[nats, 10], doc={"text": "x"})
    row = compare("a", "b", "--metrics", "bits_per_byte")[1]["text, bits_per_byte"]
    assert row[2:5] == [f"{3 / math.log(2):.4f}", f"{1.5 / math.log(2):.4f}", f"{-1.5 / math.log(2):+.4f}"]
    assert row[5:] == ["too few differ", "", "", ""]


def test_what_does_not_compare_is_refused(compare):
    write(Path("a"), "x", 1, 0.5), write(Path("b"), "x", 2, 0.5), write(Path("other"), "y", 2, 0.5)
    write(Path("prompt"), "x", 2, 0.5, prompt_hash="other")
    Path("empty").mkdir()
    for arguments, code, sentence in (
        (["a"], 2, "a: name at least two folders, each once"),
        (["a", "a"], 2, "a: name at least two folders, each once"),
        (["a", "empty"], 2, "empty: has no items"),
        (
            ["a", "b", "--document", "story"],
            2,
            "--document is story; it must be a field of a task; x has passage, question",
        ),
        (["a", "b", "--metrics", "f1"], 2, "--metrics: x has acc; choose one of them"),
        (["a", "other"], 4, "a, other: have no task in common"),
        (["a", "prompt"], 4, "x: the runs have no item with the same prompt in common"),
    ):
        status, _, error = compare(*arguments)
        refused(status, error, code, sentence)
