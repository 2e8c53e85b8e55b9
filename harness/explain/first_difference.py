"""The first difference between two runs of one forward, op by op, in execution order.

Both runs run the same model, so ops are paired by name and number of earlier ops of that name.
Stores are compared by the contents of the cache after them, all other ops by their result rows.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, zip_longest
from typing import Final, NamedTuple

import torch
from paritybit.harness.explain.facts import FirstDifference, SlotTaken
from paritybit.harness.lockstep.bits import bits, first_index, hex_bits
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


@dataclass(frozen=True)
class Side:
    """One run of a forward: its pools, all KV before it, and its ops."""

    pools: KVPools
    before: Tensor
    calls: Sequence[OpCall]


class Found(NamedTuple):
    """The first bits that differ, at op number `call`, and the wrong slot that led there, if any.

    `live` of the difference is not known here.
    """

    call: int
    difference: FirstDifference
    taken: SlotTaken | None


def first_difference(left: Side, right: Side) -> Found | None:
    """Return the first difference of `right` from `left`, or None if no op shows one.

    Stores are compared by all slots except slot 0, other ops by the rows that `left` has too.
    """
    runs = tuple(caches(side.pools, side.before.clone()) for side in (left, right))
    for number, one, other in pair_ops(left.calls, right.calls):
        if other.name in STORES:
            store = None if one is None else store_of(one, left.pools)
            found = _compare_stores(number, other.name, store, store_of(other, right.pools), runs)
        else:
            found = None if one is None else _compare_results(number, one, other, right.pools)
        if found is not None:
            return found
    return None


def pair_ops(
    left: Sequence[OpCall], right: Sequence[OpCall]
) -> Iterator[tuple[int, OpCall | None, OpCall]]:
    """Yield each op of `right` with its place and the corresponding op of `left`.

    The corresponding op has the same name and as many earlier ops of that name. It may be None.
    """
    left_of = dict(zip(_numbered(left), left, strict=True))
    for number, (name, call) in enumerate(zip(_numbered(right), right, strict=True)):
        yield number, left_of.get(name), call


def _numbered(calls: Sequence[OpCall]) -> Iterator[tuple[str, int]]:
    """Yield the name of each op, and the number of earlier ops of that name."""
    counts: Counter[str] = Counter()
    for call in calls:
        yield call.name, counts[call.name]
        counts[call.name] += 1


def _compare_stores(
    number: int,
    op: str,
    left: Store | None,
    right: Store,
    runs: Sequence[Mapping[Cache, Tensor]],
) -> Found | None:
    """Carry out a store in both runs' caches, and compare the slots that it names.

    If one run stores more often than the other, paired stores may be of different layers.
    """
    cache = right.cache or (None if left is None else left.cache)
    for store, found in zip((left, right), runs, strict=True):
        if store is not None and store.cache is not None:
            for row, value in zip(store.rows, store.values, strict=True):
                found[store.cache][row] = value
    if cache is None:
        return None
    expected = left.rows if left is not None and left.cache == cache else []
    touched = sorted({*expected, *right.rows} - set(range(cache.slot_rows)))
    one, other = (found[cache][touched] for found in runs)
    different = bits(one) != bits(other)
    if not different.any():
        return None
    place = first_index(different)
    row, in_kv = touched[place[0]], cache.layer is not None
    difference = FirstDifference(
        op,
        *cache[:3],
        tensor="KV"[place[1]] if in_kv else "value",
        row=_last(right.rows, row),
        live=False,
        slot=row // cache.slot_rows,
        head=place[2] if in_kv else None,
        element=place[-1],
        eager_bits=hex_bits(one[place]),
        graph_bits=hex_bits(other[place]),
    )
    return Found(number, difference, _location(cache, expected, right.rows, row))


def _location(cache: Cache, left: list[int], right: list[int], row: int) -> SlotTaken | None:
    """Return the wrong location that made two stores differ in one row of a cache, or None.

    Returns None if both wrote the row alike, and if `right` has no location for the op's row.
    """
    wrote, should = _last(right, row), _last(left, row)
    of_op = wrote if wrote is not None else should
    if wrote == should or of_op is None or of_op >= len(right):
        return None
    return _taken(cache, of_op, right[of_op], left[of_op] if of_op < len(left) else None)


def _taken(cache: Cache, row: int, wrong: int, right: int | None) -> SlotTaken | None:
    """Return the slot of a row of a cache that an op's row took. None if it is the right one."""
    slot = wrong // cache.slot_rows
    expected = None if right is None else right // cache.slot_rows
    if slot == expected:
        return None
    return SlotTaken(str(cache.model), str(cache.kind), row, None, slot, expected)


def _last(rows: Sequence[int], row: int) -> int | None:
    """Return the last place at which `row` occurs, or None."""
    return max((place for place, one in enumerate(rows) if one == row), default=None)


def _compare_results(number: int, left: OpCall, right: OpCall, pools: KVPools) -> Found | None:
    """Compare the result rows of two ops: those of `left` with the first ones of `right`."""
    pairs = zip(results_of(left), results_of(right), strict=True)
    for number_of_tensor, (one, other) in enumerate(pairs):
        rows = min(len(one), len(other))
        different = bits(one[:rows]) != bits(other[:rows])
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
    """Return the slots that take part in the attention of one row, in list order."""
    _, _, begin, end, slots, _, mask, mask_start = (*call.inputs, None, None)[:8]
    listed: list[int] = slots[int(begin[row]) : int(end[row])].tolist()
    if mask is None or mask_start is None:
        return listed
    start = int(mask_start[row])
    return list(compress(listed, mask[start : start + len(listed)].tolist()))


def _key(cache: Cache, row: int, left: list[int], right: list[int]) -> SlotTaken | None:
    """Return the first key in which two rows' lists differ, or None."""
    for key, (expected, wrong) in enumerate(zip_longest(left, right)):
        if wrong != expected:
            return SlotTaken(str(cache.model), str(cache.kind), row, key, wrong, expected)
    return None
