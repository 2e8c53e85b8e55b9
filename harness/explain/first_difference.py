"""The first difference between two runs of one forward, op by op, in execution order.

Both runs run the same model, so ops are paired by name and number of earlier ops of that name.
Stores are compared by their locations and values, all other ops by their result rows.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Final, NamedTuple

import torch
from paritybit.harness.explain.facts import FirstDifference, SlotTaken
from paritybit.harness.lockstep.bits import first_index, hex_bits, unequal
from paritybit.reference.config import Role
from paritybit.reference.ops import OpCall
from paritybit.reference.pool import STATE_ROWS, KVPools
from torch import Tensor

ROWS_SECOND = frozenset({"rotary"})
"""Ops whose results have rows along the second axis."""

STORES = frozenset({"store_kv", "store_rows"})


class Cache(NamedTuple):
    """A cache of a forward: KV of one layer, or with no layer recurrent states.

    A slot has `slot_rows` rows. Without a model, it stands for an op that reads no cache.
    """

    model: str | None = None
    layer: int | None = None
    kind: str | None = None
    slot_rows: int = 1


STATES: Final = Cache(Role.TARGET, None, "recurrent state", STATE_ROWS)
NO_CACHE: Final = Cache()


def caches(pools: KVPools, storage: Tensor) -> dict[Cache, Tensor]:
    """Return the rows of each cache in a storage of some pools."""
    found: dict[Cache, Tensor] = {}
    for role, kind, arena in pools.layout.arenas_of(storage):
        for number, layer in enumerate(pools[role].config.layers_of(kind)):
            found[Cache(str(role), layer, str(kind))] = arena[number].transpose(0, 1)
    found[STATES] = pools.layout.states_of(storage).flatten(0, 1)
    return found


def cache_of(tensor: Tensor, pools: KVPools) -> Cache | None:
    """Return which cache of the pools an argument of an op is. None for a copy of one."""
    found = caches(pools, pools.storage).items()
    return next((cache for cache, own in found if own.data_ptr() == tensor.data_ptr()), None)


class Store(NamedTuple):
    """One store: its cache, the row there that each row of the op names, and its values."""

    cache: Cache | None
    rows: list[int]
    values: Tensor


def store_of(call: OpCall, pools: KVPools) -> Store:
    """Return what a store did, with its locations as the store reads them."""
    if call.name == "store_kv":
        target, loc, dtype, key, value = call.inputs
        rows, values = loc.view(dtype)[: len(key)], torch.stack([key, value], 1)
    else:
        target, rows, values = call.inputs
    return Store(cache_of(target, pools), rows.tolist(), values)


class Found(NamedTuple):
    """The first bits that differ, at op number `call`, and the wrong slot that led there, if any.

    `live` of the difference is not known here.
    """

    call: int
    difference: FirstDifference
    taken: SlotTaken | None


def first_difference(
    left: Sequence[OpCall],
    right: Sequence[OpCall],
    left_pools: KVPools,
    pools: KVPools,
    before: Tensor,
) -> Found | None:
    """Return the first difference of the ops `right` from `left`, or None if no op shows one.

    `left_pools` and `pools` are those of the two runs, which have the bits `before` before the ops.
    Results are compared by the rows that `left` has too.
    """
    contents = caches(pools, before)
    for number, one, other in pair_ops(left, right):
        if one is None:
            continue
        if other.name in STORES:
            stores = store_of(one, left_pools), store_of(other, pools)
            found = _compare_stores(number, other.name, *stores, contents)
        else:
            found = _compare_results(number, one, other, pools)
        if found is not None:
            return found
    return None


def pair_ops(
    left: Sequence[OpCall], right: Sequence[OpCall]
) -> Iterator[tuple[int, OpCall | None, OpCall]]:
    """Yield each op of `right` with its place and the corresponding op of `left`.

    The corresponding op may be None.
    """
    left_of = dict(zip(_numbered(left), left, strict=True))
    for number, (name, call) in enumerate(zip(_numbered(right), right, strict=True)):
        yield number, left_of.get(name), call


def _numbered(calls: Sequence[OpCall]) -> Iterator[tuple[str, int]]:
    counts: Counter[str] = Counter()
    for call in calls:
        yield call.name, counts[call.name]
        counts[call.name] += 1


def _compare_stores(
    number: int, op: str, left: Store, right: Store, contents: Mapping[Cache, Tensor]
) -> Found | None:
    """Compare the rows of two stores, except those that may store in the reserved slot.

    The expected bits of a slot are those that `left` stores there, or else its old `contents`.
    """
    cache = right.cache
    if cache is None or cache != left.cache:
        return None
    expected = dict(zip(left.rows, left.values, strict=True))
    for row, (place, value) in enumerate(zip(right.rows, right.values, strict=True)):
        should = left.rows[row] if row < len(left.rows) else None
        one = expected.get(place, contents[cache][place])
        different = unequal(one, value)
        harmless = place < cache.slot_rows and should in {None, place}
        if harmless or not different.any():
            continue
        index, in_kv = first_index(different), cache.layer is not None
        difference = FirstDifference(
            op,
            *cache[:3],
            tensor="KV"[index[0]] if in_kv else "value",
            row=row,
            live=False,
            slot=place // cache.slot_rows,
            head=index[1] if in_kv else None,
            element=index[-1],
            eager_bits=hex_bits(one[index]),
            graph_bits=hex_bits(value[index]),
        )
        return Found(number, difference, _taken(cache, row, place, should))
    return None


def _taken(cache: Cache, row: int, wrong: int, right: int | None) -> SlotTaken | None:
    """Return the slot of a row of a cache that an op's row took. None if it is the right one."""
    slot = wrong // cache.slot_rows
    expected = None if right is None else right // cache.slot_rows
    if slot == expected:
        return None
    return SlotTaken(str(cache.model), str(cache.kind), row, None, slot, expected)


