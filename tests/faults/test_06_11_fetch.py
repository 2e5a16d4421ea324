"""Faults 6 to 11: fetching. Each real stage runs in its own process against a hub on loopback.

The hub disconnects or falls silent in mid-file, refuses, corrupts and stops (`loopback_hub`); local files are
damaged. A refusal leaves nothing at the final path, and the same command succeeds afterwards.
"""

import gzip
import hashlib
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import fetch
from lm.core.files import read_json
from lm.text.sources import text_files
from support import ROOT
from support.loopback_hub import LoopbackHub, parquet_bytes
from support.refusal import files_below, refused
from support.tokenize_cases import ALL, FETCH, LOCAL, run_audit, tokenize, write_params
from support.tokenizer_cases import write_bpe

A, B = "a" * 40, "b" * 40
TOKEN, WRONG_TOKEN = "hf_doNotPrintMe", "hf_norThisOne"
# No waits between attempts; argv[1] is the stage.
HURRIED = """
import importlib, sys, time
time.sleep = lambda seconds: None
sys.exit(importlib.import_module(sys.argv[1]).main(sys.argv[2:]))
"""
TEXTS = [hashlib.sha256(b"%d" % i).hexdigest() for i in range(2000)]
STORIES = parquet_bytes(text=TEXTS)  # 140 kB, not compressible
SOURCE = {"kind": "hub", "repo": "o/n", "revision": A, "files": {"train": ["data/x.parquet"]}, "column": "text"}
OPTIONS = {
    "fetch": ["--raw", "data/raw"],
    "make_tokenizer": ["--raw", "data/raw", "--tokenizer", "data/tokenizer"],
}


