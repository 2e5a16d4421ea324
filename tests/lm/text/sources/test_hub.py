"""Hub sources with the real clients against a hub on loopback: the files, and the error of each fault."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from support import ROOT
from support.loopback_hub import LoopbackHub, git_sha1, parquet_bytes
from support.process import CAP_S
from support.refusal import files_below

A = "a" * 40
B = "b" * 40

# Run the steps in one process; print a JSON line for each, with its exit code and its value or error.
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

functions = {"fetch": fetch, "download": download}
time.sleep = lambda seconds: None
for name, *arguments in json.load(sys.stdin):
    try:
        answer = {"exit": 0, "value": functions[name](*arguments)}
    except UserError as error:
        answer = {"exit": error.exit_code, "error": str(error)}
    print(json.dumps(answer))
print(json.dumps(sorted({"torch", "matplotlib"} & set(sys.modules))))
"""

FIRST = parquet_bytes(text=["b", None, ""])
SECOND = parquet_bytes(text=["aé", "c"])
CONTENT = parquet_bytes(text=[hashlib.sha256(b"%d" % i).hexdigest() for i in range(2000)])  # 140 kB, not compressible


def json_lines(word: str) -> bytes:
    """Return 20 rows with the texts "word 0", "word 1", …"""
    rows = [json.dumps({"body": f"{word} {i}", "n": i}) for i in range(20)]
    return "\n".join(rows).encode() + b"\n"


def fill(hub: LoopbackHub) -> None:
    """Add what the steps of all tests ask for."""
    hub.add("datasets", "o/n", B, {"data/z.parquet": parquet_bytes(text=["old"])})
    hub.add("datasets", "o/n", A, {"z.parquet": FIRST, "more/a.parquet": SECOND, "val.parquet": SECOND})
    hub.add("datasets", "o/git", A, {"tokenizer.json": CONTENT})
    hub.corrupt("tokenizer.json", times=1)
    hub.add("datasets", "o/lines", B, {"train.jsonl": json_lines("new")})
    hub.add("datasets", "o/lines", A, {"train.jsonl": json_lines("old"), "README.md": b"---\nlicense: mit\n---\n"})
    hub.fail(f"o/lines/revision/{B}", 500)
    hub.add("datasets", "o/j", A, {"train.jsonl": json_lines("a")})
    hub.add("datasets", "o/broken", A, {"train.jsonl": b'{"body": "a"}\n{"body" nonsense\n'})
    hub.add("datasets", "o/wrong", A, {"w/train.jsonl": json_lines("w")})
    hub.add("datasets", "o/gated", A, {"train.jsonl": json_lines("a")}, gated=True)
    hub.add("datasets", "o/code", A, {"code.py": b"raise SystemExit", "train.jsonl": json_lines("a")})
    hub.corrupt("w/train.jsonl")


def set_fetch(**changes) -> dict:
    section = {
        "kind": "datasets",
        "repo": "o/j",
        "revision": A,
        "config": None,
        "column": "body",
        "splits": {"train": "train[:90%]", "validation": "train[90%:]"},
    }
    return section | changes


PARQUET = {
    "kind": "hub",
    "repo": "o/n",
    "revision": "main",
    "files": {"train": ["z.parquet", "more/a.parquet"], "validation": ["val.parquet"]},
    "column": "text",
}
DOWNLOAD = ["download", "o/git", A, "tokenizer.json", "dataset"]
# What is changed, the exit code, and what the sentence has.
FAULTS = [
    ({"repo": "o/other"}, 5, "o/other is not a dataset repository"),
    ({"column": "text"}, 3, "body, n"),
    ({"column": "n"}, 3, "int64"),
    ({"splits": {}}, 2, "fetch.splits"),
    ({"splits": {"train": "test"}}, 3, "test"),
    ({"repo": "o/broken"}, 3, "o/broken: JSON"),
    ({"repo": "o/code"}, 3, "code.py"),
    ({"repo": "o/wrong"}, 4, "w/train.jsonl"),
    ({"repo": "o/gated"}, 5, "https://huggingface.co/datasets/o/gated "),
    ({"revision": B}, 5, B),
]


