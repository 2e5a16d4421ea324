"""`python src verify` on a real small pipeline: it names what is damaged, and its commands repair it."""

import copy
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from lm.core.files import read_json, sha256_file, write_json
from lm.core.params import read_yaml
from lm.train.checkpoints import Checkpoint, list_checkpoints, load_checkpoint, save_checkpoint
from lm.train.state import digest_of, named_tensors
from support.damage import flip, writable
from support.workspace import Workspace
from tools.common.parameters import flatten
from tools.export_hf import cli as export_hf
from tools.verify import cli as verify
from tools.verify.records import LINKS, Digests, Link, check_link, links_of_text

TRAIN = "data/processed_datasets/train.bin"
SIDECAR = "data/processed_datasets/train.json"
MODEL = "data/models/model.json"
BEST = "data/models/best_model_params.pt"


@pytest.fixture(scope="module")
def made(tmp_path_factory, finished):
    workspace = Workspace(tmp_path_factory.mktemp("verify") / "made", finished)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(workspace.folder)
        assert export_hf.main(["exported"]) == 0
    return workspace


@pytest.fixture
def workspace(made, tmp_path, monkeypatch):
    """A copy of the finished pipeline, hard links kept, as the working directory."""
    workspace = copy.copy(made)
    workspace.folder = tmp_path / "ws"
    subprocess.run(["cp", "-a", made.folder, workspace.folder], check=True)
    monkeypatch.chdir(workspace.folder)
    return workspace


@pytest.fixture
def check(capsys):
    """Run verify; return its exit status and its lines, the summary last."""

    def run(*argv):
        capsys.readouterr()
        status = verify.main(list(argv))
        out, err = capsys.readouterr()
        return status, [*out.splitlines(), *err.splitlines()]

    return run


def repaired_by(workspace, check, line):
    """Return whether the command of a line leaves nothing that is wrong."""
    workspace.run("sh", "-c", command(line))
    return check("--cache")[0] == 0


def edit(path, change):
    """Replace a JSON file by a changed one; the cache keeps the old one."""
    value = read_json(path)
    change(value)
    write_json(path, value)


def wrong(lines):
    """Return the lines of faults."""
    return [line for line in lines if line.startswith("WRONG")]


def command(line):
    """Return the command that a line says to run."""
    return re.search(r"run `([^`]*)`", line)[1]


def object_of(path):
    """Return the object of DVC's cache that holds a file's bytes."""
    md5 = hashlib.md5(Path(path).read_bytes()).hexdigest()
    return f".dvc/cache/files/md5/{md5[:2]}/{md5[2:]}"


def recording(path):
    """Return the output that a file is or lies in, its stage, and whether it is cached, from dvc.yaml."""
    for stage, entry in read_yaml("dvc.yaml")["stages"].items():
        for out in [*entry.get("outs", []), *entry.get("metrics", []), *entry.get("plots", [])]:
            name = out if isinstance(out, str) else next(iter(out))
            if path == name or path.startswith(name + "/"):
                return name, stage, isinstance(out, str)
    raise AssertionError(path)


def flip_in_checkpoint(checkpoint, name, position):
    """Change the last bit of a number of a checkpoint, and record the new file's hash; return its digest."""
    state = load_checkpoint(checkpoint)
    tensors = dict(named_tensors(state))
    tensors[name].view(-1).view(torch.int32)[position] ^= 1
    others = [other.step for other in list_checkpoints(checkpoint.run)]
    save_checkpoint(checkpoint.run, checkpoint.step, state, others)
    return digest_of(tensors.items())


def test_a_finished_pipeline_is_ok_and_stays_unchanged(workspace, check):
    before = {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in Path("data").rglob("*")}
    status, lines = check("--cache", "exported")
    assert status == 0
    assert {line[:5] for line in lines[:-1]} == {"ok   "}
    assert re.fullmatch(rf"{len(lines) - 1} checks, [\d,]+ bytes read, all ok", lines[-1])
    recorded = [out["path"] for stage in read_yaml("dvc.lock")["stages"].values() for out in stage["outs"]]
    assert len(recorded) > 15 and set(recorded) <= {line[7:] for line in lines}
    assert {f"ok     {link.record} (from {link.file})" for link in LINKS} <= set(lines)
    assert before == {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in Path("data").rglob("*")}
    Path("data/raw/.manifest.json.7.tmp").touch()  # DVC does not see what .dvcignore names
    assert check()[0] == 0


