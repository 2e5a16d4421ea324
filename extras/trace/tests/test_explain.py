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
from lm.evaluate.copies import Copy
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


def refuse(tool, arguments, capsys, code: int, *parts: str) -> None:
    """Check that a tool prints nothing and ends with a status and one sentence that contains all `parts`."""
    status = tool.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    refused(status, captured.err, code, *parts)
    assert captured.out == ""


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


def test_the_step_is_described(explain):
    first_line = explain("--step", 2).splitlines()[0]

    assert first_line.startswith("step 2 of 0 to 11: 7 windows of 24 tokens, seed 3")
    assert f"{2 * BATCH_TOKENS} before it" in first_line
    assert f"{3 * BATCH_TOKENS} after it" in first_line


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


def test_rows_have_the_epoch_the_text_the_place_and_the_documents_of_their_windows(project, explain):
    epochs = []
    for step in range(STEPS):
        rows = re.split(r"^(?=row \d+,)", explain("--step", step), flags=re.M)[1:]

        starts = project.windows.starts(step)
        x, y = project.windows.batch(step)
        assert len(rows) == BATCH_SIZE
        for start, inputs, targets, row in zip(starts, x, y, rows, strict=True):
            epochs.append(int(re.match(r"row \d+, epoch (\d+),", row)[1]))
            text = "\n".join(re.findall(r"^  \| (.*)$", row, re.M))
            assert text == project.tokenizer.decode(inputs)
            assert f"last target: {project.tokenizer.decode(targets[-1:])!r}" in row
            assert f"tokens {start:,} to {start + SEQ_LEN - 1:,} of {len(project.tokens.ids):,}" in row

            lines = re.findall(r"^  document (\d+), its tokens (\d+) to (-?\d+) of (\d+): (.*)$", row, re.M)
            figures = [tuple(int(figure) for figure in line[:4]) for line in lines]
            assert figures == documents_in(project, start)
            for document, *_, first_words in lines:
                words = " ".join(project.texts[int(document)].split()).replace("`", "'")
                assert first_words.rstrip("…") in words

    sizes = [project.windows.windows_per_epoch(epoch) for epoch in range(9)]
    expected = np.repeat(np.arange(9), sizes)[: STEPS * BATCH_SIZE]
    assert epochs == expected.tolist()
    assert epochs[-1] > 0


def test_a_document_that_begins_right_after_a_window_is_not_listed(project):
    begin_of_next = int(project.tokens.spans[4][0])

    lines = describe_documents(project.tokens, project.tokenizer, [], begin_of_next - 5, begin_of_next)

    assert [line.split(",")[0] for line in lines] == ["document 3"]


def test_a_document_of_a_mixture_is_named_with_its_source(project):
    sources = [f"source-{number}" for number in range(len(project.texts))]
    begin = int(project.tokens.spans[3][0])
    end = int(project.tokens.spans[4][1])

    lines = describe_documents(project.tokens, project.tokenizer, sources, begin, end)

    assert [line.split(",")[0] for line in lines] == ["document 3 of source-3", "document 4 of source-4"]


@pytest.mark.parametrize(
    ("arguments", "problem", "last"),
    [
        (["--step", STEPS], f"--step is {STEPS}", STEPS - 1),
        (["--step", 0, "--row", BATCH_SIZE], f"--row is {BATCH_SIZE}", BATCH_SIZE - 1),
    ],
)
@pytest.mark.usefixtures("explain")
def test_a_step_or_row_outside_the_run_is_refused(capsys, arguments, problem, last):
    refuse(explain_tool, arguments, capsys, 2, problem, f"from 0 to {last}")


@pytest.mark.usefixtures("explain")
def test_tokens_of_another_tokenizer_are_refused(capsys, monkeypatch):
    other = SimpleNamespace(sha256="ab" * 32)
    monkeypatch.setattr(explain_tool, "load_tokenizer", lambda folder: other)

    refuse(explain_tool, ["--step", 0], capsys, 4, "train.bin", "tokenizer")


