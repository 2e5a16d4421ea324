"""The story grammar: one derivation per text, exact entropy, readable English, the same bytes everywhere."""

import collections
import hashlib
import itertools
import re

import pyarrow.parquet as pq
import pytest

from lm.core.errors import DataError, ParamsError
from lm.core.params import coerce
from lm.text.sources.stories import grammar as stories
from lm.text.sources.stories.grammar import (
    Plot,
    StoriesFetch,
    fetch_stories,
    plots,
    render,
    story,
    word_lists,
)

GOLDEN_SHA256 = "bd4eadc78fee2215f07777907e9fe13095a1e391fc86b32a83b13324e5bbe9b9"


@pytest.fixture(scope="module")
def corpus() -> list[stories.Story]:
    return [story(0, index) for index in range(20_000)]


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


def parse(text: str) -> tuple[int, ...]:
    """Return the derivation of a story's text. Raise DataError if the grammar cannot produce it."""
    for plot_index, plot in enumerate(plots()):
        choices = _match(plot, text)
        if choices is not None:
            return (plot_index, *choices)
    raise DataError(f"not a story of the grammar: {text[:60]!r}…")


def _match(plot: Plot, text: str) -> tuple[int, ...] | None:
    """Return the options of `plot`'s slots in `text`, or None. Each field narrows its slot's candidates."""
    candidates: list[collections.abc.Sequence] = [range(count) for count in plot.num_options]
    position = 0
    for literal, field in zip(plot.literals, plot.fields, strict=False):
        if not text.startswith(literal, position):
            return None
        position += len(literal)
        matching = [c for c in candidates[field.slot] if text.startswith(field.words[c], position)]
        if not matching:
            return None
        candidates[field.slot] = matching
        position += len(field.words[matching[0]])
    return tuple(options[0] for options in candidates) if text[position:] == plot.literals[-1] else None


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


def test_parse_returns_the_derivation(corpus):
    for s in corpus[:2000]:
        assert parse(s.text) == s.choices
        assert render(parse(s.text)) == s.text
        assert plots()[parse(s.text)[0]].surprisal_bits == s.surprisal_bits


def test_a_text_outside_the_grammar_is_refused(corpus):
    text = corpus[0].text
    for wrong in ("", "Once upon a time there was a model.", text + " ", text[:-1], text.replace('"', "'")):
        with pytest.raises(DataError, match="not a story of the grammar"):
            parse(wrong)


def test_a_repeated_slot_with_another_word_is_refused(one_of_each):
    """A slot that is repeated with another option is refused, unless the text is another story of the grammar."""
    refused = accepted = 0
    for number, s in one_of_each.items():
        plot = plots()[number]
        words = [field.words[s.choices[1 + field.slot]] for field in plot.fields]
        returning = [i for i, f in enumerate(plot.fields) if f.slot in [g.slot for g in plot.fields[:i]]]
        for place in returning:
            other = next(word for word in plot.fields[place].words if word != words[place])
            filled = [*words[:place], other, *words[place + 1 :], ""]
            text = "".join(literal + word for literal, word in zip(plot.literals, filled, strict=True))
            try:
                assert render(parse(text)) == text
                accepted += 1
            except DataError:
                refused += 1
    assert refused > 300 and accepted < 5, (refused, accepted)


def test_no_word_of_a_field_begins_with_another():
    """So reading a plot from left to right is never ambiguous."""
    for plot in plots():
        for field in plot.fields:
            assert prefix_free(set(field.words)), field


def test_the_fields_of_a_slot_identify_its_option():
    for plot in plots():
        for slot, count in enumerate(plot.num_options):
            shown = zip(*(field.words for field in plot.fields if field.slot == slot), strict=True)
            assert len(set(shown)) == count


def test_no_text_belongs_to_two_plots():
    """After the text that two plots share, no filling of one is the beginning of a filling of the other."""
    for a, b in itertools.combinations(map(pieces, plots()), 2):
        shared = next(i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
        one, other = beginnings(a[shared:]), beginnings(b[shared:])
        assert one.isdisjoint(other) and prefix_free(one | other), (one, other)


# --- entropy ---


def test_choices_are_uniform_because_lists_are_powers_of_two():
    assert len(plots()) == 64
    for slot, options in word_lists().items():
        assert len(options) in (16, 32, 64), slot
        assert len({word for word, _ in options}) == len(options), slot


def test_entropy_is_the_mean_over_plots_of_the_digits():
    expected = sum(6 + sum({16: 4, 32: 5, 64: 6}[n] for n in plot.num_options) for plot in plots()) / 64
    assert stories.entropy_bits_per_story() == expected
    assert all(80 <= plot.surprisal_bits <= 100 for plot in plots())


def test_the_corpus_has_the_stated_entropy_and_length(corpus):
    bits = [s.surprisal_bits for s in corpus]
    lengths = [len(s.text.encode("utf-8")) for s in corpus]
    assert sum(bits) / len(bits) == pytest.approx(stories.entropy_bits_per_story(), abs=0.15)
    assert sum(lengths) / len(lengths) == pytest.approx(stories.mean_utf8_bytes_per_story(), abs=1.5)


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


def test_fetch_writes_two_disjoint_splits_and_the_entropy(tmp_path):
    manifest = fetch_stories(StoriesFetch("stories", 3, 40, 10), tmp_path)
    files = {split: tmp_path / split / "0000.parquet" for split in ("train", "validation")}
    tables = {split: pq.read_table(file).to_pydict() for split, file in files.items()}
    assert tables["train"]["text"] == [story(3, index).text for index in range(40)]
    assert tables["validation"]["text"] == [story(3, index).text for index in range(40, 50)]
    assert manifest["column"] == "text" and manifest["splits"]["validation"]["documents"] == 10
    entropy = manifest["entropy"]
    assert entropy["bits_per_byte"] == entropy["bits_per_story"] / entropy["utf8_bytes_per_story"]
    assert entropy["stories_per_split"] == {"train": 40, "validation": 10}
    for split, table in tables.items():
        bits = [plots()[parse(text)[0]].surprisal_bits for text in table["text"]]
        assert table["surprisal_bits"] == bits
        assert entropy["realised_bits_per_split"][split] == sum(bits)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_documents": 0}, "num_documents is 0, needed: at least 1"),
        ({"num_validation_documents": -1}, "num_validation_documents is -1, needed: at least 1"),
        ({"seed": -1}, "seed is -1, needed: 0 to"),
        ({"seed": 2**64}, "needed: 0 to"),
    ],
)
def test_ranges_are_checked(changed, message):
    good = {"kind": "stories", "seed": 0, "num_documents": 1, "num_validation_documents": 1}
    with pytest.raises(ParamsError, match=message):
        coerce(good | changed, StoriesFetch, "fetch", "presets.yaml")
