"""Stage eval on a small untrained model: it scores what the model was trained with, and refuses everything else."""

import math
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import eval as eval_stage
from lm.core.errors import DataError
from lm.core.files import read_json, write_json
from lm.core.params import read_section
from lm.evaluate import scoring
from lm.evaluate.documents import mark_model_selection, sum_by_span
from lm.evaluate.samples import draw, measure
from lm.model.score import score_tokens
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
    return write_ids(path, ids, tokenizer, len(texts))


def write_ids(path: Path, ids: np.ndarray, tokenizer, num_documents: int) -> dict:
    """Write a token file of these ids, and return its sidecar."""
    made_with = {
        "sha256": tokenizer.sha256,
        "vocab_size": tokenizer.vocab_size,
        "eot_id": tokenizer.eot_id,
    }
    return write_tokens(path, [ids], "uint16", lambda: {"tokenizer": made_with, "documents": num_documents})


def write_audit(texts: list[str], validation_sha256: str, contaminated: float = 0.0) -> None:
    """Write the part of data/audit that eval reads; `contaminated` is the fraction of every other document."""
    fractions = [0.0, contaminated] * len(texts)
    table = pa.table(
        {
            "contaminated_fraction": fractions[: len(texts)],
            "utf8_bytes": [len(text.encode()) for text in texts],
        }
    )
    table = table.replace_schema_metadata({"validation_sha256": validation_sha256})
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


def test_a_gpu_scores_more_windows_at_a_time_than_a_cpu(monkeypatch):
    batch_sizes = []

    def record_batch_size(model, tokens, seq_len, strides, batch_size, *_):
        batch_sizes.append(batch_size)
        return []

    monkeypatch.setattr(scoring, "score_strides", record_batch_size)
    monkeypatch.setattr(scoring, "check_causality", lambda *_: None)
    monkeypatch.setattr(scoring, "check_logits", lambda *_: None)

    for device in ("cpu", "cuda"):
        model = SimpleNamespace(device=torch.device(device))
        scoring.score(model, None, 1024, [512, 1024], SimpleNamespace(adapt=None))

    assert batch_sizes == [8, 32]


# The figures. Windows of 32 tokens move by 8 for the losses by document, and by 32 for those by position.


@pytest.fixture(scope="module", params=["exact", "fast"])
def scored(made, tmp_path_factory, request):
    """What the stage writes, and the losses of the same windows as `score_tokens` gives them."""
    numerics = request.param
    folder, _ = made
    texts = TEXTS[50:70]
    with pytest.MonkeyPatch.context() as patch:
        work_in_copy(patch, folder, tmp_path_factory.mktemp("scored") / "project")
        validation = open_tokens(VALIDATION)
        write_audit(texts, validation.meta["sha256"], contaminated=0.5)
        change_json(MODEL, segments=[{"from_step": 0, "numerics": numerics}], eval_tokens=4 * 32)
        change_params(Path(), {"eval.stride_fraction": 0.25})
        assert eval_stage.main(ARGUMENTS) == 0

        model, _ = load_trained(MODELS, torch.device("cpu"), numerics)
        overlapping, _ = score_tokens(model, validation, 32, 8, 4, torch.float32)
        apart, positions = score_tokens(model, validation, 32, 32, 4, torch.float32)
        return SimpleNamespace(
            details=read_json("data/evaluation/details.json"),
            metrics=read_json("metrics/eval.json"),
            documents=pq.read_table("data/evaluation/document_losses.parquet").to_pydict(),
            by_position=np.loadtxt("plots/loss_by_position.csv", delimiter=",", skiprows=1),
            validation=validation,
            overlapping=overlapping,
            apart=apart,
            positions=positions,
            sizes=np.array([len(text.encode()) for text in texts]),
            rounding=1e-9 if numerics == "exact" else 1e-5,  # fast products depend on the size of the batch
        )


def document_bits(scored) -> np.ndarray:
    """Return the bits of each document, from windows that overlap."""
    return sum_by_span(scored.overlapping, scored.validation.spans) / math.log(2)


def test_the_details_say_what_was_scored(scored):
    details = scored.details

    assert details["window_tokens"] == 32
    assert details["stride_tokens"] == 8
    assert details["documents"] == 20
    assert details["tokens"] == len(scored.validation.ids)


def test_bits_per_byte_are_those_of_the_tokens(scored):
    expected = document_bits(scored).sum() / scored.sizes.sum()

    assert scored.details["bits_per_byte"] == pytest.approx(expected, rel=scored.rounding)
    assert scored.metrics["bits_per_byte"] == scored.details["bits_per_byte"]


def test_bits_per_byte_of_windows_that_do_not_overlap_stand_beside(scored):
    bits = scored.apart.sum(dtype="float64") / math.log(2)

    found = scored.details["bits_per_byte_non_overlapping"]

    assert found == pytest.approx(bits / scored.sizes.sum(), rel=scored.rounding)


def test_clean_documents_have_a_figure_of_their_own(scored):
    is_clean = (np.arange(20) % 2 == 0) & (scored.sizes > 0)  # in a section, documents without text do not count
    bits = document_bits(scored)[is_clean].sum()

    assert scored.metrics["clean_bpb"] == pytest.approx(bits / scored.sizes[is_clean].sum(), rel=scored.rounding)