def test_the_step_is_that_of_the_model_although_parameters_were_edited(project, explain):
    params = project.folder / "params.yaml"
    before = params.read_bytes()
    expected = explain("--step", 1)
    change_params(project.folder, {"train.seed": SEED + 1, "train.max_tokens": BATCH_TOKENS})

    edited = explain("--step", 1)

    params.write_bytes(before)
    assert edited == expected
    assert f"seed {SEED} ({MODEL})" in edited


def test_without_a_model_the_step_is_that_of_the_parameters(project, explain):
    of_model = explain("--step", 1)
    model = Path(MODEL).rename("kept.json")

    of_parameters = explain("--step", 1)

    model.rename(MODEL)
    assert of_parameters == of_model.replace(MODEL, "params.yaml")


def test_a_model_of_other_tokens_is_not_explained(explain, change_record, capsys):
    change_record(data_sha256={"train": "9"})

    refuse(explain_tool, ["--step", 1], capsys, 4, "trained with another data/processed_datasets/train.bin")


# trace: where the text is, and which steps read it


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


@pytest.mark.parametrize(
    ("num_tokens", "wholly_read"),
    [pytest.param(9, True, id="short"), pytest.param(SEQ_LEN + 6, False, id="longer than a window")],
)
def test_a_copy_is_found_with_its_document_its_place_and_the_steps_that_read_it(
    project, trace, explain, num_tokens, wholly_read
):
    outputs = ""
    for document in np.flatnonzero(project.lengths > num_tokens + 1)[:6]:
        begin = int(project.tokens.spans[document][0])
        write_samples(project.tokens.ids[begin : begin + num_tokens])

        output = trace("--sample", 1, "--steps", STEPS - 1, "--places", 9)

        assert output.startswith(f"{num_tokens} tokens; 0 of them")
        longest = output.split("\n2. ")[0]
        assert f"1. {num_tokens} tokens, once" in longest
        assert f"document {document}, its tokens 0 to {num_tokens - 1} of {project.lengths[document]}: " in longest
        read = {(int(step), int(row)) for step, row in re.findall(r"step (\d+) row (\d+)", longest)}
        assert read == rows_that_learn(project, begin, begin + num_tokens, STEPS - 1)
        for step, row in sorted(read)[:1]:
            assert f"document {document}, " in explain("--step", step, "--row", row)
        outputs += longest

    assert ("read whole" in outputs) == wholly_read
    assert "read cut" in outputs


def test_a_place_is_read_by_a_window_that_has_two_of_its_tokens():
    copy = Copy(begin=0, end=3, count=4, positions=[8, 9, 9 + SEQ_LEN, 10 + SEQ_LEN])

    assert trace_tool.places_read(copy, np.array([10]), SEQ_LEN) == ([9, 9 + SEQ_LEN, 8, 10 + SEQ_LEN], 2)


@pytest.mark.parametrize(
    ("readings", "most", "lines"),
    [
        (
            [
                (0, [(3, 1)], 1),
                (1, [(5, 0), (7, 2)], 2),
                (2, [(9, 4)], 3),
                (3, [], 1),
                (4, [(12, 0)], 1),
            ],
            4,
            [
                "read whole: step 3 row 1 (epoch 0)",
                "read cut into 2 windows: step 5 row 0, step 7 row 2 (epoch 1)",
                "read in part, 1 of 3 windows: step 9 row 4 (epoch 2)",
                "read whole: step 12 row 0 (epoch 4)",
            ],
        ),
        ([(0, [(3, 1)], 1), (1, [(5, 0)], 1)], 1, ["read whole: step 3 row 1 (epoch 0)", "and in 1 more epochs"]),
        ([(0, [], 1)], 1, ["not read in the first 1,200 steps"]),
    ],
)
def test_each_epoch_that_reads_a_place_has_a_line(readings, most, lines):
    windows = SimpleNamespace(readings=lambda begin, end, steps: readings)

    assert trace_tool.describe_readings(windows, 0, 9, 1200, most) == lines


