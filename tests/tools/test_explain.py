"""explain: prints the decoded batch of a step, its positions and its documents."""

import itertools
import re
from types import SimpleNamespace

import numpy as np
import pytest

from lm.tokenizer.build import train_ranks, write_byte_level
from lm.tokenizer.load import load_tokenizer
from lm.tokens.tokenfile import open_tokens, write_tokens
from lm.tokens.windows import TokenWindows
from support import ROOT
from support.tokenizer_cases import fuzzed_texts
from support.workspace import Workspace
from tools.explain import main

SEQ_LEN, BATCH_SIZE, STEPS, SEED = 24, 7, 12, 3


def as_letters(text: str) -> str:
    """The text on lines of printable ASCII, so that what is printed can be read back exactly."""
    return re.sub(r"[^ -~\n]", "x", text)


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> SimpleNamespace:
    """A folder with params.yaml, a tokenizer and train.bin, and nothing else; about three epochs of steps."""
    folder = tmp_path_factory.mktemp("explain")
    texts = [as_letters(text)[:60] + f" end of {i}" for i, text in enumerate(fuzzed_texts(40, seed=3))]
    (folder / "data" / "tokenizer").mkdir(parents=True)
    write_byte_level(folder / "data" / "tokenizer", train_ranks([texts], 300), "bpe")
    tokenizer = load_tokenizer(folder / "data" / "tokenizer")
    ids, lengths = tokenizer.encode_documents(texts)
    origin = {"sha256": tokenizer.sha256, "vocab_size": tokenizer.vocab_size, "eot_id": tokenizer.eot_id}
    write_tokens(folder / "data/processed_datasets/train.bin", [ids], "uint16", lambda: {"tokenizer": origin})
    writer = SimpleNamespace(folder=folder)
    (folder / "params.yaml").write_text((ROOT / "params.yaml").read_text())
    batch_tokens = SEQ_LEN * BATCH_SIZE
    Workspace.change(writer, **{
        "train.seq_len": SEQ_LEN, "train.batch_tokens": batch_tokens, "train.micro_batch_tokens": batch_tokens,
        "train.max_tokens": batch_tokens * STEPS, "train.warmup_steps": 0, "train.seed": SEED,
    })  # fmt: skip
    tokens = open_tokens(folder / "data/processed_datasets/train.bin")
    windows = TokenWindows(tokens.ids, SEQ_LEN, BATCH_SIZE, SEED)
    return SimpleNamespace(folder=folder, texts=texts, tokenizer=tokenizer, lengths=lengths, windows=windows)


@pytest.fixture
def explain(project, monkeypatch, capsys):
    """The command: (exit status, standard output, standard error)."""
    monkeypatch.chdir(project.folder)

    def run_it(*arguments):
        return main([str(argument) for argument in arguments]), *capsys.readouterr()

    return run_it


def rows_of(output: str) -> list[str]:
    """What is printed of each row."""
    return re.split(r"^(?=row \d+,)", output, flags=re.M)[1:]


def text_of(row: str) -> str:
    """The window's text, lines joined again."""
    return "\n".join(re.findall(r"^  \| (.*)$", row, re.M))


def test_rows_match_the_stream(project, explain):
    owner = np.repeat(np.arange(len(project.texts)), project.lengths)
    place = np.concatenate([np.arange(length) for length in project.lengths])
    begins_after, epochs = 0, []
    for step in range(STEPS):
        batch = project.windows.starts(step), *project.windows.batch(step)
        rows = zip(rows_of(explain("--step", step)[1]), *batch, strict=True)
        for row, start, x, y in rows:
            assert text_of(row) == project.tokenizer.decode(x)
            assert f"last target: {project.tokenizer.decode(y[-1:])!r}" in row
            epochs.append(int(re.match(r"row \d+, epoch (\d+),", row)[1]))
            assert f"tokens {start:,} to {start + SEQ_LEN - 1:,} of {len(owner):,}" in row
            inside = slice(start, start + SEQ_LEN)
            expected = {
                (d, place[inside][owner[inside] == d].min(), place[inside][owner[inside] == d].max())
                for d in owner[inside]
            }
            found = re.findall(r"^  document (\d+), its tokens (\d+) to (-?\d+) of (\d+): (.*)$", row, re.M)
            assert {tuple(map(int, line[:3])) for line in found} == expected and len(found) == len(expected)
            for document, _, _, length, begins in found:
                assert int(length) == project.lengths[int(document)]
                folded = " ".join(project.texts[int(document)].split()).replace("`", "'")
                assert folded.startswith(begins.rstrip("…")) and (begins or not folded)
            begins_after += start + SEQ_LEN < len(place) and place[start + SEQ_LEN] == 0
    assert begins_after  # a document that begins right after a window is not listed
    passes = [[epoch] * project.windows.windows_per_epoch(epoch) for epoch in range(9)]
    assert epochs == list(itertools.chain(*passes))[: len(epochs)] and epochs[-1] > 0


def test_a_step_or_row_outside_the_run_is_refused(explain):
    for arguments, named in (
        (("--step", STEPS), f"--step is {STEPS}, needed: from 0 to {STEPS - 1}"),
        (("--step", 0, "--row", BATCH_SIZE), f"--row is {BATCH_SIZE}, needed: from 0 to {BATCH_SIZE - 1}"),
        (("--step", 0, "--chars", 0), "--chars is 0"),
    ):
        status, output, error = explain(*arguments)
        assert (status, output) == (2, "") and named in error


def test_tokens_of_another_tokenizer_are_refused(project, explain, tmp_path):
    write_byte_level(tmp_path, train_ranks([["other text"]], 260), "bpe")
    status, _, error = explain("--step", 0, "--tokenizer", tmp_path)
    assert status == 4 and "made with tokenizer" in error
