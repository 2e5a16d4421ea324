"""Places in C and C++: brackets, include guards and identifiers, outside of comments, strings and directives."""

import pytest

from extras.probes.code_pairs import BRACKET, GUARD, IDENTIFIER, REACH_CHARS, code_places

CODE = """#ifndef LIST_H
#define LIST_H
int sum(const int *items, size_t count) {
  int total = 0;
  for (size_t i = 0; i < count; i++) { total += items[i]; }
  return total;
}
#endif  // LIST_H
"""


def found(text: str, kind: str) -> list[tuple[str, int]]:
    """Return the words of the places of a kind, and where they are."""
    places = [place for place in code_places(7, text) if place.kind == kind]
    for place in places:
        assert place.document == 7 and text[place.character :].startswith(place.word)
        assert place.group == (text[place.character - 1], text[place.character + len(place.word)])
        assert kind == BRACKET or {place.word} <= place.refused
    return [(place.word, place.character) for place in places]


@pytest.mark.parametrize(("text", "brackets"), [
    (CODE, "))]}}"), ("f(1'000'000, it's [a])", "])"), (") (a) ]", ")"), ("{ (a] b) } [c]", "]"),
    *((f"{skipped}\n[0]", "]") for skipped in (
        "// f(x)", "/* f(x)\n [1] */", '"(a)"', "'(' ')'", r'"\"(a)"', '#define f(x) \\\n (x)', 'R"--(a)" (b) )--"',
        "'\\''")),
    (f"({'x' * (REACH_CHARS - 1)})", ")"), (f"({'x' * REACH_CHARS})", ""),
])  # fmt: skip
def test_closing_brackets_are_found_in_code_near_their_opening_ones(text, brackets):
    assert "".join(word for word, _ in found(text + "\n", BRACKET)) == brackets


def test_the_name_after_define_is_an_include_guard():
    assert found(CODE, GUARD) == [("LIST_H", CODE.index("define LIST_H") + 7)]
    assert found("#ifndef A\n#define B\n#endif\n", GUARD) == found("#ifdef A\n#define A\n", GUARD) == []


def test_the_first_use_near_a_declaration_is_a_place():
    assert dict(found(CODE, IDENTIFIER)) == {
        "i": CODE.index("i < count"), "count": CODE.index("count; i++"), "total": CODE.index("total +="),
        "items": CODE.index("items[i]"),
    }  # fmt: skip
    near, far = (f"{{ int x = 0;{' ' * count}x++; }}" for count in (REACH_CHARS - 6, REACH_CHARS - 5))
    assert [word for word, _ in found(near, IDENTIFIER)] == ["x"] and found(far, IDENTIFIER) == []


@pytest.mark.parametrize("text", [
    "void f() { return x; x(); }", "void f() { y = a * b; b(); }", "void f() { goto end; end(); }",
    "void f() { int x = 0; p->x = 1; }", "void f() { int x = 0; p.x = 1; }", "void f() { int x = 0; n::x = 1; }",
    "void f() { int x = 0; } // x", 'void f() { int x = 0; g("x"); }', "It was cold; cold said, old man; man.",
])  # fmt: skip
def test_what_is_not_declared_or_not_used_is_no_place(text):
    assert found(text + "\n", IDENTIFIER) == []
