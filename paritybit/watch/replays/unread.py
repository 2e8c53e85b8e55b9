"""Gives one tensor of a layer other values in the slots that live rows read.

Something must then change. If nothing does, the tensor is not read, or the arithmetic of the model
lets no change of it through. Controls tell these apart: the other tensors of the layer show, and so
does the same tensor of the other layers; or the tensor itself showed in another forward.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paritybit.watch.bits import as_integers
from paritybit.watch.ledger import Ledger
from paritybit.watch.reading import slots_read
from paritybit.watch.replays.differences import Difference, difference, first_layer
from paritybit.watch.replays.influence import (
    HIDDEN,
    NOTHING_READ,
    SAME_BYTES,
    Certain,
    Change,
    NotTried,
    Reads,
    Wrong,
    appends,
    beyond,
    changed,
    fitting,
    layers_of,
    only_tokens,
)
from paritybit.watch.replays.trial import LARGEST, SavedSlots, Trial, Values
from paritybit.watch.replays.values import SAMPLE, STEPS, Draw, draws, sampled

UNWRITTEN = "nothing had written the tensor in the slots that are read"
ALL_TOKENS = "the last layer shows only in tokens"


@dataclass(frozen=True)
class Part:
    """A tensor of a layer: its group, its number, and the number of the layer.

    `which` is its place in the layer, and `others` are the numbers of the layer's other tensors.
    """

    group: str
    number: int
    layer: int
    which: int
    others: Sequence[int]

    @classmethod
    def of(cls, ledger: Ledger, turn: int) -> "Part":
        """Return the tensor of a group whose turn it is."""
        number = turn % len(ledger.checksums.tensors)
        layers = layers_of(ledger)
        layer = next(n for n, tensors in enumerate(layers) if number in tensors)
        others = [n for n in layers[layer] if n != number]
        return cls(ledger.group.name, number, layer, layers[layer].index(number), others)


def unread(
    trial: Trial, reads: Reads, turn: int, seed: int, shown: set[tuple[str, int]]
) -> Iterator[Wrong | NotTried | None]:
    """Yield, for one tensor per group, whether its content in the slots that rows read matters.

    The first one whose content does not matter ends it.

    `turn` chooses the tensors. `shown` has the tensors whose values clearly showed before. The last
    layer of a group may be the last one of the model, where only the last query of a row matters. A
    model that has no KV may read some layers of another one alone, so that no layer is tried.
    """
    if any(row.only_reads for row in reads.forward.rows):
        yield NotTried("a model without KV of its own may ignore layers")
        return
    read = [ledger for name, ledger in trial.ledgers.items() if len(reads.slots[name])]
    for ledger in read or trial.ledgers.values():
        turns = range(turn, turn + len(ledger.checksums.tensors))
        parts = [Part.of(ledger, one) for one in turns]
        part = next((one for one in parts if len(slots_for(reads, ledger, one))), parts[0])
        found = unread_part(trial, reads, part, seed, shown)
        yield found
        if isinstance(found, Wrong):
            return


def unread_part(
    trial: Trial, reads: Reads, part: Part, seed: int, shown: set[tuple[str, int]]
) -> Wrong | NotTried | None:
    """Return a tensor whose content in the slots that live rows read changes nothing."""
    ledger, name, number = trial.ledgers[part.group], part.group, part.number
    last, slots = is_last(ledger, part), slots_for(reads, ledger, part)
    slots = sampled(slots, fitting(ledger, [number, *part.others], LARGEST), seed)
    if reason := unusable(trial, reads, part, slots):
        return NotTried(reason)
    moved = Change(name, slots, [number], Draw(seed))
    fixed = Change(name, slots, part.others, Draw(seed))
    with changed(trial, reads, [moved], keep=False) as values:
        if difference(trial.first, values) is not None:
            if beyond(trial.first, values) and lasts(trial, reads, values):
                shown.add((name, number))
            return None
        if not values.altered or (last and only_tokens(trial)):
            return NotTried(ALL_TOKENS if values.altered else SAME_BYTES)
    control = False
    for found, both in responses(trial, reads, [fixed], [moved]):
        if found is not None:
            return None
        control |= both
    known = (name, number) in shown
    certain = (control or known) and neighbours_show(trial, reads, part, seed)
    if not (known or certain):
        return NotTried(HIDDEN)
    layer = ledger.group.layers[part.layer].name
    what = f"tensor {part.which} of {layer}"
    text = f"does not depend on {what} in the slots that live rows read"
    kind = Certain if certain else Wrong
    return kind(text, name, layer, cause={"what": f"{what} is not read"})


def is_last(ledger: Ledger, part: Part) -> bool:
    """Return whether a tensor is of the last layer of its group."""
    return part.layer == len(ledger.group.layers) - 1


def slots_for(reads: Reads, ledger: Ledger, part: Part) -> Tensor:
    """Return the slots in which a tensor is tried, int64 [n]."""
    mine = reads.slots[part.group]
    if not is_last(ledger, part):
        return mine
    return mine[torch.isin(mine, slots_read(reads.forward, ledger, last=True))]


def unusable(trial: Trial, reads: Reads, part: Part, slots: Tensor) -> str | None:
    """Return why a tensor cannot be tried in some slots, or None."""
    ledger, read = trial.ledgers[part.group], reads.slots[part.group]
    (rows,) = SavedSlots.of(ledger, sampled(read, SAMPLE, 0), [part.number]).rows
    if len(rows) and not bool(as_integers(rows).any()):
        return UNWRITTEN
    return None if len(slots) else NOTHING_READ


def responses(
    trial: Trial, reads: Reads, fixed: Sequence[Change], moved: Sequence[Change]
) -> Iterator[tuple[Difference | None, bool]]:
    """Yield, for values of all sizes in `moved`, the difference that they make.

    Meanwhile, the values in `fixed` differ from slot to slot, and just show: keys do not show, for
    example, if all values are alike or tiny. Also yields whether both show beyond rounding.
    """
    fixed, base = [change for change in fixed if change.tensors], trial.first
    for sign in (1, -1) if fixed else (1,):
        for step in range(STEPS if fixed else 0):
            fixed = [change.drawn(Draw(change.draw.seed, step, sign)) for change in fixed]
            with changed(trial, reads, fixed, keep=False) as values:
                outputs = {key: value.clone() for key, value in values.outputs.items()}
                base = Values(outputs, values.owned)
                if beyond(trial.first, values):
                    break
        for draw in draws(moved[0].draw.seed):
            mine = [change.drawn(draw) for change in moved]
            with changed(trial, reads, [*fixed, *mine], keep=False) as values:
                yield difference(base, values), beyond(trial.first, values)


def neighbours_show(trial: Trial, reads: Reads, part: Part, seed: int) -> bool:
    """Return whether the same tensor of the other layers shows beyond rounding."""
    fixed, moved = list[Change](), list[Change]()
    for name, ledger in trial.ledgers.items():
        layers = [
            tensors
            for n, tensors in enumerate(layers_of(ledger))
            if (name, n) != (part.group, part.layer) and len(tensors) > part.which
        ]
        numbers = [number for tensors in layers for number in tensors]
        read = slots_read(reads.forward, ledger)
        if numbers and len(read):
            count = fitting(ledger, numbers, LARGEST // len(trial.ledgers))
            slots = sampled(read, count, seed)
            mine = [tensors[part.which] for tensors in layers]
            fixed.append(Change(name, slots, [n for n in numbers if n not in mine], Draw(seed)))
            moved.append(Change(name, slots, mine, Draw(seed)))
    return bool(moved) and any(
        found is not None and found.beyond_rounding
        for found, _ in responses(trial, reads, fixed, moved)
    )


def lasts(trial: Trial, reads: Reads, values: Values) -> bool:
    """Return whether a change shows in KV that is kept, not only in a state or in outputs."""
    return any(
        first_layer(one, other) is not None
        for one, other in zip(trial.first.owned, values.owned, strict=True)
        if all(
            appends(row, name)
            for row in reads.forward.rows
            if row.cached and (name := one.ledger.group.name) in row.slots
        )
    )
