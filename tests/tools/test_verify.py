"""`python src verify` on a real small pipeline: it names what is damaged, and its commands repair it."""

import copy
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from lm.core.files import sha256_file
from lm.core.params import read_yaml
from support import ROOT
from support.damage import command, edit, flip, flip_in_state, object_of, recording, writable, wrong
from support.workspace import Workspace
from tools.common import paths
from tools.export_hf import cli as export_hf
from tools.verify import cli as verify

TRAIN, MODEL = "data/processed_datasets/train.bin", "data/models/model.json"
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


def test_a_finished_pipeline_is_ok_and_stays_unchanged(workspace, check):
    before = {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in Path("data").rglob("*")}
    status, lines = check("--cache", "exported")
    assert status == 0
    assert {line[:5] for line in lines[:-1]} == {"ok   "}
    assert re.fullmatch(rf"{len(lines) - 1} checks, [\d,]+ bytes read, all ok", lines[-1])
    recorded = [out["path"] for stage in read_yaml("dvc.lock")["stages"].values() for out in stage["outs"]]
    assert len(recorded) > 15 and set(recorded) <= {line[7:] for line in lines}
    assert before == {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in Path("data").rglob("*")}
    Path("data/raw/.manifest.json.7.tmp").touch()  # DVC does not see what .dvcignore names
    assert check()[0] == 0


def test_paths_are_outputs_of_the_pipeline(monkeypatch):
    monkeypatch.chdir(ROOT)
    data = (paths.RAW, paths.SELECTION, paths.TOKENIZER, paths.TRAIN, paths.VALIDATION)
    data += (paths.AUDIT, paths.MODELS, paths.EVALUATION)
    metrics = (paths.DATA_METRICS, paths.TRAIN_METRICS, paths.EVAL_METRICS)
    for path in map(str, data + metrics):
        assert recording(path)[0] == path


@pytest.mark.parametrize(
    "path",
    [
        "data/raw/manifest.json", "data/raw/train/0000.parquet", "data/selection/dropped.parquet",
        "data/selection/details.json", "data/tokenizer/meta.json",
        "data/tokenizer/ranks.tiktoken", TRAIN, "data/processed_datasets/train.json", "data/audit/duplicates.parquet",
        BEST, MODEL, "metrics/eval.json", "data/evaluation/samples.md", "plots/training.png",
    ],
)  # fmt: skip
def test_a_flipped_bit_is_named_with_the_command_that_repairs_it(workspace, check, path):
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
    edit("data/selection/details.json", lambda details: details.update(dropped_sha256="cd" * 32))
    text = "\n".join(wrong(check()[1]))
    for maker in ("processed_datasets/train.json", "processed_datasets/validation.json", "tokenizer/meta.json"):
        assert f"data/{maker} (from data/selection/details.json): dropped_sha256 is cdcd" in text
    assert "data/selection/dropped.parquet (in details.json): dropped_sha256 is" in text
    assert f"{TRAIN} (in train.json): bytes is" in text
    assert "train.json (from data/raw/manifest.json): manifest_sha256 is" in text
    assert "train.json (from data/tokenizer/meta.json): eot_id is 399, recorded is 7" in text
    assert "data/audit/details.json (from" in text and "train.tokens is" in text


def test_ids_outside_the_vocabulary_are_found_though_every_hash_fits(workspace, check):
    with writable(TRAIN) as file:
        file.write(np.array([400], "<u2").tobytes())
    edit("data/processed_datasets/train.json", lambda meta: meta.update(sha256=sha256_file(TRAIN)))
    line = next(line for line in wrong(check()[1]) if "(in train.json)" in line)
    assert "holds the id 400, its vocabulary has 400 entries" in line


def test_a_model_must_record_the_present_tokens_tokenizer_and_vocabulary(workspace, check):
    def change(record):
        record["data_sha256"]["validation"] = record["tokenizer_sha256"] = "ab" * 32
        record["config"]["vocab_size"] = 7

    edit(MODEL, change)
    text = "\n".join(wrong(check()[1]))
    assert f"validation is {sha256_file('data/processed_datasets/validation.bin')}, recorded is {'ab' * 32}" in text
    assert f"tokenizer_sha256 is {sha256_file('data/tokenizer/meta.json')}, recorded is {'ab' * 32}" in text
    assert "vocab_size is 400, recorded is 7" in text


