"""Duplicates are counted and flagged, exactly and after folding white space."""

import numpy as np

from audit import count_flags, digest, flag_duplicates, is_repeat


def digests(texts):
    return np.array([(digest(t), digest(" ".join(t.split()))) for t in texts], dtype=np.uint64)


def test_duplicates_within_and_across():
    train = digests(["a b", "a b", "a  b", "c", "only"])
    validation = digests(["c", "a\nb", "new", "new"])
    flags = flag_duplicates(train, validation)
    assert flags.num_rows == 9
    assert flags["exact_within"].to_pylist() == [False, True, False, False, False, False, False, False, True]
    assert flags["folded_within"].to_pylist() == [False, True, True, False, False, False, False, False, True]
    assert flags["exact_across"].to_pylist() == [False, False, False, True, False, True, False, False, False]
    assert flags["folded_across"].to_pylist() == [True, True, True, True, False, True, True, False, False]
    assert count_flags(flags) == {
        "train": {"exact_within": 1, "exact_across": 1, "folded_within": 2, "folded_across": 4},
        "validation": {"exact_within": 1, "exact_across": 1, "folded_within": 1, "folded_across": 2},
    }


def test_the_first_of_equals_is_no_repeat():
    assert is_repeat(np.array([5, 3, 5, 5, 3, 1])).tolist() == [False, False, True, True, True, False]
