"""`python src verify`: identical, other bits, another run; what is wrong, and the command that mends it; forgeries."""

import contextlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from lm.core.errors import IntegrityError
from lm.core.files import read_json, sha256_file, write_json, write_text
from lm.model.weights import save_tensors
from support.damage import flip
from support.evaluation_cases import forge_evaluation
from support.json_documents import check_document, read_document
from support.lock_cases import change_lock, other_code, record_outputs, train_with
from support.refusal import refused
from support.stages import run_here
from tools.record.lock import md5_of
from tools.record.paths import (
    AUDIT,
    CURVE,
    DOCUMENT_LOSSES,
    EVAL_METRICS,
    EVALUATION_DETAILS,
    MODEL,
    MODELS,
    TRAIN_METRICS,
    TRAIN_SIDECAR,
)
from tools.verify import cli
from tools.verify.records import BEST, Link, check_link, entries_of, links_of_workspace

IDENTICAL = "Bitwise identical to the committed run (all 19 outputs)"
# How a line with a command to go on with begins.
GENERATE = "  python src generate "
REPORT = "  python src report "
COMPARE = "  python src compare HEAD workspace "
BACK = "  make back "
PROCESSOR = "  make prove "

pytestmark = pytest.mark.usefixtures("committed")


@pytest.fixture(autouse=True)
def activated(monkeypatch):
    monkeypatch.setenv("VIRTUAL_ENV", "/somewhere")


def printed(capsys, *arguments: str) -> list[str]:
    """Run the command and return the lines of its answer, after the two checks."""
    capsys.readouterr()
    status = cli.main(list(arguments))
    out, err = capsys.readouterr()
    assert status == 0, err
    outputs, records, *answer = out.splitlines()
    assert outputs.startswith("ok  ")
    assert records.startswith("ok  ")
    return answer


def document(capsys) -> dict:
    """Run the command with --json and return what it prints."""
    capsys.readouterr()
    assert cli.main(["--json"]) == 0
    output, errors = capsys.readouterr()
    assert errors == ""
    found = read_document(output)
    check_document(found)
    return found


def assert_next(lines: list[str], *starts: str) -> None:
    """Check that the last lines are the commands that begin with `starts`."""
    last = lines[-len(starts) :]
    assert lines[-len(starts) - 1] == "next:"
    assert [line[: len(start)] for line, start in zip(last, starts, strict=True)] == list(starts)


def fault(capsys, *arguments: str) -> str:
    """Run the command, which must end with a fault; return its sentence."""
    capsys.readouterr()
    assert cli.main(list(arguments)) == 4
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    return line.removeprefix("error: ")


def edit(path: Path, **values) -> None:
    """Set keys of a JSON file, which may be a link into the cache."""
    content = read_json(path) | values
    path.unlink()
    write_json(path, content)


def replace_content(path: Path, content: bytes) -> None:
    """Write a file, which may be a link into the cache."""
    path.unlink()
    path.write_bytes(content)


# Identical bits.


def test_equal_bits(capsys):
    lines = printed(capsys)
    found = document(capsys)

    metrics = read_json(EVAL_METRICS)
    documents = read_json(EVALUATION_DETAILS)["documents"]
    score = f"{metrics['bits_per_byte']:.3f} bits per byte (± {metrics['bpb_se']:.3f} over {documents} documents)"
    assert lines[:2] == [f"{IDENTICAL}.", score]
    assert len(lines) == 5
    assert_next(lines, GENERATE + "'One old' ", REPORT)

    # A program reads the same.
    assert (found["identical"], found["num_outputs"]) == (True, 19)
    assert found["score"] == {
        "bits_per_byte": metrics["bits_per_byte"],
        "standard_error": metrics["bpb_se"],
        "documents": documents,
    }
    commands = [each["command"] for each in found["next"]]
    assert commands == ["python src generate 'One old'", "python src report"]


GPU = {"gpu": "NVIDIA H100"}


def change_segments(segments_of) -> None:
    """Let model.json have other segments, made from the one that it has, and dvc.lock its hash."""
    (segment,) = read_json(MODEL)["segments"]
    edit(MODEL, segments=segments_of(segment))
    change_lock(record_outputs)


