"""Whether the violated property holds if ops get one argument from the other run."""

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from paritybit.harness.explain.counterfactuals.given import memory
from paritybit.harness.explain.counterfactuals.left_out import Pairs, left_out, masks_left_out
from paritybit.harness.explain.counterfactuals.listed import (
    MASK_START,
    MASK_START_PLACE,
    Pair,
    as_listed,
    lists_of,
    mask_starts,
    right_lists,
    row_listed,
    spelled_lists,
)
from paritybit.harness.explain.counterfactuals.replaced import (
    LIST,
    LISTS,
    LOCATIONS,
    NOT_GIVEN,
    STORED_AT,
    Replaced,
    as_given,
    full_pair,
)
from paritybit.harness.explain.first_difference import Difference, Side, first_difference, paired
from paritybit.harness.explain.origins.arguments import named_arguments
from paritybit.harness.explain.provenance import layer_of, layers_by_address
from paritybit.harness.explain.recorded import RecordedForward
from paritybit.reference.config import Kind
from paritybit.reference.ops import OpCall
from torch import Tensor


def replacements(
    recorded: RecordedForward,
    left: Sequence[OpCall],
    calls: Sequence[OpCall],
    difference: Difference | None,
) -> Iterator[Replaced]:
    """Yield the arguments of a run's first op that differs that the other run has otherwise.

    For later ops of the same name, only arguments that no earlier op gave are replaced too, because
    consequences of the first op must disappear by themselves. Next come the arguments of later ops
    that share memory with the first op's result, because it may have been changed since. If no op
    differs, padded rows may read by other lists.
    """
    pairs = [(one, other) for _, one, other in paired(left, calls)]
    attention = [(one, other) for one, other in pairs if other.name == "attention"]
    if difference is None:
        yield from _lists(recorded, attention, None, padded=True)
        return
    one, other = pairs[difference.call]
    if one is None:
        return
    yield from left_out(recorded, pairs, other.name)
    if other.name == "attention":
        first = next(at for at, (_, call) in enumerate(attention) if call is other)
        yield from masks_left_out(attention)
        for padded in (False, True):
            yield from _lists(recorded, attention, (first, difference.row or 0), padded=padded)
    yield from _of_op(recorded, pairs, difference.call, swa=difference.kind is Kind.SWA)
    given = _made_by_ops([other])
    names = set[str]()
    for number, (_, call) in enumerate(pairs):
        reads = any(memory(value) in given for value in call.inputs)
        if number > difference.call and reads and call.name not in names:
            names.add(call.name)
            yield from _of_op(recorded, pairs, number, lying=given)


def _of_op(
    recorded: RecordedForward,
    pairs: Pairs,
    number: int,
    *,
    swa: bool = False,
    lying: Collection[int] = (),
) -> Iterator[Replaced]:
    """Yield the arguments of op `number` that differ from those of the other run.

    With `lying`, yield only those in one of these storages.
    """
    one, other = pairs[number]
    same = [(a, b) for a, b in pairs if b.name == other.name]
    first = next(at for at, (_, call) in enumerate(same) if call is other)
    made = _made_by_ops([call for _, call in pairs])
    for place, name in enumerate(named_arguments(other)):
        lists = other.name == "attention" and (name in LISTS or "mask" in name)
        elsewhere = lying and memory(other.inputs[place]) not in lying
        own = name in NOT_GIVEN and other.inputs[place] is not None
        if one is None or own or lists or elsewhere:
            continue
        values = _values(same, (place, name), first, made)
        if first in values:
            found = _of_first(other, one, (place, name), values)
            others = _others(recorded, same, (place, name), values)
            windowed = swa and name == LOCATIONS
            yield dataclasses.replace(found, number=first, windowed=windowed, others=others)


