"""Faults 6 to 11: fetching. Each real stage runs in its own process against a hub on loopback.

The hub disconnects or falls silent in mid-file, refuses, corrupts and stops (`loopback_hub`); local files are
damaged. A refusal leaves nothing at the final path, and the same command succeeds afterwards.
"""

import gzip
import hashlib
import io
import json
import random
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import audit
import fetch
import make_tokenizer
import tokenize_split
from lm.core.params import read_yaml
from lm.text.sources import local, torch_headers
from support import ROOT
from support.loopback_hub import LoopbackHub, parquet_bytes
from support.refusal import files_below, refused
from support.tokenize_cases import FETCH, NONE, TEXT, select, write_definition
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
RAW = {"raw/train/0000-x.parquet": STORIES}


def write_parameters(folder, source: dict, tokenizer: dict) -> None:
    """Write params.yaml and presets.yaml with the source `s` and the tokenizer `t`; own text is in `texts`."""
    params = {"data": {"source": "s"}, "tokenizer": {"name": "t"}, "local": {"path": "texts"}}
    params["selection"] = {"name": "none"}
    (folder / "params.yaml").write_text(json.dumps(params))
    write_definition(folder, "s", source["fetch"])
    presets = {"sources": {"s": source}, "selections": {"none": NONE}, "tokenizers": {"t": tokenizer}}
    (folder / "presets.yaml").write_text(json.dumps(presets))


class Project:
    """A working directory with parameters whose source and tokenizer come from the hub."""

    def __init__(self, folder, hub):
        self.folder, self.hub = folder, hub
        folder.mkdir()
        self.write()

    def write(self, **changes):
        """Write the parameter files; `changes` replace keys of the hub source."""
        source = {"kind": "hub", "repo": "o/n", "revision": A, "files": {"train": ["data/x.parquet"]}, "column": "text"}
        tokenizer = {"kind": "huggingface", "repo": "google/gemma", "revision": A}
        write_parameters(self.folder, {"fetch": {**source, **changes}}, tokenizer)

    def run(self, stage="fetch", *options, **variables) -> subprocess.CompletedProcess:
        """Run a stage; its outputs are data/raw and data/tokenizer, its cache is beside the folder."""
        environment = self.hub.environment(self.folder.parent / "hf", PYTHONPATH=f"{ROOT}/src", **variables)
        own = ["--definition", "source.json"]
        if stage == "make_tokenizer":
            own = ["--selection", "data/selection", "--tokenizer", "data/tokenizer"]
        arguments = ["--raw", "data/raw", *own]
        command = [sys.executable, "-c", HURRIED, stage, *arguments, *options]
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=100, check=False
        )

    def data(self) -> dict[str, bytes]:
        """Return the files in data/ except the manifest."""
        found = files_below(self.folder / "data")
        return {name: content for name, content in found.items() if not name.endswith("manifest.json")}

    def refused(self, code, *parts, stage="fetch", **variables) -> str:
        """Run a stage that must refuse and leave nothing; return everything it printed."""
        done = self.run(stage, **variables)
        refused(done.returncode, done.stderr, code, *parts)
        assert self.data() == {} and not (self.folder / "data/raw").exists()
        return done.stdout + done.stderr

    def recovers(self) -> None:
        """Check that the same command now succeeds with the right bytes."""
        done = self.run()
        assert done.returncode == 0, done.stderr
        assert self.data() == RAW


@pytest.fixture
def hub():
    with LoopbackHub() as served:
        served.add("datasets", "o/n", A, {"data/x.parquet": STORIES})
        yield served


@pytest.fixture
def project(hub, tmp_path):
    return Project(tmp_path / "project", hub)


def test_06_a_network_lost_in_mid_file_ends_with_5_and_a_rerun_keeps_whole_files(project, hub):
    other = parquet_bytes(text=["first"])
    hub.add("datasets", "o/n", A, {"data/w.parquet": other, "data/x.parquet": STORIES})
    project.write(files={"train": ["data/w.parquet", "data/x.parquet"]})
    hub.cut("data/x.parquet", 5000)
    project.refused(5, f"o/n data/x.parquet at commit {A}", "out of reach", "run again")
    hub.cut("data/x.parquet", len(STORIES))
    hub.bytes_sent = 0
    done = project.run()
    assert done.returncode == 0, done.stderr
    assert hub.bytes_sent == len(STORIES) and project.data()["raw/train/0001-x.parquet"] == STORIES


