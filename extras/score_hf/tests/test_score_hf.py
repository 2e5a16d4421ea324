"""`python src score_hf`: the losses of an export are those of eval, and what cannot be scored is refused."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import tokenizers
import torch

from extras.score_hf.score_hf import encode_with_transformers, main
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
    with open(TABLE, newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["document"] for row in rows] == [str(number) for number in range(losses.num_rows)]
    assert [float(row["nats"]) for row in rows] == pytest.approx(losses["nats"].to_pylist(), rel=0, abs=1e-4)
    assert [int(row["utf8_bytes"]) for row in rows] == losses["utf8_bytes"].to_pylist()
    capsys.readouterr()
    assert compare.main(["workspace", str(TABLE), "--within", "1e-6"]) == 0
    assert "equivalent" in capsys.readouterr().out


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

    for arguments, code, said in cases:
        status = main(arguments)

        refused(status, capsys.readouterr().err, code, said)
    assert not TABLE.exists()
    assert main(["gpt2", "--seq_len", "20"]) == 0
