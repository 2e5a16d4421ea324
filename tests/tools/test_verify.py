"""`python src verify` on a real small pipeline: it names what is damaged, and its commands repair it."""

import contextlib
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
from tools.common.paths import MANIFEST, MODEL, TOKENIZER_META, TRAIN_SIDECAR, VALIDATION
from tools.common.retrain import CURVE, read_curve
from tools.export_hf import cli as export_hf
from tools.verify import cli as verify
from tools.verify.records import BEST, Digests, Link, check_link, links_of_workspace, read_entries

ADVICE = "run `the command`"


@pytest.fixture(scope="module")
def finished_and_exported(tmp_path_factory, finished):
    """The small pipeline after its first run, with an export; without files of the repository that no test needs."""
    workspace = Workspace(tmp_path_factory.mktemp("verify") / "made", finished)
    for name in ("tests", "docs", "extras", "typings", "recipes"):
        shutil.rmtree(workspace.folder / name)
    with contextlib.chdir(workspace.folder):
        assert export_hf.main(["exported"]) == 0
    return workspace


@pytest.fixture
def workspace(finished_and_exported, tmp_path, monkeypatch):
    """A copy of it as the working directory, with the hard links into DVC's cache."""
    workspace = copy.copy(finished_and_exported)
    workspace.folder = tmp_path / "workspace"
    subprocess.run(["cp", "-a", finished_and_exported.folder, workspace.folder], check=True)
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

    before = times_and_inodes()

    result = check("--cache", "exported")

    assert result.status == 0
    assert {line[:5] for line in result.lines} == {"ok   "}
    assert re.fullmatch(rf"{len(result.lines)} checks, [\d,]+ bytes read, all ok", result.last)
    assert times_and_inodes() == before

    # Every output of dvc.lock and every link of a record has its line.
    stages = read_yaml("dvc.lock")["stages"].values()
    outputs = [out["path"] for stage in stages for out in stage["outs"]]
    subjects = {line.removeprefix("ok").strip() for line in result.lines}
    assert len(outputs) > 15
    assert set(outputs) <= subjects
    assert {f"{link.record} (from {link.file})" for link in links_of_workspace()} <= subjects


def test_files_that_dvc_ignores_are_no_difference(workspace, check):
    Path("data/raw/.manifest.json.7.tmp").touch()

    assert check().status == 0


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


# One record and one file.


@pytest.mark.parametrize(
    ("recorded", "is_right"),
    [
        (lambda sha256: sha256, True),
        (lambda sha256: sha256[:12], True),
        (lambda sha256: sha256[:8], True),
        (lambda sha256: sha256[:7], False),
        (lambda sha256: sha256[:11] + ("1" if sha256[11] == "0" else "0"), False),
        (lambda sha256: "x", False),
        (lambda sha256: "", False),
    ],
    ids=["whole", "12 digits", "8 digits", "too few digits", "another last digit", "no digits", "empty"],
)
def test_a_shortened_hash_is_compared_to_its_last_digit(tmp_path, recorded, is_right):
    file = tmp_path / "file"
    file.write_bytes(b"content")
    record = tmp_path / "record.json"
    write_json(record, {"weights": {"sha256": recorded(sha256_file(file))}})

    (finding,) = check_link(Link(record, "weights.sha256", file), Digests(), ADVICE)

    assert (finding.fault is None) == is_right


def test_an_entry_that_a_record_lacks_is_not_checked(tmp_path):
    record = tmp_path / "record.json"
    write_json(record, {})

    assert list(check_link(Link(record, "sha256", tmp_path / "file"), Digests(), ADVICE)) == []


@pytest.mark.parametrize(("suffix", "form"), [(".json", "JSON object"), (".parquet", "parquet file")])
def test_a_record_that_cannot_be_read_is_named(tmp_path, suffix, form):
    record = tmp_path / f"record{suffix}"
    record.write_text("{")

    (finding,) = check_link(Link(record, "sha256", tmp_path / "file"), Digests(), ADVICE)

    assert finding.fault == f"cannot be read as a {form}"


# Outputs that are not the recorded ones.


