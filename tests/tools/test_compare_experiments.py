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
from support.refusal import refused
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


def test_the_difference_of_two_tokenizers_is_that_of_the_metrics_and_of_the_written_documents(workspace, compare):
    before = workspace.run("git", "status", "--porcelain").stdout
    status, output, _ = compare("base", "vocab", "--documents", "4")
    base, vocab = measured("base"), measured("vocab")
    delta = f"{vocab['bits_per_byte'] - base['bits_per_byte']:+.4f}"
    assert status == 0 and base["tokens"] != vocab["tokens"]
    assert f"## vocab − base: {delta} bits per byte" in output
    assert re.search(r"\| tokenizers\.\*\.vocab_size +\| +400 \| +320 \|", output)
    assert "| train.seed " not in output

    folder = workspace.folder / "comparisons"
    rows = list(csv.DictReader((folder / "base-vs-vocab.csv").read_text().splitlines()))
    sizes = np.array([float(row["utf8_bytes"]) for row in rows])
    change = np.array([float(row["vocab"]) - float(row["base"]) for row in rows])
    assert f"{(sizes * change).sum() / sizes.sum():+.4f}" == delta
    assert output.startswith((folder / "base-vs-vocab.md").read_text())
    assert workspace.run("git", "status", "--porcelain").stdout == before

    # The documents that changed most, with words of theirs.
    shown = re.findall(r"^\| (\d+): `(.*)` ", output, re.M)
    assert {int(document) for document, _ in shown} == {*np.argsort(-np.abs(sizes * change))[:4].tolist()}
    part = Slice("validation", 0, None)
    texts = list(itertools.chain.from_iterable(iter_texts(workspace.folder / "data" / "raw", part)))
    for document, words in shown:
        assert len(words) > 20 and words.rstrip("…").strip() in " ".join(texts[int(document)].split())


def test_seeds_are_grouped(compare):
    status, output, _ = compare("base", "seed2", "workspace")
    values = np.array([measured(name)["bits_per_byte"] for name in ("base", "seed2")])
    assert status == 0
    assert re.search(rf"\| base…seed2 +\| +2 \| +{values.mean():.4f} \| +± {values.std(ddof=1):.4f} \|", output)
    delta = measured("vocab")["bits_per_byte"] - values.mean()
    assert f"## workspace − base…seed2: {delta:+.4f} bits per byte" in output


def test_patterns_name_experiments_and_a_run_equals_its_copy_in_the_workspace(compare):
    status, output, _ = compare("b*e", "se*2")
    assert status == 0 and output.startswith("# seed2 against base\n") and "- Training of" not in output
    assert re.search(r"\| train\.seed +\| +1 \| +2 \|", output)
    assert "- Training of `vocab` and `workspace`: identical.\n" in compare("vocab", "workspace")[1]


def test_runs_of_a_pattern_that_are_not_finished_are_named(workspace, compare):
    workspace.run("dvc", "exp", "run", "--queue", "--name", "seed9", "-S", "train.seed=9")

    report = compare("base", "seed*")[1]
    refusal = compare("seed*")

    assert "**Not finished, so not compared: seed9 (Queued).**" in report.splitlines()
    refused(
        refusal[0], refusal[2], 2, "name at least two different runs (Not finished, so not compared: seed9 (Queued))"
    )
    workspace.run("dvc", "queue", "remove", "--queued")


def test_the_files_of_code_that_differ_are_named(workspace, compare):
    """One that was edited since its run is not named: dvc.lock has the hash of the former code."""
    path = workspace.folder / "src/lm/evaluate/samples.py"
    before = path.read_text()
    path.write_text(before + "# changed\n")
    assert "samples.py" not in compare("vocab", "workspace")[1]

    workspace.run("dvc", "commit", "--force", "eval")
    output = compare("vocab", "workspace")[1]

    path.write_text(before)
    workspace.run("dvc", "commit", "--force", "eval")
    assert re.search(r"^\| src/lm/evaluate: samples.py +\| [0-9a-f]{10}", output, re.M)


def test_names_without_results_are_refused(workspace, compare):
    for names, code, said in (
        (["base", "x-*"], 2, "x-*: no finished experiment has such a name"),
        (["base", "nonsense"], 2, "nonsense is neither an experiment nor a git revision"),
        (["base", "main"], 4, "main: dvc.lock is neither in git nor in DVC's cache"),
    ):
        status, _, error = compare(*names)
        refused(status, error, code, said)
    for message in "ab":  # two commits that an experiment could have started from
        start = workspace.run("git", "commit-tree", "HEAD^{tree}", "-m", message).stdout.strip()
        workspace.run("git", "update-ref", f"refs/exps/{start[:2]}/{start[2:]}/twin", "HEAD")
    status, _, error = compare("base", "twin")
    refused(status, error, 2, "twin is the name of several experiments")


def test_an_altered_file_is_refused(workspace, compare):
    path = workspace.folder / "data" / "evaluation" / "document_losses.parquet"
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    status, _, error = compare("base", "workspace")
    path.unlink()
    path.write_bytes(content)
    refused(status, error, 4, "workspace: data/evaluation/document_losses.parquet has the md5")


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
    status, _, error = compare("base", "short")
    refused(status, error, 4, "base and short were evaluated on different documents")
