"""The picture of a stale index: what it marks, and what it refuses to draw."""

from dataclasses import replace

from paritybit.reports.drawings.picture import lay_out
from paritybit.reports.page import draw

from properties.support.reports.records import HOSTILE, explanation


def test_the_row_to_blame_its_element_and_its_slot_are_marked_and_joined() -> None:
    found = explanation()
    picture = lay_out(found)
    index = found.cause.index
    assert index is not None
    assert index.element is not None
    held = next(row for row in found.static_inputs if row.name == index.buffer)
    assert [place for place, row in enumerate(picture.rows) if row.kind == "wrong"] == [index.row]
    wrong = [place for place, box in enumerate(picture.elements) if box.kind == "wrong"]
    assert wrong == [index.element]
    assert picture.elements[index.element].note == "left by step 2"
    assert [box.text for box in picture.elements] == list(map(str, held.values))
    (slot,) = [place for place, box in enumerate(picture.slots) if box.kind == "wrong"]
    assert slot == held.values[index.element]
    assert [arrow.kind for arrow in picture.arrows].count("wrong") == 1
    assert f"slot {slot} of request" in picture.bits


def test_texts_of_a_picture_make_no_markup() -> None:
    found = explanation()
    assert found.cause.slot is not None
    slot = replace(found.cause.slot, owner=HOSTILE)
    assert HOSTILE not in draw(replace(found, cause=replace(found.cause, slot=slot)))