def test_06_a_temporary_failure_is_waited_for(project, hub):
    hub.fail("data/x.parquet", 503, times=2)  # its HEAD
    hub.fail(f"/lfs/datasets/o/n/resolve/{A}/data/x.parquet", 503, times=2)
    hub.cut("data/x.parquet", 5000, times=3)  # the first such request gets 5000 bytes, the next two none
    project.recovers()


@pytest.fixture
def gated(hub, tmp_path):
    """A gated dataset and a gated tokenizer with one token."""
    hub.add("datasets", "o/n", A, {"data/x.parquet": STORIES}, gated=TOKEN)
    (tmp_path / "bpe").mkdir()
    files = {path.name: path.read_bytes() for path in write_bpe(tmp_path / "bpe").iterdir()}
    hub.add("models", "google/gemma", A, files, gated=TOKEN)
    return Project(tmp_path / "project", hub)


@pytest.mark.parametrize(
    ("stage", "repo"), [("fetch", "o/n"), pytest.param("make_tokenizer", "google/gemma", marks=pytest.mark.slow)]
)
def test_07_a_gated_repository_names_licence_and_token_and_keeps_the_token_secret(gated, stage, repo):
    page = f"https://huggingface.co/{'datasets/' if stage == 'fetch' else ''}{repo}"
    todo = f"{repo} is gated; accept its licence at {page} and set HF_TOKEN to a token of that account"
    said = gated.refused(5, todo, stage=stage)  # 401
    with_traceback = gated.run(stage, "--debug", HF_TOKEN=WRONG_TOKEN)  # 403
    assert with_traceback.returncode == 5 and with_traceback.stderr.endswith(f"error: {todo}\n")
    said += with_traceback.stdout + with_traceback.stderr
    opened = gated.run(stage, HF_TOKEN=TOKEN)
    assert opened.returncode == 0, opened.stderr
    written = b"".join(files_below(gated.folder).values()).decode("utf-8", errors="replace")
    everything = said + opened.stdout + opened.stderr + written
    assert TOKEN not in everything and WRONG_TOKEN not in everything


def test_08_a_branch_is_resolved_and_recorded(project, hub):
    hub.add("datasets", "o/n", B, {"data/x.parquet": parquet_bytes(text=["another"])}, branch="v1")
    project.write(revision="main")
    project.recovers()
    manifest = json.loads((project.folder / "data/raw/manifest.json").read_text())
    assert (manifest["revision"], manifest["commit"]) == ("main", A)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"revision": "v9"}, "o/n has no revision 'v9': the revision does not exist; https://huggingface.co"),
        ({"revision": B}, f"o/n has no data/x.parquet at commit {B}: the revision does not exist"),
    ],
)
def test_08_a_missing_revision_is_named(project, change, sentence):
    project.write(**change)
    project.refused(5, sentence)


