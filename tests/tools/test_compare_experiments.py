"""compare on real experiments: its numbers are those of their files, and unsuitable runs are refused."""

import csv
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import dvc.api
import numpy as np
import pyarrow.parquet as pq
import pytest

import evidence.command
from support import ROOT
from support.json_documents import check_document, read_document
from support.refusal import refused
from support.workspace import Workspace
from tools.compare.cli import main
from tools.compare.seeds import START


@pytest.fixture(scope="module")
def workspace(tmp_path_factory, finished):
    """Return a workspace with the experiments base, seed2 and vocab (another tokenizer); the last is checked out."""
    workspace = Workspace(tmp_path_factory.mktemp("compare"), finished)
    workspace.run("dvc", "exp", "save", "--name", "base")
    save_experiment(workspace, "seed2", **{"train.seed": 2})
    save_experiment(workspace, "vocab", **{"train.seed": 1, "tokenizers.bpe.vocab_size": 320})
    return workspace


def save_experiment(workspace: Workspace, name: str, **values) -> None:
    """Run the stages in this process, which takes a third of the time of `dvc exp run`."""
    workspace.change(**values)
    workspace.run_stages()
    workspace.run("dvc", "commit", "--force")
    workspace.run("dvc", "exp", "save", "--name", name)


class Done(NamedTuple):
    """What a call of the command left."""

    status: int
    output: str
    errors: str

    @property
    def lines(self) -> list[str]:
        return self.output.splitlines()


@pytest.fixture
def compare(workspace, monkeypatch, capsys):
    """The command in the workspace, as a function of its arguments."""
    monkeypatch.chdir(workspace.folder)

    def run_it(*arguments: str) -> Done:
        status = main([*arguments])
        return Done(status, *capsys.readouterr())

    return run_it


def measured(name: str) -> dict:
    """Return the evaluation details of an experiment of the current folder, read by DVC's own API."""
    return json.loads(dvc.api.read("data/evaluation/details.json", rev=name))


# The numbers.


def test_two_tokenizers_are_compared_by_the_bits_of_their_documents(workspace, compare):
    """`workspace` is `vocab`, and counts once."""
    before = workspace.run("git", "status", "--porcelain", "--ignored").stdout

    done = compare("base", "vocab", "workspace", "--json")
    lines = compare("base", "vocab").lines

    # Standard output is one document, and no file changed.
    document = read_document(done.output)
    check_document(document)
    assert (done.status, done.errors) == (0, "")
    assert workspace.run("git", "status", "--porcelain", "--ignored").stdout == before

    # The numbers are those of the metrics, and what differs is named, without the seed.
    base = measured("base")
    vocab = measured("vocab")
    delta = vocab["bits_per_byte"] - base["bits_per_byte"]
    (comparison,) = document["comparisons"]
    assert vocab["tokens"] != base["tokens"]
    assert document["groups"][1]["repeats"] == [{"name": "workspace", "of": "vocab"}]
    assert document["documents"]["number"] == base["documents"]
    assert comparison["documents"]["difference"] == pytest.approx(delta)
    assert comparison["parameters"] == [{"name": "tokenizers.*.vocab_size", "baseline": 400, "candidate": 320}]
    assert f"{delta:+.4f} bits per byte (95 % interval over 38 documents " in lines[0]
    assert "Differs: tokenizers.*.vocab_size 400 → 320." in lines


def test_patterns_name_experiments_and_those_that_are_not_finished(workspace, compare):
    workspace.run("dvc", "exp", "run", "--queue", "--name", "seed9", "-S", "train.seed=9")

    done = compare("b*e", "seed*")
    alone = compare("seed*")

    workspace.run("dvc", "queue", "remove", "--queued")
    said = "Not finished, so not compared: seed9 (Queued)"
    assert done.status == 0
    assert f"{said}." in done.lines
    assert alone.status == 0
    assert "the noise of seeds is not known" in alone.lines[0]
    assert f"{said}." in alone.lines


