"""Find words of C and C++ that the text before them determines: places of minimal pairs (extras.probes.pair_choice).

A small scanner blanks out comments, strings, characters and directives; nothing is parsed. Other text has few such
places or none.
"""

import re

from extras.probes.pair_choice import Place, neighbours

BRACKET = "closing bracket"
GUARD = "include guard"
IDENTIFIER = "declared identifier"

REACH_CHARS = 200  # largest distance from a word back to the one that determines it

CLOSING = {"(": ")", "[": "]", "{": "}"}
SKIPPED = re.compile(
    r"""//[^\n]*                                    # comments
      | /\*.*?(?:\*/|\Z)
      | \bR"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)"  # a raw string
      | "(?:\\.|[^"\\\n])*"
      | '(?:\\[^\n][^'\n]*|[^'\\\n])'               # not the apostrophe of a word or between digits
      | ^[ \t]*\#[^\n]*(?:(?<=\\)\n[^\n]*)*         # a directive with its continued lines""",
    re.S | re.M | re.X,
)
GUARDS = re.compile(r"^[ \t]*#[ \t]*ifndef[ \t]+(\w+)[ \t]*\n[ \t]*#[ \t]*define[ \t]+(\1)\b", re.M)
WORD = re.compile(r"[A-Za-z_]\w*")
# A type, then a name before one of = ; , ) [ {. An operator has a space on both sides or on none: a * b, a*b.
DECLARED = re.compile(
    r"(?<![\w.])([A-Za-z_]\w*)(?:<[^<>;(){}]*>)?(?:[*&]+ | [*&]+| +)([A-Za-z_]\w*)(?=[=;,)\[{]| [={])"
)
TYPES = frozenset(re.findall(r"\w+", "auto bool char const double float int long short signed unsigned void"))
OTHER_KEYWORDS = """and break case catch class constexpr continue co_return default delete do else enum explicit export
    extern false final for friend goto if inline mutable namespace new noexcept not nullptr operator or override private
    protected public register return sizeof static struct switch template this throw true try typedef typename union
    using virtual volatile while"""
KEYWORDS = TYPES.union(re.findall(r"\w+", OTHER_KEYWORDS))


def code_places(document: int, text: str) -> list[Place]:
    code = SKIPPED.sub(lambda skipped: " " * len(skipped[0]), text)
    return [*_brackets(document, text, code), *_guards(document, text), *_identifiers(document, text, code)]


def _brackets(document: int, text: str, code: str) -> list[Place]:
    """Return the closing brackets whose opening bracket is near; `code` is the text without what is skipped.

    A bracket that does not close the last open one makes the scanner forget all open ones.
    """
    places, opened = [], []
    for found in re.finditer(r"[()\[\]{}]", code):
        bracket, position = found[0], found.start()
        if bracket in CLOSING:
            opened.append(position)
            continue
        begin = opened.pop() if opened else None
        if begin is None or CLOSING[code[begin]] != bracket:
            opened = []
        elif position - begin <= REACH_CHARS:
            group = neighbours(text, position, position + 1)
            places.append(Place(BRACKET, document, position, bracket, group))
    return places


def _guards(document: int, text: str) -> list[Place]:
    """Return the macros that are defined in the line after the one that asks whether they are."""
    words = frozenset(WORD.findall(text))
    found = [match for match in GUARDS.finditer(text) if match.end() - match.start() <= REACH_CHARS]
    return [Place(GUARD, document, m.start(2), m[2], neighbours(text, *m.span(2)), words) for m in found]


def _identifiers(document: int, text: str, code: str) -> list[Place]:
    """Return the first use of each declared name, if it is near the declaration; the wrong name is not in the text."""
    if "{" not in code or ";" not in code:
        return []
    declared = [
        match.start(2) for match in DECLARED.finditer(code)
        if (match[1] in TYPES or match[1] not in KEYWORDS) and match[2] not in KEYWORDS
    ]  # fmt: skip
    is_declared, words, places = set(declared), frozenset(WORD.findall(text)), []
    waiting: dict[str, int] = {}  # name → where it was declared, until its next mention
    for match in WORD.finditer(code):
        name, (start, end) = match[0], match.span()
        if start in is_declared:
            waiting[name] = start
        elif start - waiting.pop(name, -REACH_CHARS - 1) <= REACH_CHARS and not _is_member(code, start):
            places.append(Place(IDENTIFIER, document, start, name, neighbours(text, start, end), words))
    return places


def _is_member(code: str, start: int) -> bool:
    """Return True if the name that begins at `start` belongs to an object or a namespace: a.name, a->name, a::name."""
    return code[max(0, start - 2) : start].endswith((".", "->", "::"))
