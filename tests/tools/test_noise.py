"""noise: which of the known runs count, what they say, and the commands that make the missing ones."""

import hashlib
import statistics
import subprocess
from pathlib import Path

import pytest

from evidence.spread import detectable_by_runs, deviation
from lm.core.files import read_json, write_json
from support.json_documents import check_document, read_document
from support.lock_cases import change_lock, entry_of, other_code, other_weights, train_with
from support.refusal import refused
from support.workspace import Workspace
from tools import noise
from tools.common import runs
from tools.common.seeds import START

METRICS = Path("metrics/eval.json")
OTHER_RATE = train_with(peak_lr=0.5)


def record_run(seed: int, bits_per_byte: float, *changes) -> None:
    """Write dvc.lock and the metrics of a run with another seed, another score, and other changes of the stages."""
    write_json(METRICS, read_json(METRICS) | {"bits_per_byte": bits_per_byte})
    md5 = hashlib.md5(METRICS.read_bytes()).hexdigest()

    def other_metrics(stages: dict) -> None:
        entry_of(stages["eval"]["outs"], str(METRICS))["md5"] = md5

    change_lock(train_with(seed=seed), other_metrics, *changes)


def other_validation(stages: dict) -> None:
    """Evaluate on other tokens."""
    entry_of(stages["eval"]["deps"], "data/processed_datasets/validation.bin")["md5"] = 32 * "0"


def other_plots(stages: dict) -> None:
    """Draw pictures with other code."""
    entry_of(stages["plot"]["deps"], "src/plot.py")["md5"] = 32 * "0"


def save_as_branch(workspace: Workspace, name: str) -> None:
    commit(workspace, name)
    workspace.run("git", "branch", name)
    workspace.go_back("HEAD~1")


def save_as_tag(workspace: Workspace, name: str) -> None:
    commit(workspace, name)
    workspace.run("git", "tag", "-a", "-m", name, name)
    workspace.go_back("HEAD~1")


def save_as_experiment(workspace: Workspace, name: str) -> None:
    """`dvc exp save` would take the files of the run as they are."""
    commit(workspace, name)
    start = workspace.run("git", "rev-parse", "HEAD~1").stdout.strip()
    workspace.run("git", "update-ref", f"refs/exps/{start[:2]}/{start[2:]}/{name}", "HEAD")
    workspace.go_back(start)


def commit(workspace: Workspace, name: str) -> None:
    workspace.run("git", "commit", "-qam", name)


def make_branch(workspace: Workspace, name: str, seed: int, bits_per_byte: float, *changes) -> None:
    """Record a run, and save it as a branch."""
    record_run(seed, bits_per_byte, *changes)
    save_as_branch(workspace, name)


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


# Which runs count.


def test_runs_count_once_for_each_seed_wherever_they_are(committed, capsys):
    own = read_json(METRICS)["bits_per_byte"]
    record_run(2, 2.25)
    save_as_branch(committed, "b")
    record_run(3, 2.5, other_plots)
    save_as_tag(committed, "t")
    record_run(4, 2.75)
    save_as_experiment(committed, "e")
    committed.run("git", "tag", "file", "HEAD:params.yaml")  # a tag of no commit

    found = document(capsys)

    runs = [(run["name"], run["seed"], run["bits_per_byte"]) for run in found["runs"]]
    assert runs == [
        ("workspace", 1, own),
        ("b", 2, 2.25),
        ("t", 3, 2.5),
        ("e", 4, 2.75),
    ]
    assert found["left_out"] == []