def test_the_files_of_code_that_differ_are_named(workspace, compare):
    """One that was edited since its run is not named: dvc.lock has the hash of the former code."""
    path = workspace.folder / "src/lm/evaluate/samples.py"
    before = path.read_text()
    path.write_text(before + "# changed\n")

    after_the_edit = compare("vocab", "workspace")
    workspace.run("dvc", "commit", "--force", "eval")
    after_a_run = compare("vocab", "workspace")
    path.write_text(before)
    workspace.run("dvc", "commit", "--force", "eval")

    assert "samples.py" not in after_the_edit.output
    assert "Differs: src/lm/evaluate/samples.py." in after_a_run.lines


def test_a_citation_names_the_text_and_the_commits_that_experiments_started_from(workspace, compare):
    start = workspace.run("git", "rev-parse", "HEAD").stdout.strip()
    workspace.run("git", "commit", "-q", "--allow-empty", "-m", "later")
    try:
        done = compare("base", "vocab", "workspace", "--cite")
        later = workspace.run("git", "rev-parse", "HEAD").stdout.strip()
    finally:
        workspace.run("git", "reset", "-q", "--soft", "HEAD~1")

    source = json.loads(dvc.api.read("data/processed_datasets/validation.json", rev="base"))["source"]
    (sentence,) = [line for line in done.lines if line.startswith("On 38 validation documents")]
    assert f"bytes) of {source['name']}: {done.lines[0]} The interval over documents decides. Differs: " in sentence
    text = f"Text: SHA-256 {source['text_sha256'][:12]}. The runs started from {start[:12]}, {later[:12]}."
    assert done.lines[-1].startswith("Table: ")
    assert done.lines[-1].endswith(text)


def test_parameters_of_the_workspace_that_did_not_run_are_warned_of(workspace, compare):
    content = Path("params.yaml").read_text()
    workspace.change(**{"train.peak_lr": 0.5})
    try:
        of_workspace = compare("base", "workspace")
        of_others = compare("base", "vocab")
    finally:
        Path("params.yaml").write_text(content)

    warning = "warning: workspace is the last run, and train.peak_lr 0.01 → 0.5 changed since; `dvc repro` computes it"
    assert of_workspace.errors.splitlines() == [warning]
    assert of_others.errors == ""
    assert compare("base", "workspace").errors == ""


# Tables.


@pytest.fixture
def tables(workspace, monkeypatch) -> list[str]:
    """The losses of base and vocab, as other programs write them: a CSV and a TSV."""
    monkeypatch.chdir(workspace.folder)
    names = {"base.csv": ",", "vocab.tsv": "\t"}
    for name, delimiter in names.items():
        content = dvc.api.read("data/evaluation/document_losses.parquet", rev=Path(name).stem, mode="rb")
        losses = pq.read_table(io.BytesIO(content)).to_pylist()
        with open(name, "w") as file:
            rows = csv.writer(file, delimiter=delimiter)
            rows.writerow(["run", "document", "nats", "utf8_bytes"])
            rows.writerows([name, i, row["nats"], row["utf8_bytes"]] for i, row in enumerate(losses))
    yield [*names]
    for name in names:
        Path(name).unlink()


def test_tables_are_compared_by_the_command_evidence(compare, tables, capsys):
    arguments = ["--json", "--within", "0.01", "--require", "better", "--baseline", "vocab.tsv"]

    done = compare(*tables, *arguments)
    of_evidence = evidence.command.main(["compare", *tables, *arguments])

    assert (done.status, done.output, done.errors) == (of_evidence, *capsys.readouterr())


@pytest.mark.parametrize(("names", "baseline"), [(["base", "vocab.tsv"], "base"), (["vocab.tsv", "base"], "vocab.tsv")])
def test_a_table_is_compared_with_recorded_runs_of_the_same_documents(compare, tables, names, baseline):
    recorded = read_document(compare("base", "vocab", "--json").output)["comparisons"][0]

    done = compare(*names, "--json")

    (comparison,) = read_document(done.output)["comparisons"]
    sign = 1 if baseline == "base" else -1
    assert comparison["baseline"] == baseline
    assert comparison["documents"]["difference"] == pytest.approx(sign * recorded["documents"]["difference"])


