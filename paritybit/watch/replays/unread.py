"""Gives one tensor of a layer other values in the slots that live rows read.

Something must then change. If nothing does, the tensor is not read, or the arithmetic of the model
lets no change of it through. Controls tell these apart: the other tensors of the layer show, or the
tensor itself showed in another forward; and so does the same tensor of the other layers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from paritybit.watch.bits import as_integers
from paritybit.watch.ledger import Ledger
from paritybit.watch.observations import Difference, Wrong
from paritybit.watch.reading import slots_read
from paritybit.watch.replays.differences import beyond, difference, first_layer
from paritybit.watch.replays.influence import (
    HIDDEN,
    NOTHING_READ,
    SAME_BYTES,
    Change,
    NotTried,
    Reads,
    Result,
    appends,
    changed,
    layers_of,
    only_tokens,
)
from paritybit.watch.replays.trial import LARGEST, SavedSlots, Trial, Values
from paritybit.watch.replays.values import SAMPLE, STEPS, Draw, draws, sampled

UNWRITTEN = "nothing had written the tensor in the slots that are read"
ALL_TOKENS = "the last layer shows only in tokens"
NO_KV = "a model without KV of its own may ignore layers"

Shown = set[tuple[str, int]]
"""The groups and numbers of tensors."""


@dataclass(frozen=True)
class Part:
    """A tensor: the ledger of its group, the number of its layer, and its place in the layer."""

    ledger: Ledger
    layer: int
    which: int

    @classmethod
    def of(cls, ledger: Ledger, turn: int) -> "Part":
        """Return the tensor of a group whose turn it is."""
        layers = enumerate(layers_of(ledger))
        parts = [cls(ledger, layer, n) for layer, tensors in layers for n in range(len(tensors))]
        return parts[turn % len(parts)]

    @property
    def number(self) -> int:
        """The number of the tensor in its group."""
        return layers_of(self.ledger)[self.layer][self.which]

    @property
    def last(self) -> bool:
        """Whether it belongs to the last layer of its group.

        That may be the last one of the model, where only the last query of a row matters.
        """
        return self.layer == len(self.ledger.group.layers) - 1

    def slots(self, reads: Reads) -> Tensor:
        """Return the slots in which it is tried, int64 [n]."""
        mine = reads.slots[self.ledger.group.name]
        if not self.last:
            return mine
        return mine[torch.isin(mine, slots_read(reads.forward, self.ledger, last=True))]


def unread(trial: Trial, reads: Reads, turn: int, seed: int, shown: Shown) -> Iterator[Result]:
    """Yield, for one tensor per group, whether its content in the slots that rows read matters.

    The first one whose content does not matter ends it. `turn` chooses the tensors. `shown` has
    those whose values clearly showed before. A model that has no KV may read some layers of another
    one alone, so that no layer is tried.
    """
    if any(row.only_reads for row in reads.forward.rows):
        yield NotTried(NO_KV)
        return
    read = [ledger for name, ledger in trial.ledgers.items() if len(reads.slots[name])]
    for ledger in read or trial.ledgers.values():
        turns = range(turn, turn + len(ledger.checksums.tensors))
        parts = [Part.of(ledger, one) for one in turns]
        part = next((one for one in parts if len(one.slots(reads))), parts[0])
        found = unread_part(trial, reads, part, seed, shown)
        yield found
        if isinstance(found, Wrong):
            return


def unread_part(trial: Trial, reads: Reads, part: Part, seed: int, shown: Shown) -> Result:
    """Return a tensor whose content in the slots that live rows read changes nothing."""
    ledger, name, number = part.ledger, part.ledger.group.name, part.number
    tensors = layers_of(ledger)[part.layer]
    whole = Change.fitting(ledger, part.slots(reads), tensors, LARGEST, Draw(seed))
    if reason := unusable(reads, part, whole.slots):
        return NotTried(reason)
    moved = replace(whole, tensors=[number])
    fixed = replace(whole, tensors=[n for n in tensors if n != number])
    with changed(trial, reads, [moved], keep=False) as values:
        if difference(trial.first, values) is not None:
            if beyond(trial.first, values) and lasts(trial, reads, values):
                shown.add((name, number))
            return None
        if not values.altered or (part.last and only_tokens(trial)):
            return NotTried(ALL_TOKENS if values.altered else SAME_BYTES)
    control = (name, number) in shown
    for found, both in responses(trial, reads, [fixed], [moved]):
        if found is not None:
            return None
        control |= both
    if not (control and neighbours_show(trial, reads, part, seed)):
        return NotTried(HIDDEN)
    layer = ledger.group.layers[part.layer].name
    what = f"tensor {part.which} of {layer}"
    text = f"does not depend on {what} in the slots that live rows read"
    return Wrong(text, name, layer, cause={"what": f"{what} is not read"})


def unusable(reads: Reads, part: Part, slots: Tensor) -> str | None:
    """Return why a tensor cannot be tried in some slots, or None."""
    read = sampled(reads.slots[part.ledger.group.name], SAMPLE, 0)
    (rows,) = SavedSlots.of(part.ledger, read, [part.number]).rows
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
            fixed = [replace(one, draw=Draw(one.draw.seed, step, sign)) for one in fixed]
            with changed(trial, reads, fixed, keep=False) as values:
                outputs = {key: value.clone() for key, value in values.outputs.items()}
                base = Values(outputs, values.owned)
                if beyond(trial.first, values):
                    break
        for draw in draws(moved[0].draw.seed):
            mine = [replace(change, draw=draw) for change in moved]
            with changed(trial, reads, [*fixed, *mine], keep=False) as values:
                yield difference(base, values), beyond(trial.first, values)


def neighbours_show(trial: Trial, reads: Reads, part: Part, seed: int) -> bool:
    """Return whether the same tensor of the other layers shows beyond rounding."""
    fixed, moved = list[Change](), list[Change]()
    for ledger in trial.ledgers.values():
        layers = [
            tensors
            for n, tensors in enumerate(layers_of(ledger))
            if not (ledger is part.ledger and n == part.layer) and len(tensors) > part.which
        ]
        numbers = [number for tensors in layers for number in tensors]
        read = slots_read(reads.forward, ledger)
        if numbers and len(read):
            most = LARGEST // len(trial.ledgers)
            whole = Change.fitting(ledger, read, numbers, most, Draw(seed))
            mine = [tensors[part.which] for tensors in layers]
            fixed.append(replace(whole, tensors=[n for n in numbers if n not in mine]))
            moved.append(replace(whole, tensors=mine))
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