@pytest.mark.parametrize("path", ["data/raw/train.parquet", MODEL, "metrics/eval.json"])
def test_a_flipped_bit_is_named_with_its_remedy(workspace, check, path):
    out, stage, is_cached = recording(path)
    linked = os.stat(path).st_nlink > 1
    damaged_object = object_of(path)
    flip(path)
    status, lines = check()
    assert status == 4
    assert lines[-1].startswith("error: ") and f", {len(wrong(lines))} wrong; run the commands above" in lines[-1]
    line = next(line for line in wrong(lines) if line.startswith(f"WRONG  {out}: "))
    if linked:  # the cache holds the same damage
        assert command(line) == f"rm -rf {out} {damaged_object} && dvc repro -fs {stage}"
    elif is_cached:
        assert command(line) == f"rm -rf {out} && dvc checkout {out}"
    else:
        assert command(line) == f"rm -rf {out} && dvc repro -s {stage}"
    if out != path:
        assert f"{path.removeprefix(out + '/')} is changed" in line
    assert {command(each) for each in wrong(lines)} == {command(line)}  # one damage, one thing to do


def test_a_model_of_other_parameters_is_named(workspace, check):
    """A poisoned run cache would restore such a model."""
    workspace.change(**{"train.seed": 3})  # the next run's: nothing is wrong with the model
    assert check()[0] == 0
    for change, clause in (
        ({"seed": 2}, "seed is 2, params.yaml has 3"),
        ({"seed": 3, "fingerprint": "0123456789abcdef"}, "was made by run 0123456789abcdef, the workspace's code, "),
    ):
        edit(MODEL, lambda record, change=change: record.update(change))
        workspace.run("dvc", "commit", "-f", "train")
        found = f"WRONG  {MODEL} (from params.yaml): {clause}"
        line = next(line for line in wrong(check()[1]) if line.startswith(found))
        assert command(line) == "dvc repro -fs train"


def test_every_hash_that_a_record_holds_of_a_file_is_checked(finished, monkeypatch):
    """The hashes of a tokenizer's files in its meta.json are left out: `load_tokenizer` compares them."""
    monkeypatch.chdir(finished)
    hashes = {sha256_file(path) for path in (finished / "data").rglob("*") if path.is_file()}
    hashes |= {sha256[:12] for sha256 in hashes}
    held = {
        (record.relative_to(finished), entry)
        for record in (finished / "data").rglob("*.json")
        for entry, value in flatten(read_json(record)).items()
        if isinstance(value, str) and value in hashes and not entry.startswith("files.")
    }
    assert len(held) > 12
    assert held <= {(link.record, link.entry) for link in [*LINKS, *links_of_text()]}


def test_a_shortened_hash_is_compared_to_its_last_digit(tmp_path):
    record = tmp_path / "record.json"
    file = tmp_path / "file"
    file.write_bytes(b"content")
    sha256 = sha256_file(file)
    other = "0" if sha256[11] != "0" else "1"
    values = {sha256: True, sha256[:12]: True, sha256[:8]: True, sha256[:11] + other: False, "x": False}
    for value, is_right in (values | {sha256[:7]: False, "": False}).items():
        write_json(record, {"weights": {"sha256": value}})
        (finding,) = check_link(Link(record, "weights.sha256", file), Digests(), "advice")
        assert (finding.fault is None) == is_right
    assert list(check_link(Link(record, "another", file), Digests(), "advice")) == []


def test_a_record_that_names_other_files_is_named(workspace, check):
    edit(SIDECAR, lambda meta: meta["source"].update(text_sha256="ab" * 32))
    edit(MODEL, lambda record: record["data_sha256"].update(validation="cd" * 32))
    workspace.run("dvc", "commit", "-f", "tokenize_train")
    workspace.run("dvc", "commit", "-f", "train")
    text = "\n".join(wrong(check()[1]))
    text_of = sha256_file("data/raw/train.parquet")
    tokens = sha256_file("data/processed_datasets/validation.bin")
    assert f"{SIDECAR} (from data/raw/train.parquet): source.text_sha256 is {'ab' * 32}, but the SHA-256 of" in text
    assert f"data/raw/train.parquet is {text_of}; run `dvc repro -fs tokenize_train`" in text
    assert (
        f"data_sha256.validation is {'cd' * 32}, but the SHA-256 of data/processed_datasets/validation.bin is {tokens}"
        in text
    )


