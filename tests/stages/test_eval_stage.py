"""Stage eval on a small untrained model: it scores what the model was trained with, and refuses everything else."""

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import eval as eval_stage
from lm.core.files import read_json, write_json
from lm.core.params import read_section
from lm.evaluate.documents import mark_spread_windows, sum_by_span
from lm.evaluate.samples import draw, measure
from lm.model.score import score_tokens
from lm.model.seen import SEEN, hash_documents, save_seen
from lm.model.weights import load_trained
from lm.tokens.tokenfile import open_tokens, write_tokens
from support.model_cases import TEXTS, build, let_models_see_the_next_token, write_bpe, write_trained
from support.refusal import refused
from support.stages import change_params, module_and_arguments, stage_folder, work_in_copy

MODELS = Path("data/models")
MODEL = Path("data/models/model.json")
TRAIN = Path("data/processed_datasets/train.bin")
VALIDATION = Path("data/processed_datasets/validation.bin")
CONTAMINATION = Path("data/audit/contamination.parquet")
_, ARGUMENTS = module_and_arguments("eval")


def change_json(path: Path, **entries) -> None:
    """Give a file of JSON other entries."""
    write_json(path, read_json(path) | entries)


def change_prompts(*prompts: str) -> None:
    """Give the selected source these prompts."""
    source = read_section("params.yaml", "data.source", str)
    change_params(Path(), {f"sources.{source}.prompts": list(prompts)})


def record_data(**sha256_by_split: str | None) -> None:
    """Record that the model was trained with token files of these hashes."""
    recorded = read_json(MODEL)["data_sha256"]
    change_json(MODEL, data_sha256=recorded | sha256_by_split)


def write_split(path: Path, texts: list[str], tokenizer) -> dict:
    """Write a token file of these documents, and return its sidecar."""
    ids, _ = tokenizer.encode_documents(texts)
    made_with = {name: getattr(tokenizer, name) for name in ("sha256", "vocab_size", "eot_id")}
    return write_tokens(path, [ids], "uint16", lambda: {"tokenizer": made_with, "documents": len(texts)})


def write_audit(texts: list[str], validation_sha256: str, contaminated: float = 0.0) -> None:
    """Write the part of data/audit that eval reads; `contaminated` is the fraction of every other document."""
    columns = {
        "contaminated_fraction": [contaminated * (number % 2) for number in range(len(texts))],
        "utf8_bytes": [len(text.encode()) for text in texts],
    }
    table = pa.Table.from_pydict(columns, metadata={"validation_sha256": validation_sha256})
    CONTAMINATION.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, CONTAMINATION)


