"""`python src make_tasks`: two tasks of lm-eval from text, with the same bytes for the same text and seed."""

import json
from collections import Counter
from pathlib import Path

import pytest

from extras.lm_eval.make_tasks import cut_in_the_middle, main
from lm.tokenizer.build import write_trained_bpe
from lm.tokenizer.load import load_tokenizer
from lm.tokenizer.pretokenize import PATTERNS
from support.refusal import files_below

TEXTS = [" ".join(f"{word} of {document}." for word in range(60)) + "\n" for document in range(100, 130)]
C_LIKE = "int main(void) {\n  /* first */ int x = 1;\n\n\tif (x) return x;  // 2\n}\n"


def call(*arguments) -> int:
    return main(list(map(str, arguments)))


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


@pytest.fixture
def source(tmp_path) -> Path:
    """A folder of one text file per document."""
    folder = tmp_path / "source"
    folder.mkdir()
    for number, text in enumerate(TEXTS):
        (folder / f"{number:02d}.txt").write_text(text)
    return folder


def test_the_same_text_and_seed_give_the_same_bytes(source, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert call(tmp_path / name / "stories", "--source", source, "--num_documents", 20, "--seed", seed) == 0
    a, b, c = (files_below(tmp_path / name) for name in "abc")
    assert a == b and set(a) == {f"stories/{x}" for x in (
        "documents.jsonl", "endings.jsonl", "perplexity.yaml", "endings.yaml")}  # fmt: skip
    assert a["stories/documents.jsonl"] != c["stories/documents.jsonl"]


def test_the_right_ending_follows_the_beginning_and_the_others_are_of_other_documents(source, tmp_path):
    assert call(tmp_path / "tasks", "--source", source) == 0
    rows = rows_of(tmp_path / "tasks/endings.jsonl")
    documents = "\0".join(TEXTS)
    assert len(rows) == len(TEXTS)
    for row, text in zip(rows, TEXTS, strict=True):
        right = row["endings"][row["label"]]
        assert row["beginning"] + right in text
        assert len(set(row["endings"])) == 4 and all(ending in documents for ending in row["endings"])
        assert not any(row["beginning"] + ending in text for ending in row["endings"] if ending != right)


def test_every_place_has_the_right_ending_equally_often(source, tmp_path):
    assert call(tmp_path / "tasks", "--source", source, "--num_documents", 28) == 0
    labels = [row["label"] for row in rows_of(tmp_path / "tasks/endings.jsonl")]
    assert Counter(labels) == dict.fromkeys(range(4), 7) and labels != sorted(labels) and labels[:4] != [0, 1, 2, 3]


@pytest.mark.parametrize("pretokenizer", PATTERNS)
def test_a_beginning_has_the_same_tokens_with_and_without_its_ending(tmp_path, pretokenizer):
    """So the score of an ending is that of whole tokens."""
    texts = [*TEXTS[:9], C_LIKE * 9]
    write_trained_bpe(tmp_path, [texts], 400, pretokenizer)
    tokenizer = load_tokenizer(tmp_path)
    for text in texts:
        item = cut_in_the_middle(text, 60, 30)
        ids = tokenizer.encode(item.beginning)
        assert tokenizer.encode(item.beginning + item.ending)[: len(ids)] == ids


def test_beginnings_and_endings_have_the_asked_length_and_begin_and_end_between_words():
    text = " ".join(f"w{number:03d}" for number in range(200))
    item = cut_in_the_middle(text, 42, 21)
    assert item == ("w092 w093 w094 w095 w096 w097 w098 w099", " w100 w101 w102 w103 w104")
    assert cut_in_the_middle("a b c d e f", 99, 4) == ("a b c", " d e")
    assert cut_in_the_middle("a b c d e f", 99, 9) is None
    assert cut_in_the_middle("nothing_to_cut" * 9, 9, 9) is None
