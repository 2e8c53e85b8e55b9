"""The first difference between two runs of one forward, op by op, in execution order.

Both worlds run the same model, so ops are paired by name and number of earlier ops of that name.
Stores are compared by the pools' contents after them, all other ops by their result rows.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress

from paritybit.harness.explain.provenance import (
    PLACE_ROWS,
    RowStore,
    Store,
    layer_of,
    row_store_of,
    store_of,
)
from paritybit.harness.lockstep.bits import bits, first_index, hex_bits
from paritybit.reference.config import Kind, Role
from paritybit.reference.ops import OpCall
from paritybit.reference.pool import KVPools
from paritybit.reference.state_pool import Section
from torch import Tensor

ROWS_SECOND = frozenset({"rotary"})
"""Ops whose results have rows along the second axis."""


@dataclass(frozen=True)
class Index:
    """An index that was read: `value`, where the other run read `right`.

    It was read by op number `call` of the forward, for its row `row`. `key` is the place in that
    row's list of keys. It is None if the op has one index per row: a store location, or a recurrent
    state. `right` is None if the other run has no such row or key, `value` if this run has no such
    key.
    """

    call: int
    row: int
    key: int | None
    value: int | None
    right: int | None


@dataclass(frozen=True)
class Difference:
    """The first bits that differ, and the index that led there, if any.

    `row` is a row of the op, None if no row wrote the slot. `slot` is None outside caches, and
    `head` without heads. For state beside KV, `section` is its section and `slot` its place. `call`
    is the op's place in the forward.
    """

    call: int
    op: str
    model: Role | None
    layer: int | None
    kind: Kind | None
    tensor: str
    row: int | None
    slot: int | None
    head: int | None
    element: int
    left_bits: str
    right_bits: str
    index: Index | None
    section: Section | None = None


class Caches:
    """KV and other state of one run, after each store of a forward."""

    def __init__(self, pools: KVPools, storage: Tensor) -> None:
        self.pools = pools
        kept = storage.clone()
        self.arenas = {(role, kind): arena for role, kind, arena in pools.arenas_of(kept)}
        self.rows = {
            section: places.flatten(0, 1) for section, places in pools.sections_of(kept).items()
        }

    def cache(self, role: Role, layer: int) -> Tensor:
        """Return K and V of one layer, [2, slots, kv_heads, head_dim]."""
        config = self.pools[role].config
        kind = config.layers[layer]
        return self.arenas[role, kind][config.layers_of(kind).index(layer)]

    def store(self, call: OpCall) -> Store:
        """Carry out a store row by row. The highest row wins. Copies are not followed."""
        store = store_of(call, self.pools)
        cache = self.cache(store.role, store.layer)
        for row, slot in enumerate(() if store.elsewhere else store.slots):
            cache[0, slot], cache[1, slot] = store.key[row], store.value[row]
        return store

    def store_rows(self, call: OpCall) -> RowStore:
        """Carry out a store beside KV by value. The highest wins. Copies are not followed."""
        store = row_store_of(call, self.pools)
        for number, row in enumerate(() if store.elsewhere else store.rows):
            self.rows[store.section][row] = store.values[number]
        return store


@dataclass(frozen=True)
class Side:
    """One run of a forward: its pools, all KV before it, and its ops."""

    pools: KVPools
    before: Tensor
    calls: Sequence[OpCall]


def first_difference(left: Side, right: Side) -> Difference | None:
    """Return the first difference of `right` from `left`, or None if no op shows one.

    Stores are compared by all slots except slot 0, other ops by the rows that `left` has too.
    """
    caches = Caches(left.pools, left.before), Caches(right.pools, right.before)
    for number, one, other in paired(left.calls, right.calls):
        if other.name == "store_kv":
            found = _stored(number, one, other, caches)
        elif other.name == "store_rows":
            found = _stored_rows(number, one, other, caches)
        else:
            found = None if one is None else _gave(number, one, other, right.pools)
        if found is not None:
            return found
    return None


def paired(
    left: Sequence[OpCall], right: Sequence[OpCall]
) -> Iterator[tuple[int, OpCall | None, OpCall]]:
    """Yield each op of `right` with its place and the corresponding op of `left`.

    The corresponding op has the same name and as many earlier ops of that name. It may be None.
    """
    counts: Counter[str] = Counter()
    of_left: dict[tuple[str, int], OpCall] = {}
    for call in left:
        of_left[call.name, counts[call.name]] = call
        counts[call.name] += 1
    counts.clear()
    for number, call in enumerate(right):
        yield number, of_left.get((call.name, counts[call.name])), call
        counts[call.name] += 1


def _stored(
    number: int, left: OpCall | None, right: OpCall, caches: tuple[Caches, Caches]
) -> Difference | None:
    """Compare the contents of a layer's cache after a store.

    If one run stores more often than the other, paired stores may be of different layers.
    """
    expected, found = (caches[0].store(left) if left is not None else None), caches[1].store(right)
    if expected is not None and found.elsewhere:
        found = replace(found, role=expected.role, layer=expected.layer, kind=expected.kind)
    alike = expected is not None and (expected.role, expected.layer) == (found.role, found.layer)
    slots = expected.slots if expected is not None and alike else []
    touched = sorted({*slots, *found.slots} - {0})
    one, other = (kv.cache(found.role, found.layer)[:, touched] for kv in caches)
    different = bits(one) != bits(other)
    if not different.any():
        return None
    plane, place, head, element = first_index(different)
    slot = touched[place]
    row = _last(found.slots, slot)
    return Difference(
        call=number,
        op="store_kv",
        model=found.role,
        layer=found.layer,
        kind=found.kind,
        tensor="KV"[plane],
        row=row,
        slot=slot,
        head=head,
        element=element,
        left_bits=hex_bits(one[plane, place, head, element]),
        right_bits=hex_bits(other[plane, place, head, element]),
        index=_location(number, slots, found.slots, slot),
    )


def _stored_rows(
    number: int, left: OpCall | None, right: OpCall, caches: tuple[Caches, Caches]
) -> Difference | None:
    """Compare the contents of a section of state beside KV after a store, except place 0."""
    expected = caches[0].store_rows(left) if left is not None else None
    found = caches[1].store_rows(right)
    section, rows = found.section, expected.rows if expected is not None else []
    first = PLACE_ROWS[section]
    touched = sorted(row for row in {*rows, *found.rows} if row >= first)
    one, other = (kept.rows[section][touched] for kept in caches)
    different = bits(one) != bits(other)
    if not different.any():
        return None
    place, element = first_index(different)
    row = touched[place]
    return Difference(
        call=number,
        op="store_rows",
        model=None,
        layer=None,
        kind=None,
        tensor="value",
        row=_last(found.rows, row),
        slot=row // first,
        head=None,
        element=element,
        left_bits=hex_bits(one[place, element]),
        right_bits=hex_bits(other[place, element]),
        index=_place(_location(number, rows, found.rows, row), first),
        section=section,
    )


def _place(index: Index | None, rows: int) -> Index | None:
    """Return an index of rows as an index of places with `rows` rows each. None if all agree."""
    if index is None or index.value is None:
        return None
    value, right = index.value // rows, None if index.right is None else index.right // rows
    return None if value == right else Index(index.call, index.row, None, value, right)


def _source(number: int, row: int, left: OpCall, right: OpCall) -> Index | None:
    """Return the state with which one row's path began, if it differs between two scans."""
    sources = [int(call.inputs[1][row]) for call in (right, left)]
    if sources[0] == sources[1]:
        return None
    return _place(Index(number, row, None, *sources), PLACE_ROWS[Section.RECURRENT])


