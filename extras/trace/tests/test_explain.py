"""explain prints the decoded batch of a step, its positions and its documents; trace finds the steps of a text."""

import itertools
import re
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
from support import ROOT
from support.tokenizer_cases import fuzzed_texts
from support.workspace import Workspace

SEQ_LEN = 24
BATCH_SIZE = 7
STEPS = 12
SEED = 3


def as_letters(text: str) -> str:
    """The text on lines of printable ASCII, so that what is printed can be read back exactly."""
    return re.sub(r"[^ -~\n]", "x", text)


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> SimpleNamespace:
    """A folder with params.yaml, a tokenizer and train.bin, and nothing else; about three epochs of steps."""
    folder = tmp_path_factory.mktemp("explain")
    texts = [as_letters(text)[:60] + f" end of {i}" for i, text in enumerate(fuzzed_texts(40, seed=3))]
    (folder / "data" / "tokenizer").mkdir(parents=True)
    write_trained_bpe(folder / "data" / "tokenizer", [texts], 300)
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
    write_json(folder / "data/models/model.json", {
        "seed": SEED, "seq_len": SEQ_LEN, "init_sha256": None, "data_sha256": {"train": tokens.meta["sha256"]},
        "best": {"step": STEPS, "sha256": "1234"}, "last": {"step": STEPS, "tokens_seen": STEPS * batch_tokens},
    })  # fmt: skip
    return SimpleNamespace(folder=folder, texts=texts, tokenizer=tokenizer, lengths=lengths, windows=windows)


@pytest.fixture
def explain(project, monkeypatch, capsys):
    """The command: (exit status, standard output, standard error)."""
    monkeypatch.chdir(project.folder)

    def run_it(*arguments):
        return explain_tool.main([str(argument) for argument in arguments]), *capsys.readouterr()

    return run_it


@pytest.fixture
def trace(project, monkeypatch, capsys):
    """`trace --sample 1`, given the ids of the sample: (exit status, standard output, standard error)."""
    monkeypatch.chdir(project.folder)

    def run_it(ids, *arguments):
        write_json("data/evaluation/details.json", {"weights_sha256": "12"})
        write_json("data/evaluation/samples.json", {"samples": [{"ids": [int(i) for i in ids]}]})
        arguments = ("--sample", 1, *arguments) if len(ids) else arguments
        return trace_tool.main([str(argument) for argument in arguments]), *capsys.readouterr()

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
    begins_after = 0
    epochs = []
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
                assert begins.rstrip("…") in folded and (begins or not folded)
            begins_after += start + SEQ_LEN < len(place) and place[start + SEQ_LEN] == 0
    assert begins_after  # a document that begins right after a window is not listed
    passes = [[epoch] * project.windows.windows_per_epoch(epoch) for epoch in range(9)]
    assert epochs == list(itertools.chain(*passes))[: len(epochs)] and epochs[-1] > 0


def test_the_step_is_described(explain):
    """Seven windows of 24 tokens are 168 tokens."""
    first = explain("--step", 2)[1].splitlines()[0]
    assert first == "step 2 of 0 to 11: 7 windows of 24 tokens, seed 3; tokens seen 336 before it, 504 after it"


def test_a_document_of_a_mixture_is_named_with_its_source(project):
    tokens = open_tokens(project.folder / "data/processed_datasets/train.bin")
    sources = [f"source-{number}" for number in range(len(project.texts))]
    begin = tokens.spans[3][0]
    end = tokens.spans[4][1]

    lines = describe_documents(tokens, project.tokenizer, sources, int(begin), int(end))

    assert [line.split(",")[0] for line in lines] == ["document 3 of source-3", "document 4 of source-4"]


def test_a_step_or_row_outside_the_run_is_refused(explain):
    for arguments, named in (
        (("--step", STEPS), f"--step is {STEPS}; it must be from 0 to {STEPS - 1}"),
        (("--step", 0, "--row", BATCH_SIZE), f"--row is {BATCH_SIZE}; it must be from 0 to {BATCH_SIZE - 1}"),
    ):
        status, output, error = explain(*arguments)
        assert (status, output) == (2, "") and named in error


def test_tokens_of_another_tokenizer_are_refused(project, explain, tmp_path):
    write_trained_bpe(tmp_path, [["other text"]], 260)
    status, _, error = explain("--step", 0, "--tokenizer", tmp_path)
    assert status == 4 and "made with tokenizer" in error


