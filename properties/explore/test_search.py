"""The search over schedules, on a toy allocator whose faults can be switched on."""

import os

import pytest

from paritybit.explore import search as module
from paritybit.explore.laws import Shadow
from paritybit.explore.search import CopyError, Explored, Search, ViolationError
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