def test_equal_bits_on_a_gpu_are_identical(capsys):
    change_segments(lambda cpu: [cpu | GPU])

    assert printed(capsys)[0] == f"{IDENTICAL}, computed on NVIDIA H100."


def test_a_model_that_differs_in_more_than_its_gpu_is_not_identical(capsys):
    change_segments(lambda cpu: [cpu | GPU | {"torch": "0.0"}])

    assert "1 of 19 outputs differ" in printed(capsys)[0]


def test_equal_bits_of_other_code(capsys):
    """The check of a change that must not change results."""
    change_lock(other_code)

    first, *more = printed(capsys)

    assert first.startswith(f"{IDENTICAL}, although 1 of its inputs ")
    assert more[:2] == ["inputs that differ:", "  src/train.py"]


# Other bits, and another run.


def raise_loss() -> tuple[float, float]:
    """Raise the loss of every document, as another run might; return the score before and now."""
    before = read_json(EVAL_METRICS)["bits_per_byte"]
    forge_evaluation(lambda nats: nats * 1.1)
    change_lock(record_outputs)
    return before, read_json(EVAL_METRICS)["bits_per_byte"]


@pytest.mark.parametrize(
    ("numerics", "why", "following"),
    [("exact", "other bits", [PROCESSOR, COMPARE]), ("fast", "equal bits on one machine only", [COMPARE, REPORT])],
)
def test_other_bits_of_the_same_code_and_parameters(committed, capsys, numerics, why, following):
    change_lock(train_with(numerics=numerics))
    committed.change(**{"train.numerics": numerics})
    committed.commit("numerics")
    remake_model()
    before, now = raise_loss()

    lines = printed(capsys)

    assert lines[0].startswith("Not bitwise identical to the committed run: 3 of 19 outputs differ")
    assert f"  bits_per_byte  {before:.5g} -> {now:.5g}" in lines
    (explanation,) = [line for line in lines if "docs/reproducibility.md" in line]
    assert why in explanation
    assert_next(lines, *following)


def remake_model() -> None:
    """Let the folder of the model have another file, as another run has other weights."""
    (MODELS / "another").touch()
    change_lock(record_outputs)


def test_another_run_is_not_taken_for_other_bits(committed, capsys):
    """Of the same parameter in a preset of another name."""

    def other_preset(stages: dict) -> None:
        params = stages["train"]["params"]
        presets = params["presets.yaml"]
        presets["models.other"] = presets.pop("models.micro") | {"d_ff": 64}
        params["params.yaml"]["model.name"] = "other"

    remake_model()
    committed.change(**{"model.name": "other", "models.other": committed.get("models.micro") | {"d_ff": 64}})
    change_lock(other_preset)
    before, now = raise_loss()

    lines = printed(capsys)
    found = document(capsys)

    assert lines[0].startswith("Another run than the committed one: 2 of its parameters changed; 3 of 19 outputs")
    differences = [line.split() for line in lines if "->" in line]
    assert ["models.*.d_ff", "32", "->", "64"] in differences
    assert ["bits_per_byte", f"{before:.5g}", "->", f"{now:.5g}"] in differences
    assert_next(lines, COMPARE, BACK)
    assert {"name": "models.*.d_ff", "committed": 32, "now": 64} in found["parameters"]


def other_text(committed) -> None:
    Path("data/raw/another").touch()
    committed.change(**{"train.peak_lr": 0.5})
    change_lock(record_outputs, train_with(peak_lr=0.5))


def other_slice(committed) -> None:
    committed.change(**{"sources.small.validation.num_chars": 900})
    change_lock(shorten_validation)
    remake_model()


def shorten_validation(stages: dict) -> None:
    stages["tokenize_val"]["params"]["sources.yaml"]["sources.small.validation"]["num_chars"] = 900


@pytest.mark.parametrize("change", [other_text, other_slice])
def test_a_run_on_other_text_is_not_sent_to_compare(committed, capsys, change):
    """`compare` would reject the two."""
    change(committed)

    lines = printed(capsys)

    assert_next(lines, REPORT, BACK)
    assert any("->" in line for line in lines)
    assert not any("None" in line for line in lines), "null as in the file"