@pytest.mark.parametrize(
    ("path", "output", "stage", "is_cached"),
    [
        ("data/raw/train.parquet", "data/raw", "fetch", True),
        ("data/models/model.json", "data/models", "train", True),
        ("metrics/eval.json", "metrics/eval.json", "eval", False),
    ],
)
def test_a_flipped_bit_is_named_with_its_remedy(workspace, check, path, output, stage, is_cached):
    damaged_object = object_of(path)
    is_linked = os.stat(path).st_nlink > 1
    flip(path)

    result = check()

    if is_linked:  # the cache holds the same damage
        remedy = f"rm -rf {output} {damaged_object} && dvc repro -fs {stage}"
    elif is_cached:
        remedy = f"rm -rf {output} && dvc checkout {output}"
    else:
        remedy = f"rm -rf {output} && dvc repro -s {stage}"
    assert result.status == 4
    line = result.line_of(f"WRONG  {output}: ")
    assert output == path or f"{path.removeprefix(output + '/')} is changed" in line
    assert {command(line) for line in result.wrong} == {remedy}, "one damage, one thing to do"
    assert result.last == f"error: {len(result.wrong)} wrong; run the commands above from the top, then verify again"


@pytest.mark.parametrize("record", [MANIFEST, TRAIN_SIDECAR, TOKENIZER_META, MODEL])
def test_a_record_that_was_cut_off_is_the_only_thing_wrong(workspace, check, record):
    unlink_from_cache(record)
    truncate(record)

    result = check()

    assert len({command(line) for line in result.wrong}) == 1
    assert result.last.startswith("error: 1 wrong; ")


def test_an_extra_file_is_named(workspace, check):
    shutil.copy("data/raw/train.parquet", "data/raw/more.parquet")

    (line,) = check().wrong

    assert line.startswith("WRONG  data/raw: more.parquet is new; run")
    repair(workspace, line)
    assert check().status == 0


def test_an_output_that_the_remote_has_is_pulled(workspace, check, tmp_path):
    workspace.run("dvc", "remote", "add", "-d", "store", str(tmp_path / "store"))
    workspace.run("dvc", "push", "data/models")
    damaged_object = object_of(BEST)
    is_linked = os.path.samefile(BEST, damaged_object)
    flip(BEST)
    if not is_linked:
        flip(damaged_object)

    line = check().wrong[0]

    assert command(line) == f"rm -rf data/models {damaged_object} && dvc pull data/models"
    repair(workspace, line)
    assert check("--cache").status == 0


def test_own_data_of_which_no_intact_copy_is_left_is_not_deleted(workspace, check):
    own = Path("own.txt")
    own.write_text("one two three\n")
    workspace.run("dvc", "add", "own.txt")
    damaged_object = object_of(own)
    is_linked = os.path.samefile(own, damaged_object)
    flip(own)
    if not is_linked:
        flip(damaged_object)

    (line,) = check().wrong

    assert "no intact copy is left here; put one of yours in its place" in line
    assert command(line) == f"rm -f {damaged_object} && dvc add own.txt"
    Path("copy").write_text("one two three\n")
    os.replace("copy", own)
    repair(workspace, line)
    assert check("--cache").status == 0


def test_a_missing_output_is_named(workspace, check):
    shutil.rmtree("data/evaluation")

    (line,) = check().wrong

    assert line == "WRONG  data/evaluation: is missing; run `dvc checkout data/evaluation`"


def test_outputs_of_a_stage_that_did_not_run_are_noted(workspace, check):
    shutil.rmtree("data/evaluation")
    lock = Path("dvc.lock")
    lock.write_text(lock.read_text().split("  eval:\n")[0])

    result = check("--cache")

    assert result.status == 0
    assert "note   data/evaluation: not made yet; run `dvc repro`" in result.lines
    assert "note   metrics/eval.json: is not in dvc.lock; run `dvc repro`" in result.lines
    notes = [line for line in result.lines if line.startswith("note")]
    assert result.last.endswith(f"all ok except {len(notes)} notes")


# Inputs that have changed.


def test_an_input_that_is_not_the_recorded_output_is_named(workspace, check):
    edit(TOKENIZER_META, lambda meta: meta.update(pattern="."))
    workspace.run("dvc", "commit", "-f", "make_tokenizer")

    line = check().line_of("WRONG  dvc.lock: tokenize_train: was made from another data/tokenizer")

    assert command(line) == "dvc repro"


