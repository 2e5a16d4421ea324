"""Hub sources with the real clients against a hub on loopback: the files, and the error of each fault."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from lm.text.parts import Part
from lm.text.slices import Slice
from support import ROOT
from support.loopback_hub import LoopbackHub, parquet_bytes
from support.refusal import files_below

A = "a" * 40
B = "b" * 40

# Run the steps in one process; print a JSON line for each: exit code, value or error, seconds.
CLIENT = """
import json, os, sys, time
from pathlib import Path
from lm.core.errors import UserError
from lm.core.params import coerce
from lm.text.sources import hub_client, kinds

def fetch(section, folder):
    Path(folder).mkdir()
    return kinds.fetch_source("s", coerce(section, kinds.SourceFetch, "fetch", "params.yaml"), None, Path(folder))

def download(*arguments):
    return str(hub_client.download(*arguments))

time.sleep = lambda seconds: None
for what, *arguments in json.load(sys.stdin):
    start = time.monotonic()
    try:
        answer = {"exit": 0, "value": {"fetch": fetch, "download": download}[what](*arguments)}
    except UserError as error:
        answer = {"exit": error.exit_code, "error": str(error)}
    print(json.dumps({**answer, "seconds": time.monotonic() - start}))
print(json.dumps(sorted({"torch", "matplotlib"} & set(sys.modules))))
"""


@pytest.fixture
def hub():
    with LoopbackHub() as served:
        yield served


def run(hub, home, *steps) -> list[dict]:
    """Return the answers to the steps, without waiting between attempts. Check that torch is not imported."""
    environment = hub.environment(home, PYTHONPATH=f"{ROOT}/src")
    command = [sys.executable, "-c", CLIENT]
    text = json.dumps(steps)
    done = subprocess.run(command, env=environment, input=text, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    *answers, heavy_imports = map(json.loads, done.stdout.splitlines())
    assert heavy_imports == []
    return answers


CONTENT = parquet_bytes(text=[hashlib.sha256(b"%d" % i).hexdigest() for i in range(2000)])  # 140 kB, not compressible


def hub_fetch(**changes) -> dict:
    files = {"train": ["data/x.parquet"]}
    return {"kind": "hub", "repo": "o/n", "revision": A, "files": files, "column": "text", **changes}


def fetched(folder) -> dict[str, bytes]:
    """Return path → bytes of all files below a folder except the manifest."""
    return {name: content for name, content in files_below(folder).items() if name != "manifest.json"}


def test_a_branch_is_resolved_and_its_files_arrive(hub, tmp_path):
    first = parquet_bytes(text=["b", None, ""])
    second = parquet_bytes(text=["aé", "c"])
    hub.add("datasets", "o/n", B, {"data/z.parquet": parquet_bytes(text=["old"])})
    hub.add("datasets", "o/n", A, {"data/z.parquet": first, "more/a.parquet": second, "val.parquet": second})
    hub.xet = True  # must not be used: the client would wait minutes for it
    files = {"train": ["data/z.parquet", "more/a.parquet"], "validation": ["val.parquet"]}
    section = hub_fetch(revision="main", files=files)
    (answer,) = run(hub, tmp_path / "hf", ["fetch", section, f"{tmp_path}/raw"])

    train = {"train/0000-z.parquet": first, "train/0001-a.parquet": second}
    assert fetched(tmp_path / "raw") == {**train, "validation/0000-val.parquet": second}
    manifest = answer["value"]
    splits = manifest.pop("splits")
    del manifest["format_version"], manifest["source"]
    assert manifest == {"kind": "hub", "repo": "o/n", "revision": "main", "commit": A, "column": "text"}
    assert list(splits) == ["train", "validation"]
    assert splits["train"] == {
        "files": [
            {"path": path, "sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
            for path, content in train.items()
        ],
        "documents": 3,
        "characters": 4,
        "utf8_bytes": 5,
        "dropped_rows": {"null": 1, "empty": 1},
    }


def test_the_documents_of_several_files_are_in_the_listed_order(hub, tmp_path):
    texts = {"z.parquet": "first", "a.parquet": "second", "m.parquet": "third"}
    hub.add("datasets", "o/n", A, {path: parquet_bytes(text=[text]) for path, text in texts.items()})

    (answer,) = run(hub, tmp_path / "hf", ["fetch", hub_fetch(files={"train": list(texts)}), f"{tmp_path}/raw"])

    part = Part("s", "train", tmp_path / "raw", answer["value"], Slice("train", 0, None))
    assert [batch.column(0).to_pylist() for batch, _ in part.rows()] == [["first"], ["second"], ["third"]]


@pytest.mark.parametrize("path", ["data/x.parquet", "tokenizer.json"])  # known by SHA-256, by git's SHA-1
def test_a_wrong_byte_never_enters_the_cache(hub, tmp_path, path):
    hub.add("datasets", "o/n", A, {path: CONTENT})
    hub.corrupt(path, times=2)
    step = ["download", "o/n", A, path, "dataset"]
    sha1 = hashlib.sha1(b"blob %d\0" % len(CONTENT) + CONTENT).hexdigest()
    digest = sha1 if path.endswith(".json") else hashlib.sha256(CONTENT).hexdigest()
    *wrong, right = run(hub, tmp_path / "hf", step, step, step)
    for answer in wrong:
        assert answer["exit"] == 4
        assert f"o/n: {path}" in answer["error"] and f"it must be {digest}" in answer["error"]
    assert right["exit"] == 0 and Path(right["value"]).read_bytes() == CONTENT


def set_fetch(**changes) -> dict:
    section = {"kind": "datasets", "repo": "o/j", "revision": A, "config": None, "column": "body"}
    return {**section, "splits": {"train": "train[:90%]", "validation": "train[90%:]"}, **changes}


def json_lines(word) -> bytes:
    return b"".join(json.dumps({"body": f"{word} {i}", "n": i}).encode() + b"\n" for i in range(20))


def test_a_dataset_of_json_lines_becomes_parquet(hub, tmp_path):
    hub.add("datasets", "o/j", A, {"train.jsonl": json_lines("old"), "README.md": b"---\nlicense: mit\n---\n"})
    (answer,) = run(hub, tmp_path / "hf", ["fetch", set_fetch(revision="main"), f"{tmp_path}/1"])
    train, validation = (pq.read_table(tmp_path / "1" / split) for split in ("train", "validation"))
    assert train.to_pydict() == {"text": [f"old {i}" for i in range(18)]}
    assert validation.to_pydict() == {"text": ["old 18", "old 19"]}
    manifest = answer["value"]
    assert (manifest["commit"], manifest["revision"], manifest["column"]) == (A, "main", "text")
    assert manifest["splits"]["train"]["documents"] == 18

    # B is unavailable; `datasets` alone would return the rows of A.
    hub.add("datasets", "o/j", B, {"train.jsonl": json_lines("new")})
    hub.fail(f"revision/{B}", 500)
    (lost,) = run(hub, tmp_path / "hf", ["fetch", set_fetch(revision=B), f"{tmp_path}/2"])
    assert lost["exit"] == 5 and B in lost["error"] and fetched(tmp_path / "2") == {}


def test_each_fault_of_a_dataset_gives_one_sentence(hub, tmp_path):
    hub.add("datasets", "o/j", A, {"train.jsonl": json_lines("a")})
    hub.add("datasets", "o/broken", A, {"train.jsonl": b'{"body": "a"}\n{"body" nonsense\n'})
    hub.add("datasets", "o/wrong", A, {"w/train.jsonl": json_lines("w")})
    hub.add("datasets", "o/gated", A, {"train.jsonl": json_lines("a")}, gated=True)
    hub.add("datasets", "o/code", A, {"code.py": b"raise SystemExit", "train.jsonl": json_lines("a")})
    hub.corrupt("w/train.jsonl")
    expected = [
        ({"repo": "o/other"}, 5, "o/other is not a dataset repository"),
        ({"column": "text"}, 3, "body, n"),
        ({"column": "n"}, 3, "int64"),
        ({"splits": {}}, 2, "fetch.splits"),
        ({"splits": {"train": "test"}}, 3, "test"),
        ({"config": "en"}, 3, "en"),
        ({"repo": "o/broken"}, 3, "o/broken: JSON"),
        ({"repo": "o/code"}, 3, "code.py"),
        ({"repo": "o/wrong"}, 4, "w/train.jsonl"),
        ({"repo": "o/gated"}, 5, "https://huggingface.co/datasets/o/gated "),
        ({"revision": B}, 5, B),
    ]
    steps = [["fetch", set_fetch(**changes), f"{tmp_path}/{i}"] for i, (changes, _, _) in enumerate(expected)]
    for answer, (_, exit_code, name) in zip(run(hub, tmp_path / "hf", *steps), expected, strict=True):
        assert answer["exit"] == exit_code and name in answer["error"], answer