def test_other_code_is_another_run(capsys):
    remake_model()
    change_lock(other_code)

    lines = printed(capsys)

    assert lines[0].startswith("Another run than the committed one: 1 of its inputs (code, packages or text) changed")
    assert lines[1:5] == ["inputs that differ:", "  src/train.py", "outputs that differ:", "  data/models"]
    assert_next(lines, COMPARE, BACK)


# What changed since the run.


def test_parameters_that_changed_since_the_run_are_named(committed, capsys):
    """In params.yaml, and in a preset that it selects; another preset is not of the run."""
    committed.change(**{"train.peak_lr": 0.5, "models.micro.d_ff": 64, "models.tiny.d_ff": 8})

    lines = printed(capsys)

    start = lines.index("parameters that changed since this run, then -> now:")
    assert [line.split() for line in lines[start + 1 : start + 3]] == [
        ["train.peak_lr", "0.01", "->", "0.5"],
        ["models.micro.d_ff", "32", "->", "64"],
    ]
    assert "`dvc repro` computes them again." in lines[start + 3]
    assert lines[start + 4] == "`make back` undoes the change of parameters, if it is not committed."
    assert lines[0] == f"{IDENTICAL}."
    assert_next(lines, "  dvc repro ", REPORT)
    assert {"name": "train.peak_lr", "committed": 0.01, "now": 0.5} in document(capsys)["changed_parameters"]


def test_code_and_text_that_changed_since_the_run_are_named(committed, capsys):
    """As after `make back`, which leaves the code of an experiment."""
    with open("src/lm/model/gemma3.py", "a") as file:
        file.write("# changed\n")
    with open("data/local/small.jsonl", "a") as file:
        file.write('{"text": "more"}\n')
    write_text("data/init/best_model_params.pt", "")

    lines = printed(capsys)

    start = lines.index("files that changed since this run:")
    assert lines[0] == f"{IDENTICAL}."
    assert sorted(lines[start + 1 : start + 4]) == ["  data/init", "  data/local", "  src/lm/model"]
    assert "`git restore src` undoes the change of code." in lines


def test_a_score_of_a_former_run_is_not_printed(capsys):
    """As after `dvc repro audit` on other text, and with stages that never ran."""
    Path("data/raw/another").touch()
    change_lock(lambda stages: record_outputs({name: stages[name] for name in ("fetch", "make_tokenizer")}))
    change_lock(lambda stages: stages.pop("plot"))

    lines = printed(capsys)

    later = "tokenize_train, tokenize_val, audit, train, eval, plot"
    assert f"Not scored: {later} did not run on the present inputs yet; run `dvc repro`." in lines
    assert not any("bits per byte" in line for line in lines)
    assert document(capsys)["score"] is None
    assert_next(lines, "  dvc repro ", REPORT)


def test_weights_that_were_not_trained_here_are_said_to_come_from_the_cache(capsys):
    of_trained = printed(capsys)
    shutil.rmtree(".runs")
    of_restored = printed(capsys)

    assert not any("DVC's cache" in line for line in of_trained)
    assert "DVC's cache" in of_restored[1]
    assert "python src verify --retrain" in of_restored[2]


# Nothing to compare with.


def test_a_metric_that_was_edited_in_the_commit_alone_is_named(committed, capsys):
    honest = EVAL_METRICS.read_bytes()
    edit(EVAL_METRICS, bits_per_byte=1.0)
    committed.commit("better")
    replace_content(EVAL_METRICS, honest)

    edited = "metrics/eval.json of the last commit is not what its own dvc.lock records"
    assert printed(capsys)[0].startswith(f"Not compared: {edited}; `git log -p metrics/eval.json`")
    assert document(capsys)["identical"] is None


def test_conflicts_of_a_merge_are_named_with_the_commands_that_end_them(capsys):
    lock = Path("dvc.lock").read_text()
    write_text("dvc.lock", f"<<<<<<< HEAD\n{lock}=======\n{lock}>>>>>>> other\n")

    status = cli.main([])

    remedy = "`git checkout --ours dvc.lock metrics plots && dvc repro`"
    refused(status, capsys.readouterr().err, 4, "dvc.lock: a merge left conflicts in it", remedy)


def test_a_repository_that_git_refuses_is_not_called_empty(committed, capsys, monkeypatch):
    """Git tests the owner of the folder as this variable says."""
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")

    lines = printed(capsys)

    assert lines[0].startswith("Not compared: ")
    assert f"git config --global --add safe.directory {committed.folder}" in lines[0]
    assert "bits per byte" in lines[1]