def _location(number: int, left: list[int], right: list[int], slot: int) -> Index | None:
    """Return the location that made two stores differ in `slot`, or None.

    Returns None if both wrote the slot alike, and if `right` has no location for the row.
    """
    wrote, should = _last(right, slot), _last(left, slot)
    if wrote == should:
        return None
    row = wrote if wrote is not None else should
    if row is None or row >= len(right):
        return None
    return Index(number, row, None, right[row], left[row] if row < len(left) else None)


def _last(slots: Sequence[int], slot: int) -> int | None:
    """Return the row that wrote `slot`: the highest row with this location."""
    return max((row for row, written in enumerate(slots) if written == slot), default=None)


def _gave(number: int, left: OpCall, right: OpCall, pools: KVPools) -> Difference | None:
    """Compare the result rows of two ops: those of `left` with the first ones of `right`."""
    pairs = zip(results_of(left), results_of(right), strict=True)
    for number_of_tensor, (one, other) in enumerate(pairs):
        rows = min(len(one), len(other))
        different = bits(one[:rows]) != bits(other[:rows])
        if different.any():
            place = first_index(different)
            row = place[0]
            role, layer, kind = None, None, None
            index, section = None, None
            if right.name == "scan_states":
                section, index = Section.RECURRENT, _source(number, row, left, right)
            if right.name == "attention":
                role, layer, kind = layer_of(right.inputs[1], pools)
                index = _key(number, row, keys_of(left, row), keys_of(right, row))
            return Difference(
                call=number,
                op=right.name,
                model=role,
                layer=layer,
                kind=kind,
                tensor=f"result {number_of_tensor}"
                if isinstance(right.result, tuple)
                else "result",
                row=row,
                slot=None,
                head=place[1] if len(place) > 2 else None,
                element=place[-1],
                left_bits=hex_bits(one[place]),
                right_bits=hex_bits(other[place]),
                index=index,
                section=section,
            )
    return None


def results_of(call: OpCall) -> list[Tensor]:
    """Return the tensors that an op gave, rows first."""
    results = call.result if isinstance(call.result, tuple) else (call.result,)
    if call.name in ROWS_SECOND:
        return [result.transpose(0, 1) for result in results]
    return list(results)


def rows_of(call: OpCall) -> int:
    """Return the number of rows of an op: the rows that it stores, or gives."""
    if call.name == "store_kv":
        return len(call.inputs[3])
    if call.name == "store_rows":
        return len(call.inputs[1])
    return len(results_of(call)[0])


def keys_of(call: OpCall, row: int) -> list[int]:
    """Return the slots that take part in the attention of one row, in list order."""
    slots: list[int] = call.inputs[4][key_places(call, row)].tolist()
    return slots


def key_places(call: OpCall, row: int) -> list[int]:
    """Return the places in the op's slot list of the keys in one row's attention."""
    _, _, begin, end, _, _, _, mask, mask_start = (*call.inputs, None, None)[:9]
    places = range(int(begin[row]), int(end[row]))
    if mask is None or mask_start is None:
        return list(places)
    start = int(mask_start[row])
    return list(compress(places, mask[start : start + len(places)].tolist()))


def _key(number: int, row: int, left: list[int], right: list[int]) -> Index | None:
    """Return the first key in which two rows' lists differ, or None."""
    for place, value in enumerate(right):
        expected = left[place] if place < len(left) else None
        if value != expected:
            return Index(number, row, place, value, expected)
    if len(left) > len(right):
        return Index(number, row, len(right), None, left[len(right)])
    return None
