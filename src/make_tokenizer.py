"""Stage make_tokenizer: a trained, downloaded or imported vocabulary → data/tokenizer.

python src/make_tokenizer.py data/raw data/tokenizer
"""

import dataclasses
import sys
import tempfile
from pathlib import Path
from typing import Literal

from lm.core.errors import ParamsError, command
from lm.core.files import atomic_folder, output_lock, sha256_file
from lm.core.params import read_section
from lm.text.documents import Slice, iter_texts
from lm.tokenizer.build import download_ranks, download_tokenizer, train_ranks, write_byte_level, write_huggingface

PARAMS = "params.yaml"


@dataclasses.dataclass(frozen=True)
class BpeParams:
    """Byte-level BPE trained on the training slice; vocab_size counts the end-of-text token too."""

    kind: Literal["bpe"]
    vocab_size: int

    def __post_init__(self):
        if self.vocab_size < 257:
            raise ValueError(f"vocab_size is {self.vocab_size}, needed: at least 257 (all bytes, end-of-text)")


@dataclasses.dataclass(frozen=True)
class TiktokenParams:
    """A vocabulary of tiktoken's, downloaded or from TIKTOKEN_CACHE_DIR."""

    kind: Literal["tiktoken"]
    encoding: Literal["gpt2"]


@dataclasses.dataclass(frozen=True)
class HuggingFaceParams:
    """The tokenizer of a model repository at `revision`: a commit, or a branch or tag to be resolved."""

    kind: Literal["huggingface"]
    repo: str
    revision: str

    def __post_init__(self):
        from lm.text.sources.hub import check_repository  # the hub's client takes a while to import

        check_repository(self.repo, self.revision)


def make_bpe(params: BpeParams, raw: Path, folder: Path) -> dict:
    """Train on the training slice of data.source."""
    source = read_section(PARAMS, "data.source", str)
    part = read_section(PARAMS, f"sources.{source}.train", Slice)
    ranks = train_ranks(iter_texts(raw, part), params.vocab_size)
    if len(ranks) + 1 < params.vocab_size:
        print(
            f"{PARAMS}: the training slice has pairs for {len(ranks) + 1:,} entries only, "
            f"tokenizers.*.vocab_size asks for {params.vocab_size:,}; continuing with fewer",
            file=sys.stderr,
        )
    text = {"manifest_sha256": sha256_file(raw / "manifest.json"), "slice": dataclasses.asdict(part)}
    return write_byte_level(folder, ranks, params.kind, text=text)


def make_tiktoken(params: TiktokenParams, raw: Path, folder: Path) -> dict:
    """Write tiktoken's vocabulary; the text plays no part."""
    return write_byte_level(folder, download_ranks(params.encoding), params.kind, encoding=params.encoding)


def make_huggingface(params: HuggingFaceParams, raw: Path, folder: Path) -> dict:
    """Write the repository's tokenizer; the text plays no part."""
    with tempfile.TemporaryDirectory() as source:
        commit = download_tokenizer(params.repo, params.revision, Path(source))
        origin = {"repo": params.repo, "revision": params.revision, "commit": commit}
        return write_huggingface(folder, Path(source), **origin)


KINDS = {
    "bpe": (BpeParams, make_bpe),
    "tiktoken": (TiktokenParams, make_tiktoken),
    "huggingface": (HuggingFaceParams, make_huggingface),
}


@command
def main(argv: list[str]) -> None:
    """Make tokenizer.name from the text in argv[0] into argv[1], which appears whole or not at all."""
    raw, folder = map(Path, argv)
    name = read_section(PARAMS, "tokenizer.name", str)
    kind = read_section(PARAMS, f"tokenizers.{name}.kind", str)
    if kind not in KINDS:
        raise ParamsError(f"{PARAMS}: tokenizers.{name}.kind is {kind!r}; it must be one of {', '.join(KINDS)}")
    params_type, make = KINDS[kind]
    params = read_section(PARAMS, f"tokenizers.{name}", params_type)
    with output_lock(folder), atomic_folder(folder) as temporary:
        meta = make(params, raw, temporary)
    print(f"{folder}: {name}, {meta['vocab_size']:,} entries, {meta['dtype']}")


if __name__ == "__main__":
    sys.exit(main())