def test_a_replaced_tokenizer_is_named_by_everything_made_with_the_old_one(workspace, check):
    edit("data/tokenizer/meta.json", lambda meta: meta.update(pattern="."))
    text = "\n".join(wrong(check()[1]))
    for path in ("data/processed_datasets/train.json", "data/processed_datasets/validation.json", MODEL):
        assert f"{path} (from data/tokenizer/meta.json): " in text
    workspace.run("dvc", "commit", "-f", "make_tokenizer")  # now DVC records this one
    lines = wrong(check()[1])
    assert any(
        line.startswith("WRONG  dvc.lock: tokenize_train: was made from another data/tokenizer") for line in lines
    )
    assert "data/tokenizer: " not in "\n".join(lines)
    assert {command(line) for line in lines} >= {"dvc repro"}


@pytest.mark.slow
def test_a_model_of_other_data_is_trained_again(workspace, check):
    edit(MODEL, lambda record: record["data_sha256"].update(train="ab" * 32))
    workspace.run("dvc", "commit", "-f", "train")
    lines = wrong(check()[1])
    line = next(line for line in lines if f"{MODEL} (from {TRAIN.replace('.bin', '.json')}" in line)
    assert f"train is {sha256_file(TRAIN)}, recorded is {'ab' * 32}" in line
    assert command(line) == "dvc repro -fs train"
    workspace.run("sh", "-c", command(line))
    assert check("--cache")[0] == 0


def test_a_damaged_cache_object_is_repaired_from_the_workspace(workspace, check):
    damaged = object_of(MODEL)
    if os.path.samefile(damaged, MODEL):
        shutil.copyfile(MODEL, "copy")
        os.replace("copy", MODEL)
    flip(damaged)
    assert workspace.run("dvc", "status", "dvc.yaml").stdout.strip() == "Data and pipelines are up to date."
    assert check()[0] == 0
    status, lines = check("--cache")
    (line,) = wrong(lines)
    assert status == 4 and line.startswith(f"WRONG  {damaged}: md5 is ") and "needed for data/models" in line
    assert command(line) == f"rm -f {damaged} && dvc commit train"
    workspace.run("sh", "-c", command(line))
    assert check("--cache")[0] == 0


@pytest.mark.slow
def test_a_damaged_list_of_a_folder_is_repaired(workspace, check):
    (damaged,) = [path for path in Path(".dvc/cache/files/md5").glob("*/*.dir") if "manifest" in path.read_text()]
    flip(damaged)
    (line,) = wrong(check("--cache")[1])
    assert command(line) == f"rm -f {damaged} && dvc commit fetch"
    workspace.run("sh", "-c", command(line))
    assert check("--cache")[0] == 0


def test_if_code_has_changed_since_the_cache_is_not_repaired_by_a_commit(workspace, check):
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
    flip("metrics/eval.json")
    assert f"rm -rf metrics/eval.json {damaged} && dvc repro -fs eval" in map(command, wrong(check("--cache")[1]))


def test_other_objects_are_counted_and_the_run_cache_may_drop_its_own(workspace, check):
    os.remove(object_of("metrics/eval.json"))
    path = Path(".dvc/cache/files/md5/00/" + "0" * 30)
    path.parent.mkdir(exist_ok=True)
    path.write_text("of an earlier run")
    status, lines = check("--cache")
    assert status == 0 and "note   cache: 1 objects of other runs are not checked" in lines


def test_the_help_says_which_objects_are_read(check, capsys):
    with pytest.raises(SystemExit):
        check("--help")
    words = " ".join(capsys.readouterr().out.split())
    assert "Of the cache only the objects that dvc.lock or a .dvc file refers to are read" in words


def test_a_damaged_hard_link_into_the_cache_is_made_again(workspace, check):
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


def test_an_extra_file_is_named_and_the_command_removes_it(workspace, check):
    shutil.copy("data/raw/train/0000.parquet", "data/raw/train/9999.parquet")
    lines = wrong(check()[1])
    assert lines[0].startswith("WRONG  data/raw: train/9999.parquet is not recorded")
    assert any(line.startswith("WRONG  data/raw/train/9999.parquet: is not in manifest.json") for line in lines)
    workspace.run("sh", "-c", command(lines[0]))
    assert check("--cache")[0] == 0