def test_a_changed_command_is_noted(workspace, check):
    flags = "python src/plot.py --evaluation data/evaluation --plots plots"
    replace_in("dvc.yaml", flags, f"{flags} --plots plots")

    assert "note   plot: its command changed since it ran; run `dvc repro`" in check().lines


def test_text_that_changed_in_place_is_noted(workspace, check):
    """The size, time and inode are those that DVC remembers, so that DVC does not see the change."""
    text = Path("data/local/own.txt")
    text.write_text("one two three\n")
    workspace.run("dvc", "repro", "fetch")
    with writable(text) as file:
        file.write(b"ONE")

    note = check().line_of("note   fetch: data/local changed since it ran; DVC does not see it")

    repair(workspace, note)
    assert check().last.endswith("all ok")


# Records and models that do not fit.


def test_records_of_other_files_are_named(workspace, check):
    edit(TRAIN_SIDECAR, lambda meta: meta["source"].update(text_sha256="ab" * 32))
    edit(MODEL, lambda record: record["data_sha256"].update(validation="cd" * 32))
    workspace.run("dvc", "commit", "-f", "tokenize_train", "train")

    result = check()

    text = "data/raw/train.parquet"
    sidecar_says = f"source.text_sha256 is {'ab' * 32}, but the SHA-256 of {text} is {sha256_file(text)}"
    line = f"WRONG  {TRAIN_SIDECAR} (from {text}): {sidecar_says}; run `dvc repro -fs tokenize_train`"
    assert line in result.wrong
    model_says = f"data_sha256.validation is {'cd' * 32}, but the SHA-256 of {VALIDATION} is {sha256_file(VALIDATION)}"
    assert model_says in result.line_of(f"WRONG  {MODEL} (from {VALIDATION})")


def test_an_audit_of_other_text_is_named(workspace, check):
    path = Path("data/audit/contamination.parquet")
    table = pq.read_table(path)
    unlink_from_cache(path)
    pq.write_table(table.replace_schema_metadata({"validation_sha256": "ab" * 32}), path)
    workspace.run("dvc", "commit", "-f", "audit")

    line = check().line_of(f"WRONG  {path} (from {VALIDATION}): validation_sha256 is {'ab' * 32}")

    assert command(line) == "dvc repro -fs audit"


@pytest.mark.parametrize(
    ("changes", "clause"),
    [
        ({"seed": 2}, "seed is 2, params.yaml has 3"),
        ({"seed": 3, "fingerprint": "01" * 8}, f"was made by run {'01' * 8}, the workspace's code, "),
    ],
    ids=["parameter", "fingerprint"],
)
def test_a_model_of_other_parameters_is_named(workspace, check, changes, clause):
    """A poisoned run cache would restore such a model."""
    workspace.change(**{"train.seed": 3})
    edit(MODEL, lambda record: record.update(changes))
    workspace.run("dvc", "commit", "-f", "train")

    line = check().line_of(f"WRONG  {MODEL} (from params.yaml): {clause}")

    assert command(line) == "dvc repro -fs train"


def test_a_model_is_not_wrong_because_the_next_run_has_other_parameters(workspace, check):
    workspace.change(**{"train.seed": 3})

    assert check().status == 0


@pytest.mark.parametrize("name", ["dvc.lock", "params.yaml"])
def test_a_file_that_dvc_cannot_read_is_named(workspace, check, name):
    Path(name).write_text("a: [\n")

    result = check()

    assert result.status == 4
    assert result.last.startswith("error: dvc.yaml: DVC cannot read the pipeline: ")
    assert name in result.last


# DVC's cache.


def test_a_damaged_cache_object_is_repaired(workspace, check):
    unlink_from_cache(MODEL)
    damaged_object = object_of(MODEL)
    flip(damaged_object)
    assert workspace.run("dvc", "status", "dvc.yaml").stdout.strip() == "Data and pipelines are up to date."
    assert check().status == 0

    (line,) = check("--cache").wrong

    assert line.startswith(f"WRONG  {damaged_object}: md5 is ")
    assert "data/models needs this file" in line
    assert command(line) == f"rm -f {damaged_object} && dvc commit train"
    repair(workspace, line)
    assert check("--cache").status == 0


