"""The lists of `python src verdict`: how values are written, and how long lists end."""

import pytest

from tools.verdict import NUM_LISTED, listed, readable


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1843200, "1,843,200"),
        (0.0123456, "0.012346"),
        (1.0, "1"),
        (True, "True"),
        (None, "None"),
        ([1000], "[1000]"),
    ],
)
def test_a_number_of_a_list_has_five_digits_or_is_whole(value, text):
    assert readable(value) == text


@pytest.mark.parametrize(
    ("more", "ending"),
    [
        (0, []),
        (1, ["  and 1 more"]),
        (2, ["  and 2 more"]),
    ],
)
def test_a_long_list_ends_with_how_many_more_there_are(more, ending):
    names = [f"name {number}" for number in range(NUM_LISTED + more)]

    lines = listed(names)

    shown = [f"  {name}" for name in names[:NUM_LISTED]]
    assert lines == shown + ending
