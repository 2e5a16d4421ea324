"""`python src lm_eval`: lm-eval's figures of an exported model are those of lm.model for the same text."""

import json
import math
import random
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from extras.lm_eval.lm_eval import main, read_metrics, rows_of, suffixes_of
from lm.core.errors import DataError, ParamsError
from lm.core.files import read_json
from lm.model.score import score_tokens, window_losses
from support import tokenizer_cases
from support.model_cases import build, write_bpe, write_gemma_like, write_trained
from tools.common.models import load_run, write_model

README = Path(__file__).parent.parent / "README.md"
SEQ_LEN = 32  # of write_trained
WORDS = ["the", "dog", "saw a", "cat", "and", "é", "ran home;", "then,", "one day", "they", "sat", "by", "31", "trees"]


def story(seed: int) -> str:
    """Return a text that grows with its seed, from 20 words on."""
    words = random.Random(seed).choices(WORDS, k=20 + seed)
    return " ".join(words) + ".\n"


STORIES = [story(seed) for seed in range(40)]
ODD = [
    "<|endoftext|> is text here",
    "x",
    "one " * 300,
    "  spaces  first and last  ",
    "é漢字\u2028\n" * 9,
]
TEXTS = [*STORIES, *ODD]


def call(*arguments) -> int:
    return main([str(argument) for argument in arguments])


