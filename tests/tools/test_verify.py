"""`python src verify`: identical, other bits, another run; what is wrong, and the command that mends it; forgeries."""

import json
import re
import shutil
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
from support.json_documents import check_document
from support.lock_cases import change_lock, other_code, record_outputs, train_with
from support.refusal import refused
from support.stages import run_here
from tools.record.lock import md5_of, read_lock
from tools.record.paths import (
    AUDIT,
    CURVE,
    EVAL_METRICS,
    EVALUATION_DETAILS,
    MODEL,
    MODELS,
    TRAIN_METRICS,
    TRAIN_SIDECAR,
)
from tools.verify import cli
from tools.verify.records import BEST, Link, check_link, entries_of, links_of_workspace

pytestmark = pytest.mark.usefixtures("committed")


@pytest.fixture(autouse=True)
def activated(monkeypatch):
    monkeypatch.setenv("VIRTUAL_ENV", "/somewhere")


def printed(capsys, *arguments: str) -> str:
    """Run the command and return its answer."""
    capsys.readouterr()
    status = cli.main(list(arguments))
    out, err = capsys.readouterr()
    assert status == 0, err
    return out


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


# What verify answers about runs without a fault.


def identical(committed) -> None:
    pass


def change_segments(changed: dict) -> None:
    """Let model.json have another segment, and dvc.lock its hash."""
    (segment,) = read_json(MODEL)["segments"]
    edit(MODEL, segments=[segment | changed])
    change_lock(record_outputs)


def on_a_gpu(committed) -> None:
    change_segments({"gpu": "NVIDIA H100"})


def on_a_gpu_by_other_packages(committed) -> None:
    change_segments({"gpu": "NVIDIA H100", "torch": "0.0"})


def other_code_with_the_same_bits(committed) -> None:
    """A change that must not change results."""
    change_lock(other_code)


def remake_model() -> None:
    """Let the folder of the model have another file, as another run has other weights."""
    (MODELS / "another").touch()
    change_lock(record_outputs)


def other_code_and_bits(committed) -> None:
    remake_model()
    change_lock(other_code)


def other_bits(committed) -> None:
    remake_model()
    forge_evaluation(lambda nats: nats * 1.1)
    change_lock(record_outputs)


def other_bits_in_fast_numerics(committed) -> None:
    change_lock(train_with(numerics="fast"))
    committed.change(**{"train.numerics": "fast"})
    committed.commit("numerics")
    other_bits(committed)


def another_preset(committed) -> None:
    """The same parameter changed in a preset of another name."""

    def other_preset(stages: dict) -> None:
        params = stages["train"]["params"]
        presets = params["presets.yaml"]
        presets["models.other"] = presets.pop("models.micro") | {"d_ff": 64}
        params["params.yaml"]["model.name"] = "other"

    committed.change(**{"model.name": "other", "models.other": committed.get("models.micro") | {"d_ff": 64}})
    change_lock(other_preset)
    other_bits(committed)


def other_text(committed) -> None:
    """Compare would reject the two."""
    Path("data/raw/another").touch()
    committed.change(**{"train.peak_lr": 0.5})
    change_lock(record_outputs, train_with(peak_lr=0.5))


def other_slice(committed) -> None:
    def shorten_validation(stages: dict) -> None:
        stages["tokenize_val"]["params"]["sources.yaml"]["sources.small.validation"]["num_chars"] = 900

    committed.change(**{"sources.small.validation.num_chars": 900})
    change_lock(shorten_validation)
    remake_model()


def parameters_changed_since(committed) -> None:
    """In params.yaml, and in a preset that it selects; another preset is not of the run."""
    committed.change(**{"train.peak_lr": 0.5, "models.micro.d_ff": 64, "models.tiny.d_ff": 8})


def files_changed_since(committed) -> None:
    """As after `make back`, which leaves the code of an experiment."""
    with open("src/lm/model/gemma3.py", "a") as file:
        file.write("# changed\n")
    with open("data/local/small.jsonl", "a") as file:
        file.write('{"text": "more"}\n')
    write_text("data/init/best_model_params.pt", "")


