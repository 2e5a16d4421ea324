"""compare on real experiments: its numbers are those of their files, and unsuitable runs are refused."""

import csv
import itertools
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import dvc.api
import numpy as np
import pytest

from evidence.distributions import student_t_quantile
from lm.text.documents import open_text
from lm.text.slices import Slice
from support import ROOT
from support.json_documents import check_document, read_document
from support.markdown import rows_of
from support.refusal import refused
from support.workspace import Workspace
from tools.common.read_runs import read_runs
from tools.common.revisions import Revision
from tools.common.runs import Run
from tools.common.seeds import START
from tools.compare import cli
from tools.compare.cli import main


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
        status = main(["--resamples", "499", *arguments])
        return Done(status, *capsys.readouterr())

    return run_it


def measured(name: str) -> dict:
    """Return the evaluation details of an experiment of the current folder, read by DVC's own API."""
    return json.loads(dvc.api.read("data/evaluation/details.json", rev=name))


def report_of(name: str) -> str:
    return Path("comparisons", f"{name}.md").read_text()


# The numbers.


@pytest.fixture
def base_and_vocab(compare) -> Done:
    """The comparison of two tokenizers."""
    return compare("base", "vocab", "--documents", "4")


def difference_of_base_and_vocab() -> str:
    return f"{measured('vocab')['bits_per_byte'] - measured('base')['bits_per_byte']:+.4f}"


def test_the_difference_of_two_tokenizers_is_that_of_the_metrics(base_and_vocab):
    answer = base_and_vocab.lines[0]

    report = report_of("base-vs-vocab")
    delta = difference_of_base_and_vocab()
    assert base_and_vocab.status == 0
    assert measured("base")["tokens"] != measured("vocab")["tokens"]
    assert f"`base`: {delta} bits per byte (95 % interval over 38 documents " in answer
    assert answer in report
    assert f"## vocab − base: {delta} bits per byte" in report


def test_what_differs_is_named_without_the_seed(base_and_vocab):
    rows = rows_of(report_of("base-vs-vocab"))

    names = [row[0] for row in rows]
    assert "Differs: tokenizers.*.vocab_size 400 → 320." in base_and_vocab.lines
    assert ["tokenizers.*.vocab_size", "400", "320"] in rows
    assert "train.seed" not in names


def rates_of_documents() -> tuple[np.ndarray, np.ndarray]:
    """Return bytes, and bits per byte of `vocab` - `base`, of the documents that the comparison wrote."""
    with open("comparisons/base-vs-vocab.csv") as file:
        rows = list(csv.DictReader(file))
    sizes = np.array([float(row["utf8_bytes"]) for row in rows])
    changes = np.array([float(row["vocab"]) - float(row["base"]) for row in rows])
    return sizes, changes


def test_the_difference_is_that_of_the_written_documents(base_and_vocab):
    sizes, changes = rates_of_documents()

    difference = (sizes * changes).sum() / sizes.sum()

    assert f"{difference:+.4f}" == difference_of_base_and_vocab()


def test_the_documents_that_changed_most_are_shown_with_words_of_theirs(base_and_vocab):
    shown = re.findall(r"^\| (\d+): `(.*)` ", base_and_vocab.output, re.M)

    sizes, changes = rates_of_documents()
    most_changed = np.argsort(-np.abs(sizes * changes))[:4]
    assert {int(document) for document, _ in shown} == set(most_changed.tolist())
    texts = list(itertools.chain.from_iterable(open_text(Path("data/raw"), Slice("validation", 0, None)).batches()))
    for document, words in shown:
        assert len(words) > 20
        assert words.rstrip("…").strip() in " ".join(texts[int(document)].split())


def test_resamples_decide_the_steps_of_p(compare):
    done = compare("base", "vocab", "--json", "--resamples", "99")

    (comparison,) = read_document(done.output)["comparisons"]
    steps = 100 * comparison["documents"]["p_value"]
    assert steps >= 1
    assert steps == pytest.approx(round(steps))


@pytest.fixture
def two_seeds_of_each_side(monkeypatch):
    """Made from base and vocab: each document is better in vocab, by less than its seeds differ by."""

    def read(revisions: list[Revision]) -> list[Run]:
        base, vocab = read_runs(revisions)
        unequal = np.linspace(1, 1.001, len(base.nats))  # otherwise documents would have no spread
        runs = []
        for run, seed, losses in (
            (base, 1, base.nats),
            (base, 2, base.nats * 1.02),
            (vocab, 1, base.nats * 0.96 * unequal),
            (vocab, 2, base.nats * 0.99 * unequal),
        ):
            params = run.params | {"train.seed": seed}
            runs.append(replace(run, name=f"{run.name}{seed}", params=params, nats=losses))
        return runs

    monkeypatch.setattr(cli, "read_runs", read)


