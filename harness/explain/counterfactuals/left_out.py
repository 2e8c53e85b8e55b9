"""Wrong memory in the arguments of ops, and rows and masks that ops lack."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from paritybit.harness.explain.counterfactuals.listed import (
    MASK,
    MASK_PLACE,
    MASK_START_PLACE,
    MOST_PLACE,
    lists_of,
    mask_for,
)
from paritybit.harness.explain.counterfactuals.replaced import (
    CACHE,
    ROWS,
    STORED_AT,
    STORED_ROWS,
    Replaced,
)
from paritybit.harness.explain.origins.arguments import named_arguments
from paritybit.harness.explain.provenance import layers_by_address, row_store_of
from paritybit.harness.explain.recorded import RecordedForward
from paritybit.reference.ops import OpCall

Pairs = Sequence[tuple[OpCall | None, OpCall]]
"""Ops of a run, each with the corresponding op of another run, if any."""


def left_out(recorded: RecordedForward, pairs: Pairs, op: str) -> Iterator[Replaced]:
    """Yield the right arguments for all ops of one name: their own memory, and all rows."""
    yield from _cache(recorded, pairs, op)
    yield from _table(recorded, pairs, op)
    yield from _rows_left_out(pairs, op)


def _cache(recorded: RecordedForward, pairs: Pairs, op: str) -> Iterator[Replaced]:
    """Yield the cache of all ops of one name if it is another layer's than in the other run.

    It is shown as the layer's number, a copy as -1.
    """
    pools = recorded.pair.graph_pools
    known = {**layers_by_address(recorded.pair.eager_pools), **layers_by_address(pools)}
    values, wrong = dict[int, dict[int, Any]](), list[tuple[int, int]]()
    same = [(one, call) for one, call in pairs if call.name == op]
    for number, (one, call) in enumerate(same):
        names = list(named_arguments(call))
        if one is None or CACHE not in names:
            continue
        place = names.index(CACHE)
        held, right = (known.get(given.inputs[place].data_ptr()) for given in (call, one))
        if right is not None and held != right:
            role, layer, _ = right
            values[number] = {place: pools[role].cache(layer)}
            wrong.append((-1 if held is None else held[1], layer))
    if wrong:
        layers = torch.tensor(wrong[0])
        yield Replaced(op, CACHE, layers[0], layers[1], values, number=min(values))


def _table(recorded: RecordedForward, pairs: Pairs, op: str) -> Iterator[Replaced]:
    """Yield the pool's own table for all ops of one name that store rows in another."""
    pools, values = recorded.pair.graph_pools, dict[int, dict[int, Any]]()
    same = [call for _, call in pairs if call.name == op == "store_rows"]
    for number, call in enumerate(same):
        stored = row_store_of(call, pools)
        if stored.elsewhere:
            table = pools.state.sections[stored.section]
            values[number] = {0: table.view(call.inputs[0].shape)}
    if values:
        number = min(values)
        held, right = same[number].inputs[0], values[number][0]
        yield Replaced(op, "table", held.clone(), right.clone(), values, number=number)


def _rows_left_out(pairs: Pairs, op: str) -> Iterator[Replaced]:
    """Yield the full values of stores that get fewer rows than in the other run."""
    values, counts = dict[int, dict[int, Any]](), list[tuple[int, int]]()
    same = [(one, call) for one, call in pairs if call.name == op]
    for number, (one, call) in enumerate(same):
        names = list(named_arguments(call))
        places = [at for at, name in enumerate(names) if name in STORED_ROWS]
        places = [*(at for at in places if names[at] not in STORED_AT), *places]
        if one is None or not places:
            continue
        held, right = (len(given.inputs[places[0]]) for given in (call, one))
        if held < right:
            values[number] = {place: one.inputs[place] for place in places}
            counts.append((held, right))
    if counts:
        rows = torch.tensor(counts[0])
        yield Replaced(op, ROWS, rows[0], rows[1], values, number=min(values))


def masks_left_out(attention: Pairs) -> Iterator[Replaced]:
    """Yield masks for all attention ops that have none and have one in the other run.

    With these, each row lists the right keys.
    """
    values = dict[int, dict[int, Any]]()
    for number, (one, call) in enumerate(attention):
        if one is None or not _masked(one) or _masked(call) or len(call.inputs) <= MASK_START_PLACE:
            continue
        mask = mask_for(call, lists_of(one))
        if mask is not None:  # The mask may make its rows longer.
            given = max(int(given.inputs[MOST_PLACE]) for given in (one, call)), *mask
            places = MOST_PLACE, MASK_PLACE, MASK_START_PLACE
            values[number] = dict(zip(places, given, strict=True))
    if values:
        mask = values[min(values)][MASK_PLACE]
        yield Replaced("attention", MASK, mask[:0], mask.clone(), values, number=min(values))


def _masked(call: OpCall) -> bool:
    """Whether an attention op has a mask."""
    return len(call.inputs) > MASK_START_PLACE and call.inputs[MASK_PLACE] is not None
