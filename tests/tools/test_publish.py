"""`python src publish`: an export arrives at a hub on loopback byte for byte; an altered one is refused."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lm.core.errors import IntegrityError, UserError
from support import ROOT
from support.damage import edit, flip
from support.export_cases import write_export
from support.loopback_hub import READER, WRITER, LoopbackHub
from support.refusal import files_below, refused
from tools.publish import check_export

NOWHERE = "http://127.0.0.1:9"
# Publish as each line of the input says; answer with the exit status and what was printed.
CLIENT = """
import contextlib, io, json, os, sys
from huggingface_hub import constants, snapshot_download
from tools.publish import main
for line in sys.stdin:
    step = json.loads(line)
    os.environ["HF_TOKEN"], endpoint = step["token"], constants.ENDPOINT
    constants.ENDPOINT = step["endpoint"] or endpoint
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        status = snapshot_download(step["download"]) if "download" in step else main(step["argv"])
    constants.ENDPOINT = endpoint
    print(json.dumps([status, out.getvalue(), err.getvalue()]), flush=True)
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Path:
    return write_export(tmp_path_factory.mktemp("exported")).path


@pytest.fixture
def folder(exported, tmp_path) -> Path:
    shutil.copytree(exported, tmp_path / "export")
    return tmp_path / "export"


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("hf")


@pytest.fixture(scope="module")
def hub():
    with LoopbackHub() as served:
        yield served


@pytest.fixture(scope="module")
def client(hub, home):
    """Start one process for all tests, because it imports torch; the client reads its address at import."""
    environment = hub.environment(home, PYTHONPATH=f"{ROOT}/src")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", CLIENT], env=environment, **pipes) as process:
        yield process
        process.stdin.close()


def ask(client, token=WRITER, endpoint=None, **step) -> list:
    print(json.dumps({"token": token, "endpoint": endpoint, **step}), file=client.stdin, flush=True)
    return json.loads(client.stdout.readline())


def publish(client, *words, **settings) -> list:
    """Return the exit status, standard output and standard error."""
    return ask(client, argv=list(map(str, words)), **settings)


def head_of(hub, repo) -> str:
    return hub.repos["models", repo]["branches"]["main"]


def content_of(hub, repo) -> dict[str, bytes]:
    return hub.repos["models", repo]["commits"][head_of(hub, repo)]


# Upload.


def test_a_published_model_is_downloaded_byte_for_byte(hub, client, folder):
    status, out, err = publish(client, folder, "o/new", "--create")
    assert (status, err) == (0, "")
    assert out.startswith(f"{hub.url}/o/new now holds {folder} (") and out.endswith(
        f" at commit {head_of(hub, 'o/new')}\n"
    )
    assert not hub.repos["models", "o/new"]["private"]
    copy, _, _ = ask(client, download="o/new")
    assert files_below(Path(copy)) == files_below(folder) | {".gitattributes": b""}


def test_publishing_again_changes_nothing(hub, client, folder):
    publish(client, folder, "o/twice", "--create")
    before, hub.requests = head_of(hub, "o/twice"), []
    status, out, err = publish(client, folder, "o/twice", "--create")
    assert (status, err) == (0, "") and f"o/twice already holds {folder}" in out and out.endswith(f" {before}\n")
    assert head_of(hub, "o/twice") == before
    assert not [path for method, path in hub.requests if method == "PUT" or "/commit/" in path]


def test_a_changed_card_is_one_commit_and_other_files_stay(hub, client, folder):
    hub.add("models", "o/card", "c" * 40, {"notes.txt": b"mine"})
    publish(client, folder, "o/card")
    before = head_of(hub, "o/card")
    with open(folder / "README.md", "a") as file:
        file.write("\nA sentence of my own.\n")
    status, out, _ = publish(client, folder, "o/card")
    assert status == 0 and "now holds" in out and head_of(hub, "o/card") != before
    assert content_of(hub, "o/card") == files_below(folder) | {"notes.txt": b"mine"}
    assert len(hub.repos["models", "o/card"]["commits"]) == 3


def test_a_private_repository_is_created_private(hub, client, folder):
    assert publish(client, folder, "o/hidden", "--create", "--private")[0] == 0
    assert hub.repos["models", "o/hidden"]["private"]
    assert publish(client, folder, "o/hidden", "--private")[0] == 0


def test_private_refuses_a_public_repository(hub, client, folder):
    hub.add("models", "o/public", "d" * 40, {})
    status, _, err = publish(client, folder, "o/public", "--create", "--private")
    refused(status, err, 2, "o/public is public")
    assert content_of(hub, "o/public") == {}


# Refusals.


@pytest.mark.parametrize(
    ("token", "words"),
    [
        ("", ("no token for the hub", "hf auth login")),
        ("hf_sec\x01ret", ("characters that no token has",)),
        ("hf_unknown", ("does not accept the token", "HTTP 401")),
        (READER, ("may not write there", "HTTP 403")),
    ],
)
def test_a_token_that_cannot_write_is_refused_and_never_printed(hub, client, folder, token, words):
    hub.add("models", "o/locked", "e" * 40, {})
    for debug in ([], ["--debug"]):
        status, out, err = publish(client, folder, "o/locked", *debug, token=token)
        refused(status, "error: " + err.rpartition("error: ")[2], 5, *words)
        assert not token or token not in out + err
    assert content_of(hub, "o/locked") == {}