def write_validation(texts: list[str], tokenizer) -> None:
    """Write a validation file, its audit, and a model that was trained with it."""
    meta = write_split(VALIDATION, texts, tokenizer)
    write_audit(texts, meta["sha256"])
    record_data(validation=meta["sha256"])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with all inputs of the stage, and the tokenizer."""
    folder = stage_folder(tmp_path_factory.mktemp("eval") / "made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        tokenizer = write_bpe(Path("data/tokenizer"))
        write_trained(MODELS, build(tokenizer.vocab_size), tokenizer)
        write_split(TRAIN, TEXTS[:50], tokenizer)
        write_validation(TEXTS[50:70], tokenizer)
    change_params(folder, {"eval.num_samples": 1, "eval.sample_tokens": 4})
    return folder, tokenizer


@pytest.fixture
def tokenizer(made, tmp_path, monkeypatch):
    """The tokenizer; the working directory is a copy of `made`."""
    folder, tokenizer = made
    work_in_copy(monkeypatch, folder, tmp_path / "project")
    return tokenizer


# The figures. Windows of 32 tokens move by 8 for the losses by document, and by 32 for those by position.

ROUNDING = 1e-5  # fast products depend on the size of the batch
PARAMS = {
    "stride_fraction": 0.25,
    "num_samples": 2,
    "sample_tokens": 12,
    "temperature": 1.5,
    "top_k": 7,
    "seed": 5,
}


@pytest.fixture(scope="module")
def scored(made, tmp_path_factory):
    """What the stage reads and writes, and the losses of the same windows as `score_tokens` gives them."""
    folder, tokenizer = made
    texts = TEXTS[50:70]
    compared = []

    def recording_measure(samples, train_ids):
        compared.append(train_ids)
        return measure(samples, train_ids)

    adapting = []
    with pytest.MonkeyPatch.context() as patch:
        work_in_copy(patch, folder, tmp_path_factory.mktemp("scored") / "project")
        validation = open_tokens(VALIDATION)
        write_audit(texts, validation.meta["sha256"], contaminated=0.5)
        last = read_json(MODEL)["last"] | {"sha256": "ab" * 32}
        change_json(MODEL, segments=[{"from_step": 0, "numerics": "fast"}], eval_tokens=4 * 32, last=last)
        change_params(Path(), {f"eval.{name}": value for name, value in PARAMS.items()})
        change_prompts("", "One day")
        patch.setattr(eval_stage, "measure", recording_measure)
        patch.setattr(eval_stage, "NON_OVERLAPPING_WINDOWS", 8)
        patch.delenv("OMP_NUM_THREADS", raising=False)
        patch.setattr(eval_stage.ThreadTuner, "adapt", lambda tuner: adapting.append(tuner.adapts))
        assert eval_stage.main(ARGUMENTS) == 0
        assert not any(adapting), "the number of threads changes bits"

        model, record = load_trained(MODELS, torch.device("cpu"), "fast")
        overlapping, _ = score_tokens(model, validation, 32, 8, 4, torch.float32)
        apart, positions = score_tokens(model, validation, 32, 32, 4, torch.float32)
        return SimpleNamespace(
            tokenizer=tokenizer,
            model=model,
            record=record,
            compared=compared,
            train_ids=np.array(open_tokens(TRAIN).ids),
            details=read_json("data/evaluation/details.json"),
            metrics=read_json("metrics/eval.json"),
            samples=read_json("data/evaluation/samples.json"),
            documents=pq.read_table("data/evaluation/document_losses.parquet").to_pydict(),
            by_position=np.loadtxt("plots/loss_by_position.csv", delimiter=",", skiprows=1),
            validation=validation,
            overlapping=overlapping,
            apart=apart,
            part=mark_spread_windows(validation, 8 * 32, 32),
            positions=positions,
            sizes=np.array([len(text.encode()) for text in texts]),
        )


def test_bits_per_byte_and_the_losses_of_documents_are_those_of_the_tokens(scored):
    details = scored.details
    num_bytes = scored.sizes.sum()
    bits = sum_by_span(scored.overlapping, scored.validation.spans) / math.log(2)
    is_clean = (np.arange(20) % 2 == 0) & (scored.sizes > 0)  # in a section, documents without text do not count
    clean = bits[is_clean].sum() / scored.sizes[is_clean].sum()

    expected = {"window_tokens": 32, "stride_tokens": 8, "documents": 20, "tokens": len(scored.validation.ids)}
    assert {name: details[name] for name in expected} == expected
    assert details["bits_per_byte"] == pytest.approx(bits.sum() / num_bytes, rel=ROUNDING)
    assert scored.metrics["bits_per_byte"] == details["bits_per_byte"]
    assert scored.metrics["clean_bpb"] == pytest.approx(clean, rel=ROUNDING)
    assert "seen_by_start" not in details, "of a model without a start"

    is_selected = mark_spread_windows(scored.validation, 4 * 32, 32)
    selection_nats = sum_by_span(scored.overlapping * is_selected, scored.validation.spans)
    assert is_selected.sum() == 4 * 32
    assert scored.documents["nats"] == pytest.approx(bits * math.log(2), rel=ROUNDING)
    assert scored.documents["model_selection_nats"] == pytest.approx(selection_nats, rel=ROUNDING)


def test_the_curve_is_that_of_the_windows_which_use_every_position_equally(scored):
    positions, losses, counts = scored.by_position[:, :3].T

    assert positions.tolist() == [1, 2, 4, 8, 16, 32]
    assert counts.tolist() == [8, 8, 16, 32, 64, 128]
    first = scored.apart[scored.part & (scored.positions == 0)]
    last = scored.apart[scored.part & (scored.positions >= 16)]
    assert losses[0] == pytest.approx(first.mean(dtype="float64"), rel=1e-5)
    assert losses[-1] == pytest.approx(last.mean(dtype="float64"), rel=1e-5)

    # The same tokens are compared in windows that overlap and in those that do not.
    assert len(scored.validation.ids) > 2 * 8 * 32
    apart = scored.apart[scored.part].mean(dtype="float64")
    overlapping = scored.overlapping[scored.part].mean(dtype="float64")
    assert scored.details["non_overlapping"] == {
        "tokens": 8 * 32,
        "nats_per_token": pytest.approx(apart, rel=ROUNDING),
        "nats_per_token_overlapping": pytest.approx(overlapping, rel=ROUNDING),
    }


def test_samples_are_drawn_as_the_parameters_say_and_compared_with_the_training_text(scored):
    """Each prompt has texts of its own seeds."""
    expected = []
    for prompt in ("", "One day"):
        for seed in (5, 6):
            sample = draw(scored.model, scored.tokenizer, prompt, 12, seed, temperature=1.5, top_k=7)
            expected.append((prompt, sample.ids.tolist()))

    found = [(sample["prompt"], sample["ids"]) for sample in scored.samples["samples"]]

    assert scored.samples["settings"] == "Temperature 1.5, top-k 7, seeds from 5 on."
    assert found == expected
    assert expected[0] != expected[1]
    assert np.array_equal(scored.compared, [scored.train_ids])


def test_a_source_without_prompts_is_scored_and_has_no_samples(tokenizer):
    change_prompts()

    assert eval_stage.main(ARGUMENTS) == 0

    assert read_json("data/evaluation/samples.json")["samples"] == []
    assert read_json("metrics/eval.json")["bits_per_byte"] > 0


def test_a_prompt_that_fills_the_model_is_refused_before_anything_is_scored(tokenizer, capsys):
    prompt = "x" + "\0x" * 47
    assert 1 + len(tokenizer.encode(prompt)) == 96
    change_prompts("", prompt)

    status = eval_stage.main(ARGUMENTS)

    printed = capsys.readouterr()
    refused(status, printed.err, 2, ".prompts[1] has 96 tokens", "max_seq_len (96)")
    assert "scoring" not in printed.out
    assert not Path("metrics").exists()


def write_other_text(tokenizer) -> None:
    """Write another validation file and its audit, so that nothing but the model's record tells them apart."""
    meta = write_split(VALIDATION, TEXTS[70:90], tokenizer)
    write_audit(TEXTS[70:90], meta["sha256"])


