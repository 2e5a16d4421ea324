"""noise: which of the known runs count, what they say, and the commands that make the missing ones."""

import hashlib
import statistics
import subprocess
from pathlib import Path

import pytest
import yaml

from lm.core.files import read_json, write_json, write_text
from lm.core.params import read_yaml
from support.json_documents import check_document, read_document
from support.refusal import refused
from support.workspace import Workspace
from tools import noise
from tools.common import known_runs
from tools.common.lock import parse_lock
from tools.common.statistics import detectable_by_runs, deviation


@pytest.fixture
def workspace(finished, tmp_path, monkeypatch) -> Workspace:
    """The small pipeline after its run with the seed 1, all of it committed, as the working directory."""
    workspace = Workspace(tmp_path / "ws", finished)
    workspace.commit()
    monkeypatch.chdir(workspace.folder)
    return workspace


def record_run(seed: int, bits_per_byte: float, change=None) -> None:
    """Write dvc.lock and the metrics of a run with another seed, score, and what `change` does to the stages."""
    metrics = Path("metrics/eval.json")
    write_json(metrics, read_json(metrics) | {"bits_per_byte": bits_per_byte})
    lock = read_yaml("dvc.lock")
    stages = lock["stages"]
    stages["train"]["params"]["params.yaml"]["train"]["seed"] = seed
    (output,) = (out for out in stages["eval"]["outs"] if out["path"] == str(metrics))
    output["md5"] = hashlib.md5(metrics.read_bytes()).hexdigest()
    if change:
        change(stages)
    write_text("dvc.lock", yaml.safe_dump(lock))


def commit_run(workspace: Workspace, kind: str, name: str, seed: int, bits_per_byte: float, change=None) -> None:
    """Record a run as a branch, a tag or an experiment, and go back to main."""
    record_run(seed, bits_per_byte, change)
    if kind == "experiment":  # `dvc exp save` would take the files of the run as they are
        start = workspace.run("git", "rev-parse", "HEAD").stdout.strip()
        workspace.run("git", "commit", "-qam", name)
        workspace.run("git", "update-ref", f"refs/exps/{start[:2]}/{start[2:]}/{name}", "HEAD")
        workspace.run("git", "reset", "-q", "--hard", start)
    elif kind == "branch":
        workspace.run("git", "switch", "-qc", name)
        workspace.run("git", "commit", "-qam", name)
        workspace.run("git", "switch", "-q", "main")
    else:
        workspace.run("git", "commit", "-qam", name)
        workspace.run("git", "tag", "-a", "-m", name, name)
        workspace.run("git", "reset", "-q", "--hard", "HEAD~1")
    workspace.run("git", "restore", ".")


def give_other_code(stages: dict) -> None:
    (code,) = (dep for dep in stages["train"]["deps"] if dep["path"] == "src/train.py")
    code["md5"] = "0" * 32


def give_another_rate(stages: dict) -> None:
    stages["train"]["params"]["params.yaml"]["train"]["peak_lr"] = 0.5


def give_other_weights_to_eval(stages: dict) -> None:
    """As if training had run again, and the evaluation not yet."""
    (weights,) = (out for out in stages["train"]["outs"] if out["path"] == "data/models")
    weights["md5"] = "0" * 32


def document(capsys, *arguments: str) -> dict:
    """Return the only configuration of the command's JSON."""
    capsys.readouterr()
    assert noise.main([*arguments, "--json"]) == 0
    found = read_document(capsys.readouterr().out)
    check_document(found)
    (configuration,) = found["configurations"]
    return configuration


def printed(capsys, *arguments: str) -> str:
    capsys.readouterr()
    assert noise.main([*arguments]) == 0
    return capsys.readouterr().out


def test_runs_count_once_for_each_seed_wherever_they_are(workspace, capsys):
    own = read_json("metrics/eval.json")["bits_per_byte"]
    commit_run(workspace, "branch", "b", 2, 2.25)
    commit_run(workspace, "tag", "t", 3, 2.5)
    commit_run(workspace, "experiment", "e", 4, 2.75)

    found = document(capsys)

    values = [own, 2.25, 2.5, 2.75]
    expected = deviation(values)
    assert [(run["name"], run["seed"]) for run in found["runs"]] == [("workspace", 1), ("b", 2), ("t", 3), ("e", 4)]
    assert [run["bits_per_byte"] for run in found["runs"]] == values
    assert found["standard_deviation"] == pytest.approx(statistics.stdev(values))
    assert (found["low"], found["high"]) == (expected.low, expected.high)
    assert [each["runs_of_each_side"] for each in found["detectable_by_runs"]] == [1, 2, 3, 5, 8]
    for each in found["detectable_by_runs"]:
        assert each["difference"] == detectable_by_runs(expected.value, 3, each["runs_of_each_side"])
    assert found["left_out"] == []