def test_an_edited_metric_comes_back(workspace, check):
    edit("metrics/eval.json", lambda figures: figures.update(bits_per_byte=0.1))
    (repair,) = set(map(command, wrong(check()[1])))
    workspace.run("sh", "-c", repair)
    assert check("--cache")[0] == 0
    assert "0.1," not in Path("metrics/eval.json").read_text()


def test_metrics_of_another_model_are_named(workspace, check):
    edit("metrics/train.json", lambda figures: figures.update(val_loss=1.0))
    edit("metrics/eval.json", lambda figures: figures.update(bits_per_byte=0.1))
    edit("data/evaluation/details.json", lambda figures: figures.update(tokens=1))
    text = "\n".join(wrong(check()[1]))
    assert f"metrics/train.json (from {MODEL}): val_loss is" in text
    assert "metrics/eval.json (from data/evaluation/details.json): bits_per_byte is" in text
    assert f"details.json (from {MODEL}, data/processed_datasets/validation.json): tokens is" in text


@pytest.mark.slow
def test_an_output_that_the_remote_has_is_pulled(workspace, check, tmp_path):
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
def test_an_output_of_dvc_add_is_checked_too(workspace, check):
    Path("data/own").mkdir()
    Path("data/own/a.txt").write_text("mine")
    workspace.run("dvc", "add", "-q", "data/own")
    assert "ok     data/own" in check("--cache")[1]
    Path("data/own/b.txt").write_text("forgotten")
    (line,) = wrong(check()[1])
    assert "data/own: b.txt is not recorded" in line and command(line) == "rm -rf data/own && dvc checkout data/own"


def test_a_missing_output_is_a_fault_only_if_it_was_made(workspace, check):
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


def test_a_record_that_is_not_json_or_lacks_a_key_is_one_fault(workspace, check):
    Path("data/processed_datasets/train.json").unlink()
    Path("data/processed_datasets/train.json").write_text("{")
    edit("data/tokenizer/meta.json", lambda meta: meta.pop("files"))
    text = "\n".join(wrong(check()[1]))
    assert "data/processed_datasets/train.json: cannot be read as a JSON object" in text
    assert "data/tokenizer/meta.json: has an unknown structure (KeyError('files'))" in text


@pytest.mark.parametrize("name", ["dvc.lock", "dvc.yaml", "params.yaml"])
def test_a_file_that_dvc_cannot_read_is_named_in_a_sentence(workspace, check, name):
    Path(name).write_text("a: [\n")
    status, (line,) = check()
    assert status == 4 and line.startswith("error: dvc.yaml: DVC cannot read the pipeline: ") and name in line


def test_changed_parameters_are_a_note(workspace, check):
    workspace.change(**{"eval.stride_fraction": 0.25})
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
        ("tokenizer.json", "exported/tokenizer.json (from exported/tokenizer): sha256 is"),
        ("tokenizer/tokenizer.json", "exported/tokenizer/tokenizer.json (in meta.json): sha256 is"),
        ("tokenizer/meta.json", "exported/model.json (from exported/tokenizer/meta.json): tokenizer_sha256 is"),
        (
            "model.safetensors",
            "exported/model.safetensors, config.json (in model.json): exported/model.json: describes another",
        ),
        ("model.json", "exported/model.json (from data/models/model.json): records another model"),
    ],
)
def test_a_changed_export_is_named(workspace, check, name, sentence):
    path = Path("exported") / name
    if name.endswith(("meta.json", "model.json")):
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
    Path("elsewhere/tokenizer/meta.json").unlink()
    assert check("elsewhere")[0] == 4
    status, lines = check()
    assert status == 2 and lines == ["error: dvc.yaml: missing; run the command at the repository's root, or name an "
                                     "exported folder"]  # fmt: skip
    assert check(".")[0] == 2


def test_an_interval_is_trained_again_after_the_checks(workspace, check):
    status, lines = check("--recompute", "--from", "10")
    assert status == 0 and lines[-1].startswith("same bits: step 20 has digest ") and "all ok" in lines[-3]
    (kept,) = Path(".runs").glob("*/kept-*.json")
    found = flip_in_state(kept, "embed_tokens.weight", 11)
    status, lines = check("--recompute", "--from", "10")
    assert status == 4 and f"kept-000000010.pt: its digest is {found}, plots/validation.csv records" in lines[-1]
