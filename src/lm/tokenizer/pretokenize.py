"""Cut text into pieces before byte-level BPE, which never merges across pieces.

PATTERN is the one of tiktoken 0.14's encoding gpt2 (tiktoken_ext/openai_public.py). tiktoken is the definition:
`ByteLevel` of the library `tokenizers` has the same pattern inside, and so has gigatoken (gigatoken_encoder.py).
"""

import itertools
import re

PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""

# tiktoken's regex fails on about a million white-space characters followed by text, so such runs are cut where the
# pattern cuts too. The class is Rust's \s, which is smaller than Python's.
WHITE_SPACE = r"[\t\n\x0b\x0c\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
LONG_RUN_CHARS = 500_000


def cut_long_runs(text: str) -> list[str]:
    """Cut a text inside each long run of white space, before its last character, where PATTERN cuts too."""
    if len(text) <= LONG_RUN_CHARS:
        return [text]
    # A run begins after another character, so that a shorter run is not searched again from each of its characters.
    runs = re.finditer(rf"(?<!{WHITE_SPACE}){WHITE_SPACE}{{{LONG_RUN_CHARS},}}+", text)
    cuts = [run.end() - 1 for run in runs if run.end() < len(text)]
    return [text[start:end] for start, end in itertools.pairwise([0, *cuts, len(text)])]
