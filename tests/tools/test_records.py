"""Digests of files, and the cost of importing verify."""

import os
import subprocess
import sys
import tracemalloc

from lm.core.files import sha256_file
from support import ROOT
from tools.common.records import Digests


def test_files_are_read_in_blocks_and_hard_links_once(tmp_path):
    path = tmp_path / "large"
    path.write_bytes(b"\1" * (24 << 20))
    os.link(path, tmp_path / "link")
    sizes = []
    digests = Digests(sizes.append)
    tracemalloc.start()
    digest = digests.of(path)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 4 << 20
    assert digests.of(tmp_path / "link") is digest
    assert sum(sizes) == digests.num_bytes == digest.num_bytes == 24 << 20
    assert digest.sha256 == sha256_file(path)
    assert digests.of(tmp_path / "none").md5 == "no file"
    assert digests.of(tmp_path).md5 == "unreadable (Is a directory)"


def test_importing_verify_is_quick():
    code = "import sys, tools.verify.cli; print([m for m in ('torch', 'dvc', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "src", capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