def score_of_a_former_run(committed) -> None:
    """As after `dvc repro audit` on other text, and with stages that never ran."""
    Path("data/raw/another").touch()
    change_lock(lambda stages: record_outputs({name: stages[name] for name in ("fetch", "make_tokenizer")}))
    change_lock(lambda stages: stages.pop("plot"))


def weights_from_the_cache(committed) -> None:
    shutil.rmtree(".runs")


def metric_edited_in_the_commit_alone(committed) -> None:
    honest = EVAL_METRICS.read_bytes()
    edit(EVAL_METRICS, bits_per_byte=1.0)
    committed.commit("better")
    replace_content(EVAL_METRICS, honest)


def no_git(committed) -> None:
    shutil.rmtree(".git")


STATES = [
    identical,
    on_a_gpu,
    on_a_gpu_by_other_packages,
    other_code_with_the_same_bits,
    other_code_and_bits,
    other_bits,
    other_bits_in_fast_numerics,
    another_preset,
    other_text,
    other_slice,
    parameters_changed_since,
    files_changed_since,
    score_of_a_former_run,
    weights_from_the_cache,
    metric_edited_in_the_commit_alone,
    no_git,
]


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_the_answer_is_that_of_its_page(committed, capsys, check_page, state):
    state(committed)

    lines = printed(capsys)
    document = printed(capsys, "--json")

    check_document(json.loads(document))
    without_figures = re.sub(r"\d+\.\d{3,}", "#", lines + document)
    check_page(f"verify/{state.__name__}.txt", without_figures)


def test_the_score_and_the_metrics_are_those_of_the_files(committed, capsys):
    before = read_json(EVAL_METRICS)["bits_per_byte"]
    other_bits(committed)

    found = json.loads(printed(capsys, "--json"))

    metrics = read_json(EVAL_METRICS)
    assert found["score"]["bits_per_byte"] == metrics["bits_per_byte"]
    assert found["score"]["standard_error"] == metrics["bpb_se"]
    assert {"name": "bits_per_byte", "committed": before, "now": metrics["bits_per_byte"]} in found["metrics"]


def test_a_repository_that_git_refuses_and_an_environment_that_is_not_activated_get_a_command(
    committed, capsys, monkeypatch
):
    """Git tests the owner of the folder as the variable says."""
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    activate = committed.folder / ".venv" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    activate.touch()
    monkeypatch.delenv("VIRTUAL_ENV")
    monkeypatch.setattr("sys.prefix", str(committed.folder / ".venv"))

    said = printed(capsys)

    assert f"git config --global --add safe.directory {committed.folder}" in said
    assert "  source .venv/bin/activate\n" in said


def test_conflicts_of_a_merge_are_named_with_the_commands_that_end_them(capsys):
    lock = Path("dvc.lock").read_text()
    write_text("dvc.lock", f"<<<<<<< HEAD\n{lock}=======\n{lock}>>>>>>> other\n")

    remedy = "`git checkout --ours dvc.lock metrics plots && dvc repro`"
    refused(cli.main([]), capsys.readouterr().err, 4, "dvc.lock: a merge left conflicts in it", remedy)


# Outputs that are not those of dvc.lock.


def object_of(md5: str) -> Path:
    """Return the object of DVC's cache that has this hash."""
    return Path(".dvc/cache/files/md5", md5[:2], md5[2:])


def change_a_copy() -> str:
    replace_content(BEST, b"other weights")
    return "rm -rf data/models && dvc checkout data/models"


def lose_what_the_cache_has() -> str:
    shutil.rmtree("data/evaluation")
    shutil.rmtree("data/raw")
    return "dvc checkout data/raw data/evaluation"


def damage_the_cache_too() -> str:
    lost = object_of(md5_of(BEST))
    replace_content(BEST, b"other weights")
    flip(lost)
    return f"rm -rf data/models {lost} && dvc repro"


def lose_from_the_cache() -> str:
    object_of(md5_of(BEST)).unlink()
    BEST.unlink()
    return "rm -rf data/models && dvc repro"


def edit_metrics() -> str:
    edit(EVAL_METRICS, bits_per_byte=1.0)
    return "rm -rf metrics/eval.json && dvc repro"


