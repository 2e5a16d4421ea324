"""Stories: whole sentences, the same ones for a seed, as text that the source `local` reads."""

import itertools
import json
import re
from pathlib import Path

from extras.stories.stories import iter_stories, main, options, plots, tell
from support.refusal import refused


def stories_of(seed: int, out: Path) -> list[str]:
    """Write twenty stories and return them."""
    assert main(["--num_documents", "20", "--seed", str(seed), "--out", str(out)]) == 0
    return [json.loads(line)["text"] for line in out.read_text().splitlines()]


def test_a_file_has_the_stories_of_its_seed(tmp_path):
    stories = stories_of(1, tmp_path / "a" / "stories.jsonl")
    again = stories_of(1, tmp_path / "b" / "stories.jsonl")
    others = stories_of(2, tmp_path / "c" / "stories.jsonl")

    assert len(set(stories)) == 20
    assert again == stories
    assert set(others) & set(stories) == set()


def test_no_story_is_refused(tmp_path, capsys):
    status = main(["--num_documents", "0", "--out", str(tmp_path / "x")])

    refused(status, capsys.readouterr().err, 2, "--num_documents is 0", "at least 1")


OPEN_SLOT = r"[{}]"
TWO_SPACES = "  "
WRONG_ARTICLE = r"\b(a [aeiou]|an [^aeiou])"


def test_every_plot_is_told_in_whole_sentences():
    for text in itertools.islice(iter_stories(seed=1), 3000):
        assert not re.search(f"{OPEN_SLOT}|{TWO_SPACES}|{WRONG_ARTICLE}", text, re.IGNORECASE), text
        first_letters = re.findall(r"(?:^|[.!?] )(\w)", text)
        assert all(letter.isupper() for letter in first_letters), text
        assert text.endswith((".", "!", "?", '"')), text


class InTurn:
    """Draws the options of these numbers, one after the other."""

    def __init__(self, *numbers: int):
        self.numbers = iter(numbers)

    def choice(self, values):
        return values[next(self.numbers)]


PLOT = "{hero} saw {a toy}. {He} took the {toy} to {his} {elder}, and {he elder} thanked {him}."


def test_a_slot_keeps_its_option_and_its_pronouns():
    text = tell(PLOT, InTurn(0, 1, 2))

    assert text == "Lily saw a kite. She took the kite to her Nana, and she thanked her."


def test_other_options_have_other_pronouns():
    text = tell(PLOT, InTurn(-1, -1, -1))

    toy, _ = options()["toy"][-1]
    assert text.startswith("Toby saw")
    assert text.endswith(f"He took the {toy} to his Uncle Walt, and he thanked him.")


def test_there_are_64_plots():
    assert len(set(plots())) == 64


def test_each_slot_has_many_different_options():
    for words in options().values():
        different = {word for word, _ in words}
        assert len(different) == len(words) >= 16