@pytest.mark.parametrize(("confidence", "status", "said"), [("0.95", 1, "not shown"), ("0.5", 0, "better")])
def test_the_confidence_decides_the_verdict_the_status_and_the_commands(
    compare, two_seeds_of_each_side, confidence, status, said
):
    done = compare("base", "vocab", "--json", "--require", "better", "--confidence", confidence)

    document = read_document(done.output)
    (comparison,) = document["comparisons"]
    assert done.status == status
    assert document["confidence"] == float(confidence)
    assert comparison["documents"]["verdict"] == "better"
    of_seeds = comparison["seeds"]
    t = student_t_quantile(float(confidence), of_seeds["degrees_of_freedom"])
    assert of_seeds["high"] - of_seeds["difference"] == pytest.approx(t * of_seeds["standard_error"])
    assert of_seeds["verdict"] == said
    assert comparison["verdict"] == said
    assert (document["commands_for_more_seeds"] == []) == (said == "better")


def test_a_comparison_changes_nothing_that_git_sees(workspace, compare):
    before = workspace.run("git", "status", "--porcelain").stdout

    compare("base", "vocab")

    assert workspace.run("git", "status", "--porcelain").stdout == before


def test_seeds_are_grouped(compare):
    done = compare("base", "seed2", "workspace")

    scores = np.array([measured(name)["bits_per_byte"] for name in ("base", "seed2")])
    delta = measured("vocab")["bits_per_byte"] - scores.mean()
    rows = rows_of(report_of("base-vs-seed2-and-1-more"))
    assert done.status == 0
    assert ["base…seed2", "2", f"{scores.mean():.4f}", f"± {scores.std(ddof=1):.4f}"] in rows
    assert f"`base…seed2`: {delta:+.4f} bits per byte" in done.lines[0]
    assert "over seeds unknown, 2 and 1 seeds" in done.lines[0]


def test_patterns_name_experiments(compare):
    done = compare("b*e", "se*2")

    report = report_of("base-vs-seed2")
    assert done.status == 0
    assert report.startswith("# seed2 against base\n")
    assert ["train.seed", "1", "2"] in rows_of(report)
    assert "- Training of" not in report


def test_a_run_equals_its_copy_in_the_workspace(compare):
    done = compare("vocab", "workspace")

    said = "`workspace` and `vocab` are the same run: parameters, code, data and losses are equal."
    assert done.lines[0] == said
    assert done.lines[1].startswith("written: ")
    assert said in report_of("vocab-vs-workspace")


@pytest.fixture
def unfinished(workspace):
    """A queued experiment, seed9."""
    workspace.run("dvc", "exp", "run", "--queue", "--name", "seed9", "-S", "train.seed=9")
    yield
    workspace.run("dvc", "queue", "remove", "--queued")


def test_runs_of_a_pattern_that_are_not_finished_are_named(compare, unfinished):
    done = compare("base", "seed*")
    refusal = compare("seed*")

    said = "Not finished, so not compared: seed9 (Queued)"
    assert f"{said}." in done.lines
    assert f"**{said}.**" in report_of("base-vs-seed2").splitlines()
    refused(refusal.status, refusal.errors, 2, "name at least two different runs", said)


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

    names = [row[0] for row in rows_of(report_of("vocab-vs-workspace"))]
    assert "samples.py" not in after_the_edit.output
    assert "Differs: src/lm/evaluate/samples.py." in after_a_run.lines
    assert "src/lm/evaluate: samples.py" in names


# For programs.


def test_json_is_all_that_standard_output_has_and_the_files_are_written(workspace, compare):
    shutil.rmtree(workspace.folder / "comparisons", ignore_errors=True)

    done = compare("base", "vocab", "--json")

    document = read_document(done.output)
    check_document(document)
    assert done.status == 0
    assert done.errors == "written: comparisons/base-vs-vocab.md, base-vs-vocab.csv\n"
    for path in document["files"].values():
        assert (workspace.folder / path).stat().st_size > 0


def test_json_has_the_numbers_of_the_metrics(compare):
    document = read_document(compare("base", "vocab", "--json").output)

    base = measured("base")
    vocab = measured("vocab")
    (comparison,) = document["comparisons"]
    assert document["documents"]["number"] == base["documents"]
    assert comparison["difference"] == pytest.approx(vocab["bits_per_byte"] - base["bits_per_byte"])
    assert comparison["parameters"] == [{"name": "tokenizers.*.vocab_size", "baseline": 400, "candidate": 320}]


