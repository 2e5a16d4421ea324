"""gigatoken against tiktoken and tokenizers on more than a million strings: where do ids differ?

    PYTHONPATH=src python benchmarks/fuzz_tokenizers.py [--strings 600000 --seed 1]

GPT-2's vocabulary, and a byte-level BPE trained here with each pre-tokenizer, get every code point in several
contexts, then seeded strings of words, contractions, white space, digits, special strings, NUL,
characters of every plane, the neighbours of those that differ, lone surrogates (which become U+FFFD,
as everywhere) and long runs. Prints what differs beside the new characters of lm.tokenizer.engine, writes
benchmarks/results/fuzz_tokenizers.json, and ends with status 1 if anything does.
"""

import argparse
import itertools
import random
import re
import string
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness import hardware, versions
from lm.core.files import write_json
from lm.text.documents import Chunk
from lm.tokenizer.build import download_ranks, write_byte_level
from lm.tokenizer.byte_level import train_ranks
from lm.tokenizer.engine import END, NEW_CHARACTERS, NEW_MARKS, SCHEMES, Engine, open_engine
from lm.tokenizer.load import BACKEND, Tokenizer, load_tokenizer, open_backend, well_formed
from lm.tokenizer.pretokenize import PATTERNS

RESULTS = Path(__file__).resolve().parent / "results" / "fuzz_tokenizers.json"
CONTEXTS = ("{0}'s", "a{0}b{0}1", " {0}!{0} {0}", "{0}{0}  {0}\n{0}x")
CONTEXTS_OF_CASE = ("{0}'S", "A{0}a{0}B", " {0}!{0} {0}\n{0}/")
BATCH = 1 << 16

