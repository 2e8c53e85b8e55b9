"""The states of recurrent layers are slots that a row reads and writes once."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paritybit.connectors.hooking import NotRecognisedError
from paritybit.connectors.sglang.allocations import Allocations
from paritybit.connectors.sglang.recurrent import NAME, States
from paritybit.connectors.sglang.rows import Rows
from paritybit.watch.facts import Forward, Row
from properties.connectors import parts


def table(**more: Any) -> Any:
    """Return a table of requests whose rows 1 and 2 have the states 5 and 3."""
    held = SimpleNamespace(
        conv=[torch.zeros(2, 9, 4, 2)], temporal=torch.zeros(2, 9, 1, 0), replayssm_d=None
    )
    return parts.Part(
        mamba_pool=SimpleNamespace(mamba_cache=held),
        req_index_to_mamba_index_mapping=torch.tensor([0, 5, 3]),
        **more,
    )


def told(**more: Any) -> list[list[int]]:
    """Return the slots of states of a prompt that goes on and of one that begins."""
    states = States.of(table())
    assert states is not None
    rows = [
        Row("a", [1, 2, 3, 4], 2, 2, {"full": torch.arange(4)}),
        Row("b", [7, 8], 0, 2, {"full": torch.arange(4, 6)}),
    ]
    batch = SimpleNamespace(req_pool_indices=torch.tensor([1, 2]), **more)
    forward, found = states.with_states(batch, Forward("extend", tuple(rows)), Rows(rows, [0, 1]))
    assert forward.rows == tuple(found.rows)
    assert found.rows[0].slots["full"].tolist() == [0, 1, 2, 3]
    return [row.slots[NAME].tolist() for row in found.rows]


def test_a_row_reads_the_state_before_it_and_writes_the_one_after_it() -> None:
    assert told() == [[-1, 5, -1, 5], [-1, 3]]


def test_a_state_that_a_forward_copies_first_is_read_where_it_is_copied_from() -> None:
    slots = torch.tensor([5]), torch.tensor([8])
    assert told(mamba_cow_dst_indices=slots[0], mamba_cow_src_indices=slots[1]) == [
        [-1, 8, -1, 5],
        [-1, 3],
    ]


def test_a_state_has_the_tensors_of_its_layers() -> None:
    states = States.of(table(mamba_allocator="an allocator"))
    assert states is not None
    group = states.group
    assert (group.name, group.window, sorted(group.reserved)) == (NAME, 2, [0])
    assert [layer.name for layer in group.layers] == ["recurrent layer 0", "recurrent layer 1"]
    assert [[*tensor.shape] for tensor in group.layers[0].tensors] == [[9, 4, 2]]
    assert [part for part, _ in states.parts()][1:] == ["an allocator"]
    batch = SimpleNamespace(req_pool_indices=torch.tensor([2]))
    assert states.written(batch)[NAME].tolist() == [3]


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"enable_mamba_extra_buffer": True}, "tracked in slots of their own"),
        ({"mamba_ckpt_pool": object()}, "kept in another form"),
    ],
)
def test_states_that_are_kept_otherwise_are_not_known(more: dict[str, Any], what: str) -> None:
    with pytest.raises(NotRecognisedError, match=what):
        States.of(table(**more))


def test_states_of_drafts_are_not_known() -> None:
    given = table()
    given.mamba_pool.mamba_cache.intermediate_conv_window = []
    with pytest.raises(NotRecognisedError, match="states of drafts"):
        States.of(given)
    assert States.of(parts.Part()) is None


def test_states_are_copied_between_forwards_and_freed() -> None:
    """What a forward copies itself, it reads where it copies from."""
    told: list[Any] = []
    watcher = SimpleNamespace(
        watching=True,
        copied=lambda *given: told.append(("copied", *given)),
        freed=lambda *given: told.append(("freed", *given[:2])),
    )
    pool, allocator, slots = parts.Part(), parts.Part(), torch.tensor([4])
    allocations = Allocations(None)  # type: ignore[arg-type]
    allocations.watcher = watcher  # type: ignore[assignment]
    allocations.follow([(pool, NAME), (allocator, NAME)])
    allocations.states = states = States(parts.Part())
    for watching in (True, False):
        watcher.watching = watching
        allocations.copy_state(lambda *given: None, pool, slots, slots + 1)
    allocations.free_state(lambda *given: None, allocator, slots)
    assert told == [("copied", NAME, slots, slots + 1), ("freed", NAME, slots)]
    assert states.seen == {5: 4}


@pytest.mark.parametrize(("seen", "made"), [({5: 8}, [8]), ({5: 7}, [7]), ({}, [-1])])
def test_what_a_forward_reuses_it_copies(seen: dict[int, int], made: list[int]) -> None:
    judged: list[Any] = []
    watcher: Any = SimpleNamespace(inputs=lambda kind, given: judged.extend(given))
    states = States(parts.Part(), {5: 8}, seen)
    states.judge(watcher)
    states.judge(watcher)
    assert [(one.tensor.tolist(), one.expected.tolist()) for one in judged] == [(made, [8])]
