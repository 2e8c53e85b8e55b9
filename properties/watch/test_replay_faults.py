"""Faults of a toy engine: `check_replay` finds each, and names the law."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from paritybit.testing.replays import InMemory
from properties.watch.toy_graph import Toy

Changes = dict[str, Any]


def padded_rows_keep_slots(toy: Toy) -> Changes:
    """The padded tail of `loc` has slots of an earlier batch."""
    toy.buffers["loc"][:] = torch.tensor([1, 2, 16, 17])
    toy.prepare = lambda: toy.fill_some(reset=("ids", "lengths", "table"))
    return {}


def lengths_are_stale(toy: Toy) -> Changes:
    """Lengths are not copied."""
    toy.captured["lengths"][:2] = torch.tensor([2, 2])
    toy.prepare = lambda: toy.fill_some(("ids", "loc", "table"), ("ids", "loc", "table"))
    return {}


def output_is_kept_as_a_view(toy: Toy) -> Changes:
    """The output of a first step is read after a second one overwrote it."""
    second = {**toy.batch, "ids": toy.batch["ids"] + 7}

    def replay() -> Tensor:
        toy.prepare()
        toy.graph()
        kept = toy.output[: toy.live]
        toy.buffers["ids"][: toy.live] = second["ids"]
        toy.graph()
        return kept

    def eager() -> Tensor:
        first = toy.eager()
        toy.compute(second)
        return first

    # The second step leaves its own ids there.
    inputs = [replace(one, expected=None) for one in toy.inputs()]
    return {"replay": replay, "run_eager": eager, "static_inputs": inputs}


def rows_are_coupled(toy: Toy) -> Changes:
    """The mean over all rows, padded ones too, goes into each."""

    def graph() -> None:
        toy.run()
        toy.output.sub_(toy.output.mean(0))

    def prepare() -> None:  # What padding holds is left as it is.
        toy.fill_some(reset=("loc", "table", "lengths"))

    toy.graph, toy.prepare = graph, prepare
    return {"run_eager": None}


def tokens_differ(toy: Toy) -> Changes:
    """A replay that returns tokens alone returns others than eager."""
    return {
        "replay": lambda: toy.replay().argmax(-1) + 1,
        "run_eager": lambda: toy.eager().argmax(-1),
    }


FAULTS: tuple[tuple[Callable[[Toy], Changes], str], ...] = (
    (padded_rows_keep_slots, "stray write: .*the padded tail of loc alone explains it"),
    (lengths_are_stale, "stale input: the graph: lengths holds 2 at live entry 0, not 3"),
    (output_is_kept_as_a_view, "graph and eager differ: .*output differs"),
    (rows_are_coupled, "padding leak: .* depends on the values of its padding in ids: "),
    (tokens_differ, "graph and eager differ: "),
)


@pytest.mark.parametrize(("fault", "says"), FAULTS, ids=[one.__name__ for one, _ in FAULTS])
def test_each_fault_is_found_and_named(fault: Callable[[Toy], Changes], says: str) -> None:
    toy = Toy()
    changes = fault(toy)
    with pytest.raises(AssertionError, match=says):
        toy.check(**changes)


@pytest.mark.parametrize("computed", [True, False])
def test_padding_that_is_not_computed_cannot_leak(
    monkeypatch: pytest.MonkeyPatch, computed: bool
) -> None:
    counts: dict[str, int] = {}
    monkeypatch.setattr(InMemory, "count", lambda _, **more: counts.update(more))
    toy = Toy()
    toy.prepare = lambda: toy.fill_some(reset=("loc", "table", "lengths"))
    if not computed:
        live = slice(toy.live)

        def graph() -> None:
            given = {name: value[live] for name, value in toy.captured.items()}
            toy.output[live].copy_(toy.compute(given))

        toy.graph = graph
    toy.check()
    untried = [name for name in counts if name.startswith("not tried: padding leak")]
    assert (counts.get("tried: padding leak", 0), bool(untried)) == (computed, not computed)
