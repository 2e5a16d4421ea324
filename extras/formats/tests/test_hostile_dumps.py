"""Dumps that claim much memory or run code are refused by their shape, before anything is unpickled."""

import pickle

import pytest

from extras.formats.dumps import LISTS_OF_INTEGERS, open_dumps, read_dumps
from lm.core.errors import IntegrityError
from support.dump_cases import write_foreign


@pytest.mark.parametrize("protocol", range(6))
def test_lists_of_ids_match_in_every_protocol(protocol):
    ids = [[0, 255, 256, 65_535, 65_536, 2**31 - 1, 2**31, 2**32 - 1, i] for i in range(600)]
    assert LISTS_OF_INTEGERS.fullmatch(pickle.dumps(ids, protocol))


HASHED = b"\x80\x02}K\x01\x85" + b"q\0h\0\x86" * 60 + b"K\x01s."  # a key that takes for ever to hash
OTHERS = {
    "call": pickle.dumps(exec), "high number": b"\x80\x02]r\xff\xff\xff\x7f.",
    "bytearray": b"cbuiltins\nbytearray\nI9999999999\n\x85R.", "hashed": HASHED,
}  # fmt: skip


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_pickles_of_anything_else_are_refused_before_they_are_loaded(other, tmp_path):
    folder = write_foreign(tmp_path / "dumps", [[1, 2, 3]])
    (dump,) = folder.glob("dump-*.pkl")
    dump.write_bytes(other)
    with pytest.raises(IntegrityError, match="something else"):
        list(read_dumps(open_dumps(folder), None))


def test_a_dump_may_repeat_a_list_but_not_too_often(tmp_path):
    row = list(range(40))
    assert list(read_dumps(open_dumps(write_foreign(tmp_path / "dumps", [row, row])), None))
    with pytest.raises(IntegrityError, match="or one list too often"):
        list(read_dumps(open_dumps(write_foreign(tmp_path / "many", [row] * 1000)), None))
