"""The numbers of the lines that the data stages and the evaluation print: each line is written here by hand.

Those of the train stage are in tests/lm/train/test_progress.py.
"""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import audit
import eval as eval_stage
import fetch
from support.tokenize_cases import ALL, AUDIT, build_tokenizer, make_project, tokenize, write_params, write_raw


def entry(documents: int, characters: int, utf8_bytes: int, **others) -> dict:
    counts = {"documents": documents, "characters": characters, "utf8_bytes": utf8_bytes}
    return {"path": "a.parquet", **counts, **others}


DROPPED = {"null": 0, "empty": 0}
MANIFESTS = {
    "a source, of which rows are left out and rules drop documents": (
        {
            "splits": {"train": entry(1_200, 34_000, 40_000), "validation": entry(30, 900, 1_000)},
            "sources": {"own": {"splits": {"train": {"dropped_rows": {"null": 1_500, "empty": 2}}}}},
            "selection": {
                "dropped": {
                    "own": {
                        "train": {"min_chars": {"documents": 1_100, "characters": 3_000}},
                        "validation": {"min_chars": {"documents": 5, "characters": 20}},
                    }
                }
            },
        },
        [
            "train: 1,200 documents, 34,000 characters; the median document has 1,234 bytes",
            "validation: 30 documents, 900 characters; the median document has 1,234 bytes",
            "own, train: rows left out: 1,500 null, 2 empty",
            "min_chars drops 1,105 documents, 3,020 characters",
        ],
        [],
    ),
    "a mixture of two sources, one of them read twice and a half": (
        {
            "splits": {
                "train": {
                    **entry(100, 5_000, 8_000),
                    "sources": {
                        "a": entry(90, 1_500, 2_000, passes=2.5, fraction=0.25, weight=0.2705),
                        "b": entry(0, 0, 0, fraction=0.0, weight=0.02),
                        "c": entry(10, 3_500, 6_000, fraction=0.75, weight=0.7305),
                    },
                }
            },
            "sources": {name: {"splits": {"train": {"dropped_rows": DROPPED}}} for name in "abc"},
            "selection": {"dropped": {}},
        },
        [
            "train: 100 documents, 5,000 characters; the median document has 1,234 bytes",
            "train, a: 90 documents, 25.0% of the bytes, 2.50 passes",
            "train, b: 0 documents, 0.0% of the bytes, 1.00 passes",
            "train, c: 10 documents, 75.0% of the bytes, 1.00 passes",
        ],
        [
            "warning: a has 25.0% of the bytes of train, not 27.1% as its weight asks",
            "warning: b has 0.0% of the bytes of train, not 2.0% as its weight asks",
        ],
    ),
}


@pytest.mark.parametrize("case", MANIFESTS)
def test_fetch_prints_what_each_split_holds_and_what_is_missing(tmp_path, capsys, case):
    manifest, lines, warnings = MANIFESTS[case]
    pq.write_table(pa.table({"utf8_bytes": [1, 1_234, 50_000]}), tmp_path / "a.parquet")

    fetch.report(manifest, tmp_path)

    said = capsys.readouterr()
    assert said.out.splitlines() == lines
    assert [line.partition(";")[0] for line in said.err.splitlines()] == warnings


def test_the_stages_of_tokens_print_their_counts(tmp_path, monkeypatch, capsys):
    """Each byte is a token. Train has 20 characters in 21 bytes, which one of three validation documents begins with.

    Another one has 12 of these bytes in a row, and no n-gram of 13.
    """
    monkeypatch.chdir(tmp_path)
    make_project()
    train = ["naïve words are here"]
    validation = ["naïve words are here ", "these words are there", "new"]
    write_raw([*train, *validation])
    write_params({**ALL, "num_chars": 20}, {**ALL, "start_char": 20})

    assert tokenize("train") == tokenize("validation") == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("out/train.bin: 22 tokens, 0.95 bytes per token; encoded by ")
    assert second.startswith("out/validation.bin: 49 tokens, 0.94 bytes per token; encoded by ")

    assert audit.main(AUDIT) == 0
    line = "1 of 3 validation documents are also in train; 45.7% of the validation tokens are in 13-grams of train\n"
    assert capsys.readouterr().out == f"comparing the documents and the n-grams of both splits\n{line}"

    # The pair "re" occurs twice; beside the bytes and end-of-text there is nothing more to learn.
    assert build_tokenizer("own") == 0
    out, err = capsys.readouterr()
    assert out == "making the tokenizer t\nown: t, 258 entries, uint16\n"
    few = "the training slice has pairs for only 258 entries, tokenizers.*.vocab_size asks for 300"
    assert err == f"warning: presets.yaml: {few}; continuing with fewer\n"


@pytest.mark.parametrize(("error", "shown"), [(0.01234, "0.0123"), (None, "nan")])
def test_the_evaluation_prints_its_loss_with_its_error(error, shown):
    details = {"nats_per_token": 2.34567, "bits_per_byte": 1.23456, "bits_per_byte_se": error, "documents": 7}
    loss = f"2.3457 nats/token, 1.2346 bits per byte (standard error {shown} over 7 documents)"
    line = f"validation: {loss}"
    assert eval_stage.summary_line(details) == line
    lossy = eval_stage.summary_line({**details, "lossy_tokenizer": {}})
    assert lossy == f"{line}; lossy tokenizer: bits per byte are too low"
