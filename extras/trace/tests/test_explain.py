"""explain prints the decoded batch of a step, its positions and its documents; trace finds the steps of a text."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from extras.trace import explain as explain_tool
from extras.trace import trace as trace_tool
from extras.trace.documents import describe_documents
from lm.core.files import read_json, write_json
from lm.tokenizer.build import write_trained_bpe
from lm.tokenizer.load import load_tokenizer
from lm.tokens.tokenfile import open_tokens, write_tokens
from lm.tokens.windows import TokenWindows
from support.refusal import refused
from support.stages import change_params, stage_folder
from support.tokenizer_cases import fuzzed_texts

SEQ_LEN = 24
BATCH_SIZE = 7
STEPS = 12  # about three epochs
SEED = 3
BATCH_TOKENS = SEQ_LEN * BATCH_SIZE
MODEL = "data/models/model.json"


def as_letters(text: str) -> str:
    """Return the text on lines of printable ASCII, so that what is printed can be read back exactly."""
    return re.sub(r"[^ -~\n]", "x", text)


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
    texts = [as_letters(text)[:60] + f" end of {i}" for i, text in enumerate(fuzzed_texts(40, seed=3))]
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
        texts=texts,
        tokenizer=tokenizer,
        tokens=tokens,
        lengths=lengths,
        windows=TokenWindows(tokens.ids, SEQ_LEN, BATCH_SIZE, SEED),
    )


@pytest.fixture
def change_record(project):
    """Return a function that changes the record of the model until the end of the test."""
    path = project.folder / MODEL
    before = path.read_bytes()

    def change(**values):
        write_json(path, read_json(path) | values)

    yield change
    path.write_bytes(before)


def run_tool(tool, arguments, capsys) -> str:
    """Return what a tool prints."""
    status = tool.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    assert status == 0, captured.err
    return captured.out


@pytest.fixture
def explain(project, monkeypatch, capsys):
    """Return the function that runs `explain` and returns what it prints."""
    monkeypatch.chdir(project.folder)
    return lambda *arguments: run_tool(explain_tool, arguments, capsys)


@pytest.fixture
def trace(project, monkeypatch, capsys):
    """Return the function that runs `trace` and returns what it prints."""
    monkeypatch.chdir(project.folder)
    return lambda *arguments: run_tool(trace_tool, arguments, capsys)


def write_samples(*samples) -> None:
    """Write the samples of the model into the working directory, each as ids."""
    write_json("data/evaluation/details.json", {"weights_sha256": "12"})
    entries = [{"ids": [int(i) for i in ids]} for ids in samples]
    write_json("data/evaluation/samples.json", {"samples": entries})


# explain


def documents_in(project, start: int) -> list[tuple[int, int, int, int]]:
    """Return (document, first and last of its tokens, its length) of what a window touches, token by token."""
    owner = np.repeat(np.arange(len(project.texts)), project.lengths)
    place = np.concatenate([np.arange(length) for length in project.lengths])
    inside = slice(start, start + SEQ_LEN)
    documents = []
    for document in np.unique(owner[inside]):
        own = place[inside][owner[inside] == document]
        documents.append((document, own.min(), own.max(), project.lengths[document]))
    return documents


def test_rows_have_the_epoch_the_text_and_the_documents_of_their_windows(project, explain):
    for step in range(STEPS):
        rows = re.split(r"^(?=row \d+,)", explain("--step", step), flags=re.M)[1:]

        starts = project.windows.starts(step)
        x, _ = project.windows.batch(step)
        for number, (start, inputs, row) in enumerate(zip(starts, x, rows, strict=True)):
            epoch = project.windows.epoch_of(step * BATCH_SIZE + number)
            assert row.startswith(f"row {number}, epoch {epoch}, ")
            assert "\n".join(re.findall(r"^  \| (.*)$", row, re.M)) == project.tokenizer.decode(inputs)
            lines = re.findall(r"^  document (\d+), its tokens (\d+) to (\d+) of (\d+): ", row, re.M)
            assert [tuple(int(figure) for figure in line) for line in lines] == documents_in(project, start)


def test_a_document_of_a_mixture_is_named_with_its_source(project):
    """The document that begins right after the window is not listed."""
    sources = [f"source-{number}" for number in range(len(project.texts))]
    begin_of_next = int(project.tokens.spans[4][0])

    lines = describe_documents(project.tokens, project.tokenizer, sources, begin_of_next - 5, begin_of_next)

    assert [line.split(",")[0] for line in lines] == ["document 3 of source-3"]


def test_the_step_is_that_of_the_model_although_parameters_were_edited(project, explain):
    params = project.folder / "params.yaml"
    before = params.read_bytes()
    expected = explain("--step", 1)
    change_params(project.folder, {"train.seed": SEED + 1, "train.max_tokens": BATCH_TOKENS})

    edited = explain("--step", 1)

    params.write_bytes(before)
    assert edited == expected
    Path(MODEL).rename("kept.json")
    without_a_model = explain("--step", 1)
    Path("kept.json").rename(MODEL)
    assert without_a_model == expected.replace(MODEL, "params.yaml")


# trace


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
def test_a_copy_is_found_with_its_document_its_place_and_the_steps_that_read_it(project, trace, num_tokens):
    for document in np.flatnonzero(project.lengths > num_tokens + 1)[:4]:
        begin = int(project.tokens.spans[document][0])
        write_samples(project.tokens.ids[begin : begin + num_tokens])

        output = trace("--sample", 1, "--steps", STEPS - 1, "--places", 9)

        assert output.startswith(f"{num_tokens} tokens; 0 of them")
        longest = output.split("\n2. ")[0]
        assert f"1. {num_tokens} tokens, once" in longest
        assert f"document {document}, its tokens 0 to {num_tokens - 1} of {project.lengths[document]}: " in longest
        read = {(int(step), int(row)) for step, row in re.findall(r"step (\d+) row (\d+)", longest)}
        assert read == rows_that_learn(project, begin, begin + num_tokens, STEPS - 1)


def test_each_epoch_that_reads_a_place_has_a_line():
    readings = [
        (0, [(3, 1)], 1),
        (1, [(5, 0), (7, 2)], 2),
        (2, [(9, 4)], 3),
        (3, [], 1),
        (4, [(12, 0)], 1),
    ]
    windows = SimpleNamespace(readings=lambda begin, end, steps: readings)

    assert trace_tool.describe_readings(windows, 0, 9, 1200, 3) == [
        "read whole: step 3 row 1 (epoch 0)",
        "read cut into 2 windows: step 5 row 0, step 7 row 2 (epoch 1)",
        "read in part, 1 of 3 windows: step 9 row 4 (epoch 2)",
        "and in 1 more epochs",
    ]


def test_new_text_is_marked(trace):
    assert "\n  | ⟦qzqzqzqzqzqzqzqzqz⟧\n" in trace("qzqzqz" * 3)


def test_what_a_longer_span_contains_is_not_listed_again(project, trace):
    stream = project.tokens.ids
    write_samples([*stream[:12], stream[0] + 1, *stream[2:9]])

    output = trace("--sample", 1, "--spans", 9)

    assert "\n1. 12 tokens" in output
    assert "\n2. " not in output


FREQUENT = " end of"  # once in each of the 40 documents


def test_places_beyond_those_listed_are_counted(trace):
    output = trace(FREQUENT, "--min_tokens", 2, "--places", 1)

    assert output.count("\n  document ") == 1
    assert "\n  and 39 more places" in output


def test_the_best_weights_have_read_the_windows_up_to_their_step(trace, change_record):
    """The run went on after its best validation."""
    change_record(best={"step": 5, "sha256": "1234"})

    output = trace(FREQUENT, "--min_tokens", 2)

    assert output == trace(FREQUENT, "--min_tokens", 2, "--steps", 5)
    assert output != trace(FREQUENT, "--min_tokens", 2, "--steps", STEPS)


# Refusals


OTHER_TOKENS = {"data_sha256": {"train": "9"}}


@pytest.mark.parametrize(
    ("tool", "arguments", "changed", "code", "said"),
    [
        (explain_tool, ["--step", STEPS], {}, 2, f"--step is {STEPS}; it must be from 0 to {STEPS - 1}"),
        (explain_tool, ["--step", 0, "--row", BATCH_SIZE], {}, 2, f"--row is {BATCH_SIZE}"),
        (explain_tool, ["--step", 1], OTHER_TOKENS, 4, "trained with another data/processed_datasets/train.bin"),
        (trace_tool, ["a"], {}, 2, "1 tokens"),
        (trace_tool, ["--sample", 1, "--steps", STEPS + 1], {}, 2, f"--steps is {STEPS + 1}"),
        (trace_tool, ["--sample", 2], {}, 2, "--sample is 2"),
        (trace_tool, ["--sample", 1], OTHER_TOKENS, 4, "another data/processed_datasets/train.bin"),
        (trace_tool, ["--sample", 1], {"best": {"step": 1, "sha256": "9"}}, 4, "evaluates other weights"),
        (trace_tool, ["--sample", 1], {"seed": None}, 4, "seed is None"),
        (
            trace_tool,
            [FREQUENT, "--min_tokens", 2],
            {"best": {"step": 0, "sha256": "1234"}},
            2,
            "before the first step",
        ),
    ],
)
def test_what_cannot_be_answered_is_refused(
    project, change_record, monkeypatch, capsys, tool, arguments, changed, code, said
):
    monkeypatch.chdir(project.folder)
    write_samples(project.tokens.ids[:9])
    change_record(**changed)

    status = tool.main([str(argument) for argument in arguments])

    refused(status, capsys.readouterr().err, code, said)


@pytest.mark.parametrize(
    ("tool", "arguments"), [(explain_tool, ["--step", "0"]), (trace_tool, ["some tokens of text"])]
)
def test_tokens_of_another_tokenizer_are_refused(project, monkeypatch, capsys, tool, arguments):
    monkeypatch.chdir(project.folder)
    monkeypatch.setattr(tool, "load_tokenizer", lambda folder: SimpleNamespace(sha256="ab" * 32))

    refused(tool.main(arguments), capsys.readouterr().err, 4, "train.bin", "tokenizer")