def remove_lock_from_git() -> None:
    subprocess.run(["git", "rm", "-q", "--cached", "dvc.lock"], check=True)
    subprocess.run(["git", "commit", "-q", "-m", "no dvc.lock"], check=True)


def remove_git() -> None:
    shutil.rmtree(".git")


@pytest.mark.parametrize("change", [remove_lock_from_git, remove_git])
def test_without_git_or_a_committed_run_nothing_is_compared(capsys, change):
    change()

    lines = printed(capsys)

    assert document(capsys)["identical"] is None
    assert lines[0] == "Not compared: this folder has no commit with a dvc.lock."
    assert "bits per byte" in lines[1]
    assert_next(lines, GENERATE, REPORT)


# The commands to go on with.


def test_the_environment_is_activated_where_it_is_not(committed, capsys, monkeypatch):
    activate = committed.folder / ".venv" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    activate.touch()
    monkeypatch.delenv("VIRTUAL_ENV")
    monkeypatch.setattr("sys.prefix", str(committed.folder / ".venv"))

    assert "  source .venv/bin/activate" in printed(capsys)


# Outputs that are not those of dvc.lock.


def object_of(path: Path) -> Path:
    """Return the object of DVC's cache that holds a file's bytes."""
    md5 = md5_of(path)
    return Path(".dvc/cache/files/md5", md5[:2], md5[2:])


def change_a_copy() -> str:
    replace_content(BEST, b"other weights")
    return "rm -rf data/models && dvc checkout data/models"


def lose_what_the_cache_has() -> str:
    shutil.rmtree("data/evaluation")
    shutil.rmtree("data/raw")
    return "dvc checkout data/raw data/evaluation"


def damage_the_cache_too() -> str:
    lost = object_of(BEST)
    replace_content(BEST, b"other weights")
    flip(lost)
    return f"rm -rf data/models {lost} && dvc repro"


def lose_from_the_cache() -> str:
    object_of(BEST).unlink()
    BEST.unlink()
    return "rm -rf data/models && dvc repro"


def edit_metrics() -> str:
    edit(EVAL_METRICS, bits_per_byte=1.0)
    return "rm -rf metrics/eval.json && dvc repro"


DAMAGES = {
    "a changed copy": (change_a_copy, "data/models: not what dvc.lock records"),
    "lost, in the cache": (lose_what_the_cache_has, "data/raw, data/evaluation: missing"),
    "damaged in the cache": (damage_the_cache_too, "data/models: not what dvc.lock records"),
    "lost from the cache": (lose_from_the_cache, "data/models: not what dvc.lock records"),
    "edited metrics": (edit_metrics, "metrics/eval.json: not what dvc.lock records"),
}


# The sentences of the slow ones are those of `test_what_the_cache_lacks…`, too.
SLOW = ("damaged in the cache", "lost from the cache")


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow) if case in SLOW else case for case in DAMAGES]
)
def test_a_wrong_output_is_named_with_the_command_that_mends_it(committed, capsys, case):
    damage, named = DAMAGES[case]
    command = damage()

    assert fault(capsys) == f"{named}; run `{command}`"

    committed.run("sh", "-c", command)
    assert printed(capsys)[0] == f"{IDENTICAL}."


def test_what_the_cache_lacks_is_pulled_but_not_what_is_damaged(committed, capsys, tmp_path):
    """A remote may have the same damage."""
    committed.run("dvc", "remote", "add", "-d", "store", str(tmp_path / "store"))
    lose_from_the_cache()
    assert fault(capsys) == "data/models: not what dvc.lock records; run `rm -rf data/models && dvc pull data/models`"

    damaged = object_of_recorded("data/models")
    flip(damaged)

    of_remote = f"if `dvc pull` brought the damage, delete {damaged.relative_to('.dvc/cache')} in the remote"
    assert f"; run `rm -rf data/models {damaged} && dvc repro`; {of_remote}, then `dvc push`" in fault(capsys)


