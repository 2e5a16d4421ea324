"""`python src verify` on a small pipeline that ran for real: what is damaged is named, and what it says mends it."""

import contextlib
import copy
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from lm.core.files import read_json, sha256_file, write_json
from lm.core.params import read_yaml
from support import ROOT
from support.workspace import Workspace
from tools import export_hf
from tools.common.records import Digests
from tools.verify import cli as verify

TRAIN, MODEL = "data/processed_datasets/train.bin", "data/models/model.json"
BEST = "data/models/best_model_params.pt"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    workspace = Workspace(tmp_path_factory.mktemp("verify") / "made")
    workspace.make_small()
    workspace.commit()
    workspace.repro()
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
    """Run verify; return its exit status, its lines and, last, what it ends with."""

    def run(*argv):
        capsys.readouterr()
        status = verify.main(list(argv))
        out, err = capsys.readouterr()
        return status, [*out.splitlines(), *err.splitlines()]

    return run


@contextlib.contextmanager
def writable(path):
    """Open for a change in place that leaves the file's time alone, as a failing disk would."""
    before = os.stat(path)
    os.chmod(path, 0o644)
    with open(path, "r+b") as file:
        yield file
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.chmod(path, before.st_mode & 0o777)


def flip(path):
    """Flip one bit in the middle."""
    with writable(path) as file:
        middle = os.path.getsize(path) // 2
        file.seek(middle)
        byte = file.read(1)[0]
        file.seek(middle)
        file.write(bytes([byte ^ 1]))


def edit(path, change):
    """Change a JSON file, not what the cache has of it, by a new one in its place."""
    value = read_json(path)
    change(value)
    write_json(path, value)


def wrong(lines):
    return [line for line in lines if line.startswith("WRONG")]


def command(line):
    """The command that a line says to run."""
    return re.search(r"run `([^`]*)`", line)[1]


def object_of(path):
    """Where DVC's cache has a file's bytes."""
    md5 = hashlib.md5(Path(path).read_bytes()).hexdigest()
    return f".dvc/cache/files/md5/{md5[:2]}/{md5[2:]}"


def recording(path):
    """The output that a file is or lies in, its stage, and whether it is cached, by dvc.yaml."""
    for stage, entry in read_yaml("dvc.yaml")["stages"].items():
        for out in [*entry.get("outs", []), *entry.get("metrics", []), *entry.get("plots", [])]:
            name = out if isinstance(out, str) else next(iter(out))
            if path == name or path.startswith(name + "/"):
                return name, stage, isinstance(out, str)
    raise AssertionError(path)


def test_what_ran_is_all_ok_and_left_as_it_was(workspace, check):
    before = {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in Path("data").rglob("*")}
    status, lines = check("--cache", "exported")
    assert status == 0
    assert {line[:5] for line in lines[:-1]} == {"ok   "}
    assert re.fullmatch(rf"{len(lines) - 1} things checked, [\d,]+ bytes, all ok", lines[-1])
    recorded = [out["path"] for stage in read_yaml("dvc.lock")["stages"].values() for out in stage["outs"]]
    assert len(recorded) > 15 and set(recorded) <= {line[7:] for line in lines}
    assert before == {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in Path("data").rglob("*")}
    Path("data/raw/.manifest.json.7.tmp").touch()  # DVC does not see what .dvcignore names
    assert check()[0] == 0


def test_its_places_are_outputs_of_the_pipeline(monkeypatch):
    monkeypatch.chdir(ROOT)
    for place in verify.PLACES[:-1]:
        assert recording(str(place))[0] == str(place)
    assert recording(str(verify.PLACES.metrics / "eval.json"))


@pytest.mark.parametrize(
    "path",
    [
        "data/raw/manifest.json", "data/raw/train/0000.parquet", "data/tokenizer/meta.json",
        "data/tokenizer/ranks.tiktoken", TRAIN, "data/processed_datasets/train.json", "data/audit/duplicates.parquet",
        BEST, MODEL, "metrics/eval.json", "metrics/samples.md", "plots/training.png",
    ],
)  # fmt: skip
def test_one_flipped_bit_is_named_with_what_mends_it(workspace, check, path):
    out, stage, is_cached = recording(path)
    linked = os.stat(path).st_nlink > 1
    damaged_object = object_of(path)
    flip(path)
    status, lines = check()
    assert status == 4
    assert lines[-1].startswith("error: ") and f", {len(wrong(lines))} wrong; run what stands there" in lines[-1]
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


def test_every_fault_is_listed(workspace, check):
    for path in (TRAIN, MODEL, "metrics/eval.json"):
        flip(path)
    named = [line.split()[1].rstrip(":") for line in wrong(check()[1])]
    assert {TRAIN, "data/models", "metrics/eval.json"} <= set(named)