def test_the_token_is_in_no_output_and_in_no_file(hub, client, home, folder):
    hub.fail("/api/models/o/broken/commit/main", 500, times=1)
    runs = [publish(client, folder, "o/secret", "--create"), publish(client, folder, "o/absent")]
    hub.add("models", "o/broken", "f" * 40, {})
    runs += [publish(client, folder, "o/broken", "--debug", endpoint=endpoint) for endpoint in (None, NOWHERE)]
    assert [status for status, _, _ in runs] == [0, 5, 5, 5]
    assert WRITER not in json.dumps(runs)
    left = [files_below(each) for each in (home, folder.parent)]
    assert not [name for files in left for name, content in files.items() if WRITER.encode() in content]


def test_an_absent_repository_is_not_created_unasked(hub, client, folder):
    status, _, err = publish(client, folder, "o/absent")
    refused(status, err, 5, "o/absent is not a model repository that the token can see", "--create")
    assert ("models", "o/absent") not in hub.repos


def test_a_private_repository_of_others_is_not_seen(hub, client, folder):
    hub.add("models", "o/theirs", "1" * 40, {}, private=True)
    refused(*publish(client, folder, "o/theirs", token="hf_other")[::2], 5, "o/theirs is not a model repository")


def test_a_hub_out_of_reach_and_one_that_fails_are_named(hub, client, folder):
    status, _, err = publish(client, folder, "o/n", endpoint=NOWHERE)
    refused(status, err, 5, f"o/n: {NOWHERE} is out of reach")
    hub.add("models", "o/full", "2" * 40, {})
    hub.fail("/api/models/o/full/commit/main", 507)
    refused(*publish(client, folder, "o/full")[::2], 5, "o/full: the hub answers with HTTP 507")
    assert content_of(hub, "o/full") == {}


def test_a_large_file_that_does_not_arrive_is_no_commit(hub, client, folder):
    hub.add("models", "o/lfs", "3" * 40, {})
    hub.objects.clear()
    weights = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    hub.fail(f"/lfs/{weights}", 403, times=1)
    refused(*publish(client, folder, "o/lfs")[::2], 5, "HTTP 403")
    assert content_of(hub, "o/lfs") == {}
    assert publish(client, folder, "o/lfs")[0] == 0


def test_a_card_that_the_hub_refuses_is_named(hub, client, folder):
    hub.add("models", "o/head", "4" * 40, {})
    card = folder / "README.md"
    card.write_text(card.read_text().replace("library_name: ", "library_name: ["))
    refused(*publish(client, folder, "o/head")[::2], 2, "the hub refuses the upload: Invalid metadata in README.md")
    assert content_of(hub, "o/head") == {}


@pytest.mark.parametrize("repo", ["alone", "a/b/c", "../x", "o/"])
def test_a_name_that_is_not_owner_and_name_is_refused(client, folder, repo):
    refused(*publish(client, folder, repo)[::2], 2, "owner/name")


def test_a_folder_that_is_not_an_export_is_refused(client, tmp_path):
    refused(*publish(client, tmp_path, "o/n")[::2], 2, "has no model.json")


def test_an_altered_export_is_not_uploaded(hub, client, folder):
    hub.add("models", "o/safe", "5" * 40, {})
    hub.requests.clear()
    flip(folder / "model.safetensors")
    status, _, err = publish(client, folder, "o/safe")
    refused(status, err, 4, "describes another model than the one beside it")
    assert hub.requests == []


# What an export may hold.


NAMES = [
    "config.json", "generation_config.json", "model.json", "model.safetensors", "tokenizer.json",
    "tokenizer_config.json", "tokenizer/meta.json", "tokenizer/ranks.tiktoken", "tokenizer/tokenizer.json",
    "tokenizer/tokenizer_config.json",
]  # fmt: skip


def test_the_names_of_an_export(exported):
    assert sorted(check_export(exported)) == sorted(["README.md", *NAMES]) == sorted(files_below(exported))


@pytest.mark.parametrize("name", NAMES)
def test_every_file_but_the_card_must_be_what_export_hf_wrote(folder, name):
    path = folder / name
    if path.suffix == ".json":
        path.write_bytes(path.read_bytes() + b"\n")  # the same values
    else:
        flip(path)
    with pytest.raises(IntegrityError):
        check_export(folder)
    path.unlink()
    with pytest.raises(UserError):
        check_export(folder)


@pytest.mark.parametrize("name", [".env", "tokenizer/notes.txt", "model-00002.bin"])
def test_a_file_that_is_not_of_an_export_is_refused(folder, name):
    (folder / name).write_text("secret")
    with pytest.raises(IntegrityError, match=f"{name} is not part of an export"):
        check_export(folder)


def test_a_record_with_another_hash_is_refused(folder):
    edit(folder / "model.json", lambda record: record["best"].update(sha256="0" * 64))
    with pytest.raises(IntegrityError, match="describes another model"):
        check_export(folder)


def test_the_card_of_another_model_is_refused(folder):
    card = folder / "README.md"
    card.write_text("# Mine\n" + card.read_text())
    check_export(folder)
    sha256 = json.loads((folder / "model.json").read_text())["best"]["sha256"]
    card.write_text(card.read_text().replace(sha256, "0" * 64))
    with pytest.raises(IntegrityError, match=r"README\.md: does not name the weights"):
        check_export(folder)
