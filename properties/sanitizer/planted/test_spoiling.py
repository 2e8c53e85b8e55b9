"""A static input is got wrong after it was filled, and counts if that changes a bit."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from properties.sanitizer.planted.spoiling import CHANGES, REBINDINGS, Spoiled, Target, replace


class Backend:
    """Plans from the inputs, and fills one of its own."""

    def __init__(self, buffers: Any) -> None:
        self.buffers, self.slots = buffers, torch.zeros(4, dtype=torch.int64)
        self.planned: list[list[int]] = []

    def init_forward_metadata_out_graph(self, batch: Any) -> None:
        """Plan a batch."""
        self.planned.append(self.buffers.ids.tolist())
        self.slots[:] = self.buffers.ids


class Runner:
    """A runner of graphs for 4 rows, whose padding is 0."""

    capture_bs = (4,)

    def __init__(self) -> None:
        self.buffers = SimpleNamespace(ids=torch.zeros(4, dtype=torch.int64))
        self.attn_backend = Backend(self.buffers)
        self.graphs = {4: None}

    def load_batch(self, batch: Any) -> None:
        """Fill the inputs, then plan."""
        self.buffers.ids.zero_()
        self.buffers.ids[: batch.batch_size] = batch.ids
        self.attn_backend.init_forward_metadata_out_graph(batch)


def batch(*ids: int) -> Any:
    return SimpleNamespace(batch_size=len(ids), ids=torch.tensor(ids))


@pytest.mark.parametrize(
    ("change", "held"),
    [
        ("tail not reset", [7, 2, 3, 4]),
        ("first row stale", [1, 0, 0, 0]),
        ("first row wrong", [8, 0, 0, 0]),
    ],
)
def test_an_input_is_got_wrong_before_lists_are_planned_but_not_the_first_time(
    change: str, held: list[int]
) -> None:
    runner, counted = Runner(), Spoiled()
    Target(runner).plant(f"ids: {change}", counted)
    runner.load_batch(batch(1, 2, 3, 4))
    runner.load_batch(batch(7))
    assert runner.buffers.ids.tolist() == held
    assert runner.attn_backend.planned == [[1, 2, 3, 4], held]
    assert counted.changed == 1


def test_a_fault_that_changes_nothing_is_not_counted() -> None:
    runner, counted = Runner(), Spoiled()
    Target(runner).plant("ids: tail not reset", counted)
    for _ in range(3):
        runner.load_batch(batch(7))
    assert counted == Spoiled()


def test_every_fault_of_a_runner_has_a_name_by_which_it_is_planted() -> None:
    names = [*Target(Runner()).faults()]
    assert len(names) == len(set(names))
    assert {f"ids: {change}" for change in (*CHANGES, *REBINDINGS)} < set(names)
    with pytest.raises(KeyError):
        Target(Runner()).plant("lengths: tail not reset", Spoiled())


def test_a_method_that_is_there_is_replaced_and_its_calls_count() -> None:
    allocator, counted = SimpleNamespace(free=lambda slots: slots), Spoiled()
    replace(allocator, ("free", "free_segment"), lambda free, slots: free(slots[:-1]), counted)
    assert allocator.free([1, 2]) == [1]
    assert (counted.changed, hasattr(allocator, "free_segment")) == (1, False)
