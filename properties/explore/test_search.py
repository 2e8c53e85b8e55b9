"""The search over schedules, on a toy allocator whose faults can be switched on."""

import copy
import gc
import itertools
import os
from collections.abc import Hashable
from typing import ClassVar

import pytest

from paritybit.explore import search as module
from paritybit.explore.laws import Shadow, ownership
from paritybit.explore.search import CopyError, Explored, Search, ViolationError, share
from properties.explore.toy import Toy


def toy(fault: str = "") -> Explored:
    """Explore the toy up to eight actions."""
    return search(fault).run(8, 60.0)


def search(fault: str = "") -> Search:
    """Return a search over the toy."""
    return Search(lambda: Toy(fault))


def test_all_states_are_visited_once() -> None:
    found = toy()
    assert found.violation is None
    assert found.closed
    assert found.states == 10  # Pairs of counts whose sum is at most 3.
    assert found.reached == {"take", "give"}


@pytest.mark.parametrize(
    ("fault", "shortest", "law"),
    [
        ("kept free", 1, "freed in use"),
        ("lost", 2, "leak"),
        ("twice", 3, "double free"),
    ],
)
def test_a_fault_is_found_by_a_shortest_schedule(fault: str, shortest: int, law: str) -> None:
    found = toy(fault)
    assert found.violation is not None
    assert found.violation.startswith(law)
    assert len(found.path) == shortest


def test_a_depth_that_was_not_completed_is_not_reported() -> None:
    found = search().run(8, 0.0)
    assert (found.depth, found.closed, found.late) == (0, False, True)
    assert not found.reached


@pytest.mark.parametrize("fault", ["", "twice"])
def test_merged_states_have_the_violations_of_all_paths(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged = search(fault).run(5, 60.0)
    monkeypatch.setattr(module, "digest", lambda machine: os.urandom(16))
    single = search(fault).run(5, 60.0)
    assert (merged.path, merged.violation) == (single.path, single.violation)
    assert merged.reached == single.reached
    assert merged.states <= single.states


def test_a_copy_that_is_another_state_ends_the_search() -> None:
    one = search()
    one.run(2, 60.0)
    with pytest.raises(CopyError, match="another state"):
        one.compare(Toy(), ("take 0",))
    with pytest.raises(CopyError, match="no violation"):
        one.confirmed(("take 0",))


def test_what_was_frozen_before_a_search_stays_frozen() -> None:
    """Else each later collection of this process passes over all that it has imported."""
    gc.freeze()
    toy()
    assert gc.get_freeze_count() > 0


class Global(Toy):
    """A toy whose copies share a list, as an engine's module may have one."""

    shared: ClassVar[list[int]] = []

    def act(self, action: str) -> None:
        """Perform an action, and note it."""
        super().act(action)
        self.shared.append(1)

    def key(self) -> Hashable:
        """Return the state with the length of the list."""
        return super().key(), len(self.shared)


def test_copies_are_compared_with_their_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMPARED", 1)
    assert toy().closed
    with pytest.raises(CopyError, match="another state"):
        Search(Global).run(8, 60.0)


def test_states_beyond_the_kept_copies_are_reached_by_their_paths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = toy()
    monkeypatch.setattr(module, "MOST_COPIES", 1)
    found = toy()
    assert (found.states, found.transitions) == (kept.states, kept.transitions)


def test_objects_of_shared_types_are_not_copied() -> None:
    class Settings:
        """Never changes."""

    share((Settings,))
    one = [Settings(), [1], gc]
    other = copy.deepcopy(one)
    assert other[0] is one[0]
    assert other[1] is not one[1]
    assert other[2] is gc


def test_an_interrupted_search_keeps_what_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = itertools.count()

    def key(self: Toy) -> Hashable:
        if next(calls) == 6:
            raise KeyboardInterrupt
        return tuple(len(held) for held in self.held)

    monkeypatch.setattr(Toy, "key", key)
    found = toy()
    assert found.interrupted
    assert found.states > 1


def test_a_slot_is_read_for_the_tokens_that_it_was_written_for() -> None:
    shadow = Shadow()
    shadow.write(0, 5, (1,))
    shadow.write(0, 6, (1, 2))
    shadow.read(0, [5, 6], (1, 2), "r")
    for group, slots, tokens, said in (
        (0, [5, 6], (1, 3), "wrong owner: r reads position 1"),
        (1, [5], (1,), "wrong owner: r reads position 0 of group 1"),
        (0, [5, None], (1, 2), "wrong list: r reads position 1"),
        (0, [7], (1,), "never written"),
    ):
        with pytest.raises(ViolationError, match=said):
            shadow.read(group, slots, tokens, "r")


def test_the_cache_keeps_a_prefix_that_its_slots_hold() -> None:
    shadow = Shadow()
    shadow.write(0, 5, (1, 2))
    shadow.cached(0, [5], (1, 2))
    with pytest.raises(ViolationError, match="the prefix cache keeps slot 5"):
        shadow.cached(0, [5], (1, 3))


def test_a_count_differs_from_the_holders() -> None:
    with pytest.raises(ViolationError, match="wrong count: page 0 has the count 2"):
        ownership([1], {0: ["r"]}, {0: 2, 1: 0}, [0, 1])
