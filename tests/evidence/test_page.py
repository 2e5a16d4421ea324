"""The code of docs/evidence.md runs as it stands there, and writes tables with the losses of the models."""

import math
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import evidence
from evidence.command import main
from evidence.runs import BITS_PER_BYTE
from support import ROOT

PAGE = (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")
DOCUMENTS = ["", "a", "é" * 20, *(f"{'story ' * i}{i}." for i in range(1, 20))]
CONTEXT = 8  # tokens
END = 256  # the id of end-of-text, after those of the bytes


def code_below(heading: str) -> str:
    """Return the only Python block of a section."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    (block,) = re.findall(r"```python tested\n(.*?)```", section, re.S)
    return block


def encode(text: str, **options) -> list[int]:
    """A tokenizer of bytes."""
    return list(text.encode())


def sum_of_nats(logits_of, text: str, num_inputs: int) -> float:
    """Return the loss of a text after end-of-text, in windows of so many inputs that do not overlap."""
    ids = torch.tensor([END, *encode(text)])
    nats = 0.0
    for position in range(1, len(ids)):
        start = (position - 1) // num_inputs * num_inputs
        logits = logits_of(ids[start:position])[-1]
        nats += F.cross_entropy(logits, ids[position]).item()
    return nats


class LikeNanoGPT(nn.Module):
    """Logits that depend on all tokens of the window so far, and the mean loss, as nanoGPT's GPT returns them."""

    def __init__(self, seed: int):
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(END + 1, 16)
        self.head = nn.Linear(16, END + 1)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        assert idx.shape[1] <= CONTEXT
        logits = self.head(self.embed(idx).cumsum(1))
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1), ignore_index=-1)
        return logits, loss


def check_losses(runs: list, logits_of: dict[tuple[str, int], object], num_inputs: int) -> None:
    """Check the runs of a table against the models that it is of."""
    assert [(run.label, run.seed) for run in runs] == list(logits_of)
    for run, model in zip(runs, logits_of.values(), strict=True):
        assert run.measure == BITS_PER_BYTE
        assert run.sizes.tolist() == [len(text.encode()) for text in DOCUMENTS]
        expected = [sum_of_nats(model, text, num_inputs) for text in DOCUMENTS]
        assert run.values * math.log(2) == pytest.approx(expected, rel=1e-5)


def test_the_lines_for_nanogpt_write_the_losses_which_the_commands_of_the_page_compare(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = code_below("nanoGPT")
    logits_of = {}
    for name in ("base", "wider"):
        for seed in (1, 2, 3):
            model = LikeNanoGPT(seed + 10 * (name == "wider"))
            logits_of[name, seed] = lambda ids, model=model: model(ids[None])[0][0]
            given = {"torch": torch, "model": model, "documents": DOCUMENTS, "encode": encode, "end": END}
            exec(code, given | {"block_size": CONTEXT, "device": "cpu", "name": name, "seed": seed})

    check_losses(evidence.read([tmp_path / "losses.csv"]), logits_of, num_inputs=CONTEXT)
    lines = Path("losses.csv").read_text().splitlines(keepends=True)
    Path("base.csv").write_text("".join(line for line in lines if not line.startswith("wider")))
    commands = re.findall(r"^evidence (?!judge)(.*?) *#", PAGE, re.M)
    statuses = [main(shlex.split(command)) for command in commands]

    exec(code_below("From Python"), {})

    assert len(commands) == 3
    assert statuses == [0, 0, 0]
    said = capsys.readouterr().out
    assert said.splitlines()[-1].startswith("wider ")
    for expected in ("over 3 pairs of equal seeds", "within ±0.005 bits per byte over seeds", "deviation over 3 seeds"):
        assert expected in said


@pytest.mark.slow
def test_the_lines_for_a_trainer_write_the_losses_of_a_model_of_transformers(tmp_path, monkeypatch):
    from transformers import GPT2Config, GPT2LMHeadModel

    monkeypatch.chdir(tmp_path)
    config = GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=END + 1, n_positions=CONTEXT)
    tokenizer = SimpleNamespace(encode=encode, eos_token_id=END)
    logits_of = {}
    for seed in (1, 2):
        torch.manual_seed(seed)
        model = GPT2LMHeadModel(config)
        logits_of["gpt2", seed] = lambda ids, model=model: model(ids[None]).logits[0]
        trainer = SimpleNamespace(model=model, args=SimpleNamespace(seed=seed))
        given = {"torch": torch, "trainer": trainer, "documents": DOCUMENTS, "tokenizer": tokenizer}
        exec(code_below("Hugging Face Trainer"), given | {"length": config.max_position_embeddings, "name": "gpt2"})

    with torch.no_grad():
        check_losses(evidence.read([tmp_path / "losses.csv"]), logits_of, num_inputs=CONTEXT - 1)
