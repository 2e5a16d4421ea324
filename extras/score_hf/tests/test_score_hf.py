"""`python src score_hf`: the losses of an export are those of eval, those of any model what transformers says."""

import csv
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import tokenizers
import torch
import torch.nn.functional as F

from extras.score_hf.score_hf import encode_with_transformers, main
from lm.text.documents import open_text
from lm.text.slices import read_slice
from support.refusal import refused
from support.workspace import Workspace
from tools.compare import cli as compare
from tools.export_hf import cli as export_hf

pytestmark = pytest.mark.slow  # importing transformers takes longer than all the rest

CONTEXT = 24
TABLE = Path("comparisons/losses.csv")


@pytest.fixture
def committed(finished, tmp_path, monkeypatch) -> None:
    """The small project after its run, all of it committed, as the working directory."""
    workspace = Workspace(tmp_path / "committed", finished)
    workspace.commit()
    monkeypatch.chdir(workspace.folder)


def rows_of(path: Path) -> dict[str, list[tuple[float, int]]]:
    """Return run → (nats, bytes) of each document."""
    runs: dict[str, list[tuple[float, int]]] = {}
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            documents = runs.setdefault(row["run"], [])
            assert row["document"] == str(len(documents))
            documents.append((float(row["nats"]), int(row["utf8_bytes"])))
    return runs


def texts() -> list[str]:
    """Return the documents of the validation text."""
    return [text for batch in open_text(Path("data/raw"), read_slice("validation")).batches() for text in batch]


def write_tokenizer(folder: Path, **special: str) -> None:
    """Write a tokenizer of bytes, whose last entry is <|endoftext|>."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["<|endoftext|>"])
    folder.mkdir(exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    content = {"tokenizer_class": "PreTrainedTokenizerFast", **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(content))


@pytest.fixture
def gpt2(committed):
    """A small GPT-2 with random weights in the folder `gpt2` of the working directory."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=257, n_positions=CONTEXT))
    model.save_pretrained("gpt2")
    write_tokenizer(Path("gpt2"), eos_token="<|endoftext|>")
    return model.eval()


def test_the_losses_of_an_export_are_those_of_eval(committed, capsys):
    assert export_hf.main(["exported"]) == 0

    assert main(["exported"]) == 0

    losses = pq.read_table("data/evaluation/document_losses.parquet")
    (documents,) = rows_of(TABLE).values()
    assert [nats for nats, _ in documents] == pytest.approx(losses["nats"].to_pylist(), rel=0, abs=1e-4)
    assert [size for _, size in documents] == losses["utf8_bytes"].to_pylist()
    capsys.readouterr()
    assert compare.main(["workspace", str(TABLE), "--within", "1e-6"]) == 0
    assert "equivalent" in capsys.readouterr().out


@torch.no_grad()
def test_each_token_of_another_model_is_scored_once_in_windows_that_move(gpt2):
    """In windows of 20 tokens that move by half: a token has the ten before it, or all that there are."""
    assert main(["gpt2", "--seq_len", "20"]) == 0

    # The stream begins with end-of-text as context.
    ids, lengths, eot_id = encode_with_transformers(Path("gpt2"), texts())
    padded = torch.tensor([eot_id, *ids])
    ends = np.cumsum(lengths)
    begins = ends - lengths
    (documents,) = rows_of(TABLE).values()
    num_windows = math.ceil((len(ids) - 20) / 10)
    for document in (0, 3, len(lengths) - 1):
        nats = 0.0
        for position in range(begins[document], ends[document]):
            window = max(0, math.ceil((position - 19) / 10))
            start = min(10 * window, len(ids) - 20)
            logits = gpt2(padded[None, start : position + 1]).logits[0, -1]
            nats += F.cross_entropy(logits, padded[position + 1]).item()
        assert documents[document][0] == pytest.approx(nats, rel=1e-5)
    assert window == num_windows


def test_special_strings_in_a_text_are_ordinary_and_end_of_text_ends_each_document(gpt2):
    ids, lengths, eot_id = encode_with_transformers(Path("gpt2"), ["<|endoftext|>", "é"])

    assert lengths.tolist() == [14, 3]
    assert np.flatnonzero(ids == eot_id).tolist() == [13, 16]


def write_bidirectional(folder: Path) -> None:
    """Write a model that sees later tokens, which transformers calls causal."""
    from transformers import BertConfig, BertLMHeadModel

    torch.manual_seed(1)
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 16}
    BertLMHeadModel(BertConfig(vocab_size=257, initializer_range=1.0, **sizes)).save_pretrained(folder)
    write_tokenizer(folder, eos_token="<|endoftext|>")


def test_what_cannot_be_scored_is_refused(gpt2, capsys):
    write_bidirectional(Path("bert"))
    write_tokenizer(Path("no_end"))
    gpt2.save_pretrained("no_end")
    Path("empty").mkdir()
    shutil.copytree("gpt2", "shorter")
    Path("shorter/model.json").write_text(json.dumps({"seq_len": 20}))
    cases = [
        (["missing"], 2, "missing is not a folder"),
        (["gpt2", "--out", "x.txt"], 2, "--out is x.txt"),
        (["gpt2", "--seq_len", "25"], 2, "--seq_len is 25; it must be from 1 to 24"),
        # A longer context lowers the loss; the table does not tell the contexts.
        (["gpt2", "shorter"], 2, "gpt2 24, shorter 20"),
        (["empty"], 3, "empty: not a causal model of transformers"),
        (["no_end"], 3, "no_end: its tokenizer has no eos_token"),
        (["bert"], 3, "bert: a prediction depends on later tokens"),
    ]
    capsys.readouterr()

    for arguments, code, said in cases:
        status = main(arguments)

        refused(status, capsys.readouterr().err, code, said)
    assert not TABLE.exists()
