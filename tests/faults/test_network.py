"""The hub and the network fail while text or a vocabulary is fetched. Each stage runs in a process of its own.

A refusal leaves nothing, and the same command succeeds afterwards. See support.loopback_hub for the faults.
"""

import hashlib
import os
import shutil
import time
from pathlib import Path

import pytest
import tiktoken

from lm.tokenizer import build as vocabulary
from support.damage import extend
from support.loopback_hub import LoopbackHub, parquet_bytes
from support.mixture_cases import texts_of
from support.refusal import files_below, refused
from support.stages import change_params, module_and_arguments, run_here, stage_folder
from support.tokenizer_cases import TIKTOKEN_CACHE, write_bpe
from support.train_cases import Ended, run_stage

COMMIT = "a" * 40
TOKEN = "hf_doNotPrintMe"
WRONG_TOKEN = "hf_norThisOne"
TEXTS = [hashlib.sha256(b"%d" % i).hexdigest() for i in range(2000)]
CONTENT = parquet_bytes(text=TEXTS)  # 140 kB, not compressible
DIGEST = hashlib.sha256(CONTENT).hexdigest()
FILE = "data/x.parquet"
FIRST = "data/first.parquet"
SOURCE = {
    "kind": "hub",
    "repo": "o/n",
    "revision": COMMIT,
    "files": {"train": [FIRST, FILE]},
    "column": "text",
}
TOKENIZER = {
    "kind": "huggingface",
    "repo": "google/gemma",
    "revision": COMMIT,
}


def in_environment(variables: dict[str, str]) -> None:
    """A sabotage: these are all environment variables, and nothing waits between attempts."""
    os.environ.clear()
    os.environ.update(variables)
    time.sleep = lambda seconds: None


class Client:
    """The stages in the working directory, whose source and tokenizer come from the hub, with a cache of their own."""

    def __init__(self, hub: LoopbackHub):
        self.hub = hub
        self.cache = Path("../hf").resolve()
        change_params(Path(), {"data.source": "local", "sources.local.fetch": SOURCE, "tokenizers.bpe": TOKENIZER})

    def run(self, stage: str = "fetch", *options: str, **variables: str) -> Ended:
        """Run a stage with these environment variables."""
        module, arguments = module_and_arguments(stage)
        environment = self.hub.environment(self.cache, **variables)
        return run_stage(in_environment, environment, command=(module, [*arguments, *options]))

    def refused(self, code: int, *parts: str, **variables: str) -> str:
        """Run fetch, which must refuse and leave nothing; return everything it printed."""
        done = self.run(**variables)
        refused(done.code, done.err, code, *parts)
        assert files_below(Path("data")) == {}
        return done.out + done.err

    def recovers(self, **variables: str) -> None:
        """Check that the same command now succeeds with the right bytes."""
        done = self.run(**variables)
        assert done.code == 0, done.err
        assert texts_of("train") == ["first", *TEXTS]


@pytest.fixture
def hub():
    with LoopbackHub() as served:
        files = {FIRST: parquet_bytes(text=["first"]), FILE: CONTENT}
        served.add("datasets", "o/n", COMMIT, files)
        yield served


