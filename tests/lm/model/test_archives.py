"""Archives of weights are as long inside as outside."""

import zipfile

import pytest
import torch

from lm.core.errors import IntegrityError
from lm.model.archives import check_archive, check_pickle
from lm.model.weights import load_tensors


def test_a_compressed_archive_is_refused(tmp_path):
    torch.save({"w": torch.zeros(1000)}, tmp_path / "a.pt")
    check_archive(tmp_path / "a.pt")
    with (
        zipfile.ZipFile(tmp_path / "a.pt") as old,
        zipfile.ZipFile(tmp_path / "b.pt", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            new.writestr(name, old.read(name))
    with pytest.raises(IntegrityError, match="it is compressed"):
        load_tensors(tmp_path / "b.pt", None)


def test_a_pickle_that_asks_for_a_bytearray_is_refused():
    with pytest.raises(ValueError, match="it asks for builtins bytearray"):
        check_pickle(b"\x80\x02cbuiltins\nbytearray\nJ\xff\xff\xff\x7f\x85R.")
