"""Find the words of a generated story that its grammar determines: places of minimal pairs (extras.probes.pair_choice).

The grammar allows no other word at such a place, so that the text with a wrong word has probability zero.
"""

import functools
from typing import NamedTuple

from extras.probes.derivation import derive
from extras.probes.pair_choice import Place, neighbours
from extras.probes.phenomena import PERSONS
from lm.text.sources.stories.grammar import FORMS, Field, word_lists

OTHER_PERSON = "repeated name: other person"  # the wrong name is that of another person who was just mentioned
NEW_NAME = "repeated name: new name"  # the wrong name is in another story, in the same role and of the same gender
PRONOUN = "pronoun and gender"
OBJECT = "repeated object"

REACH_CHARS = 400  # largest distance from a word back to the mention that determines it


class _Mention(NamedTuple):
    start: int
    word: str
    field: Field


def story_places(document: int, text: str) -> list[Place]:
    """Return the places of a story; DataError if the text is not a story of the grammar."""
    spans, bits, _ = derive(text)
    is_determined = {span.start: bits[span.start] == bits[span.end] for span in spans}
    mentions = [_Mention(s.start, text[s.start : s.end], s.field) for s in spans if s.field is not None]
    names = {mention.word for mention in mentions if _is_name(mention.field)}
    places = []
    for number, (start, word, field) in enumerate(mentions):
        near = [mention for mention in mentions[:number] if mention.start >= start - REACH_CHARS]
        if not is_determined[start] or not _is_decided_by(near, field):
            continue
        group = (*neighbours(text, start, start + len(word)), word[0].isupper())
        if field.form in FORMS:
            places.append(Place(PRONOUN, document, start, word, (*group, field.form)))
        elif not _is_name(field):
            places.append(Place(OBJECT, document, start, word, (*group, field.slot_name, field.form)))
        else:
            role = (field.slot_name, _genders()[word])
            places.append(Place(NEW_NAME, document, start, word, (*group, *role)))  # a story has one name for it
            far = names - {mention.word for mention in near}
            places.append(Place(OTHER_PERSON, document, start, word, (*group, document), frozenset(far)))
    return places


def _is_name(field: Field) -> bool:
    return field.slot_name in PERSONS and not field.form


@functools.cache
def _genders() -> dict[str, str]:
    """Return name → "he" or "she" for all persons."""
    return {name: gender for slot in PERSONS for name, gender in word_lists()[slot]}


def _is_decided_by(near: list[_Mention], field: Field) -> bool:
    """Return True if a mention decides a field's word: it writes the slot's option out; for a pronoun, any form."""
    forms = [mention.field.form for mention in near if mention.field.slot == field.slot]
    return any(field.form in FORMS or form not in FORMS for form in forms)