def test_a_truncated_file_says_how_long_it_is(workspace, check):
    size = os.path.getsize(TRAIN)
    with writable(TRAIN) as file:
        file.truncate(size - 2)
    assert any(f"(in train.json): bytes is {size - 2}, recorded is {size}; sha256 is" in line for line in check()[1])


def test_an_edited_sidecar_disagrees_with_its_tokens_and_with_what_they_came_from(workspace, check):
    def change(meta):
        meta["tokens"] += 1
        meta["source"]["manifest_sha256"] = "ab" * 32
        meta["tokenizer"]["eot_id"] = 7

    edit("data/processed_datasets/train.json", change)
    text = "\n".join(wrong(check()[1]))
    assert f"{TRAIN} (in train.json): bytes is" in text
    assert "train.json (from data/raw/manifest.json): manifest_sha256 is" in text
    assert "train.json (from data/tokenizer/meta.json): eot_id is 399, recorded is 7" in text
    assert "metrics/data.json (from" in text and "train.tokens is" in text


def test_ids_outside_the_vocabulary_are_found_though_every_hash_fits(workspace, check):
    with writable(TRAIN) as file:
        file.write(np.array([400], "<u2").tobytes())
    edit("data/processed_datasets/train.json", lambda meta: meta.update(sha256=sha256_file(TRAIN)))
    line = next(line for line in wrong(check()[1]) if "(in train.json)" in line)
    assert "holds the id 400, its vocabulary has 400 entries" in line


def test_a_model_must_name_the_tokens_the_tokenizer_and_the_vocabulary_that_lie_there(workspace, check):
    def change(record):
        record["data_sha256"]["validation"] = record["tokenizer_sha256"] = "ab" * 32
        record["config"]["vocab_size"] = 7

    edit(MODEL, change)
    text = "\n".join(wrong(check()[1]))
    assert f"validation is {sha256_file('data/processed_datasets/validation.bin')}, recorded is {'ab' * 32}" in text
    assert f"tokenizer_sha256 is {sha256_file('data/tokenizer/meta.json')}, recorded is {'ab' * 32}" in text
    assert "vocab_size is 400, recorded is 7" in text


def test_an_exchanged_tokenizer_is_named_by_everything_made_with_the_former(workspace, check):
    edit("data/tokenizer/meta.json", lambda meta: meta.update(pattern="."))
    text = "\n".join(wrong(check()[1]))
    for path in ("data/processed_datasets/train.json", "data/processed_datasets/validation.json", MODEL):
        assert f"{path} (from data/tokenizer/meta.json): " in text
    workspace.run("dvc", "commit", "-f", "make_tokenizer")  # now DVC takes it for the right one
    lines = wrong(check()[1])
    assert any(
        line.startswith("WRONG  dvc.lock: tokenize_train: was made from another data/tokenizer") for line in lines
    )
    assert "data/tokenizer: " not in "\n".join(lines)
    assert {command(line) for line in lines} >= {"dvc repro"}


@pytest.mark.slow
def test_a_model_of_other_data_is_trained_anew(workspace, check):
    edit(MODEL, lambda record: record["data_sha256"].update(train="ab" * 32))
    workspace.run("dvc", "commit", "-f", "train")
    lines = wrong(check()[1])
    line = next(line for line in lines if f"{MODEL} (from {TRAIN.replace('.bin', '.json')}" in line)
    assert f"train is {sha256_file(TRAIN)}, recorded is {'ab' * 32}" in line
    assert command(line) == "dvc repro -fs train"
    workspace.run("sh", "-c", command(line))
    assert check("--cache")[0] == 0


def test_a_damaged_object_of_the_cache_is_found_and_mended_from_the_workspace(workspace, check):
    damaged = object_of(MODEL)
    if os.path.samefile(damaged, MODEL):
        shutil.copyfile(MODEL, "copy")
        os.replace("copy", MODEL)
    flip(damaged)
    assert workspace.run("dvc", "status").stdout.strip() == "Data and pipelines are up to date."
    assert check()[0] == 0
    status, lines = check("--cache")
    (line,) = wrong(lines)
    assert status == 4 and line.startswith(f"WRONG  {damaged}: md5 is ") and "needed for data/models" in line
    assert command(line) == f"rm -f {damaged} && dvc commit train"
    workspace.run("sh", "-c", command(line))
    assert check("--cache")[0] == 0


