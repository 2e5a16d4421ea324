"""`python src verify` on a real small pipeline: it names what is damaged, and its commands repair it."""

import copy
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from lm.core.files import read_json, sha256_file, write_json
from lm.core.params import read_yaml
from lm.train.checkpoints import Checkpoint, list_checkpoints
from support.damage import flip, truncate
from support.evaluation_cases import forge_evaluation
from support.train_cases import only_run
from support.workspace import Workspace
from tools.common.paths import (
    CURVE,
    EVAL_METRICS,
    EVALUATION_DETAILS,
    MANIFEST,
    MODEL,
    TOKENIZER_META,
    TRAIN_SIDECAR,
    VALIDATION,
)
from tools.common.run import read_curve
from tools.verify import cli as verify
from tools.verify.records import BEST, Digests, Link, check_link, links_of_workspace, read_entries


@pytest.fixture(scope="module")
def small(tmp_path_factory, finished):
    """The small pipeline after its first run, without files of the repository that no test needs."""
    workspace = Workspace(tmp_path_factory.mktemp("verify") / "made", finished)
    for name in ("tests", "docs", "extras", "typings", "recipes"):
        shutil.rmtree(workspace.folder / name)
    return workspace


@pytest.fixture
def workspace(small, tmp_path, monkeypatch):
    """A copy of it as the working directory, with the hard links into DVC's cache."""
    workspace = copy.copy(small)
    workspace.folder = tmp_path / "workspace"
    subprocess.run(["cp", "-a", small.folder, workspace.folder], check=True)
    monkeypatch.chdir(workspace.folder)
    return workspace


class Result:
    """What verify answers: its exit status, its lines, and its last line."""

    def __init__(self, status: int, lines: list[str]):
        self.status = status
        self.lines = lines[:-1]
        self.last = lines[-1]

    @property
    def wrong(self) -> list[str]:
        """Return the lines of faults."""
        return [line for line in self.lines if line.startswith("WRONG")]

    def line_of(self, beginning: str) -> str:
        """Return the only line that begins so."""
        (line,) = [line for line in self.lines if line.startswith(beginning)]
        return line


@pytest.fixture
def check(capsys):
    """Run verify; return its result."""

    def run(*argv: str) -> Result:
        capsys.readouterr()
        status = verify.main(list(argv))
        out, err = capsys.readouterr()
        return Result(status, [*out.splitlines(), *err.splitlines()])

    return run


def command(line: str) -> str:
    """Return the command that a line says to run."""
    return re.search(r"run `([^`]*)`", line)[1]


def repair(workspace: Workspace, line: str) -> None:
    """Run the command of a line."""
    workspace.run("sh", "-c", command(line))


def edit(path: Path, change) -> None:
    """Replace a JSON file by a changed one; the cache keeps the old one."""
    value = read_json(path)
    change(value)
    write_json(path, value)


def replace_in(path: str, before: str, after: str) -> None:
    """Replace a part of a text file, which must be in it once."""
    text = Path(path).read_text()
    assert text.count(before) == 1
    Path(path).write_text(text.replace(before, after))


def object_of(path: str | Path) -> str:
    """Return the object of DVC's cache that holds a file's bytes."""
    md5 = hashlib.md5(Path(path).read_bytes()).hexdigest()
    return f".dvc/cache/files/md5/{md5[:2]}/{md5[2:]}"


def unlink_from_cache(path: str | Path) -> None:
    """Replace a file that may be a hard link into the cache by a copy."""
    shutil.copyfile(path, "copy")
    os.replace("copy", path)


# An intact workspace.


def test_a_finished_pipeline_is_ok_and_stays_unchanged(workspace, check):
    def times_and_inodes():
        return {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in Path("data").rglob("*")}

    Path("data/raw/.manifest.json.7.tmp").touch()  # DVC ignores such a file
    before = times_and_inodes()

    result = check()

    assert result.status == 0
    assert {line[:5] for line in result.lines} == {"ok   "}
    assert result.last.startswith(f"{len(result.lines)} checks, ")
    assert times_and_inodes() == before

    # Every output of dvc.lock and every link of a record has its line.
    stages = read_yaml("dvc.lock")["stages"].values()
    outputs = [out["path"] for stage in stages for out in stage["outs"]]
    subjects = {line.removeprefix("ok").strip() for line in result.lines}
    assert len(outputs) > 15
    assert set(outputs) <= subjects
    assert {f"{link.record} (from {link.file})" for link in links_of_workspace()} <= subjects

    # So have the checkpoints that can be rebuilt.
    stored = {checkpoint.step for checkpoint in list_checkpoints(only_run())}
    more = read_curve(CURVE).keys() - stored - {0}
    assert more
    assert result.line_of(f"ok     {CURVE}: {len(more)} more checkpoints")