def test_runs_that_do_not_count_are_named_with_the_reason(workspace, capsys):
    commit_run(workspace, "branch", "code", 2, 2.25, give_other_code)
    commit_run(workspace, "branch", "rate", 3, 2.25, give_another_rate)
    commit_run(workspace, "branch", "machine", 1, 2.25)
    commit_run(workspace, "branch", "half", 4, 2.25, give_other_weights_to_eval)
    workspace.run("git", "switch", "-q", "--orphan", "empty")
    workspace.run("git", "commit", "-q", "--allow-empty", "-m", "empty")
    workspace.run("git", "switch", "-q", "main")
    workspace.run("dvc", "checkout")

    found = document(capsys)

    reasons = {each["name"]: (each["reason"], each["inputs"]) for each in found["left_out"]}
    assert reasons == {
        "code": ("other code or data", ["src/train.py"]),
        "rate": ("other parameters", []),
        "machine": ("the same seed with another score", []),
        "half": ("no finished run", []),
        "empty": ("no finished run", []),
    }
    assert found["num_seeds"] == 1
    lines = printed(capsys).splitlines()
    assert "left out, other code or data (src/train.py): 1 (code)" in lines


def test_metrics_that_are_not_those_of_dvc_lock_do_not_count(workspace, capsys):
    """As after a commit of dvc.lock without metrics/."""
    commit_run(workspace, "branch", "b", 2, 2.25)
    workspace.run("git", "switch", "-q", "b")
    write_json("metrics/eval.json", {"bits_per_byte": 9.0})
    workspace.run("git", "commit", "-qam", "other metrics")
    workspace.run("git", "switch", "-q", "main")

    found = document(capsys)

    assert found["num_seeds"] == 1
    assert [(each["name"], each["reason"]) for each in found["left_out"]] == [("b", "no finished run")]


@pytest.mark.parametrize("seeds", [[], [2]])
def test_nothing_is_extrapolated_from_fewer_than_three_seeds(workspace, capsys, seeds):
    for seed in seeds:
        commit_run(workspace, "branch", f"s{seed}", seed, 2.25)

    found = document(capsys)
    text = printed(capsys)

    assert found["detectable_by_runs"] == [] and found["low"] is found["high"] is None
    assert (found["standard_deviation"] is None) == (not seeds)
    missing = "'train.seed=range(3,6)'" if seeds else "'train.seed=range(2,6)'"
    commands = [f"dvc exp run --queue -n workspace-seeds -S {missing}", "dvc queue start"]
    assert found["commands_for_more_seeds"] == commands
    assert text.splitlines()[-2:] == [f"  {command}" for command in commands]
    assert "smallest change" not in text


def test_the_noise_of_another_revision_is_of_its_parameters(workspace, capsys):
    for seed in (5, 6, 7):
        commit_run(workspace, "experiment", f"r-{seed}", seed, 2 + seed / 100, give_another_rate)

    found = document(capsys, "r-6")

    assert [run["seed"] for run in found["runs"]] == [5, 6, 7]
    (command, _) = found["commands_for_more_seeds"]
    assert command == "dvc exp run --queue -n r-seeds -S 'train.seed=range(1,3)' -S train.peak_lr=0.5"
    assert "0.0100 bits per byte is the standard deviation over 3 seeds" in printed(capsys, "r-6")


def test_a_revision_that_no_branch_has_counts_itself(workspace, capsys):
    """A commit that only its hash names."""
    record_run(2, 2.25)
    workspace.run("git", "commit", "-qam", "lost")
    sha = workspace.run("git", "rev-parse", "HEAD").stdout.strip()
    workspace.run("git", "reset", "-q", "--hard", "HEAD~1")

    found = document(capsys, sha)

    assert {(run["name"], run["seed"]) for run in found["runs"]} == {(sha, 2), ("workspace", 1)}


def test_parameters_that_were_edited_since_the_run_are_said(workspace, capsys):
    rate = workspace.get("train.peak_lr")
    workspace.change(**{"train.peak_lr": 0.25})

    assert document(capsys)["unlike_here"] == [f"train.peak_lr={rate}"]
    assert f"The parameter files have changed since this run, which had: train.peak_lr={rate}." in printed(capsys)


def test_revisions_without_a_run_are_refused(workspace, capsys):
    commit_run(workspace, "branch", "half", 4, 2.25, give_other_weights_to_eval)
    cases = [("half", 4, "not those of one finished run"), ("nonsense", 2, "is neither an experiment nor")]
    for name, code, said in cases:
        status = noise.main([name, "--json"])
        output, errors = capsys.readouterr()
        assert output == ""
        refused(status, errors, code, name, said)


def test_many_branches_are_read_without_a_process_for_each(workspace, capsys, monkeypatch):
    """Their files come from Git's objects in this process, and none from DVC's cache."""
    for seed in range(2, 32):
        record_run(seed, 2 + seed / 1000)
        workspace.run("git", "commit", "-qam", f"s{seed}")
        workspace.run("git", "branch", f"s{seed}")
    workspace.run("git", "reset", "-q", "--hard", "HEAD~30")
    calls = []
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: calls.append(arguments))

    known = known_runs.find_known_runs()

    assert len(known.runs) == 31 and known.without_results == []
    assert calls == []


def test_the_quick_reader_of_yaml_reads_dvc_lock_as_ruamel_does(workspace):
    """YAML 1.1 would take 1e-05 for a text."""
    text = Path("dvc.lock").read_text() + "numbers: [1e-05, 1.5, .5, 12, -3e4, '1e3', 1.0e+3]\n"
    lock = yaml.load(text, known_runs.Loader)

    assert lock["stages"] == parse_lock(text, "dvc.lock")["stages"]
    numbers = lock["numbers"]
    assert numbers == [1e-05, 1.5, 0.5, 12, -3e4, "1e3", 1000.0] and type(numbers[3]) is int