@pytest.mark.parametrize("num_tokens", [9, SEQ_LEN + 6])  # the longer ones lie over two windows or more
def test_a_copy_is_found_with_its_document_place_and_the_steps_that_read_it(project, trace, explain, num_tokens):
    ids = project.windows.ids
    owner = np.repeat(np.arange(len(project.texts)), project.lengths)
    whole = 0
    cut = 0
    for document in np.flatnonzero(project.lengths > num_tokens + 1)[:6]:
        begin = int(project.lengths[:document].sum())
        status, output, _ = trace(ids[begin : begin + num_tokens], "--steps", STEPS - 1, "--places", 9)
        assert status == 0 and output.startswith(f"{num_tokens} tokens; 0 of them") and output.count("⟦") == 1
        first = re.split(r"^2\. ", output, flags=re.M)[0]
        assert f"1. {num_tokens} tokens, once" in first
        assert f"document {document}, its tokens 0 to {num_tokens - 1} of {project.lengths[document]}: " in first
        found = {tuple(map(int, place)) for place in re.findall(r"step (\d+) row (\d+)", first)}
        walked = {  # the rows in which one token of the copy is learned from another
            (step, row) for step in range(STEPS - 1) for row, start in enumerate(project.windows.starts(step))
            if max(start, begin) + 1 < min(start + SEQ_LEN + 1, begin + num_tokens)
        }  # fmt: skip
        assert found == walked and set(owner[begin : begin + num_tokens]) == {document}
        for step, row in sorted(found)[:1]:
            assert f"document {document}, " in explain("--step", step, "--row", row)[1]
        whole = whole + first.count("read whole")
        cut = cut + first.count("read cut") + first.count("read in part")
    assert cut and bool(whole) == (num_tokens < SEQ_LEN)


def test_a_place_is_read_by_a_window_that_has_two_of_its_tokens():
    length, starts = 3, np.array([10, 17, 60])  # the first two windows overlap
    windows = [set(range(start, start + SEQ_LEN + 1)) for start in starts]  # the inputs and the last target
    expected = [at for at in range(90) if any(len(window & {at, at + 1, at + 2}) >= 2 for window in windows)]
    others = [at for at in range(90) if at not in expected]
    places, num_read = trace_tool.places_read(Copy(4, 4 + length, 90, list(range(90))), starts, SEQ_LEN)
    assert (places, num_read) == ([*expected, *others], len(expected))


@pytest.mark.parametrize(
    ("readings", "most", "lines"),
    [
        (
            [(0, [(3, 1)], 1), (1, [(5, 0), (7, 2)], 2), (2, [(9, 4)], 3), (3, [], 1), (4, [(12, 0)], 1)],
            4,
            [
                "read whole: step 3 row 1 (epoch 0)",
                "read cut into 2 windows: step 5 row 0, step 7 row 2 (epoch 1)",
                "read in part, 1 of 3 windows: step 9 row 4 (epoch 2)",
                "read whole: step 12 row 0 (epoch 4)",
            ],
        ),
        (
            [(0, [(3, 1)], 1), (1, [(5, 0)], 1), (2, [(9, 4)], 1)],
            1,
            ["read whole: step 3 row 1 (epoch 0)", "and in 2 more epochs"],
        ),
        ([(0, [], 1)], 1, ["not read in the first 1,200 steps"]),
    ],
)
def test_each_epoch_that_reads_a_place_has_a_line(readings, most, lines):
    windows = SimpleNamespace(readings=lambda begin, end, steps: readings)
    assert trace_tool.describe_readings(windows, 0, 9, 1200, most) == lines


def test_tokens_of_two_copies_that_overlap_count_once(project, trace, monkeypatch):
    """Of 12 tokens, the first nine are in a copy, two of them in both."""
    copies = [Copy(0, 6, 1, [0]), Copy(4, 9, 1, [50])]
    monkeypatch.setattr(trace_tool, "find_copies", lambda *given: [copies])
    _, output, _ = trace(project.windows.ids[:12])
    assert output.startswith("12 tokens; 3 of them, between ⟦ and ⟧, are new: ")


def test_the_reading_of_many_places_is_counted_among_the_first_ones(project, trace, monkeypatch):
    """Each of the 40 documents has the text at its end; one of the first three places is read by no window."""
    monkeypatch.setattr(trace_tool, "MOST_PLACES", 3)
    _, output, _ = trace((), " end of", "--min_tokens", 2, "--steps", STEPS)
    assert "40 times in the training text, 2 of the first 3 read in the first 12 steps\n" in output


