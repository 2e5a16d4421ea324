"""Cut text into pieces before byte-level BPE, which never merges across pieces.

PATTERNS are those of tiktoken 0.14 (tiktoken_ext/openai_public.py): of its encodings gpt2, cl100k_base and o200k_base.
tiktoken is the definition: `backend_pretokenizer` gives the same pieces in the library `tokenizers`, and
lm.tokenizer.gigatoken_encoder in gigatoken.
"""

import itertools
import re

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Sequence, Split

PATTERNS = {
    "gpt2": r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s""",
    "cl100k": (
        r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"""
        r"""|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
    ),
    # As published but for `\s++$`, which changes no piece: without it tiktoken fails on a million spaces at the end.
    "o200k": (
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"""
        r"""|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"""
        r"""|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s++$|\s+(?!\S)|\s+"""
    ),
}

# tiktoken's regex fails on about a million white-space characters followed by text, so such runs are cut where the
# pattern cuts too. The class is Rust's \s, which is smaller than Python's. With GPT-2's pattern line ends are like
# other white space; with the others, white space up to the last line end of a run is one piece, and does not fail.
LINE_ENDS = r"\r\n"
IN_LINE = r"\t\x0b\x0c \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
LONG_RUN_CHARS = 500_000


def long_runs(num_chars: int) -> dict[bool, re.Pattern]:
    """Return the patterns of runs of white space of at least `num_chars`, by whether the text is cut as by GPT-2."""
    every = IN_LINE + LINE_ENDS
    return {
        True: re.compile(rf"(?<![{every}])[{every}]{{{num_chars},}}+"),
        False: re.compile(rf"(?<![{IN_LINE}])[{IN_LINE}]{{{num_chars},}}+(?![{LINE_ENDS}])"),
    }


LONG_RUNS = long_runs(LONG_RUN_CHARS)


def cut_long_runs(text: str, pattern: str) -> list[str]:
    """Cut a text inside each long run of white space, before its last character, where the pattern cuts too.

    A run that follows a line end is cut off there too, or the end of the new text would keep them together.
    """
    long_run = LONG_RUNS[pattern == PATTERNS["gpt2"]]
    runs = long_run.finditer(text) if len(text) > LONG_RUN_CHARS else ()
    inside = [run for run in runs if run.end() < len(text)]
    after_line_end = {run.start() for run in inside if text[run.start() - 1 : run.start()] in ("\r", "\n")}
    cuts = sorted(after_line_end | {run.end() - 1 for run in inside})
    return [text[start:end] for start, end in itertools.pairwise([0, *cuts, len(text)])]


def backend_pretokenizer(name: str) -> PreTokenizer:
    """Return a pattern of PATTERNS as a pre-tokenizer of the `tokenizers` library, byte by byte."""
    if name == "gpt2":
        return ByteLevel(add_prefix_space=False)  # has the same pattern inside
    # For Oniguruma, `{1,3}+` repeats the group instead of keeping what it took, and `$` is also the end of a line.
    pattern = PATTERNS[name].replace("{1,3}+", "{1,3}").replace("$", r"\z")
    whole_pieces = Split(Regex(pattern), "isolated")
    return Sequence([whole_pieces, ByteLevel(add_prefix_space=False, use_regex=False)])