@pytest.fixture
def client(hub, tmp_path, monkeypatch):
    stage_folder(tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    return Client(hub)


def test_after_a_network_lost_in_mid_file_a_rerun_keeps_whole_files(client, hub):
    hub.cut(FILE, 5000)
    client.refused(5, f"o/n {FILE} at commit {COMMIT}", "out of reach", "run again")

    hub.cut(FILE, len(CONTENT))  # as without a cut
    hub.bytes_sent = 0
    client.recovers()

    assert hub.bytes_sent == len(CONTENT)  # FIRST is there


def test_a_temporary_failure_is_waited_for(client, hub):
    hub.fail(FILE, 503, times=2)  # its HEAD
    hub.cut(FILE, 5000, times=3)

    client.recovers()


@pytest.mark.slow
def test_a_silence_is_waited_for(client, hub):
    hub.cut(FILE, 5000, times=1, hang=True)

    client.recovers(HF_HUB_DOWNLOAD_TIMEOUT="20")


def test_a_gated_repository_is_named_with_its_licence_and_the_token_stays_secret(client, hub):
    hub.gated["o/n"] = TOKEN
    licence = "https://huggingface.co/datasets/o/n"

    without_token = client.refused(5, "o/n is gated", licence, "HF_TOKEN")  # 401
    with_wrong_token = client.run("fetch", "--debug", HF_TOKEN=WRONG_TOKEN)  # 403, with its traceback
    with_token = client.run(HF_TOKEN=TOKEN)

    assert with_wrong_token.code == 5
    assert licence in with_wrong_token.err.splitlines()[-1]
    assert with_token.code == 0, with_token.err
    printed = [without_token, with_wrong_token.out, with_wrong_token.err, with_token.out, with_token.err]
    written = files_below(Path()).values()
    for secret in (TOKEN, WRONG_TOKEN):
        assert not [text for text in printed if secret in text]
        assert not [content for content in written if secret.encode() in content]


def test_a_wrong_checksum_is_refused_with_both_digests(client, hub):
    hub.corrupt(FILE, times=1)

    said = client.refused(4, f"o/n: {FILE} as received from", "sha256 is ", f"it must be {DIGEST}")

    received = said.splitlines()[-1].split("sha256 is ")[1]
    assert not received.startswith(DIGEST)
    client.recovers()


def test_a_file_that_rots_in_the_cache_is_refused(client):
    client.recovers()
    blob = client.cache / "hub/datasets--o--n/blobs" / DIGEST
    blob.write_bytes(CONTENT[:-1] + b"\0")
    shutil.rmtree("data/raw")

    client.refused(4, f"o/n: {FILE} in the cache (delete {blob} and run again)", f"it must be {DIGEST}")

    blob.unlink()
    client.recovers()


def test_cached_files_need_no_network(client, hub, tmp_path):
    """A source and a tokenizer at a commit cause no request, although the hub is running."""
    folder = tmp_path / "bpe"
    folder.mkdir()
    tokenizer = {path.name: path.read_bytes() for path in write_bpe(folder).iterdir()}
    hub.add("models", "google/gemma", COMMIT, tokenizer)
    client.recovers()
    assert client.run("make_tokenizer").code == 0
    assert hub.requests != []
    shutil.rmtree("data/raw")
    hub.requests.clear()

    client.recovers()
    assert client.run("make_tokenizer").code == 0

    assert hub.requests == []


# tiktoken's GPT-2 from its cache, without a network.


@pytest.fixture
def gpt2(project, monkeypatch):
    """The pipeline with GPT-2's vocabulary; the folder of tiktoken's cache is empty."""

    def no_address(*arguments, **options):
        raise OSError("no network")

    monkeypatch.setattr("socket.getaddrinfo", no_address)
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})
    change_params(Path(), {"tokenizers.bpe": {"kind": "tiktoken", "encoding": "gpt2"}})
    cache = project / "cache"
    cache.mkdir()
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(cache))
    return cache


@pytest.mark.skipif(not TIKTOKEN_CACHE.exists(), reason=f"{TIKTOKEN_CACHE} is absent")
def test_a_missing_and_a_corrupt_vocabulary_are_named_with_their_hashes(gpt2, capsys):
    downloads = vocabulary.DOWNLOADS["gpt2"]
    before = files_below(Path("data/tokenizer"))

    # Nothing is in the cache.
    status = run_here("make_tokenizer")
    refused(status, capsys.readouterr().err, 5, *downloads.keys(), *downloads.values(), "TIKTOKEN_CACHE_DIR")

    # A file is corrupt.
    shutil.copytree(TIKTOKEN_CACHE, gpt2, copy_function=shutil.copyfile, dirs_exist_ok=True)
    url, sha256 = next(iter(downloads.items()))
    path = gpt2 / hashlib.sha1(url.encode()).hexdigest()
    extend(path)
    status = run_here("make_tokenizer")
    refused(status, capsys.readouterr().err, 4, f"{path}: sha256 is ", sha256)
    assert files_below(Path("data/tokenizer")) == before
