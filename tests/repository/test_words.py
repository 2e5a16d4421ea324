"""The prose of the pages, the code and the templates is free of phrases that readers found hard to understand."""

import ast
import io
import re
import tokenize

from support import ROOT

PHRASES = re.compile(
    r"\banew\b|\blies? (here|there)\b|\bso many\b|\bbehind (it|them|each)\b|\b[Ww]hat (lies|stands)\b"
    r"|\bstands? (twice|there|in)\b|\b[Tt]he other way\b|\bside by side\b|\b[Ii]n turns\b|\bregrets?\b"
    r"|\bbits of (its|their) own\b|\bchanges? no bit\b|\bdecides? (a|the) bits?\b|\bto the bit\b"
    r"|\b[Ww]hat (computes|remains|followed|follows|agrees|was tried|is left|others|nobody)\b"
    r"|\bnew and needed\b|\bNothing of the\b|\b[Tt]he hub\b|\b[Ff]igures that\b|\bthe figure of\b|\bin one sentence\b"
)


def prose_of(path) -> list[tuple[int, str]]:
    """Return (line, text) of the docstrings, comments and strings of a Python file; of another file, its lines."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return list(enumerate(text.splitlines(), 1))
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant) and type(node.value) is str]
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]
    return [*((node.lineno, node.value) for node in nodes), *comments]


def test_the_words_are_plain():
    files = [
        ROOT / name for name in ("README.md", "params.yaml", "presets.yaml", "sources.yaml", "runtime.yaml", "dvc.yaml")
    ]
    for pattern in ("docs/*.md", "src/**/*.py", "src/**/*.j2"):
        files += sorted(ROOT.glob(pattern))
    hits = [
        f"{path.relative_to(ROOT)}:{line}: {match[0]}"
        for path in files
        for line, text in prose_of(path)
        for match in PHRASES.finditer(" ".join(text.split()))
    ]
    assert hits == []