def _compare_results(number: int, left: OpCall, right: OpCall, pools: KVPools) -> Found | None:
    """Compare the result rows of two ops: those of `left` with the first ones of `right`."""
    pairs = zip(results_of(left), results_of(right), strict=True)
    for number_of_tensor, (one, other) in enumerate(pairs):
        rows = min(len(one), len(other))
        different = unequal(one[:rows], other[:rows])
        if not different.any():
            continue
        place = first_index(different)
        cache, taken = NO_CACHE, None
        if right.name == "scan_states":
            cache = STATES
            wrong, expected = (int(call.inputs[1][place[0]]) for call in (right, left))
            taken = _taken(cache, place[0], wrong, expected)
        elif right.name == "attention":
            cache = cache_of(right.inputs[1], pools) or NO_CACHE
            taken = _key(cache, place[0], keys_of(left, place[0]), keys_of(right, place[0]))
        difference = FirstDifference(
            right.name,
            *cache[:3],
            tensor=f"result {number_of_tensor}" if isinstance(right.result, tuple) else "result",
            row=place[0],
            live=False,
            slot=None,
            head=place[1] if len(place) > 2 else None,
            element=place[-1],
            eager_bits=hex_bits(one[place]),
            graph_bits=hex_bits(other[place]),
        )
        return Found(number, difference, taken)
    return None


def results_of(call: OpCall) -> list[Tensor]:
    """Return the tensors that an op gave, rows first."""
    results = call.result if isinstance(call.result, tuple) else (call.result,)
    if call.name in ROWS_SECOND:
        return [result.transpose(0, 1) for result in results]
    return list(results)


def rows_of(call: OpCall) -> int:
    """Return the number of rows of an op: the rows that it stores, or gives."""
    if call.name in STORES:
        return len(call.inputs[-1])
    return len(results_of(call)[0])


def keys_of(call: OpCall, row: int) -> list[int]:
    """Return the slots that the attention of one row lists."""
    _, _, begin, end, slots, _ = call.inputs
    listed: list[int] = slots[int(begin[row]) : int(end[row])].tolist()
    return listed


def _key(cache: Cache, row: int, left: list[int], right: list[int]) -> SlotTaken | None:
    """Return the first key in which two rows' lists differ, or None."""
    for key, (expected, wrong) in enumerate(zip_longest(left, right)):
        if wrong != expected:
            return SlotTaken(str(cache.model), str(cache.kind), row, key, wrong, expected)
    return None
