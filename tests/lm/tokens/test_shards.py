"""A token file in shards is the same stream as one file for every reader, and as strictly checked."""

import contextlib
import json
import os
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import train as train_stage
from extras.formats.stream import bin_stream, checked
from lm.core.errors import IntegrityError, ParamsError
from lm.core.files import sha256_file
from lm.tokens.ngrams import copies, shared_blocks
from lm.tokens.shards import ShardedIds
from lm.tokens.tokenfile import Shard, check_id_range, document_spans, join_shards, open_tokens, write_tokens
from lm.tokens.windows import TokenWindows, read_windows
from lm.train.batches import get_batch
from support.train_cases import ARGUMENTS, clear, make_training, results
from support.workspace import Workspace
from tools import convert
from tools.common.records import Digests, Record, token_file
from tools.report import pictures as report

TOKENIZER = {"kind": "bpe", "vocab_size": 100, "eot_id": 99, "sha256": "ab" * 32}
STREAM = np.random.default_rng(0).integers(100, size=1000, dtype=np.uint16)
CUTS = (1, 2, 40, 41, 500, 730)


def cut(path: Path, cuts) -> dict:
    """Replace a token file by shards, cut at `cuts`; return the sidecar."""
    single = open_tokens(path)
    described = {
        key: value for key, value in single.meta.items() if key not in ("format_version", "dtype", "tokens", "sha256")
    }
    pieces = path.with_suffix(".pieces")
    pieces.mkdir()
    shards = []
    for begin, end in zip((0, *cuts), (*cuts, len(single.ids)), strict=True):
        file = pieces / f"{begin}.piece"
        single.ids[begin:end].tofile(file)
        shards.append(Shard(file, end - begin, sha256_file(file)))
    meta = join_shards(path, shards, single.meta["dtype"], described)
    shutil.rmtree(pieces)
    return meta


def write(path: Path, ids=STREAM) -> dict:
    return write_tokens(path, [ids], "uint16", lambda: {"documents": 1, "tokenizer": TOKENIZER})


@pytest.fixture
def both(tmp_path):
    """The same stream as one file and as shards."""
    for name in ("single", "sharded"):
        write(tmp_path / f"{name}.bin")
    cut(tmp_path / "sharded.bin", CUTS)
    return open_tokens(tmp_path / "single.bin"), open_tokens(tmp_path / "sharded.bin")


def test_the_sidecar_is_that_of_one_file_and_its_shards(both):
    single, sharded = both
    shards = sharded.meta["shards"]
    assert {key: value for key, value in sharded.meta.items() if key != "shards"} == single.meta
    assert [shard["tokens"] for shard in shards] == [1, 1, 38, 1, 459, 230, 270]
    content = b"".join((sharded.path / shard["path"]).read_bytes() for shard in shards)
    assert content == single.path.read_bytes()
    assert [sha256_file(sharded.path / shard["path"]) for shard in shards] == [shard["sha256"] for shard in shards]


def test_every_slice_and_position_gives_the_stream(both):
    ids = both[1].ids
    assert isinstance(ids, ShardedIds) and len(ids) == len(STREAM) and ids.dtype == STREAM.dtype
    places = [0, 1, 2, 3, 39, 40, 41, 42, 499, 500, 501, 999, 1000, 1005]
    for start in places:
        for stop in places:
            assert np.array_equal(ids[start:stop], STREAM[start:stop]), (start, stop)
    assert np.array_equal(ids[:-3], STREAM[:-3]) and np.array_equal(ids[-7:], STREAM[-7:])
    assert [int(ids[i]) for i in (*range(50), 999, -1, -1000)] == [int(STREAM[i]) for i in (*range(50), 999, -1, -1000)]
    positions = np.random.default_rng(1).permutation(1000)
    assert np.array_equal(ids[positions], STREAM[positions])
    assert len(ids[np.empty(0, np.int64)]) == 0
    assert np.array_equal(np.asarray(ids), STREAM) and np.asarray(ids, np.int64).dtype == np.int64
    assert np.array_equal(ids == 99, STREAM == 99)
    assert np.array_equal(np.arange(100)[ids], STREAM)


@pytest.mark.parametrize("index", [1000, -1001, np.array([3, 1000]), np.array([-1]), np.array([True]), slice(0, 9, 2)])
def test_invalid_indices_are_refused(both, index):
    with pytest.raises(IndexError):
        both[1].ids[index]


def test_a_slice_is_read_only(both):
    with pytest.raises(ValueError, match="read-only"):
        both[1].ids[50:60][0] = 1


