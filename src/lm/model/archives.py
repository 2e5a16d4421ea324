"""Check the size of an archive before torch reads it."""

import zipfile
from pathlib import Path


def check_archive(path: Path) -> None:
    """Raise ValueError or BadZipFile unless a file is a zip whose content is not longer than the file.

    torch.save does not compress, so the memory of torch.load follows from the length of the file.
    """
    with zipfile.ZipFile(path) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > path.stat().st_size:
            raise ValueError("it is compressed")
