"""Archives of weights are as long inside as outside."""

import zipfile

import pytest
import torch

from lm.core.errors import IntegrityError
from lm.model.archives import check_archive
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