def test_08_a_wrong_checksum_ends_with_4_and_both_digests(project, hub):
    digest = hashlib.sha256(STORIES).hexdigest()
    received = bytearray(STORIES)
    received[len(received) // 2] ^= 1
    hub.corrupt("data/x.parquet", times=1)
    both = f"sha256 is {hashlib.sha256(received).hexdigest()}, needed: {digest}"
    project.refused(4, "o/n: data/x.parquet as received from", "(run again)", both)
    project.recovers()

    blob = project.folder.parent / "hf/hub/datasets--o--n/blobs" / digest
    blob.write_bytes(received)  # the cache rots
    subprocess.run(["rm", "-r", "data"], cwd=project.folder, check=True)
    project.refused(4, f"o/n: data/x.parquet in the cache (delete {blob} and run again)", both)
    blob.unlink()
    project.recovers()


def test_08_changed_headers_end_with_4_and_both_digests(tmp_path, monkeypatch, capsys):
    (tmp_path / "include/c10/core").mkdir(parents=True)
    (tmp_path / "include/c10/core/a.h").write_text("int a;\n")
    found = hashlib.sha256(b"c10/core/a.h\0int a;\n\0").hexdigest()
    monkeypatch.setattr(torch_headers, "_include_folder", lambda version: tmp_path / "include")
    fetch_section = read_yaml(ROOT / "presets.yaml")["sources"]["torch_headers"]["fetch"]
    own_text(tmp_path, monkeypatch, **(fetch_section | {"sha256": "0" * 64}))
    both = f"sha256 is {found}, sources.torch_headers.fetch.sha256 is {'0' * 64}"
    refused(fetch.main(FETCH), capsys.readouterr().err, 4, "headers of torch 2.13.0", both, "reinstall torch")
    assert not (tmp_path / "raw").exists()


def own_text(folder, monkeypatch, **section) -> None:
    """Make `folder` the working directory; its source is its folder `texts`, or `section`."""
    local = {"kind": "local", "include": "**/*", "column": "text", "separator": None, "split": None}
    source = {"fetch": section or local}
    for split in ("train", "validation"):
        source[split] = {"split": "text", "start_char": 0 if split == "train" else 600, "num_chars": 600}
    write_parameters(folder, source, {"kind": "bpe", "vocab_size": 300, "pretokenizer": "gpt2"})
    (folder / "runtime.yaml").write_text(json.dumps({"tokenize": {"num_processes": 1, "chunk_chars": 1000}}))
    (folder / "texts").mkdir()
    monkeypatch.chdir(folder)


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """The folder of own text that `fetch.main(FETCH)` reads."""
    own_text(tmp_path, monkeypatch)
    return tmp_path / "texts"


OTHER_COLUMNS = {"content": ["a"], "text": [5]}
TWICE = io.BytesIO()
pq.write_table(pa.table([["a"], ["b"]], ["text", "text"]), TWICE)
TWICE = TWICE.getvalue()


def test_09_an_unusable_column_is_named_before_the_next_file_is_received(project, hub):
    hub.add("datasets", "o/n", A, {"data/x.parquet": parquet_bytes(**OTHER_COLUMNS), "data/y.parquet": STORIES})
    project.write(column="body", files={"train": ["data/x.parquet", "data/y.parquet"]})
    project.refused(3, "o/n: data/x.parquet: has no column 'body'; its columns are content, text")
    assert not any("y.parquet" in path for _, path in hub.requests)
    project.write(column="content")
    assert project.run().returncode == 0


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("x.parquet", parquet_bytes(content=["a"]), "has no column 'text'; its columns are content"),
        (
            "x.parquet",
            parquet_bytes(**OTHER_COLUMNS),
            "holds int64, not strings; set fetch.column to one that does: content",
        ),
        (
            "x.parquet",
            parquet_bytes(text=[["a"]]),
            "holds list<element: string>, not strings; convert it",
        ),
        ("x.parquet", TWICE, "has several columns named 'text'; rename all but one"),
        ("x.csv", b"text,text\n1,b\n", "several columns are named 'text'; rename all but one"),
        (
            "x.jsonl",
            b'{"text": "a"}\n{"body": "b", "id": 1}\n',
            "line 2 has no 'text' but body, id; set sources.local.fetch.column",
        ),
        ("x.jsonl", b'{"text": "a"}\n[1]\n', "line 2 holds list, needed: a string, or one in 'text'"),
        ("x.jsonl", b'{"text": "a"}\nnot JSON\n', "line 2 is not JSON ("),
        ("x.jsonl", b'{"text": "a"}\n{"text": 5}\n', "line 2 holds int, needed: a string, or one in 'text'"),
        ("x.jsonl", b"[" * 100_000, "line 1 is not JSON ("),
        ("x.json", b'[{"text": "a"}, {"body": "b"}]', "item 2 has no 'text' but body; set sources.local.fetch.column"),
        ("x.json", b'["a", null]', "item 2 holds NoneType, needed: a string, or one in 'text'"),
        ("x.json", b'["a", ', "the array is not JSON ("),
        ("x.csv", b"id,body\n1,b\n", "the first line has no 'text' but id, body; set sources.local.fetch.column"),
        ("x.csv", b'id,text\n1,"b\n', "line 2: unexpected end of data"),
    ],
)
def test_09_an_unusable_column_of_own_text_is_named(texts, capsys, name, content, sentence):
    (texts / name).write_bytes(content)
    refused(fetch.main(FETCH), capsys.readouterr().err, 3, f"texts/{name}: ", sentence)
    assert files_below(texts.parent / "raw") == {}
    good = {"x.parquet": parquet_bytes(text=["a"]), "x.csv": b"text\na\n", "x.json": b'["a"]'}
    (texts / name).write_bytes(good.get(name, b'{"text": "a"}\n'))
    assert fetch.main(FETCH) == 0


