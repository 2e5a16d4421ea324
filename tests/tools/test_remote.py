"""The commands of docs/team.md, "A team's cache on S3", against moto's server: an author pushes, colleagues pull.

The colleagues' `python` refuses to start, so no stage can make what they get.
"""

import copy
import logging
import re
import socket

import boto3
import pytest
from moto.server import ThreadedMotoServer

from lm.core.errors import IntegrityError
from lm.core.params import read_yaml
from lm.tokens.tokenfile import open_tokens
from support import ROOT
from support.workspace import ALL, Workspace

BUCKET = "our-bucket"
BLOCK = re.compile(r"^```bash parse\n(.*?)^```", re.M | re.S)
OUTPUTS = ("data/raw", "data/tokenizer", "data/processed_datasets", "data/audit", "data/models", "data/evaluation")


def recipe(pattern: str) -> list[list[str]]:
    """Return the commands of the section that match, as lists of words without comments."""
    section = (ROOT / "docs" / "team.md").read_text().split("\n## A team's cache on S3\n")[1].split("\n## ")[0]
    lines = [line.partition("  #")[0].strip() for block in BLOCK.findall(section) for line in block.splitlines()]
    return [command.split() for line in lines for command in line.split(" && ") if re.match(pattern, command)]


@pytest.fixture(scope="module")
def endpoint():
    """Start an S3 server in this process, with an empty bucket; return its address."""
    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # it prints a line per request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "s", "region_name": "us-east-1"}
    boto3.client("s3", endpoint_url=f"http://{host}:{port}", **keys).create_bucket(Bucket=BUCKET)
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="module")
def author(tmp_path_factory, finished, endpoint):
    """Make a repository with a remote: a commit of parameters, its run pushed with DVC, a commit of the results."""
    author = Workspace(tmp_path_factory.mktemp("author"), finished)
    author.environment |= {
        "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s", "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint, "AWS_EC2_METADATA_DISABLED": "true", "AWS_MAX_ATTEMPTS": "1",
    }  # fmt: skip
    for command in recipe("dvc remote add"):
        author.run(*command)
    author.run("git", "commit", "-q", "-m", "parameters", ".dvc/config")
    for command in recipe("dvc push"):
        author.run(*command)
    author.commit("results")
    return author


@pytest.fixture
def colleague(author, tmp_path):
    """Make a clone with an empty cache, on a machine where no stage can run."""
    author.run("git", "clone", "-q", ".", str(tmp_path / "clone"))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").write_text("#!/bin/sh\necho a stage was started >&2\nexit 97\n")
    (tmp_path / "bin" / "python").chmod(0o755)
    colleague = copy.copy(author)
    colleague.folder = tmp_path / "clone"
    colleague.environment = author.environment | {"PATH": f"{tmp_path / 'bin'}:{author.environment['PATH']}"}
    return colleague


def contents(workspace: Workspace) -> dict[str, bytes]:
    """Return the bytes of every file of every output by its path."""
    files = [file for name in OUTPUTS for file in (workspace.folder / name).rglob("[!.]*") if file.is_file()]
    return {file.relative_to(workspace.folder).as_posix(): file.read_bytes() for file in files}


def test_a_clone_gets_data_tokens_and_models_without_a_run(author, colleague):
    assert not (colleague.folder / "data" / "models").exists()
    for command in recipe("dvc pull"):
        colleague.run(*command)
    pulled = contents(colleague)
    assert pulled == contents(author)
    assert {"data/processed_datasets/train.bin", "data/models/best_model_params.pt"} <= pulled.keys()
    assert colleague.repro() == set()
    assert colleague.run("git", "status", "--porcelain").stdout == ""


@pytest.fixture
def replaced(author, endpoint):
    """Replace the training tokens in the bucket by others of the same length; put them back at the end."""
    lock = read_yaml(author.folder / "dvc.lock")["stages"]["tokenize_train"]["outs"]
    (md5,) = (out["md5"] for out in lock if out["path"] == "data/processed_datasets/train.bin")
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "s", "region_name": "us-east-1"}
    s3, place = boto3.client("s3", endpoint_url=endpoint, **keys), {"Bucket": BUCKET}
    place["Key"] = f"models/files/md5/{md5[:2]}/{md5[2:]}"
    content = s3.get_object(**place)["Body"].read()
    s3.put_object(**place, Body=content[::-1])
    yield
    s3.put_object(**place, Body=content)


@pytest.mark.slow
def test_a_replaced_object_is_refused_by_a_remote_that_verifies(colleague, replaced):
    command = "dvc config remote.team.verify true"
    assert f"\n{command}" in (ROOT / "docs" / "security.md").read_text()
    colleague.run(*command.split())
    refused = colleague.run("dvc", "pull", check=False)
    assert refused.returncode
    assert "data/processed_datasets/train.bin" not in contents(colleague)


@pytest.mark.slow
def test_without_it_the_reader_refuses_the_replaced_tokens(colleague, replaced):
    colleague.run("dvc", "pull")
    with pytest.raises(IntegrityError, match=r"train\.bin: sha256 is"):
        open_tokens(colleague.folder / "data" / "processed_datasets" / "train.bin")


@pytest.mark.slow
def test_repro_alone_pulls_what_it_needs_also_from_another_s3_service(author, colleague, endpoint):
    del colleague.environment["AWS_ENDPOINT_URL"]
    for command in recipe("dvc remote modify"):
        colleague.run(*command[:-1], endpoint)
    colleague.run("dvc", "repro", "--pull")
    assert contents(colleague) == contents(author)


@pytest.mark.slow
def test_nobody_repeats_the_run_of_a_colleague(author, colleague):
    """Start from the commit before the results. DVC does not push metrics and plots that are in git; `share` does."""
    colleague.run("git", "checkout", "-q", "--detach", "HEAD^")
    refused = colleague.run("dvc", "repro", "--pull", check=False)
    assert "Running stage 'audit'" in refused.stdout and "a stage was started" in refused.stderr

    for command in recipe("python src share"):
        assert not author.run(*command).stdout.startswith("0 files")
        assert author.run(*command).stdout.endswith(" 0 of them new\n")
    restored = {"resolve", "fetch", "select", "make_tokenizer", "tokenize_train", "tokenize_val"}
    assert colleague.repro("--pull") | restored == ALL
    assert contents(colleague) == contents(author)
    for name in ("metrics/eval.json", "metrics/train.json", "plots/training.csv"):
        assert (colleague.folder / name).read_bytes() == (author.folder / name).read_bytes()


@pytest.mark.parametrize("command", ["dvc pull", "dvc push", "python src share"])
def test_an_unreachable_server_is_named(author, command):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
        failed = author.run(*command.split(), check=False, AWS_ENDPOINT_URL=address)
    assert failed.returncode
    assert f'Could not connect to the endpoint URL: "{address}' in failed.stderr
    assert "Traceback" not in failed.stderr


def test_a_package_has_the_same_version_in_all_requirements():
    pins: dict[str, set[str]] = {}
    for path in [ROOT / "requirements.txt", *ROOT.glob("requirements/*.txt")]:
        for name, version in re.findall(r"^([\w.-]+)(?:\[[\w,]+\])?==([^\s#]+)", path.read_text(), re.M):
            pins.setdefault(re.sub(r"[-_.]+", "-", name).lower(), set()).add(version)
    assert {name: versions for name, versions in pins.items() if len(versions) > 1} == {}
