"""explain prints the decoded batch of a step, its positions and its documents; trace finds the steps of a text."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from extras.trace import explain, trace
from lm.core.files import read_json, write_json
from lm.tokenizer.build import write_trained_bpe
from lm.tokenizer.load import load_tokenizer
from lm.tokens.tokenfile import open_tokens, write_tokens
from lm.tokens.windows import TokenWindows
from support.refusal import refused
from support.stages import change_params, stage_folder
from support.texts import sentences

SEQ_LEN = 24
BATCH_SIZE = 7
STEPS = 12  # about two epochs
SEED = 3
BATCH_TOKENS = SEQ_LEN * BATCH_SIZE
MODEL = "data/models/model.json"
FREQUENT = " end of"  # in each of the 40 documents


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> SimpleNamespace:
    """A folder with parameters, a tokenizer, train.bin and the record of a model, and nothing else."""
    folder = stage_folder(tmp_path_factory.mktemp("explain"))
    train_params = {
        "train.seq_len": SEQ_LEN,
        "train.batch_tokens": BATCH_TOKENS,
        "train.micro_batch_tokens": BATCH_TOKENS,
        "train.max_tokens": BATCH_TOKENS * STEPS,
        "train.warmup_steps": 0,
        "train.seed": SEED,
    }
    change_params(folder, train_params)

    # Forty documents, each with the same end.
    texts = [text[: 9 + 7 * (i % 9)] + f" end of {i}" for i, text in enumerate(sentences(40))]
    (folder / "data" / "tokenizer").mkdir()
    write_trained_bpe(folder / "data" / "tokenizer", [texts], 300)
    tokenizer = load_tokenizer(folder / "data" / "tokenizer")
    ids, lengths = tokenizer.encode_documents(texts)
    train = folder / "data" / "processed_datasets" / "train.bin"
    write_tokens(train, [ids], "uint16", lambda: {"tokenizer": tokenizer.sidecar_entry()})

    tokens = open_tokens(train)
    record = {
        "seed": SEED,
        "seq_len": SEQ_LEN,
        "init_sha256": None,
        "data_sha256": {"train": tokens.meta["sha256"]},
        "best": {"step": STEPS, "sha256": "1234"},
        "last": {"step": STEPS, "tokens_seen": STEPS * BATCH_TOKENS},
    }
    (folder / "data" / "models").mkdir()
    write_json(folder / MODEL, record)
    return SimpleNamespace(
        folder=folder,
        tokens=tokens,
        lengths=lengths,
        windows=TokenWindows(tokens.ids, SEQ_LEN, BATCH_SIZE, SEED),
    )


@pytest.fixture
def run(project, monkeypatch, capsys):
    """Return the function that runs a tool in the project and returns what it prints."""
    monkeypatch.chdir(project.folder)

    def run(tool, *arguments) -> str:
        status = tool.main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert status == 0, captured.err
        return captured.out

    return run


@pytest.fixture
def change_record(project):
    """Return a function that changes the record of the model until the end of the test."""
    path = project.folder / MODEL
    before = path.read_bytes()
    yield lambda **values: write_json(path, read_json(path) | values)
    path.write_bytes(before)


def write_sample(ids) -> None:
    """Write a sample of the model into the working directory."""
    write_json("data/evaluation/details.json", {"weights_sha256": "12"})
    write_json("data/evaluation/samples.json", {"samples": [{"ids": [int(i) for i in ids]}]})


def test_what_is_printed(project, run):
    """If a change of the page is meant, write what is printed into printed.txt, and read the difference."""
    stream = project.tokens.ids
    contained = stream[2:9]  # in the span before it
    third = project.tokens.spans[3][0]
    write_sample([*stream[:12], stream[0] + 1, *contained, *stream[third : third + 30]])

    printed = run(explain, "--step", 6) + run(trace, "--sample", 1, "--spans", 9, "--places", 2)
    printed += run(trace, f"slowly. Behind ca{FREQUENT} 9q", "--min_tokens", 3)
    # A window of the first five steps ends with the first token of a fourth place.
    printed += run(trace, " and", "--min_tokens", 2, "--places", 1, "--steps", 5)

    assert printed == (Path(__file__).parent / "printed.txt").read_text()


def test_the_step_is_that_of_the_model_although_parameters_were_edited(project, run):
    params = project.folder / "params.yaml"
    before = params.read_bytes()
    expected = run(explain, "--step", 1)
    change_params(project.folder, {"train.seed": SEED + 1, "train.max_tokens": BATCH_TOKENS})

    edited = run(explain, "--step", 1)

    params.write_bytes(before)
    assert edited == expected
    Path(MODEL).rename("kept.json")
    without_a_model = run(explain, "--step", 1)
    Path("kept.json").rename(MODEL)
    assert without_a_model == expected.replace(MODEL, "params.yaml")


def rows_that_learn(project, begin: int, end: int, num_steps: int) -> set[tuple[int, int]]:
    """Return (step, row) of the windows that learn one of the tokens begin … end - 1 from another, window by window."""
    found = set()
    for step in range(num_steps):
        for row, start in enumerate(project.windows.starts(step)):
            first = max(start, begin)
            after_last_target = min(start + SEQ_LEN + 1, end)
            if after_last_target - first >= 2:
                found.add((step, row))
    return found


@pytest.mark.parametrize("num_tokens", [9, SEQ_LEN + 6], ids=["short", "longer than a window"])
def test_a_copy_is_found_with_its_document_its_place_and_the_steps_that_read_it(project, run, num_tokens):
    for document in np.flatnonzero(project.lengths > num_tokens + 1)[:4]:
        begin = int(project.tokens.spans[document][0])
        write_sample(project.tokens.ids[begin : begin + num_tokens])

        output = run(trace, "--sample", 1, "--steps", STEPS - 1, "--places", 9)

        longest = output.split("\n2. ")[0]
        assert f"document {document}, its tokens 0 to {num_tokens - 1} of {project.lengths[document]}: " in longest
        read = {(int(step), int(row)) for step, row in re.findall(r"step (\d+) row (\d+)", longest)}
        assert read == rows_that_learn(project, begin, begin + num_tokens, STEPS - 1)


def test_the_best_weights_have_read_the_windows_up_to_their_step(run, change_record):
    """The run went on after its best validation."""
    change_record(best={"step": 5, "sha256": "1234"})

    output = run(trace, FREQUENT, "--min_tokens", 2)

    assert output == run(trace, FREQUENT, "--min_tokens", 2, "--steps", 5)
    assert output != run(trace, FREQUENT, "--min_tokens", 2, "--steps", STEPS)


OTHER_TOKENS = {"data_sha256": {"train": "9"}}


@pytest.mark.parametrize(
    ("tool", "arguments", "changed", "code", "said"),
    [
        (explain, "--step 12", {}, 2, "--step is 12; it must be from 0 to 11"),
        (explain, "--step 0 --row 7", {}, 2, "--row is 7"),
        (explain, "--step 1", OTHER_TOKENS, 4, "trained with another data/processed_datasets/train.bin"),
        (trace, "a", {}, 2, "1 tokens"),
        (trace, "--sample 1 --steps 13", {}, 2, "--steps is 13"),
        (trace, "--sample 2", {}, 2, "--sample is 2"),
        (trace, "--sample 1", OTHER_TOKENS, 4, "another data/processed_datasets/train.bin"),
        (trace, "--sample 1", {"best": {"step": 1, "sha256": "9"}}, 4, "evaluates other weights"),
        (trace, "--sample 1", {"seed": None}, 4, "seed is None"),
        (trace, "--sample 1", {"best": {"step": 0, "sha256": "1234"}}, 2, "before the first step"),
    ],
)
def test_what_cannot_be_answered_is_refused(
    project, change_record, monkeypatch, capsys, tool, arguments, changed, code, said
):
    monkeypatch.chdir(project.folder)
    write_sample(project.tokens.ids[:9])
    change_record(**changed)

    status = tool.main(arguments.split())

    refused(status, capsys.readouterr().err, code, said)