def test_new_text_is_marked_and_frequent_text_is_counted(project, trace):
    status, output, _ = trace((), "qzqzqz" * 3)
    assert status == 0 and "\n  | ⟦qzqzqzqzqzqzqzqzqz⟧\n" in output and "1. " not in output
    ids = project.tokenizer.encode(" end of")
    stream = project.windows.ids.tolist()
    count = sum(stream[at : at + len(ids)] == ids for at in range(len(stream)))
    _, output, _ = trace((), " end of\n", "--min_tokens", 2, "--places", 1)
    assert f"\n  and {count - 1} more places" in output and count > 9 and output.count("\n  document ") == 1
    # How many places the model has read is counted, and these come first.
    places = np.array([at for at in range(len(stream)) if stream[at : at + len(ids)] == ids])
    starts = project.windows.starts(0)[:, None]
    num_read = ((starts < places + len(ids) - 1) & (places < starts + SEQ_LEN)).any(axis=0).sum()
    _, output, _ = trace((), " end of", "--min_tokens", 2, "--places", num_read, "--steps", 1)
    assert f"{count} times in the training text, {num_read} of them read in the first 1 steps\n" in output
    assert 0 < num_read < count and output.count("    read ") == num_read and "not read" not in output
    # What a longer span contains is not listed again.
    _, output, _ = trace([*stream[:12], stream[0] + 1, *stream[2:9]], "--spans", 9)
    assert "\n1. 12 tokens" in output and "\n2. " not in output


def test_what_cannot_be_traced_is_refused(project, trace):
    model = read_json(project.folder / "data/models/model.json")
    some = project.windows.ids[:9]
    for ids, arguments, named in (
        ((), ("a",), "the text has 1 tokens; it must have at least --min_tokens, 4"),
        (some, ("--min_tokens", 1), "--min_tokens is 1; it must be from 2"),
        (some, ("--steps", STEPS + 1), f"--steps is {STEPS + 1}; it must be from 1 to {STEPS}"),
        (some, ("--sample", 2), "--sample is 2; it must be from 1 to 1"),
    ):
        status, output, error = trace(ids, *arguments)
        assert (status, output) == (2, "") and named in error
    for changed, named in (
        ({"best": {"step": 1, "sha256": "9"}}, "evaluates other weights"),
        ({"data_sha256": {"train": "9"}}, "trained with another data/processed_datasets/train.bin"),
        ({"last": None}, "last is None"),
        ({"seed": None}, "seed is None"),
    ):
        write_json(project.folder / "data/models/model.json", model | changed)
        status, output, error = trace(some)
        assert (status, output) == (4, "") and named in error
    write_json(project.folder / "data/models/model.json", model)


def test_tokens_of_another_tokenizer_are_not_traced(project, trace, monkeypatch):
    other = SimpleNamespace(sha256="ab" * 32)
    monkeypatch.setattr(trace_tool, "load_tokenizer", lambda folder: other)
    status, output, error = trace(project.windows.ids[:9])
    assert (status, output) == (4, "") and "train.bin: made with tokenizer" in error


def test_the_best_weights_have_read_the_windows_up_to_their_step(project, trace):
    """The run went on after its best validation."""
    model = read_json(project.folder / "data/models/model.json")
    write_json(project.folder / "data/models/model.json", model | {"best": {"step": 5, "sha256": "1234"}})
    text = ((), " end of", "--min_tokens", 2)

    status, output, _ = trace(*text)

    assert status == 0 and " of them read in the first 5 steps\n" in output
    assert output == trace(*text, "--steps", 5)[1] != trace(*text, "--steps", STEPS)[1]
    write_json(project.folder / "data/models/model.json", model)


def test_weights_before_the_first_step_have_read_nothing(project, trace):
    model = read_json(project.folder / "data/models/model.json")
    write_json(project.folder / "data/models/model.json", model | {"best": {"step": 0, "sha256": "1234"}})
    some = project.windows.ids[:9]
    status, output, error = trace(some)
    assert (status, output) == (2, "")
    assert (
        f"the best weights are those before the first step, which have read nothing; give --steps, from 1 to {STEPS}"
        in error
    )
    assert trace(some, "--steps", STEPS)[0] == 0
    write_json(project.folder / "data/models/model.json", model)


def test_a_run_without_samples_says_how_to_get_some(project, trace, capsys):
    write_json("data/evaluation/details.json", {"weights_sha256": "12"})
    write_json("data/evaluation/samples.json", {"samples": []})

    status = trace_tool.main(["--sample", "1"])

    assert status == 2 and "samples.json: has no samples; give the source prompts" in capsys.readouterr().err
