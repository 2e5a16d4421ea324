"""lm-eval's figures of an exported model are those of lm.model for the same text."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml

from extras.lm_eval.lm_eval import main
from lm.core.errors import UserError
from lm.model.score import score_tokens, window_losses
from support.model_cases import build, write_bpe, write_trained
from support.refusal import refused
from support.texts import sentences
from tools.export_hf.hugging_face import load_run, write_model

SEQ_LEN = 32  # of write_trained
STORIES = sentences(30)
ODD = [
    "<|endoftext|> is text here",
    "x",
    "one " * 300,
    "  spaces  first and last  ",
    "é漢字\u2028\n" * 9,
]
TEXTS = [*STORIES, *ODD]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> SimpleNamespace:
    """A trained model, and its export as lm-eval opens it."""
    from extras.lm_eval.harness import ExportedModel

    folder = tmp_path_factory.mktemp("run")
    tokenizer = write_bpe(folder / "tokenizer")
    write_trained(folder / "models", build(tokenizer.vocab_size), tokenizer)
    model, *rest = load_run(folder / "models", folder / "tokenizer")
    export = folder / "export"
    export.mkdir()
    write_model(export, model, *rest)
    exported = ExportedModel(str(export), device="cpu", batch_size=8)
    return SimpleNamespace(export=export, exported=exported, model=model, tokenizer=tokenizer)


def request(*arguments: str) -> SimpleNamespace:
    """Return a request of lm-eval to the model."""
    return SimpleNamespace(args=arguments)


def nats_of(run, text: str) -> np.ndarray:
    """Return the losses of one document in non-overlapping windows."""
    ids = run.tokenizer.encode(text)
    tokens = SimpleNamespace(ids=np.array(ids), eot_id=run.tokenizer.eot_id)
    losses, _ = score_tokens(run.model, tokens, SEQ_LEN, SEQ_LEN, 4, torch.float32)
    return losses


def test_whole_texts_have_our_losses_within_1e_4_nats_per_token(run):
    """Texts of less than a window, of several, and of windows that repeat."""
    expected = [nats_of(run, text) for text in TEXTS]

    found = run.exported.loglikelihood_rolling([request(text) for text in TEXTS], disable_tqdm=True)

    for each, losses in zip(found, expected, strict=True):
        assert -each / len(losses) == pytest.approx(losses.mean(dtype=np.float64), abs=1e-4)


@pytest.mark.parametrize("num_words", [2, 30])
def test_an_ending_has_our_loss_in_the_last_window_of_its_text(run, num_words):
    """With and without the end-of-text before the text in its window."""
    for text in [*STORIES, ODD[0]]:
        words = text.split(" ")
        beginning = " ".join(words[:num_words])
        ending = " " + " ".join(words[num_words : num_words + 3])
        ids = np.array(run.tokenizer.encode(beginning + ending))
        num_ending = len(ids) - len(run.tokenizer.encode(beginning))
        window_tokens = min(SEQ_LEN, len(ids))
        tokens = SimpleNamespace(ids=ids, eot_id=run.tokenizer.eot_id)
        start = np.array([len(ids) - window_tokens])
        losses = window_losses(run.model, tokens, start, window_tokens, torch.float32)

        ((nats, _),) = run.exported.loglikelihood([request(beginning, ending)], disable_tqdm=True)

        assert -nats == pytest.approx(losses[0, -num_ending:].sum().item(), abs=1e-3)


TASK = {
    "task": "stories",
    "dataset_path": "json",
    "test_split": "test",
    "output_type": "loglikelihood_rolling",
    "doc_to_text": "",
    "doc_to_target": "text",
    "metric_list": [{"metric": "bits_per_byte", "aggregation": "bits_per_byte", "higher_is_better": False}],
}


@pytest.mark.slow  # imports lm-eval's tasks
def test_the_command_runs_a_task_of_a_folder_with_the_arguments_of_lm_eval(run, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", [])
    documents = tmp_path / "documents.jsonl"
    documents.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    task = TASK | {"dataset_kwargs": {"data_files": {"test": str(documents)}}}
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks/stories.yaml").write_text(yaml.safe_dump(task))
    options = ["--include_path", str(tmp_path / "tasks"), "--output_path", str(tmp_path / "results")]

    assert main([str(run.export), "--tasks", "stories", "--limit", "9", *options]) == 0

    (path,) = (tmp_path / "results").glob("*/results_*.json")
    results = json.loads(path.read_text())["results"]
    num_bytes = sum(len(text.encode()) for text in TEXTS[:9])
    nats = sum(nats_of(run, text).sum(dtype=np.float64) for text in TEXTS[:9])
    assert results["stories"]["bits_per_byte,none"] == pytest.approx(nats / math.log(2) / num_bytes, rel=1e-4)


def test_a_folder_that_is_not_an_export_is_refused(tmp_path, capsys):
    from extras.lm_eval.harness import ExportedModel

    with pytest.raises(UserError, match=r"model.json: .*name a folder that `python src export_hf` wrote"):
        ExportedModel(str(tmp_path))

    refused(main([str(tmp_path / "none")]), capsys.readouterr().err, 2, "none: is not a folder", "export_hf")
