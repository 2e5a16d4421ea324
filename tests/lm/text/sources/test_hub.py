"""Hub sources with the real clients against a hub on loopback: the files, and the error of each fault."""

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from lm.core.errors import EnvironmentFailure, ParamsError
from lm.core.params import coerce
from lm.text.sources.hub import HubFetch, _receive
from lm.text.sources.hub_datasets import DatasetsFetch
from support import ROOT
from support.loopback_hub import LoopbackHub, parquet_bytes

A, B, C = "a" * 40, "b" * 40, "c" * 40

# Run the steps in one process; print a JSON line for each: exit code, value or error, seconds.
CLIENT = """
import json, os, sys, time
from pathlib import Path
from lm.core.errors import UserError
from lm.core.params import coerce
from lm.text.sources import hub, hub_datasets

def fetch(section, folder):
    kinds = {"hub": (hub.HubFetch, hub.fetch_hub)}
    kinds["datasets"] = (hub_datasets.DatasetsFetch, hub_datasets.fetch_datasets)
    kind, function = kinds[section["kind"]]
    Path(folder).mkdir()
    return function(coerce(section, kind, "fetch", "params.yaml"), Path(folder))

def download(*arguments):
    return str(hub.download(*arguments))

if os.environ["HURRY"]:
    hub.RETRY_WAITS_S = (0.02, 0.02, 0.02)
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


def start_client(hub, home, steps, hurry="1") -> subprocess.Popen:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environment = hub.environment(home, PYTHONPATH=f"{ROOT}/src", HURRY=hurry)
    client = subprocess.Popen([sys.executable, "-c", CLIENT], env=environment, text=True, **pipes)
    client.stdin.write(json.dumps(steps))
    client.stdin.close()
    client.stdin = None
    return client


def finish(client) -> list[dict]:
    """Return the answers to the steps. Check that nothing else is printed and torch is not imported."""
    stdout, stderr = client.communicate(timeout=100)
    assert client.returncode == 0, stderr
    assert stderr == ""
    assert "\\n" not in stdout
    *answers, heavy_imports = map(json.loads, stdout.splitlines())
    assert heavy_imports == []
    return answers


def run(hub, home, *steps, **options) -> list[dict]:
    return finish(start_client(hub, home, steps, **options))


STORIES = parquet_bytes(text=[hashlib.sha256(b"%d" % i).hexdigest() for i in range(2000)])  # 140 kB, not compressible


def hub_fetch(**changes) -> dict:
    files = {"train": ["data/x.parquet"]}
    return {"kind": "hub", "repo": "o/n", "revision": A, "files": files, "column": "text", **changes}


def fetched(folder) -> dict[str, bytes]:
    """Return path → bytes of all files below a folder, including hidden ones."""
    paths = [Path(parent, name) for parent, _, names in os.walk(folder) for name in names]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def lfs_requests(hub) -> int:
    return sum(path.startswith("/lfs/") for _, path in hub.requests)


def test_a_branch_is_resolved_and_files_arrive_in_the_listed_order(hub, tmp_path):
    first, second = parquet_bytes(text=["b", None, ""]), parquet_bytes(text=["aé", "c"])
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


def test_a_dead_hub_fails_within_seconds(hub, tmp_path):
    hub.__exit__()
    pinned, branch = hub_fetch(), hub_fetch(revision="main")
    (slow,) = run(hub, tmp_path / "hf", ["fetch", pinned, f"{tmp_path}/1"], hurry="")
    (fast,) = run(hub, tmp_path / "hf", ["fetch", branch, f"{tmp_path}/2"])
    assert 5 < slow["seconds"] < 15
    for answer in (slow, fast):
        assert answer["exit"] == 5
        assert answer["error"].startswith("o/n ") and hub.url in answer["error"]
    assert fetched(tmp_path / "1") == fetched(tmp_path / "2") == {}


def test_a_hub_that_ignores_ranges_starts_the_file_again(hub, tmp_path):
    hub.ranges = False
    hub.add("datasets", "o/n", A, {"data/x.parquet": STORIES})
    hub.cut("data/x.parquet", 5000, times=2)
    (answer,) = run(hub, tmp_path / "hf", ["fetch", hub_fetch(), f"{tmp_path}/raw"])
    assert answer["exit"] == 0 and fetched(tmp_path / "raw") == {"train/0000-x.parquet": STORIES}


def test_a_full_disk_is_refused_before_the_first_byte(tmp_path):
    with open(tmp_path / "partial", "a+b") as partial, pytest.raises(EnvironmentFailure, match="are free"):
        _receive("http://127.0.0.1:9/", partial, 10**18, "o/n: x.parquet")


@pytest.mark.parametrize("path", ["data/x.parquet", "tokenizer.json"])  # known by SHA-256, by git's SHA-1
def test_a_wrong_byte_never_enters_the_cache(hub, tmp_path, path):
    hub.add("datasets", "o/n", A, {path: STORIES})
    hub.corrupt(path, times=2)
    step = ["download", "o/n", A, path, "dataset"]
    sha1 = hashlib.sha1(b"blob %d\0" % len(STORIES) + STORIES).hexdigest()
    digest = sha1 if path.endswith(".json") else hashlib.sha256(STORIES).hexdigest()
    *wrong, right = run(hub, tmp_path / "hf", step, step, step)
    for answer in wrong:
        assert answer["exit"] == 4
        assert f"o/n: {path}" in answer["error"] and f"needed: {digest}" in answer["error"]
    assert right["exit"] == 0 and Path(right["value"]).read_bytes() == STORIES


def test_only_one_process_downloads_a_file(hub, tmp_path):
    hub.add("datasets", "o/n", A, {"data/x.parquet": STORIES})
    blob = tmp_path / "hf/hub/datasets--o--n/blobs" / hashlib.sha256(STORIES).hexdigest()
    blob.parent.mkdir(parents=True)
    with open(f"{blob}.incomplete", "wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        client = start_client(hub, tmp_path / "hf", [["download", "o/n", A, "data/x.parquet", "dataset"]])
        deadline = time.monotonic() + 30
        while not any(method == "HEAD" for method, _ in hub.requests) and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.3)
        held.write(STORIES)
        held.flush()
        os.replace(held.name, blob)
    (answer,) = finish(client)
    assert Path(answer["value"]).read_bytes() == STORIES
    assert lfs_requests(hub) == 0


def test_a_missing_revision_file_or_repository_is_named(hub, tmp_path):
    hub.add("datasets", "o/n", A, {"data/x.parquet": STORIES, "code.parquet": parquet_bytes(content=["a"])})
    expected = [
        (hub_fetch(revision="v9"), 5, "has no revision 'v9'"),
        (hub_fetch(revision=B), 5, f"commit {B}: the revision does not exist"),
        (hub_fetch(files={"train": ["data/y.parquet"]}), 5, "has no data/y.parquet"),
        (hub_fetch(repo="o/other"), 5, "o/other is not a dataset repository"),
        (hub_fetch(files={"train": ["code.parquet"]}), 3, "content"),
    ]
    steps = [["fetch", section, f"{tmp_path}/{i}"] for i, (section, _, _) in enumerate(expected)]
    for answer, (_, exit_code, name) in zip(run(hub, tmp_path / "hf", *steps), expected, strict=True):
        assert answer["exit"] == exit_code and name in answer["error"], answer


def test_parameters_are_checked_before_any_call():
    coerce(hub_fetch(), HubFetch, "fetch", "params.yaml")
    paths = ["../a.parquet", "/etc/a.parquet", "b/../a.parquet", "a//b.parquet", "a.jsonl"]
    wrong = {
        "repo": ["name", "../n", "o/n..m", "o/n/m", "o/n--m"],
        "revision": ["", " "],
        "files": [{}, {"train": []}, {"train": ["a.parquet"] * 2}, {"../train": ["a.parquet"]}]
        + [{"train": [path]} for path in paths],
    }
    for name, value in ((name, value) for name, values in wrong.items() for value in values):
        with pytest.raises(ParamsError, match=rf"fetch\.{name}"):
            coerce(hub_fetch(**{name: value}), HubFetch, "fetch", "params.yaml")
    with pytest.raises(ParamsError, match=r"fetch\.splits"):
        coerce(set_fetch(splits={}), DatasetsFetch, "fetch", "params.yaml")


def set_fetch(**changes) -> dict:
    section = {"kind": "datasets", "repo": "o/j", "revision": A, "config": None, "column": "body"}
    return {**section, "splits": {"train": "train[:90%]", "validation": "train[90%:]"}, **changes}


def json_lines(word) -> bytes:
    return b"".join(json.dumps({"body": f"{word} {i}", "n": i}).encode() + b"\n" for i in range(20))


def test_a_dataset_of_json_lines_becomes_parquet_and_its_commit_is_cached(hub, tmp_path):
    hub.add("datasets", "o/j", A, {"train.jsonl": json_lines("old"), "README.md": b"---\nlicense: mit\n---\n"})
    (answer,) = run(hub, tmp_path / "hf", ["fetch", set_fetch(revision="main"), f"{tmp_path}/1"])
    train, validation = (pq.read_table(tmp_path / "1" / split) for split in ("train", "validation"))
    assert train.to_pydict() == {"text": [f"old {i}" for i in range(18)]}
    assert validation.to_pydict() == {"text": ["old 18", "old 19"]}
    manifest = answer["value"]
    assert (manifest["commit"], manifest["revision"], manifest["column"]) == (A, "main", "text")
    assert manifest["splits"]["train"]["documents"] == 18

    # A needs no network now. B is unavailable; `datasets` alone would return the rows of A.
    hub.add("datasets", "o/j", B, {"train.jsonl": json_lines("new")})
    hub.fail(f"revision/{B}", 500)
    hub.requests.clear()
    for state in ("failing", "dead"):
        folders = f"{tmp_path}/{state}-a", f"{tmp_path}/{state}-b"
        steps = ["fetch", set_fetch(), folders[0]], ["fetch", set_fetch(revision=B), folders[1]]
        cached, lost = run(hub, tmp_path / "hf", *steps)
        assert cached["exit"] == 0 and fetched(folders[0]) == fetched(tmp_path / "1")
        assert lost["exit"] == 5 and B in lost["error"] and fetched(folders[1]) == {}
        assert lost["seconds"] < 5
        assert not any(A in path for _, path in hub.requests)
        hub.__exit__()


def test_each_fault_of_a_dataset_gives_one_sentence(hub, tmp_path):
    hub.add("datasets", "o/j", A, {"train.jsonl": json_lines("a")})
    hub.add("datasets", "o/broken", A, {"train.jsonl": b'{"body": "a"}\n{"body" nonsense\n'})
    hub.add("datasets", "o/wrong", A, {"w/train.jsonl": json_lines("w")})
    hub.add("datasets", "o/gated", A, {"train.jsonl": json_lines("a")}, gated=True)
    hub.add("datasets", "o/code", A, {"code.py": b"raise SystemExit", "train.jsonl": json_lines("a")})
    hub.corrupt("w/train.jsonl")
    expected = [
        ({"column": "text"}, 3, "body, n"),
        ({"column": "n"}, 3, "int64"),
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


def test_the_loopback_hub_serves_the_clients(hub, tmp_path):
    """snapshot_download, a streamed load_dataset and AutoTokenizer, unmodified."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "one": 1, "two": 2}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    config = b'{"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}'
    hub.add("models", "o/t", C, {"tokenizer.json": tokenizer.to_str().encode(), "tokenizer_config.json": config})
    hub.add("datasets", "o/n", A, {"data/train.parquet": parquet_bytes(text=["a", "b"])})
    program = f"""
import datasets, huggingface_hub, transformers
print(huggingface_hub.snapshot_download("o/n", repo_type="dataset", revision="{A}"))
print([row["text"] for row in datasets.load_dataset("o/n", revision="{A}", split="train", streaming=True)])
print(transformers.AutoTokenizer.from_pretrained("o/t", revision="{C}")("two one two")["input_ids"])
"""
    command = [sys.executable, "-c", program]
    environment = hub.environment(tmp_path)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    folder, *results = done.stdout.splitlines()[-3:]
    assert fetched(folder) == {"data/train.parquet": parquet_bytes(text=["a", "b"])}
    assert results == ["['a', 'b']", "[2, 1, 2]"]
