"""Counts of a text for its token file's sidecar, added up chunk by chunk."""

import dataclasses
from collections.abc import Iterable, Iterator

import numpy as np

from lm.text.documents import Chunk, SourceCount
from lm.text.slices import Slice
from lm.tokenizer.load import Tokenizer


@dataclasses.dataclass
class TextCounts:
    """Totals of the chunks counted so far; `sources` has those of each source of a mixture, or is empty."""

    documents: int = 0
    characters: int = 0
    utf8_bytes: int = 0
    sources: dict[str, SourceCount] = dataclasses.field(default_factory=dict)
    unknown_tokens: int = 0
    changed_documents: int = 0  # whose ids are decoded to another text

    def add(self, counted) -> None:
        """Add the counts of a Chunk or of other TextCounts."""
        self.documents += counted.documents
        self.characters += counted.characters
        self.utf8_bytes += counted.utf8_bytes
        self.unknown_tokens += counted.unknown_tokens
        self.changed_documents += counted.changed_documents
        for name, count in counted.sources.items():
            before = self.sources.get(name, SourceCount(0, 0))
            self.sources[name] = SourceCount(before.documents + count.documents, before.utf8_bytes + count.utf8_bytes)

    def ids_of(self, encoded: Iterable[tuple[Chunk, np.ndarray]]) -> Iterator[np.ndarray]:
        """Yield each chunk's ids (N,) and count the chunk."""
        for chunk, ids in encoded:
            self.add(chunk)
            yield ids

    def sidecar_entries(self, tokenizer: Tokenizer, text_slice: Slice, source: dict) -> dict:
        """Return the sidecar's entries about the text; `source` is its name and hashes."""
        entries: dict = {name: getattr(self, name) for name in ("documents", "characters", "utf8_bytes")}
        if self.sources:
            entries["sources"] = {name: count._asdict() for name, count in self.sources.items()}
        entries["tokenizer"] = tokenizer.sidecar_entry()
        entries["slice"] = dataclasses.asdict(text_slice)
        if not tokenizer.is_byte_level:
            losses = {"unknown_tokens": self.unknown_tokens, "changed_documents": self.changed_documents}
            entries["round_trip"] = losses
        return entries | {"source": source}