# trace: what is new, what is counted


def test_new_text_is_marked(trace):
    output = trace("qzqzqz" * 3)

    assert "\n  | ⟦qzqzqzqzqzqzqzqzqz⟧\n" in output
    assert "1. " not in output


def test_tokens_of_two_copies_that_overlap_count_once(project, trace, monkeypatch):
    """Of 12 tokens, the first nine are in a copy, two of them in both."""
    copies = [Copy(0, 6, 1, [0]), Copy(4, 9, 1, [50])]
    monkeypatch.setattr(trace_tool, "find_copies", lambda *given: [copies])
    write_samples(project.tokens.ids[:12])

    output = trace("--sample", 1)

    assert output.startswith("12 tokens; 3 of them, between ⟦ and ⟧, are new: ")


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


def test_the_reading_of_many_places_is_counted_among_the_first_ones(trace, monkeypatch):
    """One of the first three places is read by no window."""
    monkeypatch.setattr(trace_tool, "MOST_PLACES", 3)

    output = trace(FREQUENT, "--min_tokens", 2, "--steps", STEPS)

    assert "40 times in the training text, 2 of the first 3 read in the first 12 steps\n" in output


def test_the_best_weights_have_read_the_windows_up_to_their_step(trace, change_record):
    """The run went on after its best validation."""
    change_record(best={"step": 5, "sha256": "1234"})

    output = trace(FREQUENT, "--min_tokens", 2)

    assert " of them read in the first 5 steps\n" in output
    assert output == trace(FREQUENT, "--min_tokens", 2, "--steps", 5)
    assert output != trace(FREQUENT, "--min_tokens", 2, "--steps", STEPS)


# trace: refusals


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["a"], ["1 tokens", "at least --min_tokens, 4"]),
        (["--sample", 1, "--min_tokens", 1], ["--min_tokens is 1", "from 2"]),
        (["--sample", 1, "--steps", STEPS + 1], [f"--steps is {STEPS + 1}", f"from 1 to {STEPS}"]),
        (["--sample", 2], ["--sample is 2", "from 1 to 1"]),
    ],
)
@pytest.mark.usefixtures("trace")
def test_arguments_out_of_range_are_named(project, capsys, arguments, parts):
    write_samples(project.tokens.ids[:9])

    refuse(trace_tool, arguments, capsys, 2, *parts)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"best": {"step": 1, "sha256": "9"}}, "evaluates other weights"),
        ({"data_sha256": {"train": "9"}}, "another data/processed_datasets/train.bin"),
        ({"last": None}, "last is None"),
        ({"seed": None}, "seed is None"),
    ],
)
@pytest.mark.usefixtures("trace")
def test_a_record_that_does_not_fit_is_refused(project, change_record, capsys, changed, problem):
    write_samples(project.tokens.ids[:9])
    change_record(**changed)

    refuse(trace_tool, ["--sample", 1], capsys, 4, problem)


@pytest.mark.usefixtures("trace")
def test_tokens_of_another_tokenizer_are_not_traced(capsys, monkeypatch):
    other = SimpleNamespace(sha256="ab" * 32)
    monkeypatch.setattr(trace_tool, "load_tokenizer", lambda folder: other)

    refuse(trace_tool, ["a text of some tokens"], capsys, 4, "train.bin", "tokenizer")


def test_weights_before_the_first_step_have_read_nothing(trace, change_record, capsys):
    change_record(best={"step": 0, "sha256": "1234"})

    refuse(trace_tool, [FREQUENT, "--min_tokens", 2], capsys, 2, "before the first step", "--steps", f"1 to {STEPS}")

    assert "read in the first" in trace(FREQUENT, "--min_tokens", 2, "--steps", STEPS)


@pytest.mark.usefixtures("trace")
def test_a_run_without_samples_says_how_to_get_some(capsys):
    write_samples()

    refuse(trace_tool, ["--sample", 1], capsys, 2, "samples.json", "no samples", "prompts")
