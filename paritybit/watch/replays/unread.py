"""Gives one tensor of a layer other values in the slots that live rows read.

If nothing changes then, the tensor is not read, or the arithmetic of the model lets no change of it
through. Controls tell these apart: the other tensors of the layer show, or the tensor itself showed
in another forward; and so does the same tensor of the other layers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from paritybit.watch.bits import as_integers
from paritybit.watch.ledger import Ledger
from paritybit.watch.observations import Difference, Wrong
from paritybit.watch.reading import slots_read
from paritybit.watch.replays.differences import beyond, difference, first_layer, matters
from paritybit.watch.replays.influence import (
    HIDDEN,
    NOTHING_READ,
    SAME_BYTES,
    LiveReads,
    NotTried,
    Replacement,
    Result,
    appends,
    changed,
    layers_of,
    only_tokens,
)
from paritybit.watch.replays.rerun import LARGEST, Rerun, SavedSlots, Values
from paritybit.watch.replays.values import SAMPLE, STEPS, ValueSeed, draws, sampled

UNWRITTEN = "nothing had written the tensor in the slots that are read"
ALL_TOKENS = "the last layer shows only in tokens"
ZEROS = "the rows wrote zeros, so their queries may be zero"

Shown = set[tuple[str, int]]
"""The groups and numbers of tensors."""


def unread(
    reads: LiveReads, ledger: Ledger, turn: int, shown: Shown, rerun: Rerun, seed: int
) -> Result:
    """Return a tensor of a group whose content in the slots that live rows read changes nothing.

    `turn` chooses the tensor. `shown` has those whose values clearly showed before.
    """
    count = len(ledger.checksums.tensors)
    turns = [one % count for one in range(turn, turn + count)]
    number = next((one for one in turns if len(slots_for(reads, ledger, one))), turns[0])
    name, layers = ledger.group.name, layers_of(ledger)
    layer = next(n for n, numbers in enumerate(layers) if number in numbers)
    slots = slots_for(reads, ledger, number)
    whole = Replacement.fitting(ledger, slots, layers[layer], LARGEST, ValueSeed(seed))
    if reason := reason_against(reads, ledger, slots, number, layers[layer]):
        return NotTried(reason)
    moved = replace(whole, tensors=[number])
    fixed = replace(whole, tensors=[n for n in layers[layer] if n != number])
    with changed(rerun, reads, [moved], keep=False) as values:
        if difference(rerun.first, values) is not None:
            if beyond(rerun.first, values) and lasts(rerun, reads, values):
                shown.add((name, number))
            return None
        if not values.altered or (layer == len(layers) - 1 and only_tokens(rerun)):
            return NotTried(ALL_TOKENS if values.altered else SAME_BYTES)
    control = (name, number) in shown
    for found, both in responses(rerun, reads, [fixed], [moved]):
        if found is not None:
            return None
        control |= both
    if not (control and neighbours_show(rerun, reads, ledger, number, seed)):
        return NotTried(HIDDEN)
    where = ledger.group.layers[layer].name
    what = f"tensor {layers[layer].index(number)} of {where}"
    text = f"does not depend on {what} in the slots that live rows read"
    return Wrong(text, name, where, cause={"what": f"{what} is not read"})


def reason_against(
    reads: LiveReads, ledger: Ledger, slots: Tensor, number: int, numbers: Sequence[int]
) -> str | None:
    """Return why a tensor, of a layer with these `numbers`, cannot be tried in some slots."""
    (rows,) = SavedSlots.of(ledger, sampled(slots, SAMPLE, 0), [number]).rows
    if not bool(as_integers(rows).any()):
        return UNWRITTEN if len(slots) else NOTHING_READ
    return ZEROS if writes_zeros(reads, ledger, numbers) else None


def writes_zeros(reads: LiveReads, ledger: Ledger, numbers: Sequence[int]) -> bool:
    """Return whether all rows that read a layer wrote nothing but zeros to its tensors.

    The embedding of a token for padding is zero. Its query is zero, too, and ignores all keys.
    """
    name = ledger.group.name
    own = [
        row.slots[name][row.cached : row.cached + row.computed]
        for row in reads.forward.rows
        if row.cached and name in row.slots
    ]
    slots = ledger.index(torch.cat(own)) if own else ledger.reserved[:0]
    written = SavedSlots.of(ledger, slots, numbers).rows if len(slots) else []
    numeric = [rows.float() if rows.is_floating_point() else as_integers(rows) for rows in written]
    return bool(numeric) and not any(bool((rows != 0).any()) for rows in numeric)


def slots_for(reads: LiveReads, ledger: Ledger, number: int) -> Tensor:
    """Return the slots in which a tensor is tried, int64 [n].

    In the last layer of a group, which may be that of the model, only the last query matters.
    """
    slots = reads.slots[ledger.group.name]
    if number not in layers_of(ledger)[-1]:
        return slots
    return slots[torch.isin(slots, slots_read(reads.forward, ledger, last=True))]


def responses(
    rerun: Rerun, reads: LiveReads, fixed: Sequence[Replacement], moved: Sequence[Replacement]
) -> Iterator[tuple[Difference | None, bool]]:
    """Yield, for values of all sizes in `moved`, the difference, and whether both show clearly.

    Meanwhile, the values in `fixed` differ from slot to slot, and just show: keys do not show, for
    example, if all values are alike or tiny.
    """
    fixed, base = [change for change in fixed if change.tensors], rerun.first
    for sign in (1, -1) if fixed else (1,):
        for step in range(STEPS if fixed else 0):
            fixed = [replace(one, draw=ValueSeed(one.draw.seed, step, sign)) for one in fixed]
            with changed(rerun, reads, fixed, keep=False) as values:
                base = values.kept()
                if beyond(rerun.first, values):
                    break
        for draw in draws(moved[0].draw.seed):
            mine = [replace(change, draw=draw) for change in moved]
            with changed(rerun, reads, [*fixed, *mine], keep=False) as values:
                yield difference(base, values), beyond(rerun.first, values)


def neighbours_show(rerun: Rerun, reads: LiveReads, ledger: Ledger, tensor: int, seed: int) -> bool:
    """Return whether tensors at the same place of other layers show beyond rounding."""
    mine = next(numbers for numbers in layers_of(ledger) if tensor in numbers)
    which = mine.index(tensor)
    fixed, moved = list[Replacement](), list[Replacement]()
    for other in rerun.ledgers.values():
        layers = [numbers for numbers in layers_of(other) if len(numbers) > which]
        if other is ledger:
            layers.remove(mine)
        read = slots_read(reads.forward, other)
        if layers and len(read):
            every = [number for numbers in layers for number in numbers]
            whole = Replacement.fitting(
                other, read, every, LARGEST // len(rerun.ledgers), ValueSeed(seed)
            )
            alike = [numbers[which] for numbers in layers]
            fixed.append(replace(whole, tensors=[n for n in every if n not in alike]))
            moved.append(replace(whole, tensors=alike))
    return bool(moved) and any(matters(found) for found, _ in responses(rerun, reads, fixed, moved))


def lasts(rerun: Rerun, reads: LiveReads, values: Values) -> bool:
    """Return whether a change shows in KV that is kept, not only in a state or in outputs."""
    return any(
        first_layer(one, other) is not None
        for one, other in zip(rerun.first.owned, values.owned, strict=True)
        if all(
            appends(row, name)
            for row in reads.forward.rows
            if row.cached and (name := one.ledger.group.name) in row.slots
        )
    )