def test_a_table_of_other_documents_is_refused(compare, tables):
    lines = Path("vocab.tsv").read_text().splitlines(keepends=True)
    renamed = [line.replace("vocab.tsv\t", "vocab.tsv\tstory", 1) for line in lines]
    for content, said in [
        ("".join(renamed), "vocab.tsv: its documents must be 0 to 37, as those of base"),
        ("".join([*lines[:-1], lines[-1].rstrip() + "0\n"]), "vocab.tsv: document 37 has "),
    ]:
        Path("vocab.tsv").write_text(content)

        done = compare("base", "vocab.tsv")

        refused(done.status, done.errors, 2, said)


# More seeds.


def test_the_commands_for_more_seeds_give_both_sides_their_parameters_and_new_seeds(workspace, compare):
    """The workspace has the parameters of `vocab`; the commands run as they are printed."""
    lines = compare("base", "seed2", "vocab").lines
    start = lines.index("To run the missing seeds:") + 1
    commands = lines[start : start + 4]

    begin = commands[2]
    assert re.fullmatch(re.escape(START) + r": about \d+ min of training here, one run after the other", begin)
    assert commands == [
        "dvc exp run --queue -n base-seeds -S 'train.seed=range(3,6)' -S presets.yaml:tokenizers.bpe.vocab_size=400",
        "dvc exp run --queue -n vocab-seeds -S 'train.seed=range(2,6)'",
        begin,
        "python src compare base seed2 vocab 'base-seeds-*' 'vocab-seeds-*'",
    ]
    for command in commands[:2]:
        workspace.run("bash", "-euc", command)
    queued = workspace.run("dvc", "queue", "status").stdout
    workspace.run("dvc", "queue", "remove", "--queued")
    for name in ("base-seeds-1", "base-seeds-3", "vocab-seeds-4"):
        assert name in queued


def test_one_configuration_gives_its_noise_and_the_commands_for_more_seeds(workspace, compare):
    done = compare("base", "seed2")
    document = read_document(compare("base", "seed2", "--json").output)

    check_document(document)
    scores = [measured(name)["bits_per_byte"] for name in ("base", "seed2")]
    assert f"`base…seed2`: {np.std(scores, ddof=1):.4f} bits per byte is the standard deviation over 2" in done.lines[0]
    assert document["comparisons"] == []
    command = (
        "dvc exp run --queue -n base-seeds -S 'train.seed=range(3,6)' -S presets.yaml:tokenizers.bpe.vocab_size=400"
    )
    assert document["commands_for_more_seeds"][0] == command
    assert command in done.lines


# What cannot be compared.


def test_names_without_results_are_refused(workspace, compare):
    """The name `twin` is of two experiments, which started from different commits, `seed2` that of a branch, too."""
    workspace.run("git", "branch", "seed2")
    for message in ("a", "b"):
        start = workspace.run("git", "commit-tree", "HEAD^{tree}", "-m", message).stdout.strip()
        workspace.run("git", "update-ref", f"refs/exps/{start[:2]}/{start[2:]}/twin", start)
    cases = [
        ("x-*", 2, "x-*: no finished experiment has such a name"),
        ("nonsense", 2, "nonsense is neither an experiment nor a git revision"),
        ("twin", 2, "twin is the name of several experiments"),
        ("seed2", 2, "seed2 is the name of the experiment"),
        ("main", 4, "main: has no dvc.lock, so no run is recorded there"),
    ]

    for name, code, said in cases:
        done = compare("base", name, "--json", "--require", "better")

        refused(done.status, done.errors, code, said)
        assert done.output == ""
    workspace.run("git", "branch", "-D", "seed2")


def test_a_subfolder_of_the_repository_is_refused(tmp_path):
    (tmp_path / "docs").mkdir()
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "../src", "compare", "a", "b"]

    done = subprocess.run(command, cwd=tmp_path / "docs", capture_output=True, text=True)

    refused(done.returncode, done.stderr, 2, "docs is a subfolder", str(tmp_path))
