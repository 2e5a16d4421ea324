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
from support.damage import flip, truncate, writable
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
from tools.common.runs import read_curve
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

    result = check("--cache")

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
    assert {f"cache of {path}" for path in outputs} <= subjects
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
    files = [("data/raw", "train.parquet", "fetch"), ("data/models", "model.json", "train")]
    remedies = set()
    for output, name, stage in files:
        damaged_object = object_of(f"{output}/{name}")
        is_linked = os.stat(f"{output}/{name}").st_nlink > 1
        flip(f"{output}/{name}")
        of_linked = f"rm -rf {output} {damaged_object} && dvc repro -s {stage}"
        remedies.add(of_linked if is_linked else f"rm -rf {output} && dvc checkout {output}")
    flip("metrics/eval.json")
    remedies.add("rm -rf metrics/eval.json && dvc repro -s eval")

    result = check()

    assert result.status == 4
    for output, name, _ in files:
        assert f"{name} is changed" in result.line_of(f"WRONG  {output}: ")
    assert "md5 is " in result.line_of("WRONG  metrics/eval.json: ")
    assert {command(line) for line in result.wrong} == remedies, "one damage, one thing to do"
    assert len(result.wrong) == 3
    repair(workspace, result.line_of("WRONG  data/raw: "))
    assert not [line for line in check("--cache").wrong if "data/raw" in line]


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

    assert "manifest.json is missing, more.parquet is new" in raw
    assert evaluation.startswith("WRONG  data/evaluation: is missing")
    assert command(evaluation) == "dvc checkout data/evaluation"
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


def test_an_output_that_the_remote_has_is_pulled(workspace, check, tmp_path):
    workspace.run("dvc", "remote", "add", "-d", "store", str(tmp_path / "store"))
    workspace.run("dvc", "push", "data/models")
    damaged_object = damage_with_cache(BEST)

    line = check().wrong[0]

    assert command(line) == f"rm -rf data/models {damaged_object} && dvc pull data/models"
    repair(workspace, line)
    assert check("--cache").status == 0


def test_own_data_of_which_no_intact_copy_is_left_is_not_deleted(workspace, check):
    own = Path("own.txt")
    own.write_text("one two three\n")
    workspace.run("dvc", "add", "own.txt")
    damaged_object = damage_with_cache(own)

    (line,) = check().wrong

    assert "no intact copy is left here; put one of yours in its place" in line
    assert command(line) == f"rm -rf {damaged_object} && dvc add own.txt"
    Path("copy").write_text("one two three\n")
    os.replace("copy", own)
    repair(workspace, line)
    assert check("--cache").status == 0


def damage_with_cache(path: Path) -> str:
    """Flip a bit of a file and of its object in the cache, which may be the same file; return the object."""
    damaged_object = object_of(path)
    is_linked = os.path.samefile(path, damaged_object)
    flip(path)
    if not is_linked:
        flip(damaged_object)
    return damaged_object


def test_outputs_of_a_stage_that_did_not_run_are_noted(workspace, check):
    shutil.rmtree("data/evaluation")
    lock = Path("dvc.lock")
    lock.write_text(lock.read_text().split("  eval:\n")[0])

    result = check("--cache")

    assert result.status == 0
    assert command(result.line_of("note   data/evaluation: not made yet")) == "dvc repro"
    assert command(result.line_of("note   metrics/eval.json: is not in dvc.lock")) == "dvc repro"
    notes = [line for line in result.lines if line.startswith("note")]
    assert result.last.endswith(f"all ok except {len(notes)} notes")


# Inputs that have changed.


def test_what_changed_since_a_stage_ran_is_noted(workspace, check):
    """A model is not wrong because the next run has other parameters."""
    workspace.change(**{"train.seed": 3})
    with open("src/lm/evaluate/generation.py", "a") as file:
        file.write("# changed\n")
    flags = "python src/plot.py --evaluation data/evaluation --plots plots"
    replace_in("dvc.yaml", flags, f"{flags} --plots plots")
    Path("own.txt").write_text("one two three\n")
    workspace.run("dvc", "add", "own.txt")
    replace_in("dvc.yaml", "    - src/plot.py\n", "    - own.txt\n    - src/plot.py\n")

    result = check()

    assert result.status == 0
    changes = {"train": "train.seed 1 → 3", "eval": "src/lm/evaluate", "plot": "its command, own.txt"}
    for stage, changed in changes.items():
        line = result.line_of(f"note   {stage}: ")
        assert f"{changed} changed since it ran" in line
        assert command(line) == "dvc repro"

    # A stage that must run again makes its files for the cache, too.
    samples = "data/evaluation/samples.md"
    unlink_from_cache(samples)
    flip(object_of(samples))
    (line,) = check("--cache").wrong
    assert command(line) == f"rm -rf {object_of(samples)} && dvc repro eval"


def test_text_that_changed_in_place_is_noted(workspace, check):
    """The size, time and inode are those that DVC remembers, so that DVC does not see the change."""
    assert "up to date" in workspace.run("dvc", "status", "fetch").stdout
    with writable(Path("data/local/small.jsonl")) as file:
        file.write(b" ")
    assert "up to date" in workspace.run("dvc", "status", "fetch").stdout

    result = check()

    line = result.line_of("note   fetch: data/local changed since it ran; DVC does not see it")
    assert result.last.endswith("all ok except 1 note")
    touch, repro = command(line).split(" && ")
    workspace.run("sh", "-c", touch)
    assert repro == "dvc repro"
    assert "data/local" in workspace.run("dvc", "status", "fetch").stdout


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


def test_an_input_that_is_not_the_recorded_output_is_named(workspace, check):
    edit(TOKENIZER_META, lambda meta: meta.update(pattern="."))
    workspace.run("dvc", "commit", "-f", "make_tokenizer")

    line = check().line_of("WRONG  dvc.lock: tokenize_train: was made from another data/tokenizer")

    assert command(line) == "dvc repro"


def test_a_model_of_another_run_is_named(workspace, check):
    """A poisoned run cache would restore such a model."""
    edit(MODEL, lambda record: record.update(fingerprint="01" * 8))
    workspace.run("dvc", "commit", "-f", "train")

    line = check().line_of(f"WRONG  {MODEL} (from params.yaml): was made by run {'01' * 8}")

    assert command(line) == "dvc repro -fs train"


def test_a_file_that_dvc_cannot_read_is_named(workspace, check):
    for name in ("params.yaml", "dvc.lock"):
        Path(name).write_text("a: [\n")

        result = check()

        assert result.status == 4
        assert result.last.startswith("error: dvc.yaml: DVC cannot read the pipeline: ")
        assert name in result.last


# DVC's cache.


def test_damaged_cache_objects_are_repaired(workspace, check):
    """Of outputs that are intact: a file of a folder, and one that only the run cache keeps, which may drop it."""
    unlink_from_cache(MODEL)
    stages = {object_of(MODEL): "train", object_of("metrics/eval.json"): "eval"}
    for damaged_object in stages:
        flip(damaged_object)
    assert workspace.run("dvc", "status", "dvc.yaml").stdout.strip() == "Data and pipelines are up to date."
    assert check().status == 0

    result = check("--cache")

    assert len(result.wrong) == 2
    for damaged_object, stage in stages.items():
        line = result.line_of(f"WRONG  {damaged_object}: md5 is ")
        assert command(line) == f"rm -rf {damaged_object} && dvc commit {stage}"
        repair(workspace, line)
    assert check("--cache").status == 0


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