@pytest.fixture(scope="module")
def fetched(tmp_path_factory):
    """The folders, and the answers to the steps of all tests, which one process takes without waiting between attempts.

    It must not import torch. Its client imports `datasets`, which takes seconds.
    """
    folder = tmp_path_factory.mktemp("hub")
    steps = {
        "parquet": ["fetch", PARQUET, f"{folder}/raw"],
        "wrong": DOWNLOAD,
        "right": DOWNLOAD,
        "old": ["fetch", set_fetch(repo="o/lines", revision="main"), f"{folder}/old"],
        "new": ["fetch", set_fetch(repo="o/lines", revision=B), f"{folder}/new"],
    }
    for number, (changes, *_) in enumerate(FAULTS):
        steps[number] = ["fetch", set_fetch(**changes), f"{folder}/{number}"]
    with LoopbackHub() as hub:
        fill(hub)
        done = subprocess.run(
            [sys.executable, "-c", CLIENT],
            env=hub.environment(folder / "hf", PYTHONPATH=f"{ROOT}/src"),
            input=json.dumps(list(steps.values())),
            capture_output=True,
            text=True,
            timeout=CAP_S,
        )
    assert done.returncode == 0, done.stderr
    *answers, heavy_imports = [json.loads(line) for line in done.stdout.splitlines()]
    assert heavy_imports == []
    return folder, dict(zip(steps, answers, strict=True))


def test_a_branch_is_resolved_and_its_files_arrive(fetched):
    folder, answers = fetched

    assert files_below(folder / "raw") == {
        "train/0000-z.parquet": FIRST,
        "train/0001-a.parquet": SECOND,
        "validation/0000-val.parquet": SECOND,
    }
    manifest = answers["parquet"]["value"]
    splits = manifest.pop("splits")
    assert manifest == {"source": "s", "kind": "hub", "repo": "o/n", "revision": "main", "commit": A, "column": "text"}
    assert list(splits) == ["train", "validation"]
    assert splits["train"] == {
        "files": [
            {"path": "train/0000-z.parquet", "sha256": hashlib.sha256(FIRST).hexdigest(), "bytes": len(FIRST)},
            {"path": "train/0001-a.parquet", "sha256": hashlib.sha256(SECOND).hexdigest(), "bytes": len(SECOND)},
        ],
        "documents": 3,
        "characters": 4,
        "utf8_bytes": 5,
        "dropped_rows": {"null": 1, "empty": 1},
    }


def test_a_wrong_byte_of_a_file_that_git_knows_never_enters_the_cache(fetched):
    """It is known by its SHA-1; tests/faults has files that are known by SHA-256."""
    _, answers = fetched
    wrong, right = answers["wrong"], answers["right"]

    assert wrong["exit"] == 4
    assert "o/git: tokenizer.json" in wrong["error"]
    assert f"it must be {git_sha1(CONTENT)}" in wrong["error"]
    assert right["exit"] == 0
    assert Path(right["value"]).read_bytes() == CONTENT


def test_a_dataset_of_json_lines_becomes_parquet_of_its_commit_alone(fetched):
    """Without the Hub, `datasets` alone would return the cached rows of A for B."""
    folder, answers = fetched
    manifest = answers["old"]["value"]
    new = answers["new"]

    assert pq.read_table(folder / "old" / "train").to_pydict() == {"text": [f"old {i}" for i in range(18)]}
    assert pq.read_table(folder / "old" / "validation").to_pydict() == {"text": ["old 18", "old 19"]}
    assert (manifest["commit"], manifest["revision"], manifest["column"]) == (A, "main", "text")
    assert manifest["splits"]["train"]["documents"] == 18
    assert new["exit"] == 5
    assert B in new["error"]
    assert files_below(folder / "new") == {}


@pytest.mark.parametrize("number", range(len(FAULTS)), ids=[words for _, _, words in FAULTS])
def test_each_fault_of_a_dataset_gives_one_sentence(fetched, number):
    _, answers = fetched
    _, exit_code, words = FAULTS[number]

    assert answers[number]["exit"] == exit_code
    assert words in answers[number]["error"]
