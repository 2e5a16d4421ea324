"""compare_tasks: the difference of two runs on the items of lm-eval, as its --log_samples writes them."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from evidence.statistics import clustered_difference, holm, p_text

from extras.lm_eval.compare_tasks import main
from support.markdown import rows_of
from support.refusal import refused

NUM_ITEMS = 120


def write_items(folder: Path, task: str, seed: int, rate: float, **changes) -> np.ndarray:
    """Write the items of a task, four about each passage, that a model has right with a probability of `rate`.

    lm-eval's second filter turns every answer round, and must not be read. Return 1.0 or 0.0 for each item.
    """
    is_right = np.random.default_rng(seed).random(NUM_ITEMS) < rate
    accuracies = is_right.astype(float)
    samples = []
    for number, acc in enumerate(accuracies.tolist()):
        sample = {
            "doc_id": number,
            "doc": {"passage": f"about {number // 4}\u2028", "question": number},
            "doc_hash": f"d{number}",
            "prompt_hash": f"p{number}",
            "metrics": ["acc"],
            **changes,
        }
        samples.append(sample | {"filter": "none", "acc": acc})
        samples.append(sample | {"filter": "strict", "acc": 1 - acc})
    lines = [json.dumps(sample, ensure_ascii=False) + "\n" for sample in samples]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"samples_{task}_2026-11-24T10-00-00.123456.jsonl").write_text("".join(lines))
    return accuracies


@pytest.fixture
def compare(tmp_path, monkeypatch, capsys):
    """The command in a folder: (exit status, cells by first cell, standard error)."""
    monkeypatch.chdir(tmp_path)

    def run_it(*arguments: str):
        status = main(list(arguments))
        output, error = capsys.readouterr()
        rows = {first: others for first, *others in rows_of(output)}
        return status, rows, error

    return run_it


def test_items_are_paired_by_document_and_p_is_corrected_for_the_tasks(compare):
    passages = np.arange(NUM_ITEMS) // 4
    expected = {}
    for seed, task, rate in ((10, "easy", 0.9), (20, "hard", 0.63), (30, "some", 0.5)):
        a = write_items(Path("a/m"), task, seed, 0.5)
        b = write_items(Path("b"), task, seed + 1, rate)
        expected[task] = clustered_difference(b - a, np.ones(NUM_ITEMS), passages)
    p_corrected = holm(list(expected.values()))

    status, rows, _ = compare("a", "b", "--document", "passage")

    assert status == 0
    for (task, difference), corrected in zip(expected.items(), p_corrected, strict=True):
        items, documents, _, _, shown, interval, p, detectable, needed = rows[f"{task}, acc"]
        assert items == "120"
        assert documents == "30"
        assert shown == f"{difference.value:+.4f}"
        assert interval == f"{difference.low:+.4f} to {difference.high:+.4f}"
        assert p == p_text(corrected)
        assert float(detectable) > (difference.high - difference.low) / 2
        assert needed != ""


def test_a_task_that_one_run_lacks_is_left_out(compare):
    for folder in ("a", "b"):
        write_items(Path(folder), "common", 1, 0.5)
    write_items(Path("b"), "alone", 2, 0.5)

    _, rows, _ = compare("a", "b")

    assert "common, acc" in rows
    assert "alone, acc" not in rows


def test_an_item_is_a_document_of_its_own_without_the_field(compare):
    for seed, folder in ((0, Path("a")), (1, Path("b"))):
        write_items(folder, "passages", seed, 0.5)
        write_items(folder, "texts", seed, 0.5, doc={"text": "x"})

    _, without_option, _ = compare("a", "b")
    _, with_option, _ = compare("a", "b", "--document", "passage")

    assert counts_of(without_option["passages, acc"]) == (120, 120)
    assert counts_of(with_option["passages, acc"]) == (120, 30)
    assert counts_of(with_option["texts, acc"]) == (120, 120)


def counts_of(row: list[str]) -> tuple[int, int]:
    """Return the numbers of items and of documents in a row."""
    items, documents, *_ = row
    return int(items), int(documents)


def test_bits_per_byte_are_weighed_by_their_bytes(compare):
    num_bytes = 10
    write_items(Path("a"), "text", 1, 0.5, bits_per_byte=[-30.0, num_bytes], doc={"text": "x"})
    write_items(Path("b"), "text", 1, 0.5, bits_per_byte=[-15.0, num_bytes], doc={"text": "x"})

    _, rows, _ = compare("a", "b", "--metrics", "bits_per_byte")

    _, _, mean_a, mean_b, difference, *rest = rows["text, bits_per_byte"]
    assert mean_a == f"{3 / math.log(2):.4f}"
    assert mean_b == f"{1.5 / math.log(2):.4f}"
    assert difference == f"{-1.5 / math.log(2):+.4f}"
    assert rest == ["too few differ", "", "", ""]


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ("a", 2, "a: name at least two folders, each once"),
        ("a a", 2, "a: name at least two folders, each once"),
        ("a empty", 2, "empty: has no items"),
        ("a b --document story", 2, "--document is story; it must be a field of a task; x has passage, question"),
        ("a b --metrics f1", 2, "--metrics: x has acc; choose one of them"),
        ("a other", 4, "a, other: have no task in common"),
        ("a prompt", 4, "x: the runs have no item with the same prompt in common"),
    ],
)
def test_what_does_not_compare_is_refused(compare, arguments, code, sentence):
    write_items(Path("a"), "x", 1, 0.5)
    write_items(Path("b"), "x", 2, 0.5)
    write_items(Path("other"), "y", 2, 0.5)
    write_items(Path("prompt"), "x", 2, 0.5, prompt_hash="other")
    Path("empty").mkdir()

    status, _, error = compare(*arguments.split())

    refused(status, error, code, sentence)
