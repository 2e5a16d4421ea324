"""dvc.lock against the files that are here: changed code, former runs, and conflicts of a merge."""

import pytest
from ruamel.yaml import YAML

from extras.compress import compress
from lm.core.errors import IntegrityError
from tools import generate
from tools.record.lock import Lock, parse_lock, parse_stages


def add_comment(path: str) -> None:
    with open(path, "a") as file:
        file.write("# changed\n")


# Changed code.


@pytest.mark.parametrize(
    ("main", "arguments"),
    [
        (generate.main, ["One", "--max_new_tokens", "2"]),  # generate
        (compress.main, ["LICENSE", "license.rlmc"]),  # compress
    ],
)
def test_weights_that_run_through_other_code_are_warned_of(committed, capsys, main, arguments):
    add_comment("src/lm/model/gemma3.py")

    status = main(arguments)

    errors = capsys.readouterr().err
    assert status == 0
    assert "warning: src/lm/model changed since data/models was trained" in errors
    assert "`dvc repro`" in errors


# Earlier runs.


def stage(reads: dict[str, str], writes: dict[str, str]) -> dict:
    """Return a stage of a lock, from path → MD5."""
    deps = [{"path": path, "md5": md5} for path, md5 in reads.items()]
    outs = [{"path": path, "md5": md5} for path, md5 in writes.items()]
    return {"deps": deps, "outs": outs}


TEXT = stage(reads={"code": "1"}, writes={"text": "new"})
AUDIT = stage(reads={"text": "new"}, writes={"audit": "2"})
TRAIN = stage(reads={"text": "old"}, writes={"model": "3"})
EVAL = stage(reads={"model": "3", "audit": "2"}, writes={"score": "4"})


def test_stages_after_one_that_read_a_former_file_are_of_the_former_run_too():
    lock = Lock({"text": TEXT, "audit": AUDIT, "train": TRAIN, "eval": EVAL})
    of_one_run = Lock({"text": TEXT, "audit": AUDIT, "eval": EVAL})

    assert lock.stale_stages == ["train", "eval"]
    assert of_one_run.stale_stages == []
    assert not lock.is_finished
    assert of_one_run.is_finished
    assert not Lock({"text": TEXT, "audit": AUDIT}).is_finished


# A file that cannot be read.


def test_a_broken_lock_is_refused():
    for text in ("", "a: [", "stages: 3", "[]"):
        with pytest.raises(IntegrityError, match=r"dvc.lock: not a list of stages .*`git restore dvc.lock`"):
            parse_lock(text, "stages: {}", "dvc.lock")


# YAML.

NUMBERS = "1e-05, 1.5, .5, 12, -3e4, 1.0e+3, 0, -7, 1_000, 0x1F, .inf, 1e5, +2"
OTHERS = "null, ~, true, on, no, yes, 2026-11-27, a: b, '1e3', \"1\", [], {}"  # "on" is true in YAML 1.1 only


def test_values_have_the_types_that_they_have_for_dvc():
    """DVC reads YAML 1.2 with ruamel.yaml, which is slower."""
    text = f"stages: {{a: [{NUMBERS}, {OTHERS}]}}"

    values = parse_stages(text)["a"]

    expected = YAML(typ="safe").load(text)["stages"]["a"]
    assert values == expected
    assert list(map(type, values)) == list(map(type, expected))