def write_infinite_weights(tokenizer) -> None:
    trained_with = read_json(MODEL)["data_sha256"]
    model = build(tokenizer.vocab_size)
    with torch.no_grad():
        model.norm.weight[0] = torch.inf
    write_trained(MODELS, model, tokenizer)
    record_data(**trained_with)


# How the inputs are changed, the exit status, and what the sentence has.
REFUSED = {
    "text of another training": (write_other_text, 4, f"{MODEL}: trained with another {VALIDATION}"),
    "audit of another text": (lambda _: write_audit(TEXTS[50:70], "ab" * 32), 4, f"{CONTAMINATION}: made from another"),
    "less than a window": (lambda tokenizer: write_validation(["short"], tokenizer), 3, "needs 33"),
    "no text": (lambda tokenizer: write_validation([""] * 40, tokenizer), 3, "contains no text"),
    "losses that are not finite": (write_infinite_weights, 3, "not finite"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_belong_together_or_cannot_be_scored_is_refused(tokenizer, capsys, case):
    change, code, words = REFUSED[case]
    change(tokenizer)

    status = eval_stage.main(ARGUMENTS)

    refused(status, capsys.readouterr().err, code, words)
    for folder in ("data/evaluation", "metrics", "plots"):
        assert not Path(folder).exists()


def test_documents_that_the_start_was_trained_on_are_counted_and_are_not_clean(tokenizer, capsys):
    hashes = hash_documents(open_tokens(VALIDATION))
    with_text = [number for number, text in enumerate(TEXTS[50:70]) if text]
    by_start = hashes[with_text[1:3]]
    change_json(MODEL, init_sha256="ab" * 32, seen_sha256=save_seen(MODELS, open_tokens(TRAIN), by_start))

    assert eval_stage.main(ARGUMENTS) == 0

    details = read_json("data/evaluation/details.json")
    assert details["seen_by_start"] == 2
    assert details["clean"]["documents"] == len(with_text) - 2
    assert "; seen by the start: 2 of 20 documents" in capsys.readouterr().out

    (MODELS / SEEN).unlink()
    assert eval_stage.main(ARGUMENTS) == 0

    assert read_json("data/evaluation/details.json")["seen_by_start"] is None
    assert "; seen by the start: unknown" in capsys.readouterr().out


def test_the_figures_of_a_lossy_tokenizer_are_marked(tokenizer, capsys):
    sidecar = VALIDATION.with_suffix(".json")
    num_tokens = read_json(sidecar)["tokens"]
    change_json(sidecar, round_trip={"unknown_tokens": 3, "changed_documents": 1})

    assert eval_stage.main(ARGUMENTS) == 0

    assert "lossy tokenizer: bits per byte are too low" in capsys.readouterr().out
    assert read_json("data/evaluation/details.json")["lossy_tokenizer"] == {
        "unknown_token_fraction": 3 / num_tokens,
        "changed_document_fraction": 1 / 20,
    }


def test_a_model_that_sees_the_future_is_refused(tokenizer, capsys, monkeypatch):
    let_models_see_the_next_token(monkeypatch)

    status = eval_stage.main(ARGUMENTS)

    refused(status, capsys.readouterr().err, 4, str(VALIDATION), "sees the future", "at position 0 ", "src/lm/model")
    assert not Path("data/evaluation").exists()