@pytest.mark.parametrize("seq_len", [1, 7, 64, 999])
def test_windows_across_borders_are_those_of_one_file(both, seq_len):
    single, sharded = (TokenWindows(tokens.ids, seq_len, 4, seed=5) for tokens in both)
    for step in range(3 * single.windows_per_epoch() // 4 + 2):
        assert np.array_equal(single.buffer(step), sharded.buffer(step))
        assert sharded.buffer(step).dtype == np.int64
    starts = np.arange(1000 - seq_len)
    assert np.array_equal(*(read_windows(tokens.ids, starts, seq_len + 1) for tokens in both))
    for outside in (1000 - seq_len, -1):
        with pytest.raises(IndexError):
            read_windows(both[1].ids, np.array([outside]), seq_len + 1)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux what it was advised")
@pytest.mark.parametrize(("memory_bytes", "is_larger"), [(1 << 40, False), (1000, True)])
def test_windows_of_files_larger_than_memory_are_mapped_without_read_ahead(both, monkeypatch, memory_bytes, is_larger):
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=memory_bytes))

    def advised(tokens):
        """Return for each mapping of the stream's files whether random access was announced."""
        maps = re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
        return sorted("rr" in re.search(r"VmFlags:(.*)", m)[1].split() for m in maps if str(tokens.path) in m)

    for tokens, count in zip(both, (1, 7), strict=True):
        assert advised(tokens) == [False] * count
        windows = TokenWindows(tokens.ids, 8, 2, seed=1)
        assert advised(tokens) == [False] * count + [True] * count * is_larger
        assert np.array_equal(windows.ids, tokens.ids)


def test_batches_at_random_are_those_of_one_file(both):
    first, second = (get_batch(t.ids, 16, 64, "cpu", torch.Generator().manual_seed(1)) for t in both)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_scans_give_the_same_results_as_in_one_file(both, monkeypatch):
    single, sharded = both
    ends = np.flatnonzero(STREAM == 99) + 1
    spans = np.stack([np.append(0, ends[:-1]), ends], axis=1)
    for block in (3, 64, 5000):
        monkeypatch.setattr("lm.tokens.tokenfile.blocks_of.__defaults__", (block,))
        assert np.array_equal(document_spans(single), spans) and np.array_equal(document_spans(sharded), spans)
        monkeypatch.setattr(report, "BLOCK_TOKENS", block)
        scans = [report.scan(tokens.path, tokens.meta) for tokens in both]
        assert all(np.array_equal(a, b) for a, b in zip(*scans, strict=True))
    for ids, others in ((single.ids, sharded.ids), (sharded.ids, single.ids), (sharded.ids, sharded.ids)):
        assert all(is_shared.all() for _, is_shared in shared_blocks(ids, others, 101, 13))
    sample = [np.concatenate([STREAM[490:520], STREAM[:3]]).astype(np.int64)]
    assert copies(sample, sharded.ids, 8) == copies(sample, single.ids, 8) == [(30, pytest.approx(3 / 26))]
    assert np.array_equal(np.concatenate(list(checked(bin_stream(sharded.path, "uint16"), sharded.meta))), STREAM)


def test_an_id_outside_the_vocabulary_is_reported_after_a_border(tmp_path):
    ids = STREAM.copy()
    ids[730] = 100
    write(tmp_path / "x.bin", ids)
    cut(tmp_path / "x.bin", CUTS)
    with pytest.raises(IntegrityError, match="token 100 at position 730 is outside the vocabulary of 100"):
        check_id_range(open_tokens(tmp_path / "x.bin"), 64)


def change(path, edit):
    meta = json.loads(path.with_suffix(".json").read_text())
    edit(meta)
    path.with_suffix(".json").write_text(json.dumps(meta))


def swap(meta):
    """Swap two shards of the same length; each still has its hash."""
    meta["shards"][0], meta["shards"][1] = meta["shards"][1], meta["shards"][0]


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.unlink()  # another name of the same file must not change
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda path: flip(path / "00002.bin"), "00002.bin: sha256 is"),
        (lambda path: (path / "00006.bin").unlink(), "00006.bin: missing beside its sidecar"),
        (lambda path: os.truncate(path / "00004.bin", 900), "00004.bin: 900 bytes, its sidecar says 459 tokens"),
        (lambda path: shutil.rmtree(path) or path.write_bytes(STREAM.tobytes()), "00000.bin: missing"),
        (
            lambda path: change(path, lambda meta: meta["shards"].pop()),
            "not a list of files with 1000 tokens in total",
        ),
        (lambda path: change(path, lambda meta: meta["shards"][0].pop("sha256")), r"shards\[0\].sha256 is missing"),
        (lambda path: change(path, lambda meta: meta.update(shards=[])), "not a list of files"),
        (
            lambda path: change(path, lambda meta: meta["shards"][0].update(path="../other.bin")),
            "names the file '../other.bin', needed: a path inside",
        ),
        (lambda path: change(path, lambda meta: meta.pop("shards")), "4096 bytes|bytes, its sidecar says 1000 tokens"),
    ],
)
def test_shards_that_differ_from_the_sidecar_are_refused(both, damage, sentence):
    damage(both[1].path)
    with pytest.raises(IntegrityError, match=sentence):
        open_tokens(both[1].path)
    record = Record(both[1].path.with_suffix(".json"), json.loads(both[1].path.with_suffix(".json").read_text()))
    with contextlib.suppress(IntegrityError):
        assert any(finding.fault for finding in token_file(Digests(), record))