@pytest.mark.slow
def test_a_damaged_file_of_the_remote_does_not_come_back(committed, capsys, tmp_path):
    store = tmp_path / "store"
    committed.run("dvc", "remote", "add", "-d", "store", str(store))
    committed.run("dvc", "push", "-q")
    damaged = object_of(BEST)
    in_store = store / damaged.relative_to(".dvc/cache")
    flip(in_store)
    damaged.unlink()
    shutil.rmtree("data/models")
    committed.run("dvc", "pull", "-q", "data/models")

    sentence = fault(capsys)

    names = re.search(r"; if `dvc pull` brought the damage, delete (.*) in the remote, then `dvc push`$", sentence)[1]
    committed.run("sh", "-c", re.search("; run `(.*?)`", sentence)[1])
    assert printed(capsys)[0] == f"{IDENTICAL}."
    for name in names.split():
        (store / name).unlink()
    committed.run("dvc", "push", "-q")
    assert md5_of(in_store) == md5_of(BEST)


def object_of_recorded(output: str) -> Path:
    """Return the object of DVC's cache that holds the list of an output's files."""
    md5 = re.search(rf"path: {output}\n.*?md5: (\w+)\.dir", Path("dvc.lock").read_text(), re.S)[1]
    return Path(".dvc/cache/files/md5", md5[:2], f"{md5[2:]}.dir")


def test_a_program_reads_the_fault(capsys):
    edit(EVAL_METRICS, bits_per_byte=1.0)

    assert cli.main(["--json"]) == 4

    out, err = capsys.readouterr()
    found = json.loads(out)
    assert err == f"error: {found['fault']}\n"
    assert found == {"schema": cli.SCHEMA, "fault": found["fault"]}


# Records that do not fit, though dvc.lock has their hashes.


def other_hash_in_parquet() -> None:
    audit = AUDIT / "contamination.parquet"
    table = pq.read_table(audit)
    audit.unlink()
    pq.write_table(table.replace_schema_metadata({"validation_sha256": "ef" * 32}), audit)


def forge_curve() -> None:
    text = CURVE.read_text()
    last_loss = text.splitlines()[-1].split(",")[2]
    replace_content(CURVE, text.replace(last_loss, "1.5").encode())


def forge_details() -> None:
    edit(EVALUATION_DETAILS, bits_per_byte=1.0)
    edit(EVAL_METRICS, bits_per_byte=1.0)


def source_of_sidecar() -> dict:
    return read_json(TRAIN_SIDECAR)["source"] | {"text_sha256": "ab" * 32}


RECORDS = {
    "a hash": (lambda: edit(TRAIN_SIDECAR, source=source_of_sidecar()), TRAIN_SIDECAR, "source.text_sha256 is abab"),
    "a hash in parquet": (other_hash_in_parquet, AUDIT / "contamination.parquet", "validation_sha256 is efef"),
    "the start": (
        lambda: edit(MODEL, init_sha256="ab"),
        MODEL,
        "init_sha256 is ab; that of data/init/best_model_params",
    ),
    "a parameter": (lambda: edit(MODEL, seed=7), MODEL, "seed is 7; dvc.lock has 1"),
    "metrics of training": (
        lambda: edit(TRAIN_METRICS, val_loss=1.0),
        TRAIN_METRICS,
        "val_loss is 1.0; by data/models",
    ),
    "a curve": (forge_curve, MODEL, "at step 20; by plots/validation.csv it must be 1.5"),
    "details": (forge_details, EVALUATION_DETAILS, "bits_per_byte is 1.0; by data/evaluation/document_losses"),
    "windows": (lambda: edit(EVALUATION_DETAILS, stride_tokens=1), EVALUATION_DETAILS, "stride_tokens is 1; by "),
    "a score": (
        lambda: edit(EVAL_METRICS, clean_bpb=1.0),
        EVAL_METRICS,
        "clean_bpb is 1.0; by data/evaluation/details",
    ),
}


@pytest.mark.parametrize("case", RECORDS)
def test_a_record_that_does_not_fit_is_named_with_its_stage(capsys, case):
    forge, file, named = RECORDS[case]
    forge()
    change_lock(record_outputs)

    found = fault(capsys)

    assert found.startswith(f"{file}: ")
    assert named in found
    assert re.search(r"; run `dvc repro --force --single-item \w+ && dvc repro`$", found)