def test_the_interval_is_around_the_figure(scored):
    value = scored.details["bits_per_byte"]
    low, high = scored.details["bits_per_byte_interval"]

    assert 0.5 * value < low < value < high < 2 * value
    assert scored.details["bits_per_byte_se"] == scored.metrics["bpb_se"]
    assert scored.metrics["bpb_se"] > 0


def test_documents_have_their_losses_and_those_of_the_windows_that_selected_the_model(scored):
    is_selected = mark_model_selection(scored.validation, 4 * 32, 32)
    nats = sum_by_span(scored.overlapping, scored.validation.spans)
    selection_nats = sum_by_span(scored.overlapping * is_selected, scored.validation.spans)

    assert is_selected.sum() == 4 * 32
    assert scored.documents["nats"] == pytest.approx(nats, rel=scored.rounding)
    assert scored.documents["model_selection_nats"] == pytest.approx(selection_nats, rel=scored.rounding)


def test_the_curve_is_that_of_the_windows_which_use_every_position_equally(scored):
    positions, losses, counts = scored.by_position[:, :3].T

    assert positions.tolist() == [1, 2, 4, 8, 16, 32]
    assert counts.sum() == len(scored.validation.ids)
    first = scored.apart[scored.positions == 0]
    last = scored.apart[scored.positions >= 16]
    assert losses[0] == pytest.approx(first.mean(dtype="float64"), rel=1e-5)
    assert losses[-1] == pytest.approx(last.mean(dtype="float64"), rel=1e-5)


@pytest.mark.parametrize(("numerics", "adapts"), [("exact", True), ("fast", False)])
def test_threads_follow_the_free_cores_where_they_change_no_bit(tokenizer, monkeypatch, capsys, numerics, adapts):
    made = []

    def record(numerics, adapts):
        made.append((numerics, adapts))

    def stop(*_):
        raise DataError("enough was scored")

    monkeypatch.setattr(eval_stage, "ThreadTuner", record)
    monkeypatch.setattr(eval_stage, "score", stop)
    change_json(MODEL, segments=[{"from_step": 0, "numerics": numerics}])
    change_params(Path(), {"eval.stride_fraction": 0.25})

    assert eval_stage.main(ARGUMENTS) == 3

    assert made == [(numerics, adapts)]
    num_tokens = len(open_tokens(VALIDATION).ids)
    assert capsys.readouterr().out == f"scoring {num_tokens:,} tokens in windows of 32, moved by 8 and 32\n"


def test_the_printed_line_has_the_figures_of_the_files(tokenizer, capsys):
    assert eval_stage.main(ARGUMENTS) == 0

    details = read_json("data/evaluation/details.json")
    metrics = read_json("metrics/eval.json")
    line = capsys.readouterr().out.splitlines()[-1]
    nats, bits, se = (float(number) for number in re.findall(r"\d+\.\d{4}", line))
    assert nats == pytest.approx(details["nats_per_token"], abs=6e-5)
    assert bits == pytest.approx(metrics["bits_per_byte"], abs=6e-5)
    assert bits != nats
    assert se == pytest.approx(metrics["bpb_se"], abs=6e-5)
    assert "over 20 documents" in line


def test_the_details_name_the_weights_that_were_scored(tokenizer):
    best_sha256 = read_json(MODEL)["best"]["sha256"]
    change_json(MODEL, last=read_json(MODEL)["last"] | {"sha256": "ab" * 32})

    assert eval_stage.main(ARGUMENTS) == 0

    assert read_json("data/evaluation/details.json")["weights_sha256"] == best_sha256[:12]


def test_samples_are_compared_with_the_training_text(tokenizer, monkeypatch):
    compared = []

    def recording_measure(samples, train_ids):
        compared.append(train_ids)
        return measure(samples, train_ids)

    monkeypatch.setattr(eval_stage, "measure", recording_measure)

    assert eval_stage.main(ARGUMENTS) == 0

    (train_ids,) = compared
    assert np.array_equal(train_ids, open_tokens(TRAIN).ids)


def test_the_samples_are_drawn_as_the_parameters_say(tokenizer):
    """Each prompt has texts of its own seeds."""
    change_prompts("", "One day")
    params = {
        "eval.num_samples": 2,
        "eval.sample_tokens": 12,
        "eval.temperature": 1.5,
        "eval.top_k": 7,
        "eval.seed": 5,
    }
    change_params(Path(), params)

    assert eval_stage.main(ARGUMENTS) == 0

    record = read_json("data/evaluation/samples.json")
    assert record["settings"] == "Temperature 1.5, top-k 7, seeds from 5 on."
    model, _ = load_trained(MODELS, torch.device("cpu"))
    expected = []
    for prompt in ("", "One day"):
        for seed in (5, 6):
            sample = draw(model, tokenizer, prompt, 12, seed, temperature=1.5, top_k=7)
            expected.append((prompt, sample.ids.tolist()))
    assert [(sample["prompt"], sample["ids"]) for sample in record["samples"]] == expected
    assert expected[0] != expected[1]


