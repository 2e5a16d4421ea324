"""compare on real experiments: its numbers are those of their files, and unsuitable runs are refused."""

import csv
import itertools
import json
import re
import shutil
import subprocess
import sys

import dvc.api
import numpy as np
import pytest

from lm.text.documents import iter_texts
from lm.text.slices import Slice
from support import ROOT
from support.workspace import Workspace
from tools.compare.cli import main


@pytest.fixture(scope="module")
def workspace(tmp_path_factory, finished):
    """Return a workspace with the experiments base, seed2 and vocab (another tokenizer); the last is checked out."""
    workspace = Workspace(tmp_path_factory.mktemp("compare"), finished)
    changes = {"base": {}, "seed2": {"train.seed": 2}}
    changes["vocab"] = {"train.seed": 1, "tokenizers.bpe.vocab_size": 320}
    for name, values in changes.items():  # in this process, which takes a third of the time of `dvc exp run`
        if values:
            workspace.change(**values)
            workspace.run_stages()
            workspace.run("dvc", "commit", "--force")
        workspace.run("dvc", "exp", "save", "--name", name)
    return workspace


@pytest.fixture
def compare(workspace, monkeypatch, capsys):
    """The command in the workspace: (exit status, standard output, standard error)."""
    monkeypatch.chdir(workspace.folder)

    def run_it(*arguments: str):
        return main(["--resamples", "499", *arguments]), *capsys.readouterr()

    return run_it


def measured(name: str) -> dict:
    """Return the evaluation details of an experiment of the current folder, read by DVC's own API."""
    return json.loads(dvc.api.read("data/evaluation/details.json", rev=name))


def test_the_difference_is_that_of_the_metrics(compare):
    status, output, _ = compare("base", "vocab", "--documents", "3")
    base, vocab = measured("base"), measured("vocab")
    delta = vocab["bits_per_byte"] - base["bits_per_byte"]
    assert status == 0 and base["tokens"] != vocab["tokens"]
    assert f"## vocab − base: {delta:+.4f} bits per byte" in output
    assert f"`base` itself has {base['bits_per_byte']:.3f} bits per byte, 95 % interval " in output
    assert re.search(r"\| tokenizers\.\*\.vocab_size +\| +400 \| +320 \|", output)
    assert "train.seed" not in output.split("what differs")[1].split("document that")[0]


def test_written_files_are_the_same_again(workspace, compare):
    before = workspace.run("git", "status", "--porcelain").stdout
    _, output, _ = compare("base", "vocab")
    folder = workspace.folder / "comparisons"
    names = [f"base-vs-vocab.{suffix}" for suffix in ("md", "csv")]
    contents = [(folder / name).read_bytes() for name in names]
    assert contents[0].decode().splitlines()[0] == output.splitlines()[0]
    rows = list(csv.DictReader(contents[1].decode().splitlines()))
    total = sum(float(row["utf8_bytes"]) * (float(row["vocab"]) - float(row["base"])) for row in rows)
    delta = total / sum(float(row["utf8_bytes"]) for row in rows)
    assert f"## vocab − base: {delta:+.4f} bits" in output
    assert compare("base", "vocab")[0] == 0
    assert [(folder / name).read_bytes() for name in names] == contents
    assert workspace.run("git", "status", "--porcelain").stdout == before
    assert compare("base", "vocab", "--out", str(workspace.folder / ".runs" / "mine.md"))[0] == 0
    assert {path.suffix for path in (workspace.folder / ".runs").glob("mine.*")} == {".md", ".csv"}


def test_documents_are_listed_with_words_of_theirs(workspace, compare):
    _, output, _ = compare("vocab", "base", "--documents", "4")
    shown = re.findall(r"^\| (\d+): `(.*)` ", output, re.M)
    part = Slice("validation", 0, None)
    texts = list(itertools.chain.from_iterable(iter_texts(workspace.folder / "data" / "raw", part)))
    assert len(shown) == 4
    for document, words in shown:
        assert len(words) > 20 and words.rstrip("…").strip() in " ".join(texts[int(document)].split())


