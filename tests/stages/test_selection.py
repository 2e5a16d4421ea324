"""The rules of a selection in the stage fetch: what they drop and why, what the manifest records."""

import dataclasses

import pytest

from lm.core.params import coerce, read_yaml
from lm.text.config import Selection
from support import ROOT
from support.mixture_cases import NO_RULES, RAW, texts_of, write_mixture, write_source

PROSE = "The ship left the harbour at dawn, and number {} of the crew watched the town grow small behind them. "


def prose(i: int) -> str:
    """Return a document that no rule drops, and that is like none of another number."""
    sentences = []
    for j in range(20):
        sentences.append(PROSE.format(i * 31 + j))
        sentences.append(f"Word{i} word{i * j} was said {i + j} times. ")
    return "".join(sentences)


DOCUMENTS = [prose(i) for i in range(12)]
FILTERED = read_yaml(ROOT / "presets.yaml")["selections"]["filtered"]
RULES = coerce(FILTERED, Selection, "selections.chosen", "presets.yaml")


def select(texts: dict[str, dict[str, list[str]]], chosen: Selection) -> dict:
    """Write data/raw from the source `mine` or several, each with its splits; return the manifest."""
    if len(texts) > 1:
        return write_mixture(RAW, texts, dict.fromkeys(texts, 1.0), rules=chosen)
    return write_source(RAW, "mine", rules=chosen, **texts["mine"])


def documents_dropped(manifest: dict, source: str = "mine", split: str = "train") -> dict[str, int]:
    """Return the number of documents of a split of a source that each rule drops."""
    dropped = manifest["selection"]["dropped"][source][split]
    return {rule: counts["documents"] for rule, counts in dropped.items()}


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    """The working directory."""
    monkeypatch.chdir(tmp_path)


def edited(text: str) -> str:
    """Return a text with one word in two hundred changed."""
    words = text.split(" ")
    words[100::200] = ["changed"] * len(words[100::200])
    return " ".join(words)


JUNK = ["too short", "the same line again\n" * 30 + "another line"]  # tests/lm/text/test_rules.py has the others
# Of a document of validation, with other spaces.
NEAR_DUPLICATE = edited(DOCUMENTS[1]).replace(" ", "\N{NO-BREAK SPACE}")


def test_rules_drop_junk_and_keep_prose_and_the_manifest_counts_both():
    exact_duplicate = DOCUMENTS[2]
    train = [*JUNK, *DOCUMENTS[2:], exact_duplicate, NEAR_DUPLICATE, "too short"]

    filtered = select({"mine": {"train": train, "validation": DOCUMENTS[:2]}}, RULES)

    selection = filtered["selection"]

    assert texts_of("train") == DOCUMENTS[2:]
    assert texts_of("validation") == DOCUMENTS[:2]
    assert selection["rules"] == FILTERED
    assert documents_dropped(filtered, split="validation") == {}
    assert documents_dropped(filtered) == {
        "min_chars": 2,
        "max_repeated_line_fraction": 1,
        "exact_duplicates": 1,
        "near_duplicates": 1,
    }
    near_duplicates = selection["dropped"]["mine"]["train"]["near_duplicates"]
    assert near_duplicates == {"documents": 1, "characters": len(NEAR_DUPLICATE)}
    assert filtered["splits"]["train"]["documents"] == 10
    assert filtered["sources"]["mine"]["splits"]["train"]["documents"] == 15, "before the rules"


def test_a_copy_of_a_test_document_is_dropped_from_training_and_no_example_shows_it():
    texts = {
        "train": [*DOCUMENTS[3:], DOCUMENTS[0], edited(DOCUMENTS[1]), "short too"],
        "validation": DOCUMENTS[2:3],
        "test": [*DOCUMENTS[:3], "too short"],
    }

    manifest = select({"mine": texts}, RULES)

    assert texts_of("test") == DOCUMENTS[:2], "validation keeps what both have"
    assert texts_of("validation") == DOCUMENTS[2:3]
    assert texts_of("train") == DOCUMENTS[3:]
    assert documents_dropped(manifest) == {
        "min_chars": 1,
        "exact_duplicates": 1,
        "near_duplicates": 1,
    }
    examples = manifest["selection"]["examples"]
    assert list(examples) == ["min_chars"]
    assert [example["text"] for example in examples["min_chars"]] == ["short too"]


def test_the_shares_of_a_mixture_are_those_of_the_text_that_the_rules_leave():
    """Half of the bytes of `a` are dropped, after which both sources have as many, and none is repeated."""
    short_of_a = [f"a{number:04d}" + "x" * 95 for number in range(50)]
    short_of_b = [f"b{number:04d}" + "x" * 95 for number in range(50)]
    a = {"train": short_of_a + ["y" * 500] * 10, "validation": ["a"]}
    b = {"train": short_of_b, "validation": ["b"]}

    manifest = select({"a": a, "b": b}, dataclasses.replace(NO_RULES, max_chars=100))

    assert sorted(texts_of("train")) == sorted(short_of_a + short_of_b)
    sources = manifest["splits"]["train"]["sources"]
    assert sources["a"]["passes"] == sources["b"]["passes"] == 1.0


def test_copies_in_another_source_are_dropped():
    a = {"train": DOCUMENTS[:3], "validation": DOCUMENTS[3:4]}
    b = {"train": [DOCUMENTS[1], DOCUMENTS[4], edited(DOCUMENTS[3])], "validation": DOCUMENTS[2:3]}

    manifest = select({"a": a, "b": b}, RULES)

    assert texts_of("validation") == [DOCUMENTS[3], DOCUMENTS[2]]
    assert set(texts_of("train")) == {DOCUMENTS[0], DOCUMENTS[1], DOCUMENTS[4]}
    assert documents_dropped(manifest, "a") == {"exact_duplicates": 1}
    assert documents_dropped(manifest, "b") == {"exact_duplicates": 1, "near_duplicates": 1}
