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

from lm.text.documents import open_text
from lm.text.slices import Slice
from support import ROOT
from support.json_documents import check_document, read_document
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
    base = measured("base")
    vocab = measured("vocab")
    delta = f"{vocab['bits_per_byte'] - base['bits_per_byte']:+.4f}"
    folder = workspace.folder / "comparisons"
    report = (folder / "base-vs-vocab.md").read_text()
    assert status == 0 and base["tokens"] != vocab["tokens"]
    assert f"`base`: {delta} bits per byte (95 % interval over 38 documents " in output.splitlines()[0]
    assert output.splitlines()[0] in report and f"## vocab − base: {delta} bits per byte" in report
    assert "Differs: tokenizers.*.vocab_size 400 → 320." in output.splitlines()
    assert re.search(r"\| tokenizers\.\*\.vocab_size +\| +400 \| +320 \|", report)
    assert "train.seed" not in report.partition("## More seeds")[0].partition("| what differs")[2]

    rows = list(csv.DictReader((folder / "base-vs-vocab.csv").read_text().splitlines()))
    sizes = np.array([float(row["utf8_bytes"]) for row in rows])
    change = np.array([float(row["vocab"]) - float(row["base"]) for row in rows])
    assert f"{(sizes * change).sum() / sizes.sum():+.4f}" == delta
    assert workspace.run("git", "status", "--porcelain").stdout == before

    # The documents that changed most, with words of theirs.
    shown = re.findall(r"^\| (\d+): `(.*)` ", output, re.M)
    assert {int(document) for document, _ in shown} == {*np.argsort(-np.abs(sizes * change))[:4].tolist()}
    part = Slice("validation", 0, None)
    texts = list(itertools.chain.from_iterable(open_text(workspace.folder / "data" / "raw", part).batches()))
    for document, words in shown:
        assert len(words) > 20 and words.rstrip("…").strip() in " ".join(texts[int(document)].split())


def test_seeds_are_grouped(workspace, compare):
    status, output, _ = compare("base", "seed2", "workspace")
    values = np.array([measured(name)["bits_per_byte"] for name in ("base", "seed2")])
    assert status == 0
    report = (workspace.folder / "comparisons" / "base-vs-seed2-and-1-more.md").read_text()
    assert re.search(rf"\| base…seed2 +\| +2 \| +{values.mean():.4f} \| +± {values.std(ddof=1):.4f} \|", report)
    delta = measured("vocab")["bits_per_byte"] - values.mean()
    assert f"`base…seed2`: {delta:+.4f} bits per byte" in output.splitlines()[0]
    assert "over seeds unknown, 2 and 1 seeds" in output.splitlines()[0]


def test_patterns_name_experiments_and_a_run_equals_its_copy_in_the_workspace(workspace, compare):
    assert compare("b*e", "se*2")[0] == 0
    report = (workspace.folder / "comparisons" / "base-vs-seed2.md").read_text()
    assert report.startswith("# seed2 against base\n") and "- Training of" not in report
    assert re.search(r"\| train\.seed +\| +1 \| +2 \|", report)

    compare("vocab", "workspace")
    report = (workspace.folder / "comparisons" / "vocab-vs-workspace.md").read_text()
    assert "- Training of `vocab` and `workspace`: identical.\n" in report


def test_runs_of_a_pattern_that_are_not_finished_are_named(workspace, compare):
    workspace.run("dvc", "exp", "run", "--queue", "--name", "seed9", "-S", "train.seed=9")

    output = compare("base", "seed*")[1]
    report = (workspace.folder / "comparisons" / "base-vs-seed2.md").read_text()
    refusal = compare("seed*")

    assert "Not finished, so not compared: seed9 (Queued)." in output.splitlines()
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
    assert "Differs: src/lm/evaluate/samples.py." in output.splitlines()
    report = (workspace.folder / "comparisons" / "vocab-vs-workspace.md").read_text()
    assert re.search(r"^\| src/lm/evaluate: samples.py +\| [0-9a-f]{10}", report, re.M)


# For programs.


def test_json_is_all_that_standard_output_has_and_the_files_are_written(workspace, compare):
    shutil.rmtree(workspace.folder / "comparisons", ignore_errors=True)

    status, output, errors = compare("base", "vocab", "--json")

    document = read_document(output)
    check_document(document)
    (comparison,) = document["comparisons"]
    base = measured("base")
    vocab = measured("vocab")
    assert status == 0 and errors == "written: comparisons/base-vs-vocab.md, base-vs-vocab.csv\n"
    assert comparison["difference"] == pytest.approx(vocab["bits_per_byte"] - base["bits_per_byte"])
    assert comparison["parameters"] == [{"name": "tokenizers.*.vocab_size", "baseline": 400, "candidate": 320}]
    assert document["documents"]["number"] == base["documents"]
    for path in document["files"].values():
        assert (workspace.folder / path).stat().st_size > 0


def test_a_required_verdict_decides_the_exit_status(compare):
    verdicts = {}
    for names in (("base", "vocab"), ("vocab", "base")):
        status, output, errors = compare(*names, "--json", "--require", "better")
        (comparison,) = read_document(output)["comparisons"]
        verdicts[comparison["verdict"]] = status
        unmet = f"--require better: not better than {names[0]}: {names[1]} ({comparison['verdict']})"
        assert (unmet in errors.splitlines()) == (status == 1)

    assert verdicts == {"better": 0, "worse": 1}
    assert compare("base", "nonsense", "--json", "--require", "better")[:2] == (2, "")


def test_the_commands_for_more_seeds_give_both_sides_their_parameters_and_new_seeds(workspace, compare):
    """The workspace has the parameters of `vocab`; the commands run as they are printed."""
    lines = compare("base", "seed2", "vocab")[1].splitlines()
    commands = lines[lines.index("To run the missing seeds:") + 1 :][:4]

    assert commands == [
        "dvc exp run --queue -n base-seeds -S 'train.seed=range(3,6)' -S presets.yaml:tokenizers.bpe.vocab_size=400",
        "dvc exp run --queue -n vocab-seeds -S 'train.seed=range(2,6)'",
        "dvc queue start",
        "python src compare base seed2 vocab 'base-seeds-*' 'vocab-seeds-*'  # when the queue has ended",
    ]
    for command in commands[:2]:
        workspace.run("bash", "-euc", command)
    queued = workspace.run("dvc", "queue", "status").stdout
    workspace.run("dvc", "queue", "remove", "--queued")
    assert [name for name in ("base-seeds-1", "base-seeds-3", "vocab-seeds-4") if name not in queued] == []


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
    (text,) = open_text(workspace.folder / "data/raw", Slice("validation", 0, None)).batches()
    workspace.change(**{"selections.none.max_chars": sorted(map(len, text))[20]})
    workspace.run_stages()
    workspace.run("dvc", "commit", "--force")
    workspace.run("dvc", "exp", "save", "--name", "short")
    status, _, error = compare("base", "short")
    refused(status, error, 4, "base and short were evaluated on different documents")