def flipped(content: bytes) -> bytes:
    """Return bytes with another bit in their middle."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


class Client:
    """The stages in the working directory, whose source and tokenizer come from the hub, with a cache of their own."""

    def __init__(self, hub):
        self.hub, self.cache = hub, Path("../hf").resolve()
        self.write()

    def write(self, **changes):
        """Write the parameter files; `changes` replace keys of the source."""
        tokenizer = {"kind": "huggingface", "repo": "google/gemma", "revision": A}
        write_params(fetch=SOURCE | changes, tokenizer=tokenizer)

    def run(self, stage="fetch", *options, **variables) -> subprocess.CompletedProcess:
        """Run a stage with these environment variables."""
        environment = self.hub.environment(self.cache, PYTHONPATH=f"{ROOT}/src", **variables)
        command = [sys.executable, "-c", HURRIED, stage, *OPTIONS[stage], *options]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)

    def refused(self, code, *parts, stage="fetch", **variables) -> str:
        """Run a stage that must refuse and leave nothing; return everything it printed."""
        done = self.run(stage, **variables)
        refused(done.returncode, done.stderr, code, *parts)
        assert files_below(Path("data")) == {} and not Path("data/raw").exists()
        return done.stdout + done.stderr

    def recovers(self, **variables) -> None:
        """Check that the same command now succeeds with the right bytes."""
        done = self.run(**variables)
        assert done.returncode == 0, done.stderr
        assert pq.read_table("data/raw/train.parquet")["text"].to_pylist() == TEXTS


@pytest.fixture
def hub():
    with LoopbackHub() as served:
        served.add("datasets", "o/n", A, {"data/x.parquet": STORIES})
        yield served


@pytest.fixture
def client(hub, tmp_path, monkeypatch):
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return Client(hub)


def add_tokenizer(hub, folder, **options) -> None:
    """Add the repository of a tokenizer."""
    folder.mkdir()
    hub.add(
        "models", "google/gemma", A, {path.name: path.read_bytes() for path in write_bpe(folder).iterdir()}, **options
    )


def test_06_a_network_lost_in_mid_file_ends_with_5_and_a_rerun_keeps_whole_files(client, hub):
    hub.add("datasets", "o/n", A, {"data/w.parquet": parquet_bytes(text=["first"]), "data/x.parquet": STORIES})
    client.write(files={"train": ["data/w.parquet", "data/x.parquet"]})
    hub.cut("data/x.parquet", 5000)
    client.refused(5, f"o/n data/x.parquet at commit {A}", "out of reach", "run again")
    hub.cut("data/x.parquet", len(STORIES))
    hub.bytes_sent = 0
    done = client.run()
    assert done.returncode == 0, done.stderr
    assert hub.bytes_sent == len(STORIES)
    assert pq.read_table("data/raw/train.parquet")["text"].to_pylist() == ["first", *TEXTS]


def test_06_a_temporary_failure_and_a_silence_are_waited_for(client, hub):
    hub.fail("data/x.parquet", 503, times=2)  # its HEAD
    hub.fail(f"/lfs/datasets/o/n/resolve/{A}/data/x.parquet", 503, times=2)
    hub.cut("data/x.parquet", 5000, times=3)  # the first such request gets 5000 bytes, the next two none
    client.recovers()
    shutil.rmtree("data")
    shutil.rmtree(client.cache)
    hub.cut("data/x.parquet", 5000, times=1, hang=True)
    client.recovers(HF_HUB_DOWNLOAD_TIMEOUT="2")


@pytest.mark.parametrize(
    ("stage", "repo"), [("fetch", "o/n"), pytest.param("make_tokenizer", "google/gemma", marks=pytest.mark.slow)]
)
def test_07_a_gated_repository_names_licence_and_token_and_keeps_the_token_secret(client, hub, tmp_path, stage, repo):
    hub.add("datasets", "o/n", A, {"data/x.parquet": STORIES}, gated=TOKEN)
    add_tokenizer(hub, tmp_path / "bpe", gated=TOKEN)
    page = f"https://huggingface.co/{'datasets/' if stage == 'fetch' else ''}{repo}"
    todo = f"{repo} is gated; accept its licence at {page} and set HF_TOKEN to a token of that account"
    said = client.refused(5, todo, stage=stage)  # 401
    with_traceback = client.run(stage, "--debug", HF_TOKEN=WRONG_TOKEN)  # 403
    assert with_traceback.returncode == 5 and with_traceback.stderr.endswith(f"error: {todo}\n")
    opened = client.run(stage, HF_TOKEN=TOKEN)
    assert opened.returncode == 0, opened.stderr
    written = b"".join(files_below(Path()).values()).decode("utf-8", errors="replace")
    everything = said + with_traceback.stdout + with_traceback.stderr + opened.stdout + opened.stderr + written
    assert TOKEN not in everything and WRONG_TOKEN not in everything


def test_08_a_branch_is_resolved_and_recorded_and_a_missing_revision_is_named(client, hub):
    hub.add("datasets", "o/n", B, {"data/x.parquet": parquet_bytes(text=["another"])}, branch="v1")
    client.write(revision="v9")
    client.refused(5, "o/n has no revision 'v9': the revision does not exist; https://huggingface.co")
    client.write(revision="main")
    client.recovers()
    source = read_json("data/raw/manifest.json")["sources"]["mine"]
    assert (source["revision"], source["commit"]) == ("main", A)
    (file,) = source["splits"]["train"]["files"]
    assert file["sha256"] == hashlib.sha256(STORIES).hexdigest()


def test_08_a_wrong_checksum_ends_with_4_and_both_digests(client, hub):
    digest = hashlib.sha256(STORIES).hexdigest()
    received = flipped(STORIES)
    hub.corrupt("data/x.parquet", times=1)
    both = f"sha256 is {hashlib.sha256(received).hexdigest()}, needed: {digest}"
    client.refused(4, "o/n: data/x.parquet as received from", "(run again)", both)
    client.recovers()

    blob = client.cache / "hub/datasets--o--n/blobs" / digest
    blob.write_bytes(received)  # the cache rots
    shutil.rmtree("data")
    client.refused(4, f"o/n: data/x.parquet in the cache (delete {blob} and run again)", both)
    blob.unlink()
    client.recovers()


@pytest.fixture
def texts(project):
    """The folder of own text that `fetch.main(FETCH)` reads."""
    write_params(ALL | {"num_chars": 600}, ALL | {"start_char": 600, "num_chars": 600}, fetch=LOCAL)
    Path("texts").mkdir()
    return Path("texts")


def check_refused(texts, capsys, name, content, *parts) -> None:
    """Check that own text with this file is refused, and without it is read."""
    (texts / name).write_bytes(content)
    refused(fetch.main(FETCH), capsys.readouterr().err, 3, *parts)
    assert files_below(Path("raw")) == {}
    (texts / name).unlink()
    (texts / "good.txt").write_text("a line of text")
    assert fetch.main(FETCH) == 0


OTHER_COLUMNS = {"content": ["a"], "text": [5]}
TWICE = io.BytesIO()
pq.write_table(pa.table([["a"], ["b"]], ["text", "text"]), TWICE)


def test_09_an_unusable_column_is_named_before_the_next_file_is_received(client, hub):
    hub.add("datasets", "o/n", A, {"data/x.parquet": parquet_bytes(**OTHER_COLUMNS), "data/y.parquet": STORIES})
    client.write(column="body", files={"train": ["data/x.parquet", "data/y.parquet"]})
    client.refused(3, "o/n: data/x.parquet: has no column 'body'; its columns are content, text")
    assert not any("y.parquet" in path for _, path in hub.requests)
    client.write(column="content")
    assert client.run().returncode == 0


SET_COLUMN = "; set sources.local.fetch.column"


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("x.parquet", parquet_bytes(content=["a"]), "has no column 'text'; its columns are content"),
        ("x.parquet", parquet_bytes(**OTHER_COLUMNS), "int64, not strings; set fetch.column to one that does: content"),
        ("x.parquet", parquet_bytes(text=[["a"]]), "holds list<element: string>, not strings; convert it"),
        ("x.parquet", TWICE.getvalue(), "has several columns named 'text'; rename all but one"),
        ("x.csv", b"text,text\n1,b\n", "several columns are named 'text'; rename all but one"),
        ("x.jsonl", b'{"text": "a"}\n{"body": "b", "id": 1}\n', f"line 2 has no 'text' but body, id{SET_COLUMN}"),
        ("x.jsonl", b'{"text": "a"}\n[1]\n', "line 2 holds list, needed: a string, or one in 'text'"),
        ("x.jsonl", b'{"text": "a"}\nnot JSON\n', "line 2 is not JSON ("),
        ("x.jsonl", b'{"text": "a"}\n{"text": 5}\n', "line 2 holds int, needed: a string, or one in 'text'"),
        ("x.jsonl", b"[" * 100_000, "line 1 is not JSON ("),
        ("x.json", b'[{"text": "a"}, {"body": "b"}]', f"item 2 has no 'text' but body{SET_COLUMN}"),
        ("x.json", b'["a", null]', "item 2 holds NoneType, needed: a string, or one in 'text'"),
        ("x.json", b'["a", ', "the array is not JSON ("),
        ("x.csv", b"id,body\n1,b\n", f"the first line has no 'text' but id, body{SET_COLUMN}"),
        ("x.csv", b'id,text\n1,"b\n', "line 2: unexpected end of data"),
    ],
)
def test_09_an_unusable_column_of_own_text_is_named(texts, capsys, name, content, sentence):
    check_refused(texts, capsys, name, content, f"texts/{name}: ", sentence)


def test_09_all_unusable_files_are_counted_and_the_first_ten_named(texts, capsys):
    for number in range(12):
        (texts / f"{number:02d}.txt").write_bytes("Grüße".encode("utf-16-le") * 9)
    (texts / "good.txt").write_text("a line of text")
    status, said = fetch.main(FETCH), capsys.readouterr().err
    remedy = "correct or remove them, or leave them out with sources.local.fetch.include"
    refused(status, said, 3, f"error: local.path: 12 of 13 files cannot be read; {remedy}")
    assert [line.split(": ")[1] for line in said.splitlines()[:-1]] == [f"texts/{i:02d}.txt" for i in range(10)]


@pytest.mark.parametrize("name", ["x.txt.gz", "x.jsonl.gz", "x.csv.gz"])
def test_09_a_small_file_that_expands_to_a_document_too_large_is_named(texts, capsys, monkeypatch, name):
    monkeypatch.setattr(text_files, "MAX_PIECE_BYTES", 1 << 21)
    content = gzip.compress(b"text\n" * name.count("csv") + b"a" * (1 << 23))
    check_refused(texts, capsys, name, content, f"texts/{name}: ", "cut it into smaller files")


@pytest.mark.parametrize("name", ["x.parquet", "x.jsonl"])
def test_09_null_and_empty_rows_are_skipped_and_counted_in_the_data_card(texts, capsys, name):
    rows = [None, "", *(f"a line of text, number {i}" for i in range(100)), None, None, ""]
    lines = b"".join(json.dumps({"text": row}).encode() + b"\n" for row in rows)
    (texts / name).write_bytes(lines if name == "x.jsonl" else parquet_bytes(text=rows))
    assert fetch.main(FETCH) == 0
    said = "text: 100 documents, 2,490 characters\nmine, text: rows left out: 3 null, 2 empty\n"
    assert said in capsys.readouterr().out
    assert tokenize("train") == tokenize("validation") == 0
    card = run_audit()
    assert card["dropped_rows"] == {"text": {"null": 3, "empty": 2}}
    assert card["train"]["documents"] + card["validation"]["documents"] == 49


def written(table: pa.Table, **options) -> bytes:
    """Return a table as parquet, written with these options."""
    file = io.BytesIO()
    pq.write_table(table, file, **options)
    return file.getvalue()


BAD_ROW = pa.array([*[b"good"] * 150, b"\xff\xfe", *[b"good"] * 149]).view(pa.string())
BAD_GROUP = written(pa.table({"text": BAD_ROW}), row_group_size=100)
BAD_PAGE = flipped(
    written(pa.table({"text": TEXTS}), compression="none", use_dictionary=False, write_page_checksum=True)
)
WHOLE = {".gz": gzip.compress("\n".join(TEXTS).encode()), ".zst": zstandard.compress("\n".join(TEXTS).encode())}


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("/x.parquet", STORIES[:-1000], "not a whole parquet file ("),
        ("/x.parquet", STORIES[:-300] + bytes(200) + STORIES[-100:], "not a whole parquet file ("),
        ("/x.parquet", b"", "not a whole parquet file ("),
        ("/x.parquet", BAD_GROUP, "row group 1 cannot be read (In column 0: Invalid: Invalid UTF8"),
        ("/x.parquet", BAD_PAGE, "row group 0 cannot be read (could not verify page integrity"),
        ("", parquet_bytes(text=pa.array([], pa.string())), "split 'text' has no document, only 0 null and 0 empty"),
        ("", parquet_bytes(text=pa.array([None] * 3, pa.string())), "has no document, only 3 null and 0 empty rows"),
        *((f"/x.txt{end}", damaged, f"not a whole {end} file (") for end, whole in WHOLE.items()
          for damaged in (whole[:-9], whole[: len(whole) // 2], b"no such format", whole + b"more")),
    ],
)  # fmt: skip
def test_10_damaged_own_text_is_named(texts, capsys, name, content, sentence):
    check_refused(texts, capsys, name[1:] or "x.parquet", content, f"texts{name}: ", sentence)


def test_10_damaged_parquet_of_the_hub_is_named(client, hub):
    """The bytes are those of the repository, so only another commit or file helps."""
    hub.add("datasets", "o/n", B, {"data/x.parquet": BAD_GROUP})
    client.write(revision=B)
    client.refused(3, "o/n: data/x.parquet: ", "row group 1 cannot be read (In column 0: Invalid: Invalid UTF8")
    client.write()
    client.recovers()


def test_11_cached_files_need_no_network(client, hub, tmp_path):
    """A source and a tokenizer at a commit cause no request, although the hub is running."""
    add_tokenizer(hub, tmp_path / "bpe")
    client.recovers()
    assert client.run("make_tokenizer").returncode == 0
    hub.requests.clear()
    shutil.rmtree("data")
    client.recovers()
    assert client.run("make_tokenizer").returncode == 0
    assert hub.requests == []
    hub.__exit__()
    client.write(revision="main")
    done = client.run()
    refused(done.returncode, done.stderr, 5, "o/n revision 'main': not in the cache", f"{hub.url} is out of reach")
