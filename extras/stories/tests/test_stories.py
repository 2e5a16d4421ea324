"""Stories: whole sentences, the same ones for a seed, as text that the source `local` reads."""

import itertools
import json
import re

from extras.stories.stories import iter_stories, main, options, plots, tell


def lines_of(path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_text().splitlines()]


def test_a_file_has_the_stories_of_its_seed(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        out = tmp_path / name / "stories.jsonl"
        assert main(["--num_documents", "20", "--seed", str(seed), "--out", str(out)]) == 0
    a, b, c = (lines_of(tmp_path / name / "stories.jsonl") for name in "abc")
    assert a == b and not set(a) & set(c)
    assert len(set(a)) == 20


def test_no_story_is_refused(tmp_path, capsys):
    assert main(["--num_documents", "0", "--out", str(tmp_path / "x")]) == 2
    assert "--num_documents is 0; it must be at least 1" in capsys.readouterr().err


def test_every_plot_is_told_in_whole_sentences():
    for text in itertools.islice(iter_stories(seed=1), 3000):
        assert not re.search(r"[{}]|  |\b(a [aeiou]|an [^aeiou])", text, re.I), text
        assert all(sentence[0].isupper() for sentence in re.findall(r"(?:^|[.!?] )(\w)", text)), text
        assert text.endswith((".", "!", "?", '"')), text


class First:
    """Draws the option of a number."""

    def __init__(self, number: int):
        self.number = number

    def choice(self, values):
        return values[self.number]


def test_a_slot_keeps_its_option_and_its_pronouns():
    plot = "{hero} saw {a toy}. {He} took the {toy} to {his} {elder}, and {he elder} thanked {him}."
    girl = tell(plot, First(0))
    boy = tell(plot, First(-1))
    toys = [options()["toy"][number][0] for number in (0, -1)]
    article = "an" if toys[0][0] in "aeiou" else "a"
    assert girl == f"Lily saw {article} {toys[0]}. She took the {toys[0]} to her Mom, and she thanked her."
    assert boy.startswith("Toby saw") and boy.endswith(f"He took the {toys[1]} to his Uncle Walt, and he thanked him.")


def test_there_are_64_plots_and_each_field_names_a_list():
    assert len(set(plots())) == 64
    assert all(len({word for word, _ in words}) == len(words) >= 16 for words in options().values())
