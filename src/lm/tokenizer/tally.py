"""What a token file's sidecar says of its text: counted chunk by chunk, with the tokenizer, the slice, the source."""

import dataclasses
from collections.abc import Iterable, Iterator

import numpy as np

from lm.text.documents import Chunk, Slice
from lm.tokenizer.load import Tokenizer, describe_tokenizer


@dataclasses.dataclass
class Tally:
    """What the chunks counted so far hold all together; `surprisal_bits` is None where the source does not know it."""

    documents: int = 0
    characters: int = 0
    utf8_bytes: int = 0
    surprisal_bits: float | None = None

    def add(self, counted) -> None:
        """Count a Chunk's `documents`, `characters`, `utf8_bytes` and `surprisal_bits`, or those of another tally."""
        self.documents += counted.documents
        self.characters += counted.characters
        self.utf8_bytes += counted.utf8_bytes
        if counted.surprisal_bits is not None:
            self.surprisal_bits = (self.surprisal_bits or 0.0) + counted.surprisal_bits

    def ids_of(self, encoded: Iterable[tuple[Chunk, np.ndarray]]) -> Iterator[np.ndarray]:
        """Pass each chunk's ids on, counting the chunk."""
        for chunk, ids in encoded:
            self.add(chunk)
            yield ids

    def describe(self, tokenizer: Tokenizer, part: Slice, source: dict) -> dict:
        """The entries of the sidecar; `source` is where the text comes from: its name and hashes."""
        return {
            **dataclasses.asdict(self),
            "tokenizer": describe_tokenizer(tokenizer),
            "slice": dataclasses.asdict(part),
            "source": source,
        }
