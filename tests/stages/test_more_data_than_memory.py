"""Reading and tokenizing more data than fits into memory, under a hard limit.

Reading under an rlimit, which counts what a process allocates. Tokenizing in a control group, which also counts cached
files, so that pages read before must be given up (only where this process may create one).
"""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lm.core.files import read_json, sha256_file, write_json
from lm.tokenizer.build import write_trained_bpe
from lm.tokens.tokenfile import sidecar_path
from support import ROOT
from support.train_cases import TOKENIZER
from support.workspace import Workspace

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits memory as Linux does")

MIB = 1 << 20
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
PIECE = (
    "document {0} of many: {1}; and what follows is the same for all of them, word for word, whatever their number. "
)


@contextlib.contextmanager
def control_group(limit_bytes: int):
    """A new control group below this process's own, with a limit; skipped where none can be made."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    own, limit = next(
        ((f"memory{path}", "memory.limit_in_bytes") for _, kinds, path in lines if "memory" in kinds.split(",")),
        (lines[-1][2].lstrip("/"), "memory.max"),
    )
    folder = Path("/sys/fs/cgroup", own, f"test-{os.getpid()}")
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        (folder / limit).write_text(str(limit_bytes))
        yield folder
    except OSError as error:
        pytest.skip(f"no limit can be set here: {error}")
    finally:
        folder.rmdir()


def run_within(limit_bytes: int, code: str, *arguments: str, **options) -> subprocess.CompletedProcess:
    """Run Python code in a process that has so much memory; what it prints is captured."""
    with control_group(limit_bytes) as group:
        join = lambda: (group / "cgroup.procs").write_text(str(os.getpid()))  # noqa: E731
        command = [sys.executable, "-c", code, *arguments]
        return subprocess.run(command, preexec_fn=join, env=ENVIRONMENT | options, capture_output=True, text=True)


def write_zeros(path: Path, num_bytes: int) -> None:
    """A file that takes no room on the disk, and as much as any other in memory."""
    path.unlink(missing_ok=True)
    path.touch()
    os.truncate(path, num_bytes)


READ = """
import re, resource, sys, numpy as np
from lm.tokens.tokenfile import check_id_range, document_spans, open_tokens
from lm.tokens.windows import TokenWindows
held = 1024 * int(re.search(r"VmData:\\s+(\\d+)", open("/proc/self/status").read())[1])
resource.setrlimit(resource.RLIMIT_DATA, (held + int(sys.argv[2]),) * 2)
tokens = open_tokens(sys.argv[1])
check_id_range(tokens)
assert document_spans(tokens).shape == (len(tokens.ids) // 8_000_000, 2)
windows = TokenWindows(tokens.ids, 256, 64, seed=1)
print(sum(int(windows.buffer(step).sum()) for step in range(0, 3000, 10)))
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A token file of 272 MB, most of which takes no disk."""
    path = tmp_path_factory.mktemp("large") / "x.bin"
    write_zeros(path, 17 * 16_000_000)
    ids = np.memmap(path, np.uint16, "r+")
    ids[7_999_999::8_000_000] = TOKENIZER["eot_id"]
    ids.flush()
    meta = {"format_version": 1, "dtype": "uint16", "tokens": len(ids), "tokenizer": TOKENIZER}
    write_json(sidecar_path(path), meta | {"sha256": sha256_file(path)})
    return path


def read_within(limit_bytes: int, path: Path, then: str = "") -> subprocess.CompletedProcess:
    """Read all of a token file in a process that may take so much more than its libraries have taken."""
    command = [sys.executable, "-c", READ + then, str(path), str(limit_bytes)]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)


def test_reading_takes_the_memory_of_what_is_read(large):
    done = read_within(100 * MIB, large)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 0


def test_the_limit_is_one(large):
    done = read_within(100 * MIB, large, "np.array(tokens.ids)")
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith("numpy._core._exceptions._ArrayMemoryError")


def write_text(raw: Path, num_bytes: int) -> int:
    """Documents of 1 to 2 kB, all different, in compressed parquet; return their bytes."""
    schema, written, number = pa.schema([("text", pa.string())]), 0, 0
    path = raw / "train.parquet"
    raw.mkdir(parents=True)
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        while written < num_bytes:
            texts = [PIECE.format(i, i * 7919) * 10 for i in range(number, number + 2000)]
            writer.write_table(pa.table([texts], schema=schema))
            written, number = written + sum(map(len, texts)), number + 2000
    counts = {"documents": number, "characters": written, "utf8_bytes": written}
    entry = {"path": path.name, "sha256": sha256_file(path), **counts}
    write_json(raw / "manifest.json", {"source": "small", "sources": {"small": {}}, "splits": {"train": entry}})
    return written


@pytest.fixture
def text(tmp_path):
    """A folder with 3.75 GiB of text to tokenize, and how many bytes it has."""
    workspace = Workspace(tmp_path / "ws")
    workspace.make_small()
    tokenizer = workspace.folder / "data" / "tokenizer"
    tokenizer.mkdir()
    write_trained_bpe(tokenizer, [[PIECE.format(i, i * 7919) for i in range(999)]], 1000)
    return workspace.folder, write_text(workspace.folder / "data" / "raw", 3840 * MIB)


@pytest.mark.slow
def test_tokenizing_ten_times_the_memory(text, monkeypatch):
    """Not under an rlimit, which counts what gigatoken's tables could take, too."""
    folder, num_bytes = text
    monkeypatch.chdir(folder)
    code = "import sys, tokenize_split; sys.exit(tokenize_split.main(sys.argv[1:]))"
    out = Path("data/processed_datasets/train.bin")
    inputs = ["--raw", "data/raw", "--tokenizer", "data/tokenizer"]
    arguments = ["--split", "train", *inputs, "--tokens", str(out)]
    done = run_within(384 * MIB, code, *arguments, ARROW_DEFAULT_MEMORY_POOL="system")
    assert done.returncode == 0, done.stderr
    assert "by gigatoken, 0 documents by tiktoken instead" in done.stdout, done.stderr
    assert read_json(sidecar_path(out))["utf8_bytes"] == num_bytes > 10 * 384 * MIB
    out.unlink()  # pytest would keep its 1.8 GB
