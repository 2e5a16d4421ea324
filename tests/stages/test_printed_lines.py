"""The numbers of the lines that the data stages and the evaluation print: each line is written here by hand.

Those of the train stage are in tests/lm/train/test_progress.py.
"""

import pyarrow as pa
import pyarrow.parquet as pq

import audit
import eval as eval_stage
import fetch
from support.tokenize_cases import ALL, AUDIT, make_project, tokenize, write_params, write_raw


def entry(documents: int, characters: int, utf8_bytes: int, **others) -> dict:
    counts = {"documents": documents, "characters": characters, "utf8_bytes": utf8_bytes}
    return {"path": "a.parquet", **counts, **others}


def test_fetch_prints_what_each_split_holds_and_what_is_missing(tmp_path, capsys):
    """A mixture, one source of which is read twice and a half, has rows left out, and loses documents by a rule."""
    mixed = {
        "a": entry(90, 1_500, 2_000, passes=2.5, fraction=0.25, weight=0.2705),
        "b": entry(10, 3_500, 6_000, fraction=0.75, weight=0.7305),
    }
    dropped = {split: {"min_chars": {"documents": 1_100, "characters": 20}} for split in ("train", "validation")}
    manifest = {
        "splits": {"train": entry(1_200, 34_000, 8_000, sources=mixed)},
        "sources": {"a": {"splits": {"train": {"dropped_rows": {"null": 1_500, "empty": 2}}}}},
        "selection": {"dropped": {"a": dropped}},
    }
    pq.write_table(pa.table({"utf8_bytes": [1, 1_234, 50_000]}), tmp_path / "a.parquet")

    fetch.report(manifest, tmp_path)

    said = capsys.readouterr()
    assert said.out.splitlines() == [
        "train: 1,200 documents, 34,000 characters; the median document has 1,234 bytes",
        "train, a: 90 documents, 25.0% of the bytes, 2.50 epochs",
        "train, b: 10 documents, 75.0% of the bytes, 1.00 epochs",
        "a, train: rows left out: 1,500 null, 2 empty",
        "min_chars drops 2,200 documents, 40 characters",
    ]
    assert said.err.startswith("warning: a gives 25.0% of the bytes of train; its weight asks for 27.1%;")


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


def test_the_evaluation_prints_its_loss_with_its_error():
    details = {"nats_per_token": 2.34567, "bits_per_byte": 1.23456, "bits_per_byte_se": 0.01234, "documents": 7}

    line = eval_stage.summary_line(details)

    assert line == "validation: 2.3457 nats/token, 1.2346 bits per byte (standard error 0.0123 over 7 documents)"