def test_an_input_that_is_not_the_recorded_output_is_named(workspace, check):
    edit("data/tokenizer/meta.json", lambda meta: meta.update(pattern="."))
    workspace.run("dvc", "commit", "-f", "make_tokenizer")
    lines = wrong(check()[1])
    assert any(
        line.startswith("WRONG  dvc.lock: tokenize_train: was made from another data/tokenizer") for line in lines
    )
    assert {command(line) for line in lines} >= {"dvc repro"}


def test_a_damaged_cache_object_is_repaired(workspace, check):
    damaged = object_of(MODEL)
    if os.path.samefile(damaged, MODEL):
        shutil.copyfile(MODEL, "copy")
        os.replace("copy", MODEL)
    flip(damaged)
    assert workspace.run("dvc", "status", "dvc.yaml").stdout.strip() == "Data and pipelines are up to date."
    assert check()[0] == 0
    status, lines = check("--cache")
    (line,) = wrong(lines)
    assert status == 4 and line.startswith(f"WRONG  {damaged}: md5 is ") and "data/models needs this file" in line
    assert command(line) == f"rm -f {damaged} && dvc commit train"
    assert repaired_by(workspace, check, line)


def test_after_a_change_of_code_no_commit_repairs(workspace, check):
    with open("src/lm/evaluate/generation.py", "a") as file:
        file.write("# changed\n")
    damaged = object_of("metrics/eval.json")
    flip(damaged)
    lines = check("--cache")[1]
    assert "note   eval: src/lm/evaluate changed since it ran; run `dvc repro`" in lines
    assert [command(line) for line in wrong(lines)] == [f"rm -f {damaged}"]  # only the run cache uses it
    samples = "data/evaluation/samples.md"
    shutil.copyfile(samples, "copy")
    os.replace("copy", samples)
    flip(object_of(samples))
    assert f"rm -f {object_of(samples)} && dvc repro eval" in map(command, wrong(check("--cache")[1]))


def test_an_extra_file_is_named(workspace, check):
    shutil.copy("data/raw/train.parquet", "data/raw/more.parquet")
    (line,) = wrong(check()[1])
    assert line.startswith("WRONG  data/raw: more.parquet is new; run")
    assert repaired_by(workspace, check, line)


def test_a_changed_command_is_noted(workspace, check):
    pipeline = Path("dvc.yaml").read_text()
    flags = "python src/plot.py --evaluation data/evaluation --plots plots"
    assert flags in pipeline
    Path("dvc.yaml").write_text(pipeline.replace(flags, f"{flags} --plots plots"))
    assert "note   plot: its command changed since it ran; run `dvc repro`" in check()[1]


def test_an_output_that_the_remote_has_is_pulled(workspace, check, tmp_path):
    workspace.run("dvc", "remote", "add", "-q", "-d", "store", str(tmp_path / "store"))
    workspace.run("dvc", "push", "-q", "data/models")
    damaged = object_of(BEST)
    flip(BEST)
    if not os.path.samefile(BEST, damaged):
        flip(damaged)
    line = wrong(check()[1])[0]
    assert command(line) == f"rm -rf data/models {damaged} && dvc pull data/models"
    assert repaired_by(workspace, check, line)


def test_a_missing_output_is_named(workspace, check):
    shutil.rmtree("data/evaluation")
    (line,) = wrong(check()[1])
    assert line == "WRONG  data/evaluation: is missing; run `dvc checkout data/evaluation`"
    lock = Path("dvc.lock")
    lock.write_text(lock.read_text().split("  eval:\n")[0])
    status, lines = check("--cache")
    assert status == 0
    assert "note   data/evaluation: not made yet; run `dvc repro`" in lines
    assert "note   metrics/eval.json: is not in dvc.lock; run `dvc repro`" in lines
    assert lines[-1].endswith(f"all ok except {sum(line.startswith('note') for line in lines)} notes")