@pytest.mark.slow
def test_a_damaged_list_of_a_folder_is_found_and_mended(workspace, check):
    (damaged,) = [path for path in Path(".dvc/cache/files/md5").glob("*/*.dir") if "manifest" in path.read_text()]
    flip(damaged)
    (line,) = wrong(check("--cache")[1])
    assert command(line) == f"rm -f {damaged} && dvc commit fetch"
    workspace.run("sh", "-c", command(line))
    assert check("--cache")[0] == 0


def test_where_code_has_changed_since_the_cache_is_not_mended_by_a_commit(workspace, check):
    with open("src/lm/evaluate/generation.py", "a") as file:
        file.write("# changed\n")
    damaged = object_of("metrics/eval.json")
    flip(damaged)
    lines = check("--cache")[1]
    assert "note   eval: src/lm/evaluate changed since it ran; run `dvc repro`" in lines
    assert [command(line) for line in wrong(lines)] == [f"rm -f {damaged}"]  # nothing but the run cache has use for it
    shutil.copyfile("metrics/samples.md", "copy")
    os.replace("copy", "metrics/samples.md")
    flip(object_of("metrics/samples.md"))
    assert f"rm -f {object_of('metrics/samples.md')} && dvc repro eval" in map(command, wrong(check("--cache")[1]))
    flip("metrics/eval.json")
    assert f"rm -rf metrics/eval.json {damaged} && dvc repro -fs eval" in map(command, wrong(check("--cache")[1]))


def test_other_objects_are_counted_and_what_only_the_run_cache_keeps_may_be_gone(workspace, check):
    os.remove(object_of("metrics/eval.json"))
    path = Path(".dvc/cache/files/md5/00/" + "0" * 30)
    path.parent.mkdir(exist_ok=True)
    path.write_text("of a former run")
    status, lines = check("--cache")
    assert status == 0 and "note   cache: not checked, being of other runs: 1 more" in lines


def test_what_a_hard_link_shares_with_the_cache_is_made_anew(workspace, check):
    shared = object_of(TRAIN)
    if not os.path.samefile(shared, TRAIN):
        os.remove(TRAIN)
        os.link(shared, TRAIN)
    flip(TRAIN)
    lines = check("--cache")[1]
    assert {command(line) for line in wrong(lines)} == {f"rm -rf {TRAIN} {shared} && dvc repro -fs tokenize_train"}
    assert len(wrong(lines)) == 3  # the output, its sidecar's hash, the object
    workspace.run("sh", "-c", command(wrong(lines)[0]))
    assert check("--cache")[0] == 0


def test_an_extra_text_is_named_and_what_is_said_removes_it(workspace, check):
    shutil.copy("data/raw/train/0000.parquet", "data/raw/train/9999.parquet")
    lines = wrong(check()[1])
    assert lines[0].startswith("WRONG  data/raw: train/9999.parquet is one too many")
    assert any(line.startswith("WRONG  data/raw/train/9999.parquet: is not in manifest.json") for line in lines)
    workspace.run("sh", "-c", command(lines[0]))
    assert check("--cache")[0] == 0


def test_an_edited_metric_comes_back(workspace, check):
    edit("metrics/eval.json", lambda figures: figures.update(bits_per_byte=0.1))
    (line,) = wrong(check()[1])
    workspace.run("sh", "-c", command(line))
    assert check("--cache")[0] == 0
    assert "0.1," not in Path("metrics/eval.json").read_text()


def test_metrics_of_another_model_are_named(workspace, check):
    edit("metrics/train.json", lambda figures: figures.update(best_val_loss=1.0))
    edit("metrics/eval.json", lambda figures: figures.update(tokens=1))
    text = "\n".join(wrong(check()[1]))
    assert f"metrics/train.json (from {MODEL}): best_val_loss is" in text
    assert f"metrics/eval.json (from {MODEL}, data/processed_datasets/validation.json): tokens is" in text


@pytest.mark.slow
def test_what_a_remote_has_is_fetched(workspace, check, tmp_path):
    workspace.run("dvc", "remote", "add", "-q", "-d", "store", str(tmp_path / "store"))
    workspace.run("dvc", "push", "-q", "data/models")
    damaged = object_of(BEST)
    flip(BEST)
    if not os.path.samefile(BEST, damaged):
        flip(damaged)
    line = wrong(check()[1])[0]
    assert command(line) == f"rm -rf data/models {damaged} && dvc pull data/models"
    workspace.run("sh", "-c", command(line))
    assert check("--cache")[0] == 0


