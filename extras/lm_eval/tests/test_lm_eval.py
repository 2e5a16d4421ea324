"""`python src lm_eval`: lm-eval's figures of an exported model are those of lm.model for the same text."""

import json
import math
import random
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch

from extras.lm_eval import agreement
from extras.lm_eval.lm_eval import main, read_metrics, rows_of, suffixes_of
from lm.core.errors import DataError, IntegrityError, ParamsError
from lm.core.files import read_json
from lm.model.score import score_tokens
from support import tokenizer_cases
from support.model_cases import build, write_bpe, write_gemma_like, write_trained
from support.refusal import refused
from tools.common.export import load_run, write_model

README = Path(__file__).parent.parent / "README.md"
SEQ_LEN = 32  # of write_trained
WORDS = ["the", "dog", "saw a", "cat", "and", "é", "ran home;", "then,", "one day", "they", "sat", "by", "31", "trees"]
STORIES = [" ".join(random.Random(seed).choices(WORDS, k=20 + seed)) + ".\n" for seed in range(40)]
ODD = ["<|endoftext|> is text here", "x", "one " * 300, "  spaces  first and last  ", "é漢字\u2028\n" * 9]


def call(*arguments) -> int:
    return main(list(map(str, arguments)))


def write_tasks(folder: Path, texts: list[str]) -> list[dict]:
    """Write the two tasks that README.md shows, with data of these texts; return the questions about endings."""
    cut = [text.split(" ") for text in texts if text.count(" ") >= 20]
    endings = [" " + " ".join(words[10:13]) for words in cut]
    questions = []
    for number, words in enumerate(cut):
        choices = [endings[(number + place) % len(cut)] for place in range(4)]  # the right one first
        label = number % 4
        choices[0], choices[label] = choices[label], choices[0]
        questions.append({"beginning": " ".join(words[:10]), "endings": choices, "label": label})

    folder.mkdir()
    blocks = re.findall(r"```yaml parse\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    for number, block in enumerate(blocks):
        (folder / f"{number}.yaml").write_text(block, encoding="utf-8")
    write_lines(folder / "documents.jsonl", [{"text": text} for text in texts])
    write_lines(folder / "endings.jsonl", questions)
    return questions


def write_lines(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def load_gpt2(folder: Path):
    from lm.tokenizer.load import load_tokenizer

    folder.mkdir()
    return load_tokenizer(tokenizer_cases.write_gpt2(folder))


TOKENIZERS = {
    "bpe": write_bpe, "gpt2": load_gpt2, "gemma_like": lambda folder: write_gemma_like(folder, folder.parent / "hf"),
}  # fmt: skip


@pytest.fixture(scope="module", params=TOKENIZERS)
def run(request, tmp_path_factory) -> SimpleNamespace:
    """Make a trained model with one of the tokenizers, its export, and tasks of texts of one and of several windows."""
    folder = tmp_path_factory.mktemp(request.param)
    tokenizer = TOKENIZERS[request.param](folder / "tokenizer")
    record = write_trained(folder / "models", build(tokenizer.vocab_size), tokenizer)
    (folder / "export").mkdir()
    model, *rest = load_run(folder / "models", folder / "tokenizer")
    write_model(folder / "export", model, *rest)
    questions = write_tasks(folder / "tasks", [*STORIES, *ODD])
    return SimpleNamespace(folder=folder, model=model, tokenizer=tokenizer, record=record, questions=questions)


def evaluate(run, *options) -> dict:
    """Run the tool on the export and return the figures."""
    output = run.folder / "figures.json"
    folders = ["--export", run.folder / "export", "--task_folder", run.folder / "tasks"]
    assert call(*folders, "--output", output, *options) == 0
    return read_json(output)


def nats_of(run, text: str, end_of_text: bool = False) -> np.ndarray:
    """Return the losses of one document in non-overlapping windows."""
    ids = np.array(run.tokenizer.encode(text) + [run.tokenizer.eot_id] * end_of_text)
    tokens = SimpleNamespace(ids=ids, eot_id=run.tokenizer.eot_id)
    return score_tokens(run.model, tokens, SEQ_LEN, SEQ_LEN, 4, torch.float32)[0]


def test_the_check_finds_no_difference_above_1e_4_nats_per_token(run):
    tasks = evaluate(run, "--check")["tasks"]

    assert 0 < tasks["stories_perplexity"]["largest_difference_nats_per_token"] < 1e-4
    assert 0 < tasks["stories_endings"]["largest_difference_nats_per_token"] < 1e-4


def test_bits_per_byte_are_ours_within_1e_4_nats_per_token(run):
    texts = [*STORIES, *ODD]
    losses = [nats_of(run, text) for text in texts]
    assert max(map(len, losses)) > 3 * SEQ_LEN and min(map(len, losses)) < SEQ_LEN, "short and long texts"

    metrics = evaluate(run)["tasks"]["stories_perplexity"]["metrics"]

    num_tokens = sum(map(len, losses))
    num_bytes = sum(len(text.encode()) for text in texts)
    expected_nats = float(np.concatenate(losses).sum(dtype=np.float64))
    nats = metrics["bits_per_byte"]["value"] * math.log(2) * num_bytes
    assert abs(nats - expected_nats) / num_tokens < 1e-4


def test_the_table_has_each_metric(run, capfd):
    evaluate(run, "--limit", 2)

    table = capfd.readouterr().out
    for metric in ("word_perplexity", "byte_perplexity", "bits_per_byte", "acc", "acc_norm"):
        assert f" {metric} |" in table


def test_the_right_ending_is_chosen_by_our_own_losses(run):
    found = evaluate(run)["tasks"]["stories_endings"]["metrics"]["acc"]["value"]

    right = []
    for question in run.questions:
        beginning = question["beginning"]
        losses = [
            agreement.score_continuation(run.model, run.tokenizer, SEQ_LEN, beginning, ending).sum()
            for ending in question["endings"]
        ]
        right.append(np.argmin(losses) == question["label"])
    assert found == pytest.approx(np.mean(right))
    assert len(right) > 30


def test_every_text_begins_with_one_end_of_text_and_windows_are_as_long_as_in_training(run):
    from extras.lm_eval.harness import ExportedModel

    model = ExportedModel(run.folder / "export", SEQ_LEN)
    eot_id = run.tokenizer.eot_id
    inputs = []

    def record_inputs(requests, *_, **__):
        inputs.extend([*context, *continuation] for _, context, continuation in requests)
        return [(0.0, True)] * len(requests)

    model._loglikelihood_tokens = record_inputs
    requests = [SimpleNamespace(args=(text,)) for text in [*STORIES, *ODD]]
    model.loglikelihood_rolling(requests)
    model.loglikelihood([SimpleNamespace(args=(text[:-3], text[-3:])) for text in [*STORIES, *ODD]])
    firsts = [ids for ids in inputs if eot_id in ids]
    assert len(firsts) == 2 * len(requests)
    assert all(ids[0] == eot_id and eot_id not in ids[1:] for ids in firsts)
    assert max(map(len, inputs[: -len(requests)])) == SEQ_LEN + 1


@pytest.mark.parametrize("run", ["bpe"], indirect=True)
def test_a_continuation_longer_than_a_window_is_refused(run):
    from extras.lm_eval.harness import ExportedModel

    model = ExportedModel(run.folder / "export", SEQ_LEN)
    ending = " dog" * 3 * SEQ_LEN
    with pytest.raises(DataError, match="tokens, the windows of this model have 32; choose a task with shorter ones"):
        model.loglikelihood([SimpleNamespace(args=("the", ending))])


@pytest.mark.parametrize("run", ["bpe"], indirect=True)
def test_the_figures_repeat_and_name_versions_hashes_and_model(run, capfd):
    first = evaluate(run, "--limit", 9)
    warning = capfd.readouterr().err
    again = evaluate(run, "--limit", 9)

    assert again == first
    assert {"lm_eval", "torch", "transformers"} <= set(first["versions"])
    assert first["model"]["weights_sha256"] == run.record["best"]["sha256"]
    assert first["model"]["seq_len"] == SEQ_LEN
    assert re.search(r"warning: \d+ of \d+ requests are longer than the window of 32 tokens", warning)


@pytest.mark.parametrize("run", ["bpe"], indirect=True)
def test_a_limit_gives_a_task_of_other_documents(run):
    limited = evaluate(run, "--limit", 9)["tasks"]["stories_endings"]
    whole = evaluate(run)["tasks"]["stories_endings"]

    assert limited["documents"] == 9
    assert limited["metrics"]["acc"]["stderr"] > 0
    assert limited["hash"] != whole["hash"]


def test_the_check_accepts_the_export_of_a_model_trained_in_exact_numerics(finished, tmp_path):
    models = finished / "data/models"
    tasks = tmp_path / "tasks"
    output = tmp_path / "figures.json"
    assert read_json(models / "model.json")["segments"][0]["numerics"] == "exact"
    texts = pq.read_table(finished / "data/raw/validation.parquet")["text"].to_pylist()
    write_tasks(tasks, texts[:20])

    folders = ["--models", models, "--tokenizer", finished / "data/tokenizer", "--task_folder", tasks]
    assert call(*folders, "--check", "--output", output) == 0
    for task in read_json(output)["tasks"].values():
        assert task["largest_difference_nats_per_token"] < 1e-4


@pytest.mark.parametrize("run", ["bpe"], indirect=True)
def test_the_check_refuses_an_export_with_one_changed_weight(run, tmp_path, capfd):
    export = tmp_path / "export"
    shutil.copytree(run.folder / "export", export)
    weights = safetensors.torch.load_file(export / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][3, 5] += 1e-3
    safetensors.torch.save_file(weights, export / "model.safetensors", metadata={"format": "pt"})
    status = call("--export", export, "--task_folder", run.folder / "tasks", "--limit", 1, "--check")
    expected = f"{export}/model.json: describes another model than the one beside it"
    refused(status, capfd.readouterr().err, 4, expected, "export the model again")


@pytest.fixture
def tiny(tmp_path) -> SimpleNamespace:
    """An exported model, with what lm-eval would report of two requests."""
    tokenizer = write_bpe(tmp_path / "tokenizer")
    write_trained(tmp_path / "models", build(tokenizer.vocab_size), tokenizer)
    (tmp_path / "export").mkdir()
    model, *rest = load_run(tmp_path / "models", tmp_path / "tokenizer")
    write_model(tmp_path / "export", model, *rest)
    run = SimpleNamespace(model=model, tokenizer=tokenizer)
    text = "the dog saw a cat " * 20
    total = -float(nats_of(run, text).sum(dtype=np.float64))
    ending = -float(agreement.score_continuation(model, tokenizer, SEQ_LEN, "the dog ", "saw").sum(dtype=np.float64))
    samples = [
        {"arguments": [(text,)], "resps": [[total]]},
        {"arguments": [("the dog ", "saw")], "resps": [[(ending, False)]]},
        {"arguments": [("the dog", {"until": ["."]})], "resps": [["ran"]]},
    ]
    return SimpleNamespace(export=tmp_path / "export", samples=samples, num_tokens=len(tokenizer.encode(text)))


def test_a_difference_above_1e_4_nats_per_token_is_refused(tiny):
    model = agreement.read_checked(tiny.export)

    right = tiny.samples[0]["resps"][0][0]

    def difference(nats: float) -> float:
        """Return the difference if lm-eval reports these nats for the first request."""
        tiny.samples[0]["resps"][0][0] = nats
        return agreement.check_agreement(tiny.export, model, SEQ_LEN, {"stories": tiny.samples})["stories"]

    assert difference(right) < 1e-6
    assert 0.8e-4 < difference(right + 0.9e-4 * tiny.num_tokens) < 1e-4
    with pytest.raises(IntegrityError, match=r"stories: lm-eval and lm.model differ by 0\.00011 nats"):
        difference(right + 1.1e-4 * tiny.num_tokens)
    with pytest.raises(IntegrityError, match=r"stories: lm-eval and lm\.model differ by nan nats"):
        difference(math.nan)


def test_a_task_that_only_generates_text_has_no_difference(tiny):
    model = agreement.read_checked(tiny.export)

    found = agreement.check_agreement(tiny.export, model, SEQ_LEN, {"generated": tiny.samples[2:]})

    assert found == {"generated": None}


@pytest.mark.parametrize(
    ("folders", "suffixes"),
    [
        (["a/models"], [""]),
        (["a/one", "b/two"], ["-one", "-two"]),
        (["a/models", "b/models"], ["-a-models", "-b-models"]),
        (["x/a/models", "y/a/models", "y/a/other"], ["-x-a-models", "-y-a-models", "-y-a-other"]),
    ],
)
def test_the_results_of_each_folder_have_a_name_of_their_own(folders, suffixes):
    assert list(suffixes_of([Path(folder) for folder in folders]).values()) == suffixes


def test_a_folder_that_is_named_twice_is_refused():
    with pytest.raises(ParamsError, match="--models: a folder is named twice; name each once"):
        suffixes_of([Path("a/models"), Path("a/../a/models")])


def test_the_rows_have_value_and_error_of_each_metric():
    metrics = {"acc": {"value": 0.25, "stderr": 0.0433}, "bits_per_byte": {"value": 1.5, "stderr": None}}

    rows = rows_of({"stories": {"metrics": metrics}})

    assert rows == [["stories", "acc", "0.2500", "0.0433"], ["stories", "bits_per_byte", "1.5000", ""]]


def test_a_metric_has_its_own_standard_error():
    entry = {"alias": "x", "acc,none": 0.5, "acc_stderr,none": 0.1, "acc,strict": 0.25, "acc_stderr,strict": "N/A"}

    assert read_metrics(entry) == {
        "acc": {"value": 0.5, "stderr": 0.1},
        "acc (strict)": {"value": 0.25, "stderr": None},
    }
