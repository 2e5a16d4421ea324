"""Reading a token file that is larger than memory, under an rlimit, which counts what a process allocates."""

import os
import subprocess
import sys

import numpy as np
import pytest

from lm.core.files import sha256_file, write_json
from lm.tokens.tokenfile import sidecar_path
from support import ROOT
from support.train_cases import TOKENIZER

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits memory as Linux does")

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}

READ = """
import re, resource, sys, numpy as np
from lm.tokens.tokenfile import document_spans, open_tokens
from lm.tokens.windows import TokenWindows
held = 1024 * int(re.search(r"VmData:\\s+(\\d+)", open("/proc/self/status").read())[1])
resource.setrlimit(resource.RLIMIT_DATA, (held + int(sys.argv[2]),) * 2)
tokens = open_tokens(sys.argv[1])
assert document_spans(tokens).shape == (len(tokens.ids) // 8_000_000, 2)
windows = TokenWindows(tokens.ids, 256, 64, seed=1)
print(sum(int(windows.buffer(step).sum()) for step in range(0, 3000, 10)))
"""


@pytest.mark.slow
def test_reading_takes_the_memory_of_what_is_read(tmp_path):
    """Of 272 MB, most of which take no disk, in a process that may take 100 MiB more than its libraries have taken."""
    path = tmp_path / "x.bin"
    path.touch()
    os.truncate(path, 17 * 16_000_000)
    ids = np.memmap(path, np.uint16, "r+")
    ids[7_999_999::8_000_000] = TOKENIZER["eot_id"]
    ids.flush()
    meta = {"format_version": 1, "dtype": "uint16", "tokens": len(ids), "tokenizer": TOKENIZER}
    write_json(sidecar_path(path), meta | {"sha256": sha256_file(path)})
    command = [sys.executable, "-c", READ, path, str(100 << 20)]

    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
