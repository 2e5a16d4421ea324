"""Tokenizing a slice: the same bytes for any number of processes and any chunk, checked as it goes."""

import json
import random

import numpy as np
import pytest

import tokenize_split
from lm.documents import Slice
from lm.errors import DataError, IntegrityError
from lm.files import sha256_file, write_json
from lm.sources.parquet import describe_split, write_documents
from lm.tokenfile import open_tokens
from lm.tokenizer import load_tokenizer
from lm.vocabulary import train_ranks, write_byte_level
from tokenize_split import Encoded, Tally, TokenizeRuntime, chunks_of, map_in_order, tokenize


def make_texts():
    rng = random.Random(0)
    words = ["int", " main", "(void)", "\n", "  ", "é", "漢字", "\N{GRINNING FACE}", "<|endoftext|>", "\0", "x" * 50]
    return ["".join(rng.choices(words, k=rng.randrange(1, 200))) for _ in range(300)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenize")
    raw, tokenizer, texts = folder / "raw", folder / "tokenizer", make_texts()
    write_documents(raw / "text" / "0000.parquet", texts[:120])
    write_documents(raw / "text" / "0001.parquet", texts[120:])
    splits = {"text": describe_split(raw, "text", "text")}
    write_json(raw / "manifest.json", {"source": "test", "column": "text", "splits": splits})
    tokenizer.mkdir()
    write_byte_level(tokenizer, train_ranks([texts], 300), "bpe")
    return raw, tokenizer, texts


def test_bytes_do_not_depend_on_processes_or_chunks(folders, tmp_path):
    raw, tokenizer, texts = folders
    hashes = set()
    for num_processes, chunk_chars in ((1, 10**9), (1, 1), (2, 1000), (4, 5000)):
        out = tmp_path / f"{num_processes}-{chunk_chars}.bin"
        tokenize(Slice("text", 0, None), raw, tokenizer, out, TokenizeRuntime(num_processes, chunk_chars))
        hashes.add(sha256_file(out))
        meta = json.loads(out.with_suffix(".json").read_text())
    assert len(hashes) == 1
    expected = load_tokenizer(tokenizer)
    ids = [i for text in texts for i in [*expected.encode(text), expected.eot_id]]
    assert open_tokens(out).ids.tolist() == ids
    assert meta["documents"] == len(texts)
    assert meta["characters"] == sum(map(len, texts))
    assert meta["utf8_bytes"] == sum(len(text.encode()) for text in texts)
    assert ids.count(expected.eot_id) == len(texts)


def test_the_two_slices_together_hold_every_document_once(folders, tmp_path):
    raw, tokenizer, texts = folders
    runtime, decoded = TokenizeRuntime(1, 10000), []
    for name, part in (("a", Slice("text", 0, 9000)), ("b", Slice("text", 9000, None))):
        tokenize(part, raw, tokenizer, tmp_path / f"{name}.bin", runtime)
        tokens, loaded = open_tokens(tmp_path / f"{name}.bin"), load_tokenizer(tokenizer)
        ends = np.flatnonzero(tokens.ids == tokens.eot_id)
        starts = np.concatenate([[0], ends[:-1] + 1])
        decoded += [loaded.decode(tokens.ids[a:b].tolist()) for a, b in zip(starts, ends, strict=True)]
    assert decoded == texts


def test_an_empty_slice_leaves_no_file(folders, tmp_path):
    raw, tokenizer, texts = folders
    total = sum(map(len, texts))
    with pytest.raises(DataError, match="start_char is"):
        part = Slice("text", total, None)
        tokenize(part, raw, tokenizer, tmp_path / "x.bin", TokenizeRuntime(1, 1000))
    assert list(tmp_path.iterdir()) == []


def test_ids_that_do_not_stand_for_the_text_are_refused(folders):
    tokenizer = load_tokenizer(folders[1])
    ids, _ = tokenizer.encode_documents(["some text", "more"])
    good = Encoded(ids, 2, 13, 13)
    assert [chunk.tolist() for chunk in Tally(tokenizer).ids_of([good], None)] == [ids.tolist()]
    for bad in (good._replace(ids=ids[:-1]), good._replace(ids=ids[1:]), good._replace(utf8_bytes=14)):
        with pytest.raises(IntegrityError, match="2 documents of"):
            list(Tally(tokenizer).ids_of([bad], None))


def test_chunks_keep_documents_whole_and_in_order():
    batches = [["aa", "b"], ["cccc"], ["d"]]
    assert list(chunks_of(batches, 3)) == [["aa", "b"], ["cccc"], ["d"]]
    assert list(chunks_of(batches, 1)) == [["aa"], ["b"], ["cccc"], ["d"]]
    assert list(chunks_of(batches, 100)) == [["aa", "b", "cccc", "d"]]


def test_no_more_than_the_bound_is_in_flight():
    class Pool:
        in_flight = most = 0

        def submit(self, work, item):
            Pool.in_flight += 1
            Pool.most = max(Pool.most, Pool.in_flight)
            return self.Done(work(item))

        class Done:
            def __init__(self, value):
                self.value = value

            def result(self):
                Pool.in_flight -= 1
                return self.value

    assert list(map_in_order(Pool(), lambda x: x * x, range(20), 4)) == [x * x for x in range(20)]
    assert Pool.most == 4


def test_the_worker_uses_one_tokenizer_a_process(folders):
    tokenize_split._start_worker(str(folders[1]))
    encoded = tokenize_split._encode(["é", "b"])
    assert (encoded.num_documents, encoded.num_chars, encoded.utf8_bytes) == (2, 2, 3)