@pytest.mark.slow
def test_what_was_added_by_hand_is_checked_too(workspace, check):
    Path("data/own").mkdir()
    Path("data/own/a.txt").write_text("mine")
    workspace.run("dvc", "add", "-q", "data/own")
    assert "ok     data/own" in check("--cache")[1]
    Path("data/own/b.txt").write_text("forgotten")
    (line,) = wrong(check()[1])
    assert "data/own: b.txt is one too many" in line and command(line) == "rm -rf data/own && dvc checkout data/own"


def test_what_is_not_made_yet_is_no_fault_but_what_was_made_and_is_gone(workspace, check):
    os.remove("metrics/samples.md")
    (line,) = wrong(check()[1])
    assert line == "WRONG  metrics/samples.md: is missing; run `dvc checkout metrics/samples.md`"
    lock = Path("dvc.lock")
    lock.write_text(lock.read_text().split("  eval:\n")[0])
    status, lines = check("--cache")
    assert status == 0
    assert "note   metrics/samples.md: not made yet; run `dvc repro`" in lines
    assert "note   metrics/eval.json: is not in dvc.lock; run `dvc repro`" in lines
    assert lines[-1].endswith(f"all ok but for {sum(line.startswith('note') for line in lines)} notes")


def test_a_record_that_is_no_json_or_lacks_a_key_is_one_fault(workspace, check):
    Path("data/processed_datasets/train.json").unlink()
    Path("data/processed_datasets/train.json").write_text("{")
    edit("data/tokenizer/meta.json", lambda meta: meta.pop("files"))
    text = "\n".join(wrong(check()[1]))
    assert "data/processed_datasets/train.json: cannot be read as a JSON object" in text
    assert "data/tokenizer/meta.json: is not as it was written (KeyError('files'))" in text


@pytest.mark.parametrize("name", ["dvc.lock", "dvc.yaml", "params.yaml"])
def test_what_dvc_cannot_read_is_said_in_a_sentence(workspace, check, name):
    Path(name).write_text("a: [\n")
    status, (line,) = check()
    assert status == 4 and line.startswith("error: dvc.yaml: DVC cannot read the pipeline: ") and name in line


def test_changed_parameters_are_a_note(workspace, check):
    workspace.change(**{"eval.stride": 8})
    status, lines = check()
    assert status == 0 and "note   eval: eval in params.yaml changed since it ran; run `dvc repro`" in lines


def test_a_damaged_finished_run_is_named_before_the_model_that_would_come_from_it(workspace, check):
    (done,) = Path(".runs").glob("*/done")
    flip(done / "models" / "best_model_params.pt")
    flip(BEST)
    lines = wrong(check()[1])
    assert f"{done}/models/best_model_params.pt" in lines[0] and command(lines[0]) == f"rm -rf {done}"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("tokenizer.json", "exported/tokenizer.json (in meta.json): sha256 is"),
        ("meta.json", "exported/model.json (from exported/meta.json): tokenizer_sha256 is"),
        ("model.safetensors", "exported/model.safetensors, config.json (in model.json): exported/model.json: is not"),
        ("model.json", "exported/model.json (from data/models/model.json): is of another model"),
    ],
)
def test_a_changed_export_is_named(workspace, check, name, sentence):
    path = Path("exported") / name
    if name.endswith(".json") and name != "tokenizer.json":
        edit(path, lambda value: value.update(seed=12))
    else:
        flip(path)
    status, lines = check("exported")
    (line,) = wrong(lines)
    assert status == 4 and sentence in line and command(line) == "python src export_hf exported"


def test_an_export_is_checked_anywhere(workspace, check, tmp_path, monkeypatch):
    shutil.move("exported", tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path)
    assert check("elsewhere")[0] == 0
    Path("elsewhere/meta.json").unlink()
    assert check("elsewhere")[0] == 4
    status, lines = check()
    assert status == 2 and lines == ["error: dvc.yaml: is not here; run this in the repository's folder, or name an "
                                     "exported folder"]  # fmt: skip
    assert check(".")[0] == 2


def test_files_are_hashed_in_blocks_and_once_a_link(tmp_path):
    path = tmp_path / "large"
    path.write_bytes(b"\1" * (24 << 20))
    os.link(path, tmp_path / "link")
    heard = []
    digests = Digests(heard.append)
    tracemalloc.start()
    found = digests.of(path)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 4 << 20
    assert digests.of(tmp_path / "link") is found
    assert sum(heard) == digests.num_bytes == found.num_bytes == 24 << 20
    assert found.sha256 == sha256_file(path)
    assert digests.of(tmp_path / "none").md5 == "no file"
    assert digests.of(tmp_path).md5 == "unreadable (Is a directory)"


def test_importing_it_is_quick():
    code = "import sys, tools.verify; print([m for m in ('torch', 'dvc', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "src", capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
