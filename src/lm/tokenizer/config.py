"""The presets `tokenizers` of presets.yaml, and the section `tokenize` of runtime.yaml."""

import dataclasses
from typing import Annotated, Literal

from lm.core.params import Range, at_least
from lm.text.config import check_repository

MAX_VOCAB_SIZE = 1 << 22
VOCAB_SIZES = Range(
    lambda value: 257 <= value <= MAX_VOCAB_SIZE, f"from 257 (all bytes, end-of-text) to {MAX_VOCAB_SIZE:,}"
)


@dataclasses.dataclass(frozen=True)
class BpeParams:
    """Byte-level BPE trained on the training slice; vocab_size includes the end-of-text token."""

    kind: Literal["bpe"]
    vocab_size: Annotated[int, VOCAB_SIZES]
    pretokenizer: Literal["gpt2"]


@dataclasses.dataclass(frozen=True)
class TiktokenParams:
    """One of tiktoken's encodings, downloaded or from TIKTOKEN_CACHE_DIR."""

    kind: Literal["tiktoken"]
    encoding: Literal["gpt2"]


@dataclasses.dataclass(frozen=True)
class HuggingFaceParams:
    """The tokenizer of a model repository at `revision`: a commit, a branch or a tag."""

    kind: Literal["huggingface"]
    repo: str
    revision: str

    def __post_init__(self):
        check_repository(self.repo, self.revision)


@dataclasses.dataclass(frozen=True)
class FolderParams:
    """The tokenizer in the folder tokenizer.path of params.yaml, which DVC tracks."""

    kind: Literal["folder"]


TokenizerParams = BpeParams | TiktokenParams | HuggingFaceParams | FolderParams


@dataclasses.dataclass(frozen=True)
class TokenizeRuntime:
    """The number of processes if gigatoken is not used (null: one per core)."""

    num_processes: Annotated[int | None, at_least(1, ", or null")]