def test_verify_reads_the_shards_in_their_order(both):
    path = both[1].path
    for edit, fault in ((lambda meta: None, None), (swap, "sha256 is")):
        change(path, edit)
        record = Record(path.with_suffix(".json"), json.loads(path.with_suffix(".json").read_text()))
        (finding,) = token_file(Digests(), record)
        assert finding.fault == fault or finding.fault.startswith(fault)


def test_files_that_differ_from_their_record_are_not_joined(tmp_path):
    (tmp_path / "a").write_bytes(b"\1\0")
    with pytest.raises(IntegrityError, match=r"a: sha256 is .* says abab"):
        join_shards(tmp_path / "x.bin", [Shard(tmp_path / "a", 1, "ab" * 32)], "uint16", {"tokenizer": TOKENIZER})
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a"]


@pytest.mark.parametrize("can_link", [True, False])
def test_shards_are_links_if_possible(tmp_path, monkeypatch, can_link):
    def refuse(*names):
        raise OSError("another disk")

    if not can_link:
        monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "a").write_bytes(b"\1\0")
    shard = Shard(tmp_path / "a", 1, sha256_file(tmp_path / "a"))
    join_shards(tmp_path / "x.bin", [shard, shard], "uint16", {"tokenizer": TOKENIZER})
    assert (tmp_path / "x.bin" / "00001.bin").samefile(tmp_path / "a") == can_link
    assert open_tokens(tmp_path / "x.bin").ids[:].tolist() == [1, 1]


def test_a_file_does_not_replace_a_folder_of_shards(both):
    path = both[1].path
    with pytest.raises(ParamsError, match="is a folder of shards"):
        write(path)
    assert np.array_equal(open_tokens(path).ids[:], STREAM)


def test_training_on_shards_gives_the_same_results(tmp_path, monkeypatch, capsys):
    make_training(tmp_path / "ws")
    monkeypatch.chdir(tmp_path / "ws")
    assert train_stage.main(ARGUMENTS) == 0
    expected = results_and_record()
    clear()
    cut(Path("train.bin"), (1000, 1017, 2500))
    cut(Path("validation.bin"), (333,))
    assert train_stage.main(ARGUMENTS) == 0
    assert results_and_record() == expected


def results_and_record() -> tuple[dict[str, bytes], dict]:
    """Return what the run has made; its record without the fingerprint, which covers the token files."""
    made = results()
    record = json.loads(made.pop("data/models/model.json"))
    del record["fingerprint"]
    return made, record


def test_shards_are_converted_like_one_file(both, monkeypatch):
    monkeypatch.chdir(both[1].path.parent)
    assert convert.main(["sharded.bin", "x.npy"]) == 0
    assert np.array_equal(np.load("x.npy"), STREAM)
    assert convert.main(["x.npy", "again.bin"]) == 0
    assert Path("again.bin").read_bytes() == both[0].path.read_bytes()
    assert open_tokens("again.bin").meta == both[0].meta


@pytest.mark.slow
def test_the_pipeline_continues_with_shards_as_an_output_of_dvc(tmp_path, finished):
    workspace = Workspace(tmp_path, finished)
    made = ["data/models/best_model_params.pt", "metrics/data.json", "metrics/eval.json", "metrics/train.json"]
    before = {name: (tmp_path / name).read_bytes() for name in made}
    train, validation = (tmp_path / f"data/processed_datasets/{split}.bin" for split in ("train", "validation"))
    cut(train, (5, 1000, 20_000))
    cut(validation, (777,))
    workspace.run("dvc", "commit", "-f", "tokenize_train", "tokenize_val")
    assert workspace.repro() == {"audit", "train", "eval", "plot"}
    assert {name: (tmp_path / name).read_bytes() for name in made} == before
    shutil.rmtree(train)
    workspace.run("dvc", "checkout", "data/processed_datasets/train.bin")
    assert len(list(train.iterdir())) == 4 and workspace.repro() == set()
    assert "all ok" in workspace.run("python", "src", "verify", "--cache").stdout
    for tool in (["explain", "--step", "3", "--row", "0"], ["report"]):
        workspace.run("python", "src", *tool)