def test_json_has_p_before_and_after_the_correction_for_several_runs(compare):
    (alone,) = read_document(compare("base", "vocab", "--json").output)["comparisons"]

    among_two, _ = read_document(compare("base", "vocab", "workspace", "--json").output)["comparisons"]

    p_value = alone["documents"]["p_value"]
    assert among_two["documents"]["p_value"] == p_value
    assert among_two["documents"]["p_value_holm"] > p_value


def test_a_required_verdict_decides_the_exit_status(compare):
    verdicts = {}
    for a, b in (("base", "vocab"), ("vocab", "base")):
        done = compare(a, b, "--json", "--require", "better")
        (comparison,) = read_document(done.output)["comparisons"]
        verdict = comparison["verdict"]
        verdicts[verdict] = done.status
        unmet = f"--require better: not better than {a}: {b} ({verdict})"
        assert (unmet in done.errors.splitlines()) == (done.status == 1)

    assert verdicts == {"better": 0, "worse": 1}


def test_a_verdict_of_a_run_that_does_not_exist_is_no_document(compare):
    done = compare("base", "nonsense", "--json", "--require", "better")

    assert done.status == 2
    assert done.output == ""


def test_the_commands_for_more_seeds_give_both_sides_their_parameters_and_new_seeds(workspace, compare):
    """The workspace has the parameters of `vocab`; the commands run as they are printed."""
    lines = compare("base", "seed2", "vocab").lines
    start = lines.index("To run the missing seeds:") + 1
    commands = lines[start : start + 4]

    assert commands == [
        "dvc exp run --queue -n base-seeds -S 'train.seed=range(3,6)' -S presets.yaml:tokenizers.bpe.vocab_size=400",
        "dvc exp run --queue -n vocab-seeds -S 'train.seed=range(2,6)'",
        START,
        "python src compare base seed2 vocab 'base-seeds-*' 'vocab-seeds-*'",
    ]
    for command in commands[:2]:
        workspace.run("bash", "-euc", command)
    queued = workspace.run("dvc", "queue", "status").stdout
    workspace.run("dvc", "queue", "remove", "--queued")
    for name in ("base-seeds-1", "base-seeds-3", "vocab-seeds-4"):
        assert name in queued


# What cannot be compared.


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("x-*", 2, "x-*: no finished experiment has such a name"),
        ("nonsense", 2, "nonsense is neither an experiment nor a git revision"),
        ("main", 4, "main: dvc.lock is neither in git nor in DVC's cache"),
    ],
)
def test_names_without_results_are_refused(compare, name, code, said):
    done = compare("base", name)

    refused(done.status, done.errors, code, said)


def test_a_name_of_two_experiments_is_refused(workspace, compare):
    """They started from different commits."""
    for message in ("a", "b"):
        start = workspace.run("git", "commit-tree", "HEAD^{tree}", "-m", message).stdout.strip()
        workspace.run("git", "update-ref", f"refs/exps/{start[:2]}/{start[2:]}/twin", "HEAD")

    done = compare("base", "twin")

    refused(done.status, done.errors, 2, "twin is the name of several experiments")


def test_an_altered_file_is_refused(workspace, compare):
    path = workspace.folder / "data" / "evaluation" / "document_losses.parquet"
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))

    done = compare("base", "workspace")

    path.unlink()
    path.write_bytes(content)
    refused(done.status, done.errors, 4, "workspace: data/evaluation/document_losses.parquet has the md5")


def test_a_subfolder_of_the_repository_is_refused(tmp_path):
    (tmp_path / "docs").mkdir()
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "../src", "compare", "a", "b"]

    done = subprocess.run(command, cwd=tmp_path / "docs", capture_output=True, text=True)

    refused(done.returncode, done.stderr, 2, "docs is a subfolder", str(tmp_path))


def test_runs_with_other_rules_are_refused(workspace, compare):
    """A rule that drops long documents leaves another validation text; the last test, as it leaves that behind."""
    (texts,) = open_text(workspace.folder / "data/raw", Slice("validation", 0, None)).batches()
    lengths = sorted(len(text) for text in texts)
    save_experiment(workspace, "short", **{"selections.none.max_chars": lengths[20]})

    done = compare("base", "short")

    refused(done.status, done.errors, 4, "base and short were evaluated on different documents")
