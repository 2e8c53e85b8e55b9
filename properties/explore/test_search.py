"""The search over schedules, on a toy allocator whose faults can be switched on."""

import gc
import itertools
from collections.abc import Hashable

import pytest

from paritybit.explore import search as module
from paritybit.explore.laws import Shadow, ownership
from paritybit.explore.search import Explored, Search, SnapshotError, ViolationError
from paritybit.explore.snapshots import Snapshots
from properties.explore.named import UnnamedError, compared, without
from properties.explore.toy import Toy


def toy(fault: str = "") -> Explored:
    """Explore the toy up to eight actions."""
    return search(fault).run(8, 60.0)


def search(fault: str = "", *, merge: bool = True) -> Search:
    """Return a search over the toy."""
    return Search(lambda: Toy(fault), Snapshots(()), merge=merge)


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
def test_merged_states_have_the_violations_of_all_paths(fault: str) -> None:
    merged, single = search(fault).run(5, 60.0), search(fault, merge=False).run(5, 60.0)
    assert (merged.path, merged.violation) == (single.path, single.violation)
    assert merged.reached == single.reached
    assert merged.states <= single.states


def test_a_snapshot_that_is_another_state_ends_the_search() -> None:
    one = search()
    one.run(2, 60.0)
    with pytest.raises(SnapshotError, match="another state"):
        one.compare(Toy(), ("take 0",))
    with pytest.raises(SnapshotError, match="no violation"):
        one.confirmed(("take 0",))


def test_what_was_frozen_before_a_search_stays_frozen() -> None:
    """Else each later collection of this process passes over all that it has imported."""
    gc.freeze()
    toy()
    assert gc.get_freeze_count() > 0


class Naming(Toy):
    """A toy that names what its actions change."""

    def act(self, action: str) -> tuple[object, ...]:  # type: ignore[override]
        """Do it."""
        super().act(action)
        return self.reached, self.free, *self.held, self.shadow.written


def test_actions_that_name_what_they_change() -> None:
    found = Search(Naming, Snapshots(())).run(8, 60.0)
    assert (found.closed, found.states, found.transitions) == (True, 10, toy().transitions)
    assert compared(Search(Naming, Snapshots(())), 8) > found.transitions


@pytest.mark.parametrize("place", [0, 4])
def test_an_object_that_is_not_named_is_found(place: int) -> None:
    with without(Naming, "take", place), pytest.raises(UnnamedError):
        compared(Search(Naming, Snapshots(())), 8)


def test_a_snapshot_is_compared_with_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMPARED", 1)
    with without(Naming, "give", 1), pytest.raises(SnapshotError):
        Search(Naming, Snapshots(())).run(8, 60.0)


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
