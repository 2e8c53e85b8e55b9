"""The states of recurrent layers are slots that a row reads and writes once."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paritybit.connectors.sglang.allocations import Allocations
from paritybit.connectors.sglang.recurrent import NAME, States
from paritybit.connectors.sglang.rows import Rows
from paritybit.watch.facts import Forward, Row
from properties.connectors import parts
from properties.connectors.parts import hooked


def table(**more: Any) -> Any:
    """Return a table of requests whose rows 1 and 2 have the states 5 and 3."""
    held = SimpleNamespace(
        conv=[torch.zeros(2, 9, 4, 2)], temporal=torch.zeros(2, 9, 1, 0), replayssm_d=None
    )
    found = parts.Part(
        mamba_pool=SimpleNamespace(mamba_cache=held),
        req_index_to_mamba_index_mapping=torch.tensor([0, 5, 3]),
        **more,
    )
    return parts.kept(found)


def told(kind: str = "extend", **more: Any) -> tuple[list[list[int]], dict[int, int]]:
    """Return the slots of states of a prompt that goes on and of one that begins, and the copies.

    A keyword argument is a field of the batch.
    """
    states = States.of(table())
    assert states is not None
    rows = [
        Row("a", [1, 2, 3, 4], 2, 2, {"full": torch.arange(4)}),
        Row("b", [7, 8], 0, 2, {"full": torch.arange(4, 6)}),
    ]
    mode = parts.mode(kind)
    batch = SimpleNamespace(req_pool_indices=torch.tensor([1, 2]), forward_mode=mode, **more)
    forward, found = states.with_states(batch, Forward(kind, tuple(rows)), Rows(rows, [0, 1]))
    assert forward.rows == tuple(found.rows)
    assert found.rows[0].slots["full"].tolist() == [0, 1, 2, 3]
    return [row.slots[NAME].tolist() for row in found.rows], states.due


def copies(*pairs: tuple[int, int]) -> dict[str, Any]:
    """Return the fields of a batch that lists copies, each a source and a target."""
    source, target = torch.tensor(pairs).T
    return {"mamba_cow_src_indices": source, "mamba_cow_dst_indices": target}


NONE = [[-1, 5, -1, 5], [-1, 3]]
FIRST = [[-1, 8, -1, 5], [-1, 3]]


@pytest.mark.parametrize(
    ("kind", "listed", "slots", "due"),
    [
        ("extend", {}, NONE, {}),
        ("extend", copies((8, 5)), FIRST, {5: 8}),  # It is read where it is copied from.
        # As in sglang 0.5.14, whose batches keep the lists of their prompts.
        ("decode", copies((8, 5)), NONE, {}),
        # A prompt without a cached prefix copies none, as in sgl-project/sglang#29354.
        ("extend", copies((8, 5), (7, 3)), FIRST, {5: 8, 3: -1}),
    ],
)
def test_a_row_reads_the_state_before_it_and_writes_the_one_after_it(
    kind: str, listed: dict[str, Any], slots: list[list[int]], due: dict[int, int]
) -> None:
    assert told(kind, **listed) == (slots, due)


def test_states_are_copied_between_forwards_and_freed() -> None:
    """What a forward copies itself, it reads where it copies from."""
    told: list[Any] = []
    watcher = SimpleNamespace(
        watching=True,
        copied=lambda *given: told.append(("copied", *given[:3])),
        freed=lambda *given: told.append(("freed", *given[:2])),
    )
    pool, allocator, slots = parts.Part(), parts.Part(), torch.tensor([4])
    allocations = Allocations(None)  # type: ignore[arg-type]
    allocations.watcher = watcher  # type: ignore[assignment]
    allocations.follow([(pool, NAME), (allocator, NAME)])
    allocations.states = states = States(parts.kept(parts.Part()))
    for watching in (True, False):
        watcher.watching = watching
        hooked(allocations.copy_state, lambda *given: None, pool, slots, slots + 1)
    hooked(allocations.free, lambda *given: None, allocator, slots)
    assert told == [("copied", NAME, slots, slots + 1), ("freed", NAME, slots)]
    assert states.seen == {5: 4}


def test_the_states_that_are_free_and_cached_are_reported_while_nothing_runs() -> None:
    free, cached, told = torch.tensor([1, 2]), torch.tensor([3]), dict[str, Any]()
    allocations = Allocations(None)  # type: ignore[arg-type]
    allocations.watcher = SimpleNamespace(  # type: ignore[assignment]
        idle=lambda groups, *_: told.update(groups)
    )
    pool = SimpleNamespace(slots=lambda _: {}, sliding=None)
    allocations.pool = pool  # type: ignore[assignment]
    owner = parts.Part(mamba_pool=parts.Part(), mamba_allocator=parts.Part(free_slots=free))
    allocations.states = States(parts.kept(owner))
    cache = SimpleNamespace(
        all_values_flatten=lambda: cached, all_mamba_values_flatten=lambda: cached
    )
    allocations.idle(cache, ([], 0), True)
    assert [one.tolist() for one in told[NAME]] == [[1, 2], [3]]