def extended(
    recorded: RecordedForward, left: Side, calls: Sequence[OpCall], one: Replaced
) -> Replaced | None:
    """Return a replacement that also covers a later op of its name, if that op then differs first.

    Returns None if another op or another argument differs first.
    """
    if one.argument == LIST:
        return None
    places = [at for at, call in enumerate(calls) if call.name == one.op]
    right = Side(recorded.pair.graph_pools, recorded.graph_before, calls)
    difference = first_difference(left, right, after=places[one.number])
    found = replacements(recorded, left.calls, calls, difference) if difference else ()
    for other in found:
        if (other.op, other.argument) == (one.op, one.argument) and other.number > one.number:
            pairs = (*one.others, (other.held, other.right), *other.others)
            values = {**one.values, **other.values}
            return dataclasses.replace(one, number=other.number, values=values, others=pairs)
    return None


def _others(
    recorded: RecordedForward,
    same: Pairs,
    argument: tuple[int, str],
    values: dict[int, dict[int, Any]],
) -> tuple[Pair, ...]:
    """Return the arguments of later ops of one name and the right ones, as full slots."""
    layers = layers_by_address(recorded.pair.graph_pools)
    (place, name), found = argument, []
    for number in sorted(values)[1:]:
        call, right = same[number][1], values[number][place]
        held = call.inputs[place]
        if not isinstance(held, Tensor):
            continue
        pair = held.clone(), right.clone()  # Later runs overwrite the held values.
        cache = call.inputs[0].data_ptr() if name == LOCATIONS else None
        if cache in layers and layers[cache][2] is Kind.SWA:
            pair = full_pair(pair, recorded.tables[1])
        found.append(pair)
    return tuple(found)


def wrong_arguments(recorded: RecordedForward, left: Sequence[OpCall]) -> Iterator[Replaced]:
    """Yield integer arguments that no op made and that differ from the other run's.

    For ops of one name, yield the first that differs. Each world has its own lists of keys.
    """
    made, seen = _made_by_ops(recorded.run.calls), set[tuple[str, str]]()
    for _, usual, call in paired(left, recorded.run.calls):
        if usual is None:
            continue
        for place, name in enumerate(named_arguments(call)):
            if name in {*NOT_GIVEN, *LISTS} or (call.name, name) in seen:
                continue
            held = call.inputs[place]
            if not isinstance(held, Tensor) or held.is_floating_point() or memory(held) in made:
                continue
            right = as_given(held, usual.inputs[place], name)
            if isinstance(right, Tensor):
                seen.add((call.name, name))
                yield _of_first(call, usual, (place, name), {0: {place: right}})


def _values(
    same: Pairs,
    argument: tuple[int, str],
    first: int,
    made: Collection[int],
) -> dict[int, dict[int, Any]]:
    """Return the arguments for ops of one name, from the first that differs."""
    (place, name), values = argument, dict[int, dict[int, Any]]()
    for number, (usual, call) in enumerate(same):
        if usual is None or number < first or place >= min(len(usual.inputs), len(call.inputs)):
            continue
        if number == first or memory(call.inputs[place]) not in made:
            right = as_given(call.inputs[place], usual.inputs[place], name)
            if right is not None:
                values[number] = {place: right}
    return values


def _of_first(
    call: OpCall, usual: OpCall, argument: tuple[int, str], values: dict[int, dict[int, Any]]
) -> Replaced:
    """Return the replacement of an argument of `call`, the first op that differs."""
    place, name = argument
    held, right = call.inputs[place], values[min(values)][place]
    if held is None:
        return Replaced(call.name, name, right[:0], right.clone(), values)
    if not isinstance(held, Tensor):
        return Replaced(call.name, name, torch.tensor(held), torch.tensor(right), values)
    shape = held.shape if name in STORED_AT else usual.inputs[place].shape
    live = tuple(map(slice, shape))
    return Replaced(call.name, name, held[live].clone(), right[live].clone(), values)


