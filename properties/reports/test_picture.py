"""The picture of a stale index: what it marks, and what it refuses to draw."""

from dataclasses import replace

from paritybit.reports.drawings.picture import lay_out
from paritybit.reports.page import draw

from properties.support.reports.records import HOSTILE, explanation


def test_the_row_to_blame_its_element_and_its_slot_are_marked_and_joined() -> None:
    found = explanation()
    picture = lay_out(found)
    assert found.cause is not None and found.difference is not None
    (wrong_element,) = found.cause.elements
    (at,) = wrong_element.place
    held = next(row for row in found.static_inputs if row.name == wrong_element.holder)
    assert [place for place, row in enumerate(picture.rows) if row.kind == "wrong"] == [1]
    wrong = [place for place, box in enumerate(picture.elements) if box.kind == "wrong"]
    assert wrong == [at]
    assert picture.elements[at].note == "left by step 2"
    assert [box.text for box in picture.elements] == list(map(str, held.values))
    (slot,) = [place for place, box in enumerate(picture.slots) if box.kind == "wrong"]
    assert slot == held.values[at]
    assert [arrow.kind for arrow in picture.arrows].count("wrong") == 1
    assert f"slot {slot} of request" in picture.bits


def test_texts_of_a_picture_make_no_markup() -> None:
    found = explanation()
    assert found.slot is not None
    assert HOSTILE not in draw(replace(found, slot=replace(found.slot, owner=HOSTILE)))
