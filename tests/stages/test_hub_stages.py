"""The stages fetch and make_tokenizer against a hub on loopback: a dataset and a Gemma-like tokenizer."""

import numpy as np
import pytest
from transformers import AutoTokenizer

from lm.tokenizer.load import load_tokenizer
from lm.tokens.tokenfile import open_tokens
from support.loopback_hub import LoopbackHub, parquet_bytes
from support.tokenizer_cases import GEMMA_LIKE_SIZE, write_gemma_like
from support.workspace import Workspace

COMMIT, MODEL_COMMIT = "a" * 40, "b" * 40
TEXTS = [f"Story {i}: a <bos> in the text, <start_of_turn> too, é and 漢字 {i * 37}.\n" for i in range(400)]


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    folder = write_gemma_like(tmp_path_factory.mktemp("gemma"))
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    texts = parquet_bytes(content=TEXTS, path=["x"] * len(TEXTS))
    with LoopbackHub() as hub:
        hub.add("datasets", "owner/texts", COMMIT, {"data/part.parquet": texts})
        hub.add("models", "owner/gemma-like", MODEL_COMMIT, files)
        yield hub


@pytest.fixture
def workspace(tmp_path, hub):
    workspace = Workspace(tmp_path / "ws")
    workspace.make_small()
    entry = {
        "fetch": {
            "kind": "hub", "repo": "owner/texts", "revision": "main", "files": {"train": ["data/part.parquet"]},
            "column": "content",
        },
        "train": {"split": "train", "start_char": 0, "num_chars": 15000},
        "validation": {"split": "train", "start_char": 15000, "num_chars": 5000},
        "prompts": ["Story"],
    }  # fmt: skip
    tokenizer = {"kind": "huggingface", "repo": "owner/gemma-like", "revision": "main"}
    workspace.change(
        **{"sources.texts": entry, "data.source": "texts", "tokenizers.like": tokenizer, "tokenizer.name": "like"}
    )
    workspace.environment = hub.environment(tmp_path / "hf", workspace.environment)
    return workspace


def test_a_hub_dataset_and_a_gemma_like_tokenizer_pass_the_stages(workspace):
    folder = workspace.folder / "data"
    raw, tokenizer = ("--raw", "data/raw"), ("--tokenizer", "data/tokenizer")
    definition, text = ("--definition", "data/source.json"), (*raw, "--selection", "data/selection")
    workspace.run("python", "src/resolve.py", *definition)
    workspace.run("python", "src/fetch.py", *definition, *raw)
    workspace.run("python", "src/select_documents.py", *text)
    workspace.run("python", "src/make_tokenizer.py", *text, *tokenizer)
    for split in ("train", "validation"):
        tokens = ("--tokens", f"data/processed_datasets/{split}.bin")
        workspace.run("python", "src/tokenize_split.py", "--split", split, *text, *tokenizer, *tokens)
    tokenizer = load_tokenizer(folder / "tokenizer")
    assert tokenizer.vocab_size == GEMMA_LIKE_SIZE
    assert tokenizer.meta["commit"] == MODEL_COMMIT
    tokens = open_tokens(folder / "processed_datasets" / "train.bin")
    assert tokens.ids.dtype == np.uint32
    count = tokens.meta["documents"]
    assert int((tokens.ids == tokens.eot_id).sum()) == count
    expected = AutoTokenizer.from_pretrained(folder / "tokenizer", split_special_tokens=True)
    ids = [i for text in TEXTS[:count] for i in [*expected.encode(text, add_special_tokens=False), tokens.eot_id]]
    assert tokens.ids.tolist() == ids
    first = open_tokens(folder / "processed_datasets" / "validation.bin").ids
    second_part = tokenizer.decode(first[: int(np.argmax(first == tokens.eot_id))].tolist())
    assert second_part == TEXTS[count]