def failing_replacements(recorded: RecordedForward, calls: Sequence[OpCall]) -> Iterator[Replaced]:
    """Yield the arguments of the failing last op that differ from the eager world's."""
    left = recorded.eager_calls
    failing = calls[-1]
    usual = [call for call in left if call.name == failing.name]
    number = sum(call.name == failing.name for call in calls) - 1
    if number >= len(usual):
        return
    one = usual[number]
    if failing.name == "attention":
        # Lists for later layers are wrong too, so they are replaced as well.
        rows = len(failing.inputs[2])
        listed = [(failing, right_lists(failing, one, padded=True))]
        spelled = tuple(pair for _, _, pair in spelled_lists(listed))
        whole = spelled[0] if spelled else None
        values = {
            at: as_listed(failing, usual[at], [[0]] * (rows - len(usual[at].inputs[2])))
            for at in range(number, len(usual))
        }
        held = failing.inputs[4].flatten().to(torch.int64)
        windowed = layer_of(failing.inputs[1], recorded.pair.graph_pools)[2] is Kind.SWA
        yield Replaced(
            op="attention",
            argument=LIST,
            held=held,
            right=held[:0],
            values=values,
            windowed=windowed,
            others=spelled[1:],
            whole=whole,
        )
        return
    for place, name in enumerate(named_arguments(failing)):
        if name in NOT_GIVEN or place >= min(len(one.inputs), len(failing.inputs)):
            continue
        right = as_given(failing.inputs[place], one.inputs[place], name)
        if isinstance(right, Tensor):
            held = failing.inputs[place]
            values = {at: {place: right} for at in range(number, len(usual))}
            yield Replaced(failing.name, name, held.clone(), right, values)


def _lists(
    recorded: RecordedForward,
    same: Pairs,
    at: tuple[int, int] | None,
    *,
    padded: bool,
) -> Iterator[Replaced]:
    """Yield the key lists of all attention ops, with those of the other run for live rows.

    With `padded`, the lists of padded rows contain only the reserved slot. Yields nothing unless
    the op and the row `at` differ, or any if that is None.
    """
    values, shown, listed = {}, None, list[tuple[OpCall, list[list[int]]]]()
    for number, (one, other) in enumerate(same):
        if one is None:
            continue
        held, lists = lists_of(other), right_lists(other, one, padded=padded)
        if lists == held:
            continue
        values[number] = as_listed(other, one, lists[len(one.inputs[2]) :])
        listed.append((other, lists))
        if at is None or number == at[0]:
            wrong = [row for row, right in enumerate(lists) if held[row] != right]
            row = at[1] if at is not None and at[1] in wrong else wrong[0]
            shown = shown or (other, *row_listed(other, row, lists[row]))
    if shown is None:
        return
    starts = {at: mask_starts(*one) for at, one in zip(values, listed, strict=True)}
    known = {at: pair for at, pair in starts.items() if pair is not None}
    if len(known) == len(starts):
        given = {at: {MASK_START_PLACE: right} for at, (_, right) in known.items()}
        yield Replaced("attention", MASK_START, *known[min(known)], given)
    pools, mapping = recorded.pair.graph_pools, recorded.tables[1]
    spelled = [
        (pair, of_slots and layer_of(call.inputs[1], pools)[2] is Kind.SWA)
        for call, of_slots, pair in spelled_lists(listed)
    ]
    call, row_held, row_right = shown
    windowed = layer_of(call.inputs[1], pools)[2] is Kind.SWA
    whole, others = None, list[Pair]()
    if spelled:
        (whole, windowed), *further = spelled
        others = [pair for pair, _ in further]
        others += [full_pair(pair, mapping) for pair, swa in further if swa]
    yield Replaced(
        op="attention",
        argument=LIST,
        held=row_held,
        right=row_right,
        values=values,
        windowed=windowed,
        others=tuple(others),
        whole=whole,
    )


def _made_by_ops(calls: Sequence[OpCall]) -> set[int]:
    """Return the addresses of the results of ops."""
    found = set()
    for call in calls:
        results = call.result if isinstance(call.result, tuple) else (call.result,)
        found |= {memory(result) for result in results if isinstance(result, Tensor)}
    return found
