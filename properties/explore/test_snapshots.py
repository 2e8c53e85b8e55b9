"""Snapshots of objects that change, restored in place."""

from array import array
from collections import OrderedDict, defaultdict, deque
from operator import itemgetter
from typing import Any

import pytest
import torch

from paritybit.explore.snapshots import Snapshots


class Slotted:
    """An object with slots, one of which may have no value."""

    __slots__ = ("maybe", "value")

    def __init__(self) -> None:
        self.value = [1]


class Everything:
    """An object that leads to one of each kind, and twice to the same list."""

    def __init__(self) -> None:
        self.number = 1
        self.listed: list[Any] = [1, 2]
        self.again = (self.listed,)
        self.named = {"b": 1, "a": [2]}
        self.several = {1, 2}
        self.ends = deque([1, 2])
        self.typed = array("q", [1, 2])
        self.ordered = OrderedDict(a=1)
        self.filled: dict[str, int] = defaultdict(int, a=1)
        self.slotted = Slotted()
        self.tensor = torch.arange(4)
        self.view = self.tensor[1:3]

    def content(self) -> str:
        """Return everything as text."""
        slots = self.slotted.value, getattr(self.slotted, "maybe", None)
        return repr((sorted(vars(self).items(), key=itemgetter(0)), slots)).replace(
            repr(self.slotted), ""
        )


def change(one: Everything, change: int) -> None:
    """Change an object in place in one of several ways."""
    ways = (
        lambda: setattr(one, "number", 2),
        lambda: setattr(one, "added", 2),
        lambda: delattr(one, "number"),
        lambda: one.listed.append([3]),
        lambda: one.named.pop("b"),
        lambda: one.named.update(b=one.named.pop("b")),
        lambda: one.several.add(3),
        one.ends.popleft,
        lambda: one.typed.append(3),
        lambda: one.ordered.update(a=2),
        lambda: one.filled["b"],
        lambda: setattr(one.slotted, "maybe", 1),
        lambda: one.slotted.value.append(2),
        lambda: one.tensor.__setitem__(1, 7),
        lambda: one.view.__setitem__(0, 7),
        lambda: setattr(one, "tensor", torch.zeros(2)),
    )
    ways[change]()


@pytest.mark.parametrize("number", range(16))
def test_what_an_action_changes_is_restored(number: int) -> None:
    one, snapshots = Everything(), Snapshots()
    first, before = snapshots.save(one), one.content()
    change(one, number)
    second, after = snapshots.save(one, first), one.content()
    assert before != after
    assert first.restore() is one
    assert one.content() == before
    assert one.again[0] is one.listed
    second.restore()
    assert one.content() == after
    first.restore()
    assert one.content() == before


def test_objects_that_an_action_adds_are_followed() -> None:
    one, snapshots = Everything(), Snapshots()
    first = snapshots.save(one)
    one.listed.append(Slotted())
    second = snapshots.save(one, first)
    one.listed[-1].value.append(2)
    third = snapshots.save(one, second)
    second.restore()
    assert one.listed[-1].value == [1]
    third.restore()
    assert one.listed[-1].value == [1, 2]
    first.restore()
    assert one.listed == [1, 2]


def test_objects_of_shared_types_are_left_alone() -> None:
    one = Everything()
    saved = Snapshots((Slotted,)).save(one)
    one.slotted.value.append(2)
    saved.restore()
    assert one.slotted.value == [1, 2]


def test_only_what_an_action_touched_is_saved_and_undone() -> None:
    one, snapshots = Everything(), Snapshots()
    first, before = snapshots.save(one), one.content()
    one.listed.append(Slotted())
    one.several.add(3)
    second = snapshots.save(one, first, (one.listed,))
    one.several.remove(3)
    one.listed[-1].value.append(2)
    snapshots.undo(second, (one.listed[-1], one.listed[-1].value))
    assert one.listed[-1].value == [1]
    snapshots.undo(first, (one.listed,))
    assert one.content() == before
    one.several.add(3)
    second.restore(first)
    assert one.several == {1, 2, 3}  # It was not touched, so both snapshots share it.
    assert one.listed[-1].value == [1]


def test_what_differs_from_another_snapshot_is_restored() -> None:
    one, snapshots = Everything(), Snapshots()
    first = snapshots.save(one)
    one.listed.append(Slotted())
    left, at_left = snapshots.save(one, first), one.content()
    first.restore(left)
    one.named["c"] = one.typed
    one.typed.append(3)
    right, at_right = snapshots.save(one, first), one.content()
    left.restore(right)
    assert one.content() == at_left
    right.restore(left)
    assert one.content() == at_right