def test_seeds_are_grouped(compare):
    status, output, _ = compare("base", "seed2", "workspace")
    values = np.array([measured(name)["bits_per_byte"] for name in ("base", "seed2")])
    assert status == 0
    mean, sd = values.mean(), values.std(ddof=1)
    assert re.search(rf"\| base…seed2 +\| +2 \| +{mean:.4f} \| +± {sd:.4f} \|", output)
    delta = measured("vocab")["bits_per_byte"] - mean
    assert f"## workspace − base…seed2: {delta:+.4f} bits per byte" in output
    assert "only one run of `workspace`" in output


def test_a_run_and_its_copy_in_the_workspace_are_identical(compare):
    assert "- Training of `vocab` and `workspace`: identical.\n" in compare("vocab", "workspace")[1]


def test_two_seeds_of_one_configuration_differ_by_noise(compare):
    status, output, _ = compare("b*e", "se*2")
    assert status == 0 and output.startswith("# seed2 against base\n") and "- Training of" not in output
    assert re.search(r"\| train\.seed +\| +1 \| +2 \|", output)
    assert "this difference comes from the seed or the machine" in output


def test_wrong_names_and_arguments_are_refused(compare):
    assert "x-*: no finished experiment has such a name" in compare("base", "x-*")[2]
    assert "nonsense is neither an experiment nor a git revision" in compare("base", "nonsense")[2]
    for arguments in (["base"], ["base", "base"], ["base", "nonsense"], ["base", "vocab", "--confidence", "1"],
                      ["base", "vocab", "--confidence", "0.999", "--resamples", "99"],
                      ["base", "vocab", "--out", "x.txt"]):  # fmt: skip
        assert compare(*arguments)[0] == 2, arguments
    status, _, error = compare("base", "main")
    assert status == 4 and "main: dvc.lock is neither in git nor in DVC's cache" in error


def test_a_name_of_several_experiments_is_refused(workspace, compare):
    refs = []
    for message in "ab":  # two commits that an experiment could have started from
        start = workspace.run("git", "commit-tree", "HEAD^{tree}", "-m", message).stdout.strip()
        refs.append(f"refs/exps/{start[:2]}/{start[2:]}/twin")
        workspace.run("git", "update-ref", refs[-1], "HEAD")
    status, _, error = compare("base", "twin")
    for ref in refs:
        workspace.run("git", "update-ref", "-d", ref)
    assert status == 2 and "twin is the name of several experiments; name one by its hash" in error


def test_an_altered_file_is_refused(workspace, compare):
    path = workspace.folder / "data" / "evaluation" / "document_losses.parquet"
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    status, _, error = compare("base", "workspace")
    path.unlink()
    path.write_bytes(content)
    assert status == 4 and "workspace: data/evaluation/document_losses.parquet has the md5" in error


def test_a_subfolder_of_the_repository_is_refused(tmp_path):
    (tmp_path / "docs").mkdir()
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "../src", "compare", "a", "b"]
    done = subprocess.run(command, cwd=tmp_path / "docs", capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, f"error: docs is a subfolder; run the command in {tmp_path}\n")


def test_runs_with_other_rules_are_refused(workspace, compare):
    """A rule that drops long documents leaves another validation text; the last test, as it leaves that behind."""
    (text,) = iter_texts(workspace.folder / "data/raw", Slice("validation", 0, None))
    workspace.change(**{"selections.none.max_chars": sorted(map(len, text))[20]})
    workspace.run_stages()
    workspace.run("dvc", "commit", "--force")
    workspace.run("dvc", "exp", "save", "--name", "short")
    workspace.change(**{"selections.none.max_chars": None})
    status, _, error = compare("base", "short")
    assert status == 4 and "base and short were evaluated on different documents" in error