OF_MODELS = "data/models: not what dvc.lock records"
DAMAGES = [
    (change_a_copy, OF_MODELS),
    (lose_what_the_cache_has, "data/raw, data/evaluation: missing"),
    # The sentences of the slow ones are those of `test_what_the_cache_lacks…`, too.
    pytest.param(damage_the_cache_too, OF_MODELS, marks=pytest.mark.slow),
    pytest.param(lose_from_the_cache, OF_MODELS, marks=pytest.mark.slow),
    (edit_metrics, "metrics/eval.json: not what dvc.lock records"),
]


@pytest.mark.parametrize(("damage", "named"), DAMAGES)
def test_a_wrong_output_is_named_with_the_command_that_mends_it(committed, capsys, damage, named):
    command = damage()

    assert fault(capsys) == f"{named}; run `{command}`"

    committed.run("sh", "-c", command)
    assert "Bitwise identical" in printed(capsys)


def test_what_the_cache_lacks_is_pulled_but_not_what_is_damaged(committed, capsys, tmp_path):
    """A remote may have the same damage."""
    committed.run("dvc", "remote", "add", "-d", "store", str(tmp_path / "store"))
    lose_from_the_cache()
    assert fault(capsys) == f"{OF_MODELS}; run `rm -rf data/models && dvc pull data/models`"

    damaged = object_of(read_lock().hashes("outs")["data/models"])
    flip(damaged)

    of_remote = f"if `dvc pull` brought the damage, delete {damaged.relative_to('.dvc/cache')} in the remote"
    assert f"; run `rm -rf data/models {damaged} && dvc repro`; {of_remote}, then `dvc push`" in fault(capsys)


@pytest.mark.slow
def test_the_commands_of_a_fault_also_mend_a_damaged_file_of_the_remote(committed, capsys, tmp_path):
    store = tmp_path / "store"
    committed.run("dvc", "remote", "add", "-d", "store", str(store))
    committed.run("dvc", "push", "-q")
    damaged = object_of(md5_of(BEST))
    in_store = store / damaged.relative_to(".dvc/cache")
    flip(in_store)
    damaged.unlink()
    shutil.rmtree("data/models")
    committed.run("dvc", "pull", "-q", "data/models")

    sentence = fault(capsys)

    names = re.search(r"; if `dvc pull` brought the damage, delete (.*) in the remote, then `dvc push`$", sentence)[1]
    committed.run("sh", "-c", re.search("; run `(.*?)`", sentence)[1])
    for name in names.split():
        (store / name).unlink()
    committed.run("dvc", "push", "-q")
    assert md5_of(in_store) == md5_of(BEST)


def test_with_json_a_fault_is_a_document_and_a_sentence_on_stderr(capsys):
    edit(EVAL_METRICS, bits_per_byte=1.0)

    assert cli.main(["--json"]) == 4

    out, err = capsys.readouterr()
    found = json.loads(out)
    assert err == f"error: {found['fault']}\n"
    assert found == {"schema": cli.SCHEMA, "fault": found["fault"]}


# Records that do not fit, though dvc.lock has their hashes.


def edit_source() -> None:
    edit(TRAIN_SIDECAR, source=read_json(TRAIN_SIDECAR)["source"] | {"text_sha256": "ab" * 32})


def edit_parquet() -> None:
    audit = AUDIT / "contamination.parquet"
    table = pq.read_table(audit)
    audit.unlink()
    pq.write_table(table.replace_schema_metadata({"validation_sha256": "ef" * 32}), audit)


def edit_curve() -> None:
    text = CURVE.read_text()
    first_loss = text.splitlines()[1].split(",")[2]
    replace_content(CURVE, text.replace(first_loss, "0.5").encode())


def edit_details() -> None:
    edit(EVALUATION_DETAILS, bits_per_byte=1.0)
    edit(EVAL_METRICS, bits_per_byte=1.0)