def test_every_hash_that_a_record_holds_of_a_file_is_checked():
    files = [path for path in Path("data").rglob("*") if path.is_file()]
    hashes = {sha256_file(path) for path in files}
    hashes |= {sha256[:12] for sha256 in hashes}

    held = set()
    for record in [path for path in files if path.suffix in (".json", ".parquet")]:
        strings = {entry: value for entry, value in entries_of(record).items() if isinstance(value, str)}
        held |= {(record, entry) for entry, value in strings.items() if value in hashes}

    assert len(held) > 14
    assert held <= {(link.record, link.entry) for link in links_of_workspace()}


@pytest.mark.parametrize(
    ("digits", "end", "is_right"), [(12, "", True), (7, "", False), (11, "x", False), (0, "", False)]
)
def test_a_shortened_hash_is_compared_to_its_last_digit(digits, end, is_right):
    file = Path("LICENSE")
    record = Path("record.json")
    write_json(record, {"sha256": sha256_file(file)[:digits] + end})

    with contextlib.nullcontext() if is_right else pytest.raises(IntegrityError):
        check_link(Link(record, "sha256", file), "train")


# Forgeries in which all files and records fit: what --retrain finds.


def forge_weights(change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Change the best weights and their hash, and make the evaluation again."""
    weights = torch.load(BEST, weights_only=True)
    change(weights)
    BEST.unlink()
    sha256 = save_tensors(BEST, weights)
    edit(MODEL, best=read_json(MODEL)["best"] | {"sha256": sha256})
    assert run_here("eval") == 0


def scale(weights: dict[str, torch.Tensor]) -> None:
    """Change all weights, as those of another run."""
    for tensor in weights.values():
        tensor *= 1.01


def flip_a_bit(weights: dict[str, torch.Tensor]) -> None:
    """Flip the last bit of one weight, which changes no loss: that of a norm, in which it is rounded away."""
    tensor = next(iter(weights.values()))
    tensor.view(torch.int32).view(-1)[0] ^= 1


def forge_weights_and_losses() -> None:
    """Forge all that names the validation loss of the weights, too."""
    forge_weights(scale)
    loss = read_json(MODEL)["best"]["val_loss"]
    found = re.search(r"the weights beside it have ([\d.]+)", sentence_of_rescore())[1]
    record = read_json(MODEL)
    assert record["last"]["step"] == record["best"]["step"]
    edit(MODEL, **{name: record[name] | {"val_loss": float(found)} for name in ("best", "last")})
    edit(TRAIN_METRICS, val_loss=float(found))
    text = CURVE.read_text()
    replace_content(CURVE, text.replace(f"{loss:.8g}", f"{float(found):.8g}").encode())


def sentence_of_rescore() -> str:
    from tools.verify.rescore import rescore

    with pytest.raises(Exception, match=r"best\.val_loss") as caught:
        rescore(seed=1)
    return str(caught.value)


FORGERIES = {
    "other weights": (
        lambda: forge_weights(scale),
        rf"^{MODEL}: best\.val_loss is [\d.]+; the weights ",
    ),
    "other weights and losses": (forge_weights_and_losses, rf"^{CURVE}: step 20 has tokens "),
    "one bit": (lambda: forge_weights(flip_a_bit), rf"^({MODEL}: best\.val_loss is |{BEST}: has other tensors)"),
    "losses of documents": (
        lambda: forge_evaluation(lambda nats: nats * 0.95),
        rf"^{DOCUMENT_LOSSES}: document \d+ has nats ",
    ),
}


@pytest.mark.parametrize("case", FORGERIES)
def test_a_forgery_that_fits_all_records_is_found_by_computing_again(committed, in_process, capsys, case):
    forge, found = FORGERIES[case]
    forge()
    change_lock(record_outputs)
    committed.commit("a better run")
    assert printed(capsys)[0] == f"{IDENTICAL}."

    assert re.search(found, fault(capsys, "--retrain", "--seed", "1"))


def test_an_honest_run_is_shown_to_the_weights(in_process, capsys):
    lines = printed(capsys, "--retrain", "--seed", "1")

    losses, weights = lines[2:4]
    assert losses.startswith("The weights in data/models have the recorded validation loss, and losses of ")
    assert weights == "The weights in data/models are those that this code makes."