def test_every_hash_that_a_record_holds_of_a_file_is_checked(finished, monkeypatch):
    monkeypatch.chdir(finished)
    files = [path for path in Path("data").rglob("*") if path.is_file()]
    hashes = {sha256_file(path) for path in files}
    hashes |= {sha256[:12] for sha256 in hashes}

    held = set()
    for record in [path for path in files if path.suffix in (".json", ".parquet")]:
        strings = {entry: value for entry, value in read_entries(record).items() if isinstance(value, str)}
        held |= {(record, entry) for entry, value in strings.items() if value in hashes}

    assert len(held) > 14
    assert held <= {(link.record, link.entry) for link in links_of_workspace()}


def test_a_shortened_hash_is_compared_to_its_last_digit(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"content")
    sha256 = sha256_file(file)
    record = tmp_path / "record.json"

    def is_right(recorded: str) -> bool:
        write_json(record, {"weights": {"sha256": recorded}})
        (finding,) = check_link(Link(record, "weights.sha256", file), Digests(), "the command")
        return finding.fault is None

    assert all(map(is_right, [sha256, sha256[:12], sha256[:8]]))
    assert not any(map(is_right, [sha256[:7], sha256[:11] + "x", "1" + sha256[1:], ""]))
    assert not list(check_link(Link(record, "other entry", file), Digests(), "the command"))


@pytest.mark.parametrize("suffix", [".json", ".parquet"])
def test_a_record_that_cannot_be_read_is_named(tmp_path, suffix):
    record = tmp_path / f"record{suffix}"
    record.write_text("{")

    (finding,) = check_link(Link(record, "sha256", tmp_path / "file"), Digests(), "the command")

    assert "cannot be read" in finding.fault
    assert finding.advice == "the command"


# Outputs that are not the recorded ones.


def test_flipped_bits_are_named_with_their_remedies(workspace, check):
    """In a file that is a link into the cache, the cache has the same damage."""
    files = [("data/raw", "train.parquet"), ("data/models", "model.json")]
    remedies = set()
    for output, name in files:
        damaged_object = object_of(f"{output}/{name}")
        is_linked = os.stat(f"{output}/{name}").st_nlink > 1
        flip(f"{output}/{name}")
        of_linked = f"rm -rf {output} {damaged_object} && dvc repro"
        remedies.add(of_linked if is_linked else f"rm -rf {output} && dvc checkout {output}")
    flip("metrics/eval.json")
    remedies.add("rm -rf metrics/eval.json && dvc repro")

    result = check()

    assert result.status == 4
    for output in ("data/raw", "data/models", "metrics/eval.json"):
        assert f"{output}: its MD5 is " in result.line_of(f"WRONG  {output}: ")
    assert {command(line) for line in result.wrong} == remedies, "one damage, one thing to do"
    assert len(result.wrong) == 3
    repair(workspace, result.line_of("WRONG  data/raw: "))
    assert not [line for line in check().wrong if "data/raw" in line]


def test_records_that_were_cut_off_are_the_only_things_wrong(workspace, check):
    for record in (MANIFEST, TRAIN_SIDECAR, TOKENIZER_META, MODEL):
        unlink_from_cache(record)
        truncate(record)

    result = check()

    assert len(result.wrong) == 4
    assert len({command(line) for line in result.wrong}) == 4


def test_missing_and_extra_files_are_named(workspace, check):
    shutil.rmtree("data/evaluation")
    Path("data/raw/manifest.json").unlink()
    shutil.copy("data/raw/train.parquet", "data/raw/more.parquet")

    raw, evaluation = check().wrong

    assert raw.startswith("WRONG  data/raw: its MD5 is ")
    assert evaluation.startswith("WRONG  data/evaluation: is missing")
    assert command(evaluation) == "rm -rf data/evaluation && dvc checkout data/evaluation"
    repair(workspace, raw)
    repair(workspace, evaluation)
    assert check().status == 0


def test_without_any_output_it_is_said_how_to_get_them(workspace, check):
    """As in a new clone, which has the files that Git tracks."""
    shutil.rmtree("data")

    result = check()

    assert result.status == 4
    assert result.lines == []
    assert result.last == (
        "error: the outputs that dvc.lock records are not here yet; get them by `dvc pull`, or compute them by `make`"
    )


@pytest.mark.parametrize("is_damaged", [False, True])
def test_an_object_that_the_cache_lacks_is_pulled_and_a_damaged_one_made_again(workspace, check, tmp_path, is_damaged):
    """A remote may have the same damage."""
    workspace.run("dvc", "remote", "add", "-d", "store", str(tmp_path / "store"))
    workspace.run("dvc", "push", "data/models")
    lost = object_of(BEST)
    unlink_from_cache(BEST)
    flip(BEST)
    if is_damaged:
        flip(lost)
    else:
        Path(lost).unlink()

    (line,) = check().wrong

    made_again = f"rm -rf data/models {lost} && dvc repro"
    assert command(line) == (made_again if is_damaged else "rm -rf data/models && dvc pull data/models")
    repair(workspace, line)
    again = check()
    assert again.status == 0, again.lines


# Records and models that do not fit.