def test_09_all_unusable_files_are_counted_and_the_first_ten_named(texts, capsys):
    for number in range(12):
        (texts / f"{number:02d}.txt").write_bytes("Grüße".encode("utf-16-le") * 9)
    (texts / "good.txt").write_text("a line of text")
    status, said = fetch.main(FETCH), capsys.readouterr().err
    remedy = "correct or remove them, or leave them out with sources.local.fetch.include"
    refused(status, said, 3, f"error: local.path: 12 of 13 files cannot be read; {remedy}")
    lines = said.splitlines()[:-1]
    assert [line.split(": ")[1] for line in lines] == [f"texts/{number:02d}.txt" for number in range(10)]


@pytest.mark.parametrize("name", ["x.txt.gz", "x.jsonl.gz", "x.csv.gz"])
def test_09_a_small_file_that_expands_to_a_document_too_large_is_named(texts, capsys, monkeypatch, name):
    monkeypatch.setattr(local, "MAX_PIECE_BYTES", 1 << 21)
    (texts / name).write_bytes(gzip.compress(b"text\n" * name.count("csv") + b"a" * (1 << 23)))
    refused(fetch.main(FETCH), capsys.readouterr().err, 3, f"texts/{name}: ", "cut it into smaller files")


@pytest.mark.parametrize("name", ["x.parquet", "x.jsonl"])
def test_09_null_and_empty_rows_are_skipped_and_counted_in_the_data_card(texts, capsys, name):
    rows = [None, "", *(f"a line of text, number {i}" for i in range(100)), None, None, ""]
    lines = b"".join(json.dumps({"text": row}).encode() + b"\n" for row in rows)
    (texts / name).write_bytes(lines if name == "x.jsonl" else parquet_bytes(text=rows))
    assert fetch.main(FETCH) == 0
    assert "text: 100 documents, 2,490 characters; rows left out: 3 null, 2 empty\n" in capsys.readouterr().out
    assert select() == make_tokenizer.main([*TEXT, "--tokenizer", "tokenizer"]) == 0
    for split in ("train", "validation"):
        options = ["--split", split, "--tokenizer", "tokenizer", "--tokens", f"{split}.bin"]
        assert tokenize_split.main([*TEXT, *options]) == 0
    tokens = ["--train", "train.bin", "--validation", "validation.bin"]
    assert audit.main([*TEXT, "--tokenizer", "tokenizer", *tokens, "--audit", "audit", "--metrics", "metrics"]) == 0
    card = json.loads((texts.parent / "audit/details.json").read_text())
    assert card["dropped_rows"] == {"text": {"null": 3, "empty": 2}}
    assert card["train"]["documents"] + card["validation"]["documents"] == 49
    assert pq.read_table(texts.parent / "audit/duplicates.parquet").num_rows == 0
    assert pq.read_table(texts.parent / "audit/contamination.parquet").num_rows == card["validation"]["documents"]
    assert set(json.loads((texts.parent / "metrics/data.json").read_text())) == {"bytes_per_token", "leaked_fraction"}


def with_bad_row_group() -> bytes:
    """Return parquet with 300 rows in three groups; the second holds invalid UTF-8."""
    rows = [b"good %d" % i for i in range(300)]
    rows[150] = b"\xff\xfe"
    file = io.BytesIO()
    pq.write_table(pa.table({"text": pa.array(rows).view(pa.string())}), file, row_group_size=100)
    return file.getvalue()