def test_runs_that_do_not_count_are_named_with_the_reason(committed, capsys):
    make_branch(committed, "code", 2, 2.25, other_code)
    make_branch(committed, "rate", 3, 2.25, OTHER_RATE)
    make_branch(committed, "machine", 1, 2.25)
    make_branch(committed, "half", 4, 2.25, other_weights)  # training ran again, and the evaluation not yet
    record_run(5, 2.25)
    write_json(METRICS, {"bits_per_byte": 9.0})  # as after a commit of dvc.lock without metrics/
    save_as_branch(committed, "metrics")
    committed.run("git", "switch", "-q", "--orphan", "empty")
    committed.run("git", "commit", "-q", "--allow-empty", "-m", "empty")
    committed.run("git", "switch", "-q", "main")
    committed.run("dvc", "checkout")

    found = document(capsys)
    lines = printed(capsys).splitlines()

    reasons = {each["name"]: (each["reason"], each["inputs"]) for each in found["left_out"]}
    assert found["num_seeds"] == 1
    assert reasons == {
        "code": ("other code or data", ["src/train.py"]),
        "rate": ("other parameters", []),
        "machine": ("the same seed with another score", []),
        "half": ("no finished run", []),
        "metrics": ("no finished run", []),
        "empty": ("no finished run", []),
    }
    assert "left out, other code or data (src/train.py): 1 (code)" in lines


def test_a_revision_that_no_branch_has_counts_itself(committed, capsys):
    """A commit that only its hash names."""
    record_run(2, 2.25)
    committed.run("git", "commit", "-qam", "lost")
    sha = committed.run("git", "rev-parse", "HEAD").stdout.strip()
    committed.run("git", "reset", "-q", "--hard", "HEAD~1")

    found = document(capsys, sha)

    runs = {(run["name"], run["seed"]) for run in found["runs"]}
    assert runs == {(sha, 2), ("workspace", 1)}


def test_revisions_without_a_run_are_refused(committed, capsys):
    make_branch(committed, "half", 4, 2.25, other_weights)

    for name, code in (("half", 4), ("nonsense", 2)):
        status = noise.main([name, "--json"])

        output, errors = capsys.readouterr()
        refused(status, errors, code, name)
        assert output == ""


# What they say.


def test_the_deviation_over_seeds_has_an_interval_and_says_what_runs_could_show(committed, capsys):
    scores = [read_json(METRICS)["bits_per_byte"], 2.25, 2.5]
    make_branch(committed, "s2", 2, 2.25)
    make_branch(committed, "s3", 3, 2.5)

    found = document(capsys, "--confidence", "0.8")
    text = printed(capsys, "--confidence", "0.8")

    expected = deviation(scores, 0.8)
    mean = statistics.mean(scores)
    assert found["num_seeds"] == 3
    assert found["bits_per_byte"] == pytest.approx(mean)
    assert found["standard_deviation"] == pytest.approx(statistics.stdev(scores))
    assert (found["low"], found["high"]) == (expected.low, expected.high)
    differences = {each["runs_of_each_side"]: each["difference"] for each in found["detectable_by_runs"]}
    assert differences == {runs: detectable_by_runs(expected.value, 2, runs, 0.8) for runs in (1, 2, 3, 5, 8)}
    assert f"80 % interval {expected.low:.4f} to {expected.high:.4f}); the mean is {mean:.4f}" in text


def test_pairs_of_equal_seeds_with_other_configurations_say_what_pairs_could_show(committed, capsys):
    """Three other configurations: a small change, a large one, and one that changes nothing."""
    own = {1: read_json(METRICS)["bits_per_byte"], 2: 2.25, 3: 2.5}
    changes = {"small": [0.01, 0.02, 0.03], "large": [0.4, 0.1, 0.9], "none": [0, 0, 0]}
    for i, (name, differences) in enumerate(changes.items()):
        for seed, difference in zip(own, differences, strict=True):
            make_branch(committed, f"{name}-{seed}", seed, own[seed] + difference, train_with(peak_lr=0.5 + i))
    for seed in (2, 3):
        make_branch(committed, f"own-{seed}", seed, own[seed])
    other_text = [other_validation, train_with(peak_lr=0.1)]
    for seed in own:
        make_branch(committed, f"text-{seed}", seed, seed / 7, *other_text)

    found = document(capsys)
    text = printed(capsys)

    deviations = sorted(statistics.stdev(changes[name]) for name in ("small", "large"))
    assert found["pairs"] == {
        "num_configurations": 2,
        "standard_deviation": pytest.approx(statistics.median(deviations)),
    }
    differences = {each["pairs"]: each["difference"] for each in found["detectable_by_pairs"]}
    expected = [detectable_by_runs(statistics.median(deviations), 2, pairs, num_means=1) for pairs in (2, 3, 5, 8)]
    assert list(differences) == [2, 3, 5, 8]
    assert list(differences.values()) == pytest.approx(expected)
    assert f"the median of 2 ({deviations[0]:.4f} to {deviations[1]:.4f})" in text
    assert f"  {expected[0]:.4f} with 2 pairs of equal seeds, {expected[1]:.4f} with 3" in text