def write_tasks(folder: Path, texts: list[str]) -> list[dict]:
    """Write the two tasks that README.md shows, with data of these texts; return the questions about endings."""
    questions = questions_about([text for text in texts if text.count(" ") >= 20])
    folder.mkdir()
    blocks = re.findall(r"```yaml tested\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    for number, block in enumerate(blocks):
        (folder / f"{number}.yaml").write_text(block, encoding="utf-8")
    write_lines(folder / "documents.jsonl", [{"text": text} for text in texts])
    write_lines(folder / "endings.jsonl", questions)
    return questions


def questions_about(texts: list[str]) -> list[dict]:
    """Return a question about each text: which of four endings, its own and those of three others, goes on with it."""
    words_of_texts = [text.split(" ") for text in texts]
    beginnings = [" ".join(words[:10]) for words in words_of_texts]
    endings = [" " + " ".join(words[10:13]) for words in words_of_texts]
    questions = []
    for number, beginning in enumerate(beginnings):
        choices = [endings[(number + place) % len(endings)] for place in range(4)]  # the right one first
        label = number % 4
        choices[0], choices[label] = choices[label], choices[0]
        questions.append({"beginning": beginning, "endings": choices, "label": label})
    return questions


def write_lines(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def load_gpt2(folder: Path):
    from lm.tokenizer.load import load_tokenizer

    folder.mkdir()
    return load_tokenizer(tokenizer_cases.write_gpt2(folder))


TOKENIZERS = {
    "bpe": write_bpe,
    "gpt2": load_gpt2,
    "gemma_like": lambda folder: write_gemma_like(folder, folder.parent / "hf"),
}


def write_export(folder: Path, tokenizer) -> tuple[torch.nn.Module, dict]:
    """Write a trained model and its export into a folder that has the tokenizer; return the model and its record."""
    record = write_trained(folder / "models", build(tokenizer.vocab_size), tokenizer)
    model, *rest = load_run(folder / "models", folder / "tokenizer")
    (folder / "export").mkdir()
    write_model(folder / "export", model, *rest)
    return model, record


@pytest.fixture(scope="module", params=TOKENIZERS)
def run(request, tmp_path_factory) -> SimpleNamespace:
    """Make a trained model with one of the tokenizers, its export, and tasks of texts of one and of several windows."""
    folder = tmp_path_factory.mktemp(request.param)
    tokenizer = TOKENIZERS[request.param](folder / "tokenizer")
    model, record = write_export(folder, tokenizer)
    questions = write_tasks(folder / "tasks", TEXTS)
    return SimpleNamespace(
        folder=folder,
        model=model,
        tokenizer=tokenizer,
        record=record,
        questions=questions,
    )


with_bpe_alone = pytest.mark.parametrize("run", ["bpe"], indirect=True)


def evaluate(run, *options) -> dict:
    """Run the tool on the export and return the figures."""
    export = run.folder / "export"
    tasks = run.folder / "tasks"
    output = run.folder / "figures.json"
    assert call("--export", export, "--task_folder", tasks, "--output", output, *options) == 0
    return read_json(output)


@pytest.fixture(scope="module")
def tasks(run) -> dict:
    """The tasks in the figures of all texts."""
    return evaluate(run)["tasks"]


def nats_of(run, text: str) -> np.ndarray:
    """Return the losses of one document in non-overlapping windows."""
    ids = run.tokenizer.encode(text)
    tokens = SimpleNamespace(ids=np.array(ids), eot_id=run.tokenizer.eot_id)
    losses, _ = score_tokens(run.model, tokens, SEQ_LEN, SEQ_LEN, 4, torch.float32)
    return losses


def test_bits_per_byte_are_ours_within_1e_4_nats_per_token(run, tasks):
    losses = [nats_of(run, text) for text in TEXTS]
    lengths = [len(each) for each in losses]
    assert min(lengths) < SEQ_LEN
    assert max(lengths) > 3 * SEQ_LEN

    metrics = tasks["stories_perplexity"]["metrics"]

    num_bytes = sum(len(text.encode()) for text in TEXTS)
    nats = metrics["bits_per_byte"]["value"] * math.log(2) * num_bytes
    expected_nats = np.concatenate(losses).sum(dtype=np.float64)
    assert abs(nats - expected_nats) / sum(lengths) < 1e-4


def test_the_right_ending_is_chosen_by_our_own_losses(run, tasks):
    metrics = tasks["stories_endings"]["metrics"]

    is_right = [choose_ending(run, question) == question["label"] for question in run.questions]
    assert len(is_right) > 30
    assert metrics["acc"]["value"] == pytest.approx(np.mean(is_right))


def choose_ending(run, question: dict) -> int:
    """Return the ending with the lowest loss."""
    losses = []
    for ending in question["endings"]:
        losses.append(nats_of_ending(run, question["beginning"], ending))
    return int(np.argmin(losses))


def nats_of_ending(run, beginning: str, ending: str) -> float:
    """Return the loss of an ending, all in the last window of the text."""
    ids = np.array(run.tokenizer.encode(beginning + ending))
    num_ending = len(ids) - len(run.tokenizer.encode(beginning))
    window_tokens = min(SEQ_LEN, len(ids))
    tokens = SimpleNamespace(ids=ids, eot_id=run.tokenizer.eot_id)
    start = np.array([len(ids) - window_tokens])
    losses = window_losses(run.model, tokens, start, window_tokens, torch.float32)
    return losses[0, -num_ending:].sum().item()


def request(*arguments: str) -> SimpleNamespace:
    """Return a request of lm-eval to the model."""
    return SimpleNamespace(args=arguments)


@pytest.fixture
def recorded(run):
    """The exported model as lm-eval calls it, and the list of the token ids of each of its inputs."""
    from extras.lm_eval.harness import ExportedModel

    model = ExportedModel(run.folder / "export", SEQ_LEN)
    inputs = []

    def record_inputs(requests, *_, **__):
        for _, context, continuation in requests:
            inputs.append([*context, *continuation])
        return [(0.0, True)] * len(requests)

    model._loglikelihood_tokens = record_inputs
    return model, inputs


def check_ends_of_text(run, inputs: list[list[int]], num_texts: int) -> None:
    """Check that as many inputs as there are texts begin with end-of-text, and that it is nowhere else."""
    eot_id = run.tokenizer.eot_id
    with_end = [ids for ids in inputs if eot_id in ids]
    assert len(with_end) == num_texts
    for ids in with_end:
        assert ids[0] == eot_id
        assert eot_id not in ids[1:]


def test_every_text_begins_with_one_end_of_text_and_windows_are_as_long_as_in_training(run, recorded):
    model, inputs = recorded

    model.loglikelihood_rolling([request(text) for text in TEXTS])

    check_ends_of_text(run, inputs, len(TEXTS))
    assert max(len(ids) for ids in inputs) == SEQ_LEN + 1


def test_every_beginning_of_a_continuation_begins_with_one_end_of_text(run, recorded):
    model, inputs = recorded

    model.loglikelihood([request(text[:-3], text[-3:]) for text in TEXTS])

    check_ends_of_text(run, inputs, len(TEXTS))


@with_bpe_alone
def test_a_continuation_longer_than_a_window_is_refused(run):
    from extras.lm_eval.harness import ExportedModel

    model = ExportedModel(run.folder / "export", SEQ_LEN)
    ending = " dog" * 3 * SEQ_LEN

    with pytest.raises(DataError, match="tokens, the windows of this model have 32; choose a task with shorter ones"):
        model.loglikelihood([request("the", ending)])


@with_bpe_alone
def test_the_figures_of_a_limit_repeat_and_name_documents_versions_hashes_and_model(run, tasks, capfd):
    first = evaluate(run, "--limit", 9)
    printed = capfd.readouterr()
    again = evaluate(run, "--limit", 9)

    assert again == first
    assert {"lm_eval", "torch", "transformers"} <= first["versions"].keys()
    assert first["model"]["weights_sha256"] == run.record["best"]["sha256"]
    assert first["model"]["seq_len"] == SEQ_LEN
    limited = first["tasks"]["stories_endings"]
    assert limited["documents"] == 9
    assert limited["metrics"]["acc"]["stderr"] > 0
    assert limited["hash"] != tasks["stories_endings"]["hash"]
    assert re.search(r"warning: \d+ of \d+ requests are longer than the window of 32 tokens", printed.err)
    for metric in ("word_perplexity", "byte_perplexity", "bits_per_byte", "acc", "acc_norm"):
        assert f" {metric} |" in printed.out


def test_the_results_of_each_folder_have_a_name_of_their_own():
    models = Path("a/models")

    assert suffixes_of([models]) == {models: ""}
    assert list(suffixes_of([Path("a/one"), Path("b/two")]).values()) == ["-one", "-two"]
    for other in ("a/../a/models", "b/models"):
        with pytest.raises(ParamsError, match="--models"):
            suffixes_of([models, Path(other)])


def test_the_rows_have_value_and_error_of_each_metric():
    metrics = {
        "acc": {"value": 0.25, "stderr": 0.0433},
        "bits_per_byte": {"value": 1.5, "stderr": None},
    }

    rows = rows_of({"stories": {"metrics": metrics}})

    assert rows == [
        ["stories", "acc", "0.2500", "0.0433"],
        ["stories", "bits_per_byte", "1.5000", ""],
    ]


def test_a_metric_has_its_own_standard_error():
    entry = {
        "alias": "x",
        "acc,none": 0.5,
        "acc_stderr,none": 0.1,
        "acc,strict": 0.25,
        "acc_stderr,strict": "N/A",
    }

    assert read_metrics(entry) == {
        "acc": {"value": 0.5, "stderr": 0.1},
        "acc (strict)": {"value": 0.25, "stderr": None},
    }