def test_a_source_without_prompts_is_scored_and_has_no_samples(tokenizer):
    change_prompts()

    assert eval_stage.main(ARGUMENTS) == 0

    assert read_json("data/evaluation/samples.json")["samples"] == []
    summary = read_json("data/evaluation/details.json")["samples"]
    assert summary.pop("samples") == 0
    assert set(summary.values()) == {None}
    assert read_json("metrics/eval.json")["bits_per_byte"] > 0


def prompt_of(num_tokens: int, tokenizer) -> str:
    """Return a text that has this many tokens, the end-of-text id before it included."""
    text = ""
    while 1 + len(tokenizer.encode(text)) < num_tokens:
        text += "\x00" if text.endswith("x") else "x"
    assert 1 + len(tokenizer.encode(text)) == num_tokens
    return text


@pytest.mark.parametrize(("num_tokens", "room"), [(90, 6), (95, 1)])
def test_a_sample_ends_where_the_model_is_full(tokenizer, num_tokens, room):
    """The model takes 96 tokens."""
    change_prompts(prompt_of(num_tokens, tokenizer))
    change_params(Path(), {"eval.sample_tokens": 9})

    assert eval_stage.main(ARGUMENTS) == 0

    (sample,) = read_json("data/evaluation/samples.json")["samples"]
    assert len(sample["ids"]) == room or "ended by the model" in sample["title"]


def test_a_prompt_that_fills_the_model_is_refused_before_anything_is_scored(tokenizer, capsys):
    change_prompts("", prompt_of(96, tokenizer))

    status = eval_stage.main(ARGUMENTS)

    printed = capsys.readouterr()
    refused(status, printed.err, 2, ".prompts[1] has 96 tokens", "fewer than the model's max_seq_len (96)")
    assert "scoring" not in printed.out
    assert not Path("metrics").exists()


def write_other_text(tokenizer) -> None:
    """Write another validation file and its audit, so that nothing but the model's record tells them apart."""
    meta = write_split(VALIDATION, TEXTS[70:90], tokenizer)
    write_audit(TEXTS[70:90], meta["sha256"])


def write_tokens_of_another_tokenizer(path: Path) -> None:
    sidecar = path.with_suffix(".json")
    made_with = read_json(sidecar)["tokenizer"]
    change_json(sidecar, tokenizer=made_with | {"sha256": "ab" * 32})


def write_large_id(tokenizer) -> None:
    """Write a validation file with an id outside the vocabulary."""
    ids = [*range(60), tokenizer.vocab_size, tokenizer.eot_id]
    meta = write_ids(VALIDATION, np.array(ids, np.uint16), tokenizer, num_documents=1)
    write_audit([""], meta["sha256"])
    record_data(validation=meta["sha256"])


def write_infinite_weights(tokenizer) -> None:
    trained_with = read_json(MODEL)["data_sha256"]
    model = build(tokenizer.vocab_size)
    with torch.no_grad():
        model.norm.weight[0] = torch.inf
    write_trained(MODELS, model, tokenizer)
    record_data(**trained_with)


REFUSED = {
    "text of another training": (write_other_text, 4, f"{MODEL}: trained with another {VALIDATION}"),
    "audit of another text": (
        lambda tokenizer: write_audit(TEXTS[50:70], "ab" * 32),
        4,
        f"{CONTAMINATION}: made from another validation file",
    ),
    "model of another tokenizer": (
        lambda tokenizer: change_json(MODEL, tokenizer_sha256="ab" * 32),
        4,
        "trained with tokenizer abab",
    ),
    "train.bin of another tokenizer": (
        lambda tokenizer: write_tokens_of_another_tokenizer(TRAIN),
        4,
        f"{TRAIN}: made with tokenizer abab",
    ),
    "validation.bin of another tokenizer": (
        lambda tokenizer: write_tokens_of_another_tokenizer(VALIDATION),
        4,
        f"{VALIDATION}: made with tokenizer abab",
    ),
    "an id outside the vocabulary": (write_large_id, 4, f"{VALIDATION}: token 400 at position 60 is outside"),
    "less than a window": (
        lambda tokenizer: write_validation(["short"], tokenizer),
        3,
        "one window of train.seq_len needs 33",
    ),
    "no text": (
        lambda tokenizer: write_validation([""] * 40, tokenizer),
        3,
        "contains no text, only ends of documents",
    ),
    "losses that are not finite": (write_infinite_weights, 3, "losses are not finite"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_belong_together_or_cannot_be_scored_is_refused(tokenizer, capsys, case):
    change, code, sentence = REFUSED[case]
    change(tokenizer)

    status = eval_stage.main(ARGUMENTS)

    refused(status, capsys.readouterr().err, code, sentence)
    for folder in ("data/evaluation", "metrics", "plots"):
        assert not Path(folder).exists()


def test_an_imported_model_is_scored_on_any_text(tokenizer):
    write_other_text(tokenizer)
    record_data(train=None, validation=None)

    assert eval_stage.main(ARGUMENTS) == 0


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
