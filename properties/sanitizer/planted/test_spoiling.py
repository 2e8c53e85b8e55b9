"""A static input is got wrong after it was filled, and counts if that changes a bit."""

from collections.abc import Callable
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


def test_an_input_of_the_backend_is_got_wrong_after_it_was_planned() -> None:
    runner, counted = Runner(), Spoiled()
    Target(runner).plant("attention.slots: tail not reset", counted)
    runner.load_batch(batch(1, 2, 3, 4))
    runner.load_batch(batch(7))
    assert runner.attn_backend.slots.tolist() == [7, 2, 3, 4]
    assert (runner.buffers.ids.tolist(), counted.changed) == ([7, 0, 0, 0], 1)


def test_a_fault_that_changes_nothing_is_not_counted() -> None:
    runner, counted = Runner(), Spoiled()
    Target(runner).plant("ids: tail not reset", counted)
    for _ in range(3):
        runner.load_batch(batch(7))
    assert counted == Spoiled()


@pytest.mark.parametrize("change", REBINDINGS)
def test_an_input_is_bound_again(change: str) -> None:
    runner, counted = Runner(), Spoiled()
    before = runner.buffers.ids
    Target(runner).plant(f"ids: {change}", counted)
    assert runner.buffers.ids is not before
    assert (runner.buffers.ids.dtype == before.dtype) == (change == next(iter(REBINDINGS)))
    assert counted.changed == 1


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


class CompilingRunner:
    """A runner of compiled functions for 2 and 4 rows, which fills inputs for fewer rows alone."""

    def __init__(self) -> None:
        self.ids = torch.zeros(4, dtype=torch.int64)
        self.graphs = {2: None, 4: None}
        self.planned: list[list[int]] = []
        plan = lambda batch: self.planned.append(batch.ids.tolist())  # noqa: E731
        backend = SimpleNamespace(init_forward_metadata=plan)
        self.model_runner = SimpleNamespace(attn_backend=backend)

    def prepare_replay(self, batch: Any) -> None:
        """Fill the inputs if the batch is smaller than its function, then plan."""
        given = batch
        if batch.batch_size not in self.graphs:
            self.ids.zero_()
            self.ids[: batch.batch_size] = batch.ids
            given = SimpleNamespace(ids=self.ids)
        self.model_runner.attn_backend.init_forward_metadata(given)


def test_inputs_of_compiled_functions_are_got_wrong_before_lists_are_planned() -> None:
    runner, counted = CompilingRunner(), Spoiled()
    Target(runner).plant("ids: first row wrong", counted)
    for given in (batch(1, 2, 3), batch(4, 5), batch(6, 7, 8)):
        runner.prepare_replay(given)
    assert runner.planned == [[1, 2, 3, 0], [4, 5], [7, 7, 8, 0]]
    assert counted.changed == 1


@pytest.mark.parametrize(
    ("fault", "held"),
    [
        ("the first row has the state of the next", [6, 6]),
        ("a reused state is not copied", []),
        ("a new state is given while another request has it", [6]),
    ],
)
def test_states_are_got_wrong(fault: str, held: list[int]) -> None:
    copied: list[int] = []
    table = SimpleNamespace(
        get_mamba_indices=lambda rows: rows + 4,
        mamba_pool=SimpleNamespace(copy_from=lambda source, target: copied.extend(target)),
        mamba_allocator=SimpleNamespace(_do_alloc=lambda count: torch.tensor([7])),
    )
    runner, counted = Runner(), Spoiled()
    runner.model_runner = SimpleNamespace(req_to_token_pool=table)  # type: ignore[attr-defined]
    assert fault in set(Target(runner).faults())
    Target(runner).plant(fault, counted)
    calls: dict[str, Callable[[], Any]] = {
        "the first row has the state of the next": lambda: table.get_mamba_indices(
            torch.tensor([1, 2])
        ),
        "a reused state is not copied": lambda: table.mamba_pool.copy_from([1], [2]) or copied,
        "a new state is given while another request has it": lambda: (
            table.mamba_allocator._do_alloc(1)
        ),
    }
    given = calls[fault]()
    assert [int(slot) for slot in given] == held
    assert counted.changed == 1
