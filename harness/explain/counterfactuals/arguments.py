"""Whether the violated property holds once ops are given one argument as the other run has it."""

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from paritybit.harness.explain.counterfactuals.listed import (
    Pair,
    as_listed,
    lists_of,
    row_listed,
    spelled_lists,
)
from paritybit.harness.explain.first_difference import Difference, paired
from paritybit.harness.explain.origins.arguments import named_arguments
from paritybit.harness.explain.provenance import layers_by_address
from paritybit.harness.explain.recorded import Given, RecordedForward
from paritybit.harness.lockstep.bits import bits
from paritybit.reference.config import Kind
from paritybit.reference.ops import OpCall
from torch import Tensor

LISTS = ("begin", "end", "slots")
"""The arguments of attention that say which keys each row reads, by one list for all rows."""

LOCATIONS = "loc"
"""The argument that says where rows store."""

LIST = "the list of keys"
"""What these arguments are together."""

NOT_GIVEN = frozenset({"cache", "states", "table", "frequency", "decay", "norm", "weight", "sinks"})
"""Arguments that are memory of an engine's own, or weights: no forward makes them."""


@dataclass(frozen=True)
class Replaced:
    """An argument of all ops of one name, in words, and what each of them is to be given.

    `held` is what the first op that differs was given, `right` what the other run's was, both of
    live rows alone; of a list of keys those of one row, masked ones too. `windowed` says that they
    are slots of the window's sub-pool. `values` has, by the number of the op
    among those of its name, the arguments to give by their places.
    """

    op: str
    argument: str
    held: Tensor
    right: Tensor
    values: dict[int, dict[int, Any]]
    windowed: bool = False
    others: tuple[Pair, ...] = ()
    """What further ops of this name were given, and what is right: made with the first, perhaps."""
    whole: Pair | None = None
    """Of a list of keys, what the argument that is wrong holds of all rows, and what is right."""

    def spellings(self, mapping: Tensor) -> Iterator[list[Pair]]:
        """Yield the values held and right as they may stand before they got to the ops.

        Slots of a window are made of full slots, by `mapping`; that comes first.
        """
        first = self.whole or (self.held, self.right)
        if self.windowed:
            yield [full_pair(first, mapping), *self.others]
        yield [first, *self.others]

    def given(self) -> Given:
        """Return what gives ops these arguments, for one run."""
        counts: Counter[str] = Counter()

        def give(name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
            number = counts[name]
            counts[name] += 1
            if name != self.op or number not in self.values:
                return arguments
            changed = list(arguments)
            for place, value in self.values[number].items():
                if place < len(changed):
                    changed[place] = value
            return tuple(changed)

        return give


def full_pair(pair: Pair, mapping: Tensor) -> Pair:
    """Return slots of the window's sub-pool, held and right, as full slots."""
    return spelled_full(pair[0], mapping), spelled_full(pair[1], mapping)


def spelled_full(slots: Tensor, mapping: Tensor) -> Tensor:
    """Return slots of the window's sub-pool as the full slots that `mapping` makes them of."""
    full = {swa: place for place, swa in enumerate(mapping.tolist()) if swa > 0}
    return torch.tensor([full.get(slot, slot) for slot in slots.tolist()], dtype=torch.int64)


def replacements(
    recorded: RecordedForward, left: Sequence[OpCall], difference: Difference
) -> Iterator[Replaced]:
    """Yield the arguments of the first op that differs that are not those of the other run.

    Of ops of its name behind it only what no op before them gave is replaced as well: what the
    first one led to must come right by itself.
    """
    pairs = [(one, other) for _, one, other in paired(left, recorded.run.calls)]
    one, other = pairs[difference.call]
    if one is None:
        return
    same = [(a, b) for a, b in pairs if b.name == other.name]
    first = next(number for number, (_, call) in enumerate(same) if call is other)
    made = _made_by_ops(recorded.run.calls)
    if other.name == "attention":
        for padded in (False, True):
            yield from _lists(recorded, same, (first, difference.row or 0), padded=padded)
    for place, name in enumerate(named_arguments(other)):
        lists = other.name == "attention" and (name in LISTS or "mask" in name)
        if name not in NOT_GIVEN and not lists:
            values = _values(same, (place, name), first, made)
            if first in values:
                found = _of_first(other, one, (place, name), values)
                swa = name == LOCATIONS and difference.kind is Kind.SWA
                others = _others(recorded, same, (place, name), values)
                yield dataclasses.replace(found, windowed=swa, others=others)


def padded_lists(recorded: RecordedForward, left: Sequence[OpCall]) -> Iterator[Replaced]:
    """Yield the lists of keys of all attention, with nothing but the reserved slot for padding."""
    pairs = ((one, other) for _, one, other in paired(left, recorded.run.calls))
    same = [(one, other) for one, other in pairs if other.name == "attention"]
    yield from _lists(recorded, same, None, padded=True)


def _others(
    recorded: RecordedForward,
    same: Sequence[tuple[OpCall | None, OpCall]],
    argument: tuple[int, str],
    values: dict[int, dict[int, Any]],
) -> tuple[Pair, ...]:
    """Return what ops of one name behind the first are given, and what is right, as full slots."""
    layers = layers_by_address(recorded.pair.graph_pools)
    (place, name), found = argument, []
    for number in sorted(values)[1:]:
        call, right = same[number][1], values[number][place]
        held = call.inputs[place]
        if not isinstance(held, Tensor):
            continue
        pair = held.clone(), right.clone()  # Later runs write the memory of what was held.
        cache = call.inputs[0].data_ptr() if name == LOCATIONS else None
        if cache in layers and layers[cache][2] is Kind.SWA:
            pair = full_pair(pair, recorded.tables[1])
        found.append(pair)
    return tuple(found)


def wrong_arguments(recorded: RecordedForward, left: Sequence[OpCall]) -> Iterator[Replaced]:
    """Yield the whole numbers that ops are given, and no op made, which the other run has other.

    Of ops of one name the first that differs. Lists of keys are each world's own.
    """
    made, seen = _made_by_ops(recorded.run.calls), set[tuple[str, str]]()
    for _, usual, call in paired(left, recorded.run.calls):
        if usual is None:
            continue
        for place, name in enumerate(named_arguments(call)):
            if name in {*NOT_GIVEN, *LISTS} or (call.name, name) in seen:
                continue
            held = call.inputs[place]
            if not isinstance(held, Tensor) or held.is_floating_point() or _address(held) in made:
                continue
            right = as_given(held, usual.inputs[place], name)
            if isinstance(right, Tensor):
                seen.add((call.name, name))
                yield _of_first(call, usual, (place, name), {0: {place: right}})


def _values(
    same: Sequence[tuple[OpCall | None, OpCall]],
    argument: tuple[int, str],
    first: int,
    made: Collection[int],
) -> dict[int, dict[int, Any]]:
    """Return what ops of one name, from the first that differs on, are to be given."""
    (place, name), values = argument, dict[int, dict[int, Any]]()
    for number, (usual, call) in enumerate(same):
        if usual is None or number < first or place >= min(len(usual.inputs), len(call.inputs)):
            continue
        if number == first or _address(call.inputs[place]) not in made:
            right = as_given(call.inputs[place], usual.inputs[place], name)
            if right is not None:
                values[number] = {place: right}
    return values


def _of_first(
    call: OpCall, usual: OpCall, argument: tuple[int, str], values: dict[int, dict[int, Any]]
) -> Replaced:
    """Return the replacement of an argument that the first op that differs, `call`, has."""
    place, name = argument
    held, right = call.inputs[place], values[min(values)][place]
    if not isinstance(held, Tensor):
        return Replaced(call.name, name, torch.tensor(held), torch.tensor(right), values)
    shape = held.shape if name == LOCATIONS else usual.inputs[place].shape
    live = tuple(map(slice, shape))
    return Replaced(call.name, name, held[live].clone(), right[live].clone(), values)


def failing_replacements(recorded: RecordedForward, calls: Sequence[OpCall]) -> Iterator[Replaced]:
    """Yield the arguments of the last of some ops, which fails, that are not the eager world's."""
    left = recorded.eager_calls
    failing = calls[-1]
    usual = [call for call in left if call.name == failing.name]
    number = sum(call.name == failing.name for call in calls) - 1
    if number >= len(usual):
        return
    one = usual[number]
    if failing.name == "attention":
        # What is listed for later layers is as wrong, and replaced as well.
        rows = len(failing.inputs[2])
        values = {
            at: as_listed(failing, usual[at], [[0]] * (rows - len(usual[at].inputs[2])))
            for at in range(number, len(usual))
        }
        held = failing.inputs[4].flatten().to(torch.int64)
        layers = layers_by_address(recorded.pair.graph_pools)
        windowed = layers[failing.inputs[1].data_ptr()][2] is Kind.SWA
        yield Replaced("attention", LIST, held, held[:0], values, windowed)
        return
    for place, name in enumerate(named_arguments(failing)):
        if name in NOT_GIVEN or place >= min(len(one.inputs), len(failing.inputs)):
            continue
        right = as_given(failing.inputs[place], one.inputs[place], name)
        if isinstance(right, Tensor):
            held = failing.inputs[place]
            values = {at: {place: right} for at in range(number, len(usual))}
            yield Replaced(failing.name, name, held.clone(), right, values)


def as_given(held: Any, right: Any, name: str = "") -> Any:
    """Return an argument with the rows of the other run's; None where they are the same.

    None as well where the two have other forms, so that nothing says which rows are which. Padded
    rows store at the reserved slot.
    """
    if not isinstance(held, Tensor) or not isinstance(right, Tensor):
        plain = isinstance(held, int | float) and isinstance(right, int | float)
        return right if plain and held != right else None
    if held.dtype != right.dtype or held.dim() != right.dim():
        return None
    other = [axis for axis in range(held.dim()) if held.shape[axis] != right.shape[axis]]
    if len(other) > 1 or any(held.shape[axis] < right.shape[axis] for axis in other):
        return None
    changed = held.clone()
    for axis in other:
        if name == LOCATIONS:
            changed.zero_()
        changed.narrow(axis, 0, right.shape[axis]).copy_(right)
    if not other:
        changed.copy_(right)
    return None if torch.equal(bits(changed), bits(held)) else changed


def _lists(
    recorded: RecordedForward,
    same: Sequence[tuple[OpCall | None, OpCall]],
    at: tuple[int, int] | None,
    *,
    padded: bool,
) -> Iterator[Replaced]:
    """Yield the key lists of all attention, each live row's as the other run has it.

    With `padded` those of padded rows hold nothing but the reserved slot. Nothing is yielded unless
    the op and the row `at` differ, or, where that is None, any.
    """
    values, shown, listed = {}, None, list[tuple[OpCall, list[list[int]]]]()
    for number, (one, other) in enumerate(same):
        if one is None:
            continue
        live = len(one.inputs[2])
        held = lists_of(other)
        lists = [*lists_of(one)[: len(held)], *held[live:]]
        if padded:
            lists[live:] = [keys if set(keys) <= {0} else [0] for keys in held[live:]]
        if lists == held:
            continue
        values[number] = as_listed(other, one, lists[live:])
        listed.append((other, lists))
        if at is None or number == at[0]:
            wrong = [row for row, right in enumerate(lists) if held[row] != right]
            row = at[1] if at is not None and at[1] in wrong else wrong[0]
            shown = shown or (other, *row_listed(other, row, lists[row]))
    if shown is None:
        return
    layers, mapping = layers_by_address(recorded.pair.graph_pools), recorded.tables[1]
    spelled = [
        (pair, of_slots and layers[call.inputs[1].data_ptr()][2] is Kind.SWA)
        for call, of_slots, pair in spelled_lists(listed)
    ]
    call, *row_held = shown
    windowed = layers[call.inputs[1].data_ptr()][2] is Kind.SWA
    whole, others = None, list[Pair]()
    if spelled:
        (whole, windowed), *further = spelled
        others = [pair for pair, _ in further]
        others += [full_pair(pair, mapping) for pair, swa in further if swa]
    yield Replaced("attention", LIST, *row_held, values, windowed, tuple(others), whole)


def _made_by_ops(calls: Sequence[OpCall]) -> set[int]:
    """Return where the results of ops lie."""
    found = set()
    for call in calls:
        results = call.result if isinstance(call.result, tuple) else (call.result,)
        found |= {_address(result) for result in results if isinstance(result, Tensor)}
    return found


def _address(value: Any) -> int:
    return value.untyped_storage().data_ptr() if isinstance(value, Tensor) else -1
