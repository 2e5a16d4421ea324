"""The story grammar: one derivation per text, exact entropy, readable English, the same bytes everywhere."""

import hashlib
import itertools
import re

import pyarrow.parquet as pq
import pytest

from lm.core.errors import ParamsError
from lm.core.params import coerce
from lm.text.sources.stories import grammar as stories
from lm.text.sources.stories.grammar import Plot, StoriesFetch, fetch_stories, plots, render, story, word_lists

GOLDEN_SHA256 = "bd4eadc78fee2215f07777907e9fe13095a1e391fc86b32a83b13324e5bbe9b9"


@pytest.fixture(scope="module")
def corpus() -> list[stories.Story]:
    return [story(0, index) for index in range(4000)]


@pytest.fixture(scope="module")
def one_of_each(corpus) -> dict[int, stories.Story]:
    """One story of each plot, by the number of the plot."""
    return {s.choices[0]: s for s in corpus}


def pieces(plot: Plot) -> list[str | tuple[str, ...]]:
    """Return a plot as a list of single characters and of the words of its fields."""
    row = list(plot.literals[0])
    for field, literal in zip(plot.fields, plot.literals[1:], strict=True):
        row += [field.words, *literal]
    return row


def beginnings(row: list[str | tuple[str, ...]]) -> set[str]:
    """Return the possible beginnings of the row: the words of its first field, or the literal before it."""
    if isinstance(row[0], tuple):
        return set(row[0])
    return {"".join(itertools.takewhile(lambda piece: isinstance(piece, str), row))}


def prefix_free(words: set[str]) -> bool:
    """Return True if no word begins with the whole of another; comparing neighbours in sorted order is enough."""
    return all(not longer.startswith(word) for word, longer in itertools.pairwise(sorted(words)))


# --- the same bytes everywhere ---


def test_the_generator_is_splitmix64():
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [stories._splitmix64(0, step) for step in range(3)] == published


def test_the_first_stories_have_the_committed_bytes(corpus):
    digest = hashlib.sha256()
    for s in corpus[:100]:
        digest.update(s.text.encode("utf-8") + b"\0")
    assert digest.hexdigest() == GOLDEN_SHA256


# --- one derivation per text ---


def test_no_word_of_a_field_begins_with_another():
    """So reading a plot from left to right is never ambiguous."""
    for plot in plots():
        for field in plot.fields:
            assert prefix_free(set(field.words)), field


def test_no_text_belongs_to_two_plots():
    """After the text that two plots share, no filling of one is the beginning of a filling of the other."""
    for a, b in itertools.combinations(map(pieces, plots()), 2):
        shared = next(i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
        one, other = beginnings(a[shared:]), beginnings(b[shared:])
        assert one.isdisjoint(other) and prefix_free(one | other), (one, other)


# --- entropy ---


def test_entropy_is_the_mean_over_plots_of_the_digits():
    expected = sum(6 + sum({16: 4, 32: 5, 64: 6}[n] for n in plot.num_options) for plot in plots()) / 64
    assert stories.entropy_bits_per_story() == expected
    assert all(80 <= plot.surprisal_bits <= 100 for plot in plots())


def test_a_small_plot_has_as_many_texts_as_derivations(monkeypatch):
    plot = stories._compile("{A tree} tree and {number} {bug}s. The {tree} fell.")
    monkeypatch.setattr(stories, "plots", lambda: (plot,))
    texts = {render((0, *choices)) for choices in itertools.product(*map(range, plot.num_options))}
    assert len(texts) == 2**plot.surprisal_bits == 16**3
    assert sum(len(text) for text in texts) / len(texts) == plot.mean_utf8_bytes


# --- the notation ---


def test_fields_repeat_inflect_and_capitalise(monkeypatch):
    plot = stories._compile("{hero} met {A bird}, {a bird} or the {bird}. {He}, {friend}: {his}, {him friend}, {boy}")
    monkeypatch.setattr(stories, "plots", lambda: (plot,))
    words = {slot: [word for word, _ in word_lists()[slot]] for slot in ("hero", "bird", "friend")}
    choices = (0, words["hero"].index("Lily"), words["bird"].index("owl"), words["friend"].index("Fred"))
    assert render(choices) == "Lily met An owl, an owl or the owl. She, Fred: her, him, girl"


# --- English ---


def test_every_story_has_dialogue_and_whole_sentences(one_of_each):
    for s in one_of_each.values():
        assert s.text.count('"') >= 4 and s.text.count('"') % 2 == 0, s.text
        assert re.fullmatch(r"[A-Z].*[.!?]", s.text), s.text
        assert not re.search(r"[{}\n]|  |\s[.,!?]|[.,!?][A-Za-z]|[.!?] [a-z]", s.text), s.text


# --- fetching ---


def test_fetch_writes_two_disjoint_splits(tmp_path):
    manifest = fetch_stories(StoriesFetch("stories", 3, 40, 10), tmp_path)
    for split, indices in (("train", range(40)), ("validation", range(40, 50))):
        texts = pq.read_table(tmp_path / split / "0000.parquet")["text"].to_pylist()
        assert texts == [story(3, index).text for index in indices]
    assert manifest["column"] == "text" and manifest["splits"]["validation"]["documents"] == 10


def test_ranges_are_checked():
    for seed, num_documents, message in ((0, 0, "num_documents is 0, needed: at least 1"), (2**64, 1, "needed: 0 to")):
        section = {"kind": "stories", "seed": seed, "num_documents": num_documents, "num_validation_documents": 1}
        with pytest.raises(ParamsError, match=message):
            coerce(section, StoriesFetch, "fetch", "sources.yaml")