@pytest.mark.parametrize("name", ["dvc.lock", "params.yaml"])
def test_a_file_that_dvc_cannot_read_is_named(workspace, check, name):
    Path(name).write_text("a: [\n")
    status, (line,) = check()
    assert status == 4 and line.startswith("error: dvc.yaml: DVC cannot read the pipeline: ") and name in line


def test_text_that_changed_in_place_is_noted(workspace, check):
    own = Path("data/local/own.txt")
    own.write_text("one two three\n")
    workspace.repro("fetch")
    with writable(own) as file:  # with the size, time and inode that DVC remembers
        file.write(b"ONE")
    assert "up to date" in workspace.run("dvc", "status", "fetch").stdout
    (note,) = [line for line in check()[1] if line.startswith("note   fetch: data/local changed since it ran; ")]
    workspace.run("sh", "-c", command(note))
    assert check()[1][-1].endswith("all ok")


def test_a_damaged_finished_run_is_named_first(workspace, check):
    (done,) = Path(".runs").glob("*/done")
    flip(done / "models" / "best_model_params.pt")
    flip(BEST)
    lines = wrong(check()[1])
    assert f"{done}/models/best_model_params.pt" in lines[0] and command(lines[0]) == f"rm -rf {done}"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("tokenizer.json", "exported/tokenizer.json (from exported/tokenizer): is another one"),
        ("tokenizer/meta.json", "exported/model.json (from exported/tokenizer/meta.json): tokenizer_sha256 is"),
        (
            "model.safetensors",
            "exported/model.safetensors, config.json (in model.json): exported/model.json: describes another",
        ),
        ("generation_config.json", "exported/generation_config.json (from exported/tokenizer): is another one"),
        ("README.md", "exported/README.md (from model.json): is about another model"),
        ("model.json", "exported/model.json (from data/models/model.json): records another model"),
    ],
)
def test_a_changed_export_is_named(workspace, check, name, sentence):
    path = Path("exported") / name
    if name.endswith(("meta.json", "model.json")):
        edit(path, lambda value: value.update(seed=12))
    elif name == "README.md":
        path.write_text(path.read_text().replace(read_json(path.with_name("model.json"))["best"]["sha256"], "ab" * 32))
    else:
        flip(path)
    status, lines = check("exported")
    (line,) = wrong(lines)
    assert status == 4 and sentence in line and command(line) == "python src export_hf exported"


def test_an_export_is_checked_anywhere(workspace, check, tmp_path, monkeypatch):
    shutil.move("exported", tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path)
    assert check("elsewhere")[0] == 0
    Path("elsewhere/tokenizer/meta.json").unlink()
    assert check("elsewhere")[0] == 4
    status, lines = check()
    assert status == 2 and lines[0].startswith("error: dvc.yaml: missing; run the command at the repository's root")
    assert check(".")[0] == 2


def test_an_interval_is_trained_again_after_the_checks(workspace, check):
    status, lines = check("--recompute", "--from", "10")
    assert status == 0 and lines[-1].startswith("same bits: step 20 has digest ") and "all ok" in lines[-3]
    (run,) = Path(".runs").glob("[!.]*")
    found = flip_in_checkpoint(Checkpoint(run, 10), "embed_tokens.weight", 11)
    status, lines = check("--recompute", "--from", "10")
    assert status == 4 and f"checkpoint-000000010.pt: its digest is {found}, plots/validation.csv records" in lines[-1]


def test_checkpoints_are_checked_if_they_are_stored_and_counted_if_they_can_be_rebuilt(workspace, check):
    (run,) = Path(".runs").glob("[!.]*")
    stored = {checkpoint.step for checkpoint in list_checkpoints(run)}
    rows = Path("plots/validation.csv").read_text().splitlines()[1:]
    validations = {int(row.split(",")[0]) for row in rows} - {0}
    more = validations - stored
    assert more and stored & validations
    status, lines = check()
    rebuilt = f"plots/validation.csv: {len(more)} more checkpoints, which `python src checkpoint STEP` rebuilds"
    assert status == 0 and f"ok     {rebuilt}" in lines

    # A stored one that is damaged is found.
    path = Checkpoint(run, max(stored)).path
    flip(path)
    status, lines = check()
    (line,) = wrong(lines)
    assert status == 4 and line.startswith(f"WRONG  {path.with_suffix('.json')} (from {path}): sha256 is ")
    assert command(line) == f"rm {path.with_suffix('.json')}"