def test_after_a_change_of_code_no_commit_repairs_the_cache(workspace, check):
    with open("src/lm/evaluate/generation.py", "a") as file:
        file.write("# changed\n")
    samples = "data/evaluation/samples.md"
    unlink_from_cache(samples)
    flip(object_of(samples))

    result = check("--cache")

    assert "note   eval: src/lm/evaluate changed since it ran; run `dvc repro`" in result.lines
    (line,) = result.wrong
    assert command(line) == f"rm -f {object_of(samples)} && dvc repro eval"


def test_an_object_that_only_the_run_cache_uses_is_removed(workspace, check):
    damaged_object = object_of("metrics/eval.json")
    flip(damaged_object)

    (line,) = check("--cache").wrong

    assert command(line) == f"rm -f {damaged_object}"


# Runs and checkpoints.


@pytest.mark.parametrize("name", ["models/best_model_params.pt", "plots/training.csv", "sha256.json"])
def test_a_damaged_finished_run_is_named_first(workspace, check, name):
    """The stage `train` would publish it."""
    done = only_run() / "done"
    truncate(done / name)
    flip(BEST)

    first, second = check().wrong[:2]

    assert first.startswith(f"WRONG  {done}")
    assert command(first) == f"rm -rf {done}"
    assert second.startswith("WRONG  data/models: ")


def test_checkpoints_that_can_be_rebuilt_are_counted(workspace, check):
    stored = {checkpoint.step for checkpoint in list_checkpoints(only_run())}
    more = read_curve(CURVE).keys() - stored - {0}
    assert more

    result = check()

    rebuilt = f"{CURVE}: {len(more)} more checkpoints, which `python src verify --retrain STEP` rebuilds"
    assert f"ok     {rebuilt}" in result.lines


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


def test_a_forged_evaluation_is_found_though_all_hashes_fit(workspace, check):
    forge_evaluation(lambda nats: nats * 0.95)
    workspace.run("dvc", "commit", "--force", "dvc.yaml")

    result = check("--retrain", "--seed", "1")

    assert result.status == 4
    assert result.wrong == []
    assert re.search(r"data/evaluation/document_losses\.parquet: document \d+ has nats ", result.last)


# Exports.


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("tokenizer.json", "exported/tokenizer.json (from exported/tokenizer): is another one"),
        ("tokenizer/meta.json", "exported/model.json (from exported/tokenizer/meta.json): tokenizer_sha256 is"),
        ("tokenizer/ranks.tiktoken", "exported/tokenizer/meta.json (from exported/tokenizer/ranks.tiktoken): files."),
        (
            "model.safetensors",
            "exported/model.safetensors, config.json (in model.json): exported/model.json: describes",
        ),
        ("generation_config.json", "exported/generation_config.json (from exported/tokenizer): is another one"),
        ("README.md", "exported/README.md (from model.json): is about another model"),
        ("model.json", "exported/model.json (from data/models/model.json): records another model"),
    ],
)
def test_a_changed_export_is_named(workspace, check, name, sentence):
    path = Path("exported", name)
    if name.endswith(("meta.json", "model.json")):
        edit(path, lambda value: value.update(seed=12))
    elif name == "README.md":
        sha256 = read_json("exported/model.json")["best"]["sha256"]
        path.write_text(path.read_text().replace(sha256, "ab" * 32))
    else:
        flip(path)

    result = check("exported")

    (line,) = result.wrong
    assert sentence in line
    assert command(line) == "python src export_hf exported"


def test_an_export_is_checked_anywhere(workspace, check, tmp_path, monkeypatch):
    shutil.move("exported", tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path)
    assert check("elsewhere").status == 0

    Path("elsewhere/tokenizer/meta.json").unlink()

    assert check("elsewhere").status == 4


def test_a_folder_that_is_neither_a_repository_nor_an_export_is_refused(tmp_path, check, monkeypatch):
    monkeypatch.chdir(tmp_path)

    nothing = check()
    folder = check(".")

    assert (nothing.status, folder.status) == (2, 2)
    assert nothing.last.startswith("error: dvc.yaml: missing; run the command at the repository's root")
    assert folder.last.startswith("error: .: has no model.json")