PIECES = [
    *("<|endoftext|>", "<|fim_prefix|>", "<bos>", "<eos>", "<start_of_turn>", "<0x0A>", "▁", "Ġ", "\0", "\ufeff"),
    *("'s", "'t", "'ll", "'ve", "'re", "'d", "'m", "'S", "'LL", "’s", "''", "'", "''s", "'l", "'v", "don't"),
    *(" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n ", "\x0b", "\x0c", "\x1c", "\x85", "\u00a0", "\u1680"),
    *("\u2003", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\u200b", "\u180e"),
    *("0", "1234567", "٣", "Ⅷ", "½", "²", "⑳", "the", " the", "Hello", " World", "camelCase", "snake_case", "ALLCAPS"),
    *("é", "e\u0301", "ß", "ſ", "İ", "ǅ", "!?", "...", "//", "{", "};", "_", "->", "::", "#include", "漢字", "한국"),
    *("العربية", "हिन्दी", "ไทย", "👩\u200d👩\u200d👧", "🇩🇪", "\ud800", "\udfff", "\ud83d\ude00", "\ufffd", "\ufffe"),
]
ANY_NEW = SCHEMES[PATTERNS["o200k"]][1]
NEW = re.findall(r"[0-9A-F]+", f"{NEW_CHARACTERS} {NEW_MARKS}")
NEIGHBOURS = [c for code in NEW for c in map(chr, (int(code, 16) - 1, int(code, 16) + 1)) if not re.match(ANY_NEW, c)]


def seeded_strings(num_strings: int, seed: int) -> Iterator[str]:
    """Strings of 0 to 40 pieces; one in 1,000 holds a run of up to 2,000 times the same piece."""
    draw = random.Random(seed)

    def piece() -> str:
        kind = draw.random()
        if kind < 0.55:
            return draw.choice(PIECES)
        if kind < 0.8:
            return draw.choice(string.printable) * draw.choice([1, 1, 2, 3, 9])
        if kind < 0.85:
            return draw.choice(NEIGHBOURS)
        return chr(draw.randrange(0x3000 if kind < 0.9 else 0x10000 if kind < 0.95 else 0x110000))

    for index in range(num_strings):
        text = "".join(piece() for _ in range(draw.randrange(41)))
        yield text + piece() * draw.randrange(2000) + piece() if index % 1000 == 999 else text


LONG_RUNS = [
    first + unit * 1_000_000 + last
    for unit in (" ", "\n", "a", "é", "0", "!", "'", "\0", "ab", " \n", "字")
    for first, last in (("", ""), ("x", "y"), ("", "\n"))
]


def scalars() -> list[str]:
    """Every character that UTF-8 can hold, but END."""
    return [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000 and chr(code) != END]


def batches_of(texts, size: int = BATCH) -> Iterator[pa.Array]:
    """The texts, well formed, in Arrow arrays of up to `size`."""
    texts = iter(texts)
    while batch := [well_formed(text) for text in itertools.islice(texts, size)]:
        yield pa.array(batch, pa.large_string())


def chunk_of(texts: pa.Array) -> Chunk:
    """A chunk of these texts alone."""
    characters, num_bytes = pc.sum(pc.utf8_length(texts)).as_py(), pc.sum(pc.binary_length(texts)).as_py()
    return Chunk(texts, 0, characters, num_bytes, None, {})


def rows_that_differ(ids: np.ndarray, expected: np.ndarray, eot_id: int) -> list[int]:
    """The documents whose ids differ; both arrays hold the same number of them."""
    if np.array_equal(ids, expected):
        return []
    parts = [np.split(each, np.flatnonzero(each == eot_id) + 1) for each in (ids, expected)]
    return [row for row, (a, b) in enumerate(zip(*parts, strict=True)) if not np.array_equal(a, b)]


def characters_that_differ(engine: Engine, tokenizer: Tokenizer, contexts) -> set[str]:
    """Characters that in some context get other ids from gigatoken than from tiktoken."""
    found, every = set(), scalars()
    for context in contexts:
        for start in range(0, len(every), BATCH):
            part = every[start : start + BATCH]
            texts = [context.replace("{0}", c) for c in part]
            ids = engine.encode_fast(pa.array(texts, pa.large_string()))
            expected, _ = tokenizer.encode_documents(texts)
            found |= {part[row] for row in rows_that_differ(ids, expected, tokenizer.eot_id)}
    return found


def strings_that_differ(engine: Engine, tokenizer: Tokenizer, texts) -> tuple[int, list[str]]:
    """How many strings gigatoken encoded, and those to which it gives other ids than tiktoken."""
    count, found = 0, []
    for array in batches_of(texts):
        array = array.filter(pc.invert(pc.match_substring_regex(array, engine.only_exact)))
        expected, _ = tokenizer.encode_documents(array.to_pylist())
        rows = rows_that_differ(engine.encode_fast(array), expected, tokenizer.eot_id)
        count += len(array)
        found += [array[row].as_py() for row in rows]
    return count, found


def strings_that_differ_from_tokenizers(tokenizer: Tokenizer, texts) -> list[str]:
    """Strings to which tiktoken, the definition, gives other ids than the library `tokenizers`."""
    texts = [well_formed(text) for text in texts]
    encodings = open_backend(tokenizer.folder / BACKEND).encode_batch_fast(texts, add_special_tokens=False)
    pairs = zip(texts, encodings, strict=True)
    return [text for text, encoding in pairs if encoding.ids != tokenizer.encode(text)]


def fuzz(tokenizer: Tokenizer, num_strings: int, seed: int, contexts) -> dict:
    """All comparisons with one vocabulary."""
    engine = open_engine(tokenizer)
    if engine is None:
        sys.exit("error: the engine cannot be compared here; see above")
    characters = characters_that_differ(engine, tokenizer, contexts)
    count, strings = strings_that_differ(engine, tokenizer, seeded_strings(num_strings, seed))
    num_runs, runs = strings_that_differ(engine, tokenizer, LONG_RUNS)
    sample = list(seeded_strings(num_strings // 20, seed + 1))
    return {
        "vocab_size": tokenizer.vocab_size,
        "contexts": contexts,
        "strings_of_one_character": len(scalars()) * len(contexts),
        "characters_that_differ": len(characters),
        "beside_the_rule": sorted(f"U+{ord(c):04X}" for c in characters if not re.match(engine.only_exact, c)),
        "in_the_rule_without_need": sum(bool(re.match(engine.only_exact, c)) for c in set(scalars()) - characters),
        "seeded_strings": count,
        "seeded_strings_that_differ": strings[:20],
        "long_runs": num_runs,
        "long_runs_that_differ": [text[:20] for text in runs],
        "strings_by_tokenizers": len(sample),
        "strings_that_tokenizers_encodes_otherwise": strings_that_differ_from_tokenizers(tokenizer, sample)[:20],
    }


def differs(found: dict) -> bool:
    """Whether gigatoken differs from tiktoken beside the rule."""
    return bool(found["beside_the_rule"] or found["seeded_strings_that_differ"] or found["long_runs_that_differ"])


def main() -> int:
    """Compare with every vocabulary; print and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strings", type=int, default=600_000, help="seeded strings a vocabulary")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    training = [well_formed(text) for text in seeded_strings(3000, args.seed + 2)]
    runs = [("gpt2", "gpt2", CONTEXTS), ("bpe", "gpt2", CONTEXTS[:1])]
    runs += [(name, name, (*CONTEXTS[:2], *CONTEXTS_OF_CASE)) for name in ("cl100k", "o200k")]
    results = {}
    for name, pretokenizer, contexts in runs:
        ranks = download_ranks("gpt2") if name == "gpt2" else train_ranks([training], 2048, pretokenizer)
        with TemporaryDirectory() as folder:
            write_byte_level(Path(folder), ranks, "bpe", pretokenizer)
            results[name] = fuzz(load_tokenizer(folder), args.strings, args.seed, contexts)
        print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in results[name].items()), flush=True)
    packages = versions("gigatoken", "tiktoken", "tokenizers")
    found = {"benchmark": "fuzz_tokenizers", "hardware": hardware(), "versions": packages, "seed": args.seed}
    write_json(RESULTS, {**found, "rule": " ".join(NEW_CHARACTERS.split()), "marks": NEW_MARKS, **results})
    return int(any(map(differs, results.values())))


if __name__ == "__main__":
    sys.exit(main())
