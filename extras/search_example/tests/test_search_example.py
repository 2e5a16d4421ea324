"""search_example on real runs: a gain is kept, a lucky seed is refused, and what changes nothing is undone."""

import contextlib

import pytest

from evidence.judge.night import only_judge
from support.refusal import refused
from support.workspace import Workspace


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_planted_gain_is_kept_and_a_lucky_seed_and_noise_are_not(tmp_path):
    workspace = Workspace(tmp_path)
    workspace.make_small()
    (tmp_path / "changes.txt").write_text("train.seed=7\ntrain.peak_lr=0.03\ntrain.log_every_tokens=512\n")
    workspace.commit()

    done = workspace.run("python", "src", "search_example", "changes.txt")

    answers = done.stdout.splitlines()
    assert "train.seed=7: refused" in answers
    assert "train.seed is 1 in the base and 7 here" in done.stderr
    assert "train.peak_lr=0.03: kept" in answers
    assert "train.log_every_tokens=512: rejected" in answers
    values = [workspace.get(f"train.{name}") for name in ("seed", "peak_lr", "log_every_tokens")]
    assert values == [1, 0.03, 1024]
    subjects = workspace.run("git", "log", "--format=%s").stdout.splitlines()
    assert subjects == [
        "train.log_every_tokens=512: rejected", "train.log_every_tokens=512", "train.peak_lr=0.03: kept",
        "train.peak_lr=0.03", "train.seed=7: refused", "train.seed=7", "state",
    ]  # fmt: skip
    assert workspace.run("git", "status", "--porcelain").stdout == ""


def test_a_machine_that_fails_stops_the_search_and_undoes_nothing(tmp_path):
    """The first call of judge finds another one at work."""
    workspace = Workspace(tmp_path)
    workspace.commit()
    (tmp_path / "changes.txt").write_text("train.peak_lr=0.03\ntrain.peak_lr=0.04\n")

    with contextlib.chdir(tmp_path), only_judge():
        done = workspace.run("python", "src", "search_example", "changes.txt", check=False)

    refused(done.returncode, done.stderr, 5, "train.peak_lr=0.03 is committed, and was not judged (status 75)")
    assert workspace.get("train.peak_lr") == 0.03
    assert workspace.run("git", "log", "--format=%s").stdout.splitlines() == ["train.peak_lr=0.03", "state"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("train.speed=7", "train.speed is not in params.yaml"),
        ("trian.peak_lr=1", "trian.peak_lr is not in params.yaml"),
        ("train.seed.x=1", "train.seed.x is not in params.yaml"),
        ("train.peak_lr 1", "'train.peak_lr 1' is not a change; it must be NAME=VALUE"),
    ],
)
def test_a_line_that_is_not_a_change_is_refused_before_the_first_is_tried(tmp_path, line, said):
    workspace = Workspace(tmp_path)
    workspace.commit()
    (tmp_path / "changes.txt").write_text(f"train.peak_lr=0.03\n{line}\n")

    done = workspace.run("python", "src", "search_example", "changes.txt", check=False)

    refused(done.returncode, done.stderr, 2, said)
    assert workspace.run("git", "log", "--format=%s").stdout == "state\n"