def test_without_pairs_both_sides_count_as_independent(committed, capsys):
    for seed in (2, 3):
        make_branch(committed, f"s{seed}", seed, seed / 8)

    found = document(capsys)

    assert found["pairs"] == {"num_configurations": 0, "standard_deviation": None}
    by_pairs = {each["pairs"]: each["difference"] for each in found["detectable_by_pairs"]}
    of_a_pair = 2**0.5 * found["standard_deviation"]
    assert by_pairs[5] == pytest.approx(detectable_by_runs(of_a_pair, 2, 5, num_means=1))
    assert "they count as independent" in printed(capsys)


@pytest.mark.parametrize(
    ("other_seeds", "missing"),
    [([], "'train.seed=range(2,6)'"), ([2], "'train.seed=range(3,6)'")],
)
def test_nothing_is_extrapolated_from_fewer_than_three_seeds(committed, capsys, other_seeds, missing):
    for seed in other_seeds:
        make_branch(committed, f"s{seed}", seed, 2.25)

    found = document(capsys)
    text = printed(capsys)

    assert found["detectable_by_runs"] == found["detectable_by_pairs"] == []
    assert found["low"] is None
    assert found["high"] is None
    assert (found["standard_deviation"] is None) == (other_seeds == [])
    assert "smallest change" not in text
    commands = [f"dvc exp run --queue -n workspace-seeds -S {missing}", START]
    assert found["commands_for_more_seeds"] == commands
    assert text.splitlines()[-2:] == [f"  {command}" for command in commands]


def test_the_noise_of_another_revision_is_of_its_parameters(committed, capsys):
    for seed in (5, 6, 7):
        record_run(seed, 2 + seed / 100, OTHER_RATE)
        save_as_experiment(committed, f"r-{seed}")

    found = document(capsys, "r-6")
    text = printed(capsys, "r-6")

    command = found["commands_for_more_seeds"][0]
    assert [run["seed"] for run in found["runs"]] == [5, 6, 7]
    assert found["unlike_here"] == []
    assert command == "dvc exp run --queue -n r-seeds -S 'train.seed=range(1,3)' -S train.peak_lr=0.5"
    assert "0.0100 bits per byte is the standard deviation over 3 seeds" in text


def test_parameters_that_were_edited_since_the_run_are_said(committed, capsys):
    rate = committed.get("train.peak_lr")
    committed.change(**{"train.peak_lr": 0.25})

    found = document(capsys)
    text = printed(capsys)

    assert found["unlike_here"] == [f"train.peak_lr={rate}"]
    assert f"The parameter files have changed since this run, which had: train.peak_lr={rate}." in text


# How runs are read.


def test_many_branches_are_read_without_a_process_for_each(committed, monkeypatch):
    """Their files come from Git's objects in this process, and none from DVC's cache."""
    for seed in range(2, 12):
        record_run(seed, 2 + seed / 1000)
        committed.run("git", "commit", "-qam", f"s{seed}")
        committed.run("git", "branch", f"s{seed}")
    committed.run("git", "reset", "-q", "--hard", "HEAD~10")
    processes = []
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: processes.append(arguments))

    known = runs.find_known_runs()

    assert len(known.runs) == 11
    assert known.without_results == []
    assert processes == []