RECORDS = [
    (edit_source, f"{TRAIN_SIDECAR}: source.text_sha256 is abab"),
    (edit_parquet, "data/audit/contamination.parquet: validation_sha256 is efef"),
    (lambda: edit(MODEL, init_sha256="ab"), f"{MODEL}: init_sha256 is ab; that of data/init/best_model_params"),
    (lambda: edit(MODEL, seed=7), f"{MODEL}: seed is 7; dvc.lock has 1"),
    (lambda: edit(TRAIN_METRICS, val_loss=1.0), f"{TRAIN_METRICS}: val_loss is 1.0; by data/models"),
    (edit_curve, f"{MODEL}: best has val_loss .* by plots/validation.csv it must be 0.5"),
    (lambda: edit(MODEL, best=read_json(MODEL)["best"] | {"step": 1}), f"{MODEL}: best has .* at step 1; by plots"),
    (edit_details, f"{EVALUATION_DETAILS}: bits_per_byte is 1.0; by data/evaluation/document_losses"),
    (lambda: edit(EVALUATION_DETAILS, stride_tokens=1), f"{EVALUATION_DETAILS}: stride_tokens is 1; by "),
    (lambda: edit(EVALUATION_DETAILS, clean={}), f"{EVALUATION_DETAILS}: clean is {{}}; by "),
    (lambda: edit(EVAL_METRICS, clean_bpb=1.0), f"{EVAL_METRICS}: clean_bpb is 1.0; by data/evaluation/details"),
]


@pytest.mark.parametrize(("forge", "named"), RECORDS)
def test_a_record_that_does_not_fit_is_named_with_its_stage(capsys, forge, named):
    forge()
    change_lock(record_outputs)

    assert re.match(rf"{named}.*; run `dvc repro --force --single-item \w+ && dvc repro`$", fault(capsys))


def test_every_hash_that_a_record_holds_of_a_file_is_checked():
    files = [path for path in Path("data").rglob("*") if path.is_file()]
    hashes = {sha256_file(path) for path in files}
    hashes |= {sha256[:12] for sha256 in hashes}

    held = set()
    for record in [path for path in files if path.suffix in (".json", ".parquet")]:
        held |= {(record, entry) for entry, value in entries_of(record).items() if str(value) in hashes}

    assert len(held) > 14
    assert held <= {(link.record, link.entry) for link in links_of_workspace()}


def test_a_shortened_hash_is_compared_to_its_last_digit():
    record = Path("record.json")
    sha256 = sha256_file("LICENSE")
    write_json(record, {"right": sha256[:12], "short": sha256[:7], "other": f"{sha256[:11]}x"})

    check_link(Link(record, "right", Path("LICENSE")), "train")
    for entry in ("short", "other"):
        with pytest.raises(IntegrityError):
            check_link(Link(record, entry, Path("LICENSE")), "train")


# Forgeries in which all files and records fit: what --retrain finds.


def forge_weights(change: Callable[[torch.Tensor], None]) -> None:
    """Change a tensor of the best weights and their hash, and make the evaluation again."""
    weights = torch.load(BEST, weights_only=True)
    change(next(iter(weights.values())))
    BEST.unlink()
    sha256 = save_tensors(BEST, weights)
    edit(MODEL, best=read_json(MODEL)["best"] | {"sha256": sha256})
    assert run_here("eval") == 0


def flip_a_bit(tensor: torch.Tensor) -> None:
    """Flip the last bit of one weight, which changes no loss: that of a norm, in which it is rounded away."""
    tensor.view(torch.int32).view(-1)[0] ^= 1


FORGERIES = [
    (lambda: forge_weights(lambda tensor: tensor.mul_(2)), rf"^{MODEL}: best\.val_loss is [\d.]+; the weights "),
    (lambda: forge_weights(flip_a_bit), rf"^({MODEL}: best\.val_loss is |{BEST}: has other tensors)"),
]


@pytest.mark.parametrize(("forge", "found"), FORGERIES, ids=["other weights", "one bit"])
def test_a_forgery_that_fits_all_records_is_found_by_computing_again(committed, in_process, capsys, forge, found):
    forge()
    change_lock(record_outputs)
    committed.commit("a better run")
    assert "Bitwise identical" in printed(capsys)

    assert re.search(found, fault(capsys, "--retrain", "--seed", "1"))


def test_an_honest_run_is_shown_to_the_weights(in_process, capsys):
    said = printed(capsys, "--retrain", "--seed", "1")

    assert "\nThe weights in data/models have the recorded validation loss, and losses of " in said
    assert "\nThe weights in data/models are those that this code makes.\n" in said
