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
    return [(place.word, place.character) for place in places]


def brackets(text: str) -> str:
    return "".join(word for word, _ in found(text + "\n", BRACKET))


def test_closing_brackets_are_found_in_order():
    assert brackets(CODE) == "))]}}"


@pytest.mark.parametrize("text", [
    "// f(x)", "/* f(x)\n [1] */", '"(a)"', "'(' ')'", r'"\"(a)"',
    '#define f(x) \\\n (x)', 'R"--(a)" (b) )--"', "'\\''",
])  # fmt: skip
def test_brackets_in_comments_strings_characters_and_directives_do_not_count(text):
    assert brackets(text) == "" and brackets(f"{text}\n[0]") == "]"


def test_an_apostrophe_between_digits_or_in_a_word_opens_no_character():
    assert brackets("f(1'000'000, it's [a])") == "])"


def test_a_bracket_that_closes_nothing_is_no_place():
    assert brackets(") (a) ]") == ")"


def test_a_bracket_that_closes_another_kind_makes_the_scanner_forget_what_is_open():
    assert brackets("{ (a] b) } [c]") == "]"


def test_a_bracket_is_a_place_only_near_its_opening_one():
    near, far = ("(" + "x" * count + ")" for count in (REACH_CHARS - 1, REACH_CHARS))
    assert brackets(near) == ")" and brackets(far) == ""


def test_the_name_after_define_is_an_include_guard():
    assert found(CODE, GUARD) == [("LIST_H", CODE.index("define LIST_H") + 7)]
    assert found("#ifndef A\n#define B\n#endif\n", GUARD) == found("#ifdef A\n#define A\n", GUARD) == []


def test_the_first_use_after_a_declaration_is_a_place():
    words = dict(found(CODE, IDENTIFIER))
    assert words == {
        "i": CODE.index("i < count"), "count": CODE.index("count; i++"), "total": CODE.index("total +="),
        "items": CODE.index("items[i]"),
    }  # fmt: skip


@pytest.mark.parametrize("text", [
    "void f() { return x; x(); }", "void f() { y = a * b; b(); }", "void f() { goto end; end(); }",
    "void f() { int x = 0; p->x = 1; }", "void f() { int x = 0; p.x = 1; }", "void f() { int x = 0; n::x = 1; }",
    "void f() { int x = 0; } // x", 'void f() { int x = 0; g("x"); }', "It was cold; cold said, old man; man.",
])  # fmt: skip
def test_what_is_not_declared_or_not_used_is_no_place(text):
    assert found(text + "\n", IDENTIFIER) == []


def test_a_use_far_from_its_declaration_is_no_place():
    near, far = (f"{{ int x = 0;{' ' * count}x++; }}" for count in (REACH_CHARS - 6, REACH_CHARS - 5))
    assert [word for word, _ in found(near, IDENTIFIER)] == ["x"] and found(far, IDENTIFIER) == []


def test_identifiers_and_guards_refuse_every_word_of_their_document():
    for place in code_places(0, CODE):
        assert place.kind == BRACKET or place.refused >= {"sum", "items", "LIST_H", "endif"}