def with_damaged_page() -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"text": TEXTS}), file, compression="none", use_dictionary=False, write_page_checksum=True)
    content = bytearray(file.getvalue())
    content[len(content) // 2] ^= 1
    return bytes(content)


PARQUET_DAMAGE = {
    "truncated": (STORIES[:-1000], "not a whole parquet file ("),
    "bad footer": (STORIES[:-300] + bytes(200) + STORIES[-100:], "not a whole parquet file ("),
    "0 bytes": (b"", "not a whole parquet file ("),
    "zero rows": (parquet_bytes(text=pa.array([], pa.string())), "has no document, only 0 null and 0 empty rows"),
    "null rows": (parquet_bytes(text=pa.array([None] * 3, pa.string())), "has no document, only 3 null and 0 empty"),
    "invalid UTF-8": (with_bad_row_group(), "row group 1 cannot be read (In column 0: Invalid: Invalid UTF8"),
    "damaged page": (with_damaged_page(), "row group 0 cannot be read (could not verify page integrity"),
}


@pytest.mark.parametrize("damage", PARQUET_DAMAGE)
def test_10_damaged_local_parquet_is_named(texts, capsys, damage):
    content, sentence = PARQUET_DAMAGE[damage]
    (texts / "x.parquet").write_bytes(content)
    name = "texts: split 'text'" if "rows" in damage else "texts/x.parquet:"
    refused(fetch.main(FETCH), capsys.readouterr().err, 3, f"{name} {sentence}")
    assert files_below(texts.parent / "raw") == {}
    (texts / "x.parquet").write_bytes(STORIES)
    assert fetch.main(FETCH) == 0
    assert pq.read_table("raw/text")["text"].to_pylist() == TEXTS


def test_10_damaged_parquet_of_the_hub_is_named(project, hub):
    """The bytes are those of the repository, so only another commit or file helps."""
    content, sentence = PARQUET_DAMAGE["invalid UTF-8"]
    hub.add("datasets", "o/n", B, {"data/x.parquet": content})
    project.write(revision=B)
    project.refused(3, "o/n: data/x.parquet: ", sentence)
    project.write()
    project.recovers()


def test_10_flipped_bits_and_cuts_give_one_sentence(texts, capsys):
    good, draw, said = with_damaged_page(), random.Random(1), set()
    for _ in range(60):
        content = bytearray(good[: draw.randrange(len(good))] if draw.random() < 0.3 else good)
        if content:
            content[draw.randrange(max(0, len(content) - 600), len(content))] ^= 1 << draw.randrange(8)
        (texts / "x.parquet").write_bytes(content)
        said.add(refused(fetch.main(FETCH), capsys.readouterr().err, 3, "texts/x.parquet: "))
    assert len(said) > 5


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".zst", zstandard.compress)])
def test_10_damaged_compressed_text_is_named(texts, capsys, suffix, compress):
    whole = compress("\n".join(TEXTS).encode())
    for content in (whole[:-9], whole[: len(whole) // 2], b"no such format", whole + b"more"):
        (texts / f"x.txt{suffix}").write_bytes(content)
        refused(fetch.main(FETCH), capsys.readouterr().err, 3, f"texts/x.txt{suffix}: not a whole {suffix} file (")
        assert files_below(texts.parent / "raw") == {}
    (texts / f"x.txt{suffix}").write_bytes(whole)
    assert fetch.main(FETCH) == 0
    assert pq.read_table("raw/text")["text"].to_pylist() == ["\n".join(TEXTS)]


def test_11_cached_files_need_no_network(project, hub, tmp_path):
    """A source and a tokenizer at a commit cause no request, although the hub is running."""
    (tmp_path / "bpe").mkdir()
    files = {path.name: path.read_bytes() for path in write_bpe(tmp_path / "bpe").iterdir()}
    hub.add("models", "google/gemma", A, files)
    project.recovers()
    fill = f"from lm.tokenizer.build import *; download_tokenizer('google/gemma', '{A}', Path('.'))"
    environment = hub.environment(tmp_path / "hf", PYTHONPATH=f"{ROOT}/src")
    subprocess.run([sys.executable, "-c", fill], cwd=tmp_path, env=environment, check=True)
    hub.requests.clear()
    subprocess.run(["rm", "-r", "data"], cwd=project.folder, check=True)
    project.recovers()
    assert project.run("make_tokenizer").returncode == 0
    assert hub.requests == []
    hub.__exit__()
    project.write(revision="main")
    done = project.run()
    refused(done.returncode, done.stderr, 5, "o/n revision 'main': not in the cache", f"{hub.url} is out of reach")