def test_records_of_other_files_are_named(workspace, check):
    edit(TRAIN_SIDECAR, lambda meta: meta["source"].update(text_sha256="ab" * 32))
    edit(MODEL, lambda record: record["data_sha256"].update(validation="cd" * 32))
    audit = Path("data/audit/contamination.parquet")
    table = pq.read_table(audit)
    unlink_from_cache(audit)
    pq.write_table(table.replace_schema_metadata({"validation_sha256": "ef" * 32}), audit)
    workspace.run("dvc", "commit", "-f", "tokenize_train", "train", "audit")

    result = check()

    # Each has its entry, the hash that it records and that of the file.
    raw = "data/raw/train.parquet"
    line = result.line_of(f"WRONG  {TRAIN_SIDECAR} (from {raw}): source.text_sha256 is {'ab' * 32}")
    assert sha256_file(raw) in line
    line = result.line_of(f"WRONG  {MODEL} (from {VALIDATION}): data_sha256.validation is {'cd' * 32}")
    assert sha256_file(VALIDATION) in line
    line = result.line_of(f"WRONG  {audit} (from {VALIDATION}): validation_sha256 is {'ef' * 32}")
    assert command(line) == "dvc repro -fs audit"


def test_a_model_of_another_run_is_named(workspace, check):
    """A poisoned run cache would restore such a model."""
    edit(MODEL, lambda record: record.update(fingerprint="01" * 8))
    workspace.run("dvc", "commit", "-f", "train")

    line = check().line_of(f"WRONG  {MODEL} (from params.yaml): was made by run {'01' * 8}")

    assert command(line) == "dvc repro -fs train"


# Runs and checkpoints.


def test_a_damaged_finished_run_is_named_first(workspace, check):
    """The stage `train` would publish it."""
    done = only_run() / "done"
    truncate(done / "plots" / "training.csv")
    flip(BEST)

    first, second = check().wrong[:2]
    truncate(done / "sha256.json")
    of_cut_list = check().wrong[0]

    for line in (first, of_cut_list):
        assert line.startswith(f"WRONG  {done}")
        assert command(line) == f"rm -rf {done}"
    assert second.startswith("WRONG  data/models: ")


def test_a_damaged_checkpoint_is_named(workspace, check):
    checkpoint = list_checkpoints(only_run())[-1]
    flip(checkpoint.path)

    (line,) = check().wrong

    assert line.startswith(f"WRONG  {checkpoint.record} (from {checkpoint.path}): sha256 is ")
    assert command(line) == f"rm {checkpoint.record}"


def test_steps_are_retrained_after_the_checks_of_files(workspace, check):
    """A file that training does not read may be missing; the exit status still says so."""
    shutil.rmtree("data/evaluation")
    checkpoint = Checkpoint(only_run(), 20)
    assert not checkpoint.path.exists()

    result = check("--retrain", "20", "--weights", "data/early")

    assert result.status == 4
    text = "\n".join(result.lines)
    assert re.search(r", 1 wrong\nretrain: steps \d+ to 20 of run ", text)
    assert "\nsame bits: step 20 has digest " in text
    assert text.endswith("\ndata/early: has the weights of step 20")
    assert checkpoint.path.exists()
    assert sha256_file("data/early/best_model_params.pt") == read_json(MODEL)["last"]["sha256"]


@pytest.mark.parametrize("path", [EVAL_METRICS, EVALUATION_DETAILS])
def test_a_forged_score_whose_hash_is_forged_too_does_not_follow_from_the_losses(workspace, check, path):
    """The metrics, or details and metrics with them."""
    for file in {path, EVAL_METRICS}:
        unlink_from_cache(file)
        edit(file, lambda value: value.update(bits_per_byte=1.0))
    workspace.run("dvc", "commit", "--force", "dvc.yaml")

    (line,) = check().wrong

    assert line.startswith(f"WRONG  {path} (from data/evaluation/")
    assert ": bits_per_byte is 1.0; by data/evaluation/" in line
    assert command(line) == "dvc repro -f eval"
    repair(workspace, line)
    for line in check().wrong:  # pictures were made from the forged details
        repair(workspace, line)
    assert check().status == 0


def test_a_forged_curve_whose_hash_is_forged_too_is_not_that_of_the_metrics(workspace, check):
    unlink_from_cache(CURVE)
    *rows, last = CURVE.read_text().splitlines(keepends=True)
    step, tokens, _, digest = last.split(",")
    CURVE.write_text("".join([*rows, f"{step},{tokens},1.5,{digest}"]))
    workspace.run("dvc", "commit", "--force", "dvc.yaml")

    (line,) = check().wrong

    assert line.startswith(f"WRONG  metrics/train.json (from {CURVE}): val_loss is ")
    assert f"; by {CURVE} it must be 1.5; run " in line


def test_a_forged_evaluation_is_found_though_all_hashes_fit(workspace, check):
    forge_evaluation(lambda nats: nats * 0.95)
    workspace.run("dvc", "commit", "--force", "dvc.yaml")

    result = check("--retrain", "--seed", "1")

    assert result.status == 4
    assert result.wrong == []
    assert re.search(r"data/evaluation/document_losses\.parquet: document \d+ has nats ", result.last)
