"""Says what the wrong values of an input equal: something known that is equal in each of them."""

from collections.abc import Iterator

import torch
from torch import Tensor

from paritybit.watch.facts import Forward, Row, StaticInput
from paritybit.watch.ledger import Ledger
from paritybit.watch.observations import Inputs

MOST = 3
"""The most equalities of one input that are said."""

NEAR = 4
"""The most entries between an entry and the one whose value it has."""


def equals(inputs: Inputs, static: StaticInput, held: Tensor, right: Tensor, wrong: Tensor) -> str:
    """Return what the wrong entries of an input equal, as the end of a sentence, or ''.

    `held` and `right` are the live part and what it must be, and `wrong` are the flat indices of
    wrong entries, int64 [n].
    """
    held, right, wrong = held.flatten().cpu(), right.flatten().cpu(), wrong.cpu()
    numbers = held.to(torch.float64)[wrong]
    found = [
        text
        for text, other in known(inputs, static, right, wrong)
        if len(other) > int(wrong.max()) and torch.equal(numbers, other.to(torch.float64)[wrong])
    ]
    ledger = inputs.ledgers.get(static.writes or "")
    if ledger is not None:
        slot = int(held[wrong[0]])
        found += [f"slot {slot} is {owner}" for owner in owners(inputs.forward, ledger, slot)]
    told = " and ".join(list(dict.fromkeys(found))[:MOST])
    return f"; {told}" if told else ""


def known(
    inputs: Inputs, static: StaticInput, right: Tensor, wrong: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """Yield other values that an input could have, flat and on the host, with their names."""
    number, value = inputs.before.get(static.name, (0, None))
    captured = inputs.captured.get(static.name)
    first = None if captured is None else captured.value
    for when, earlier in ((f"in forward {number}", value), ("at capture", first)):
        alike = earlier is not None and earlier.shape[1:] == static.tensor.shape[1:]
        if earlier is not None and alike and static.axis == 0:
            yield f"that is what it held {when}", earlier.flatten().cpu()
    if right.dtype == torch.bool:
        return
    for step in (*range(1, NEAR + 1), *range(-1, -NEAR - 1, -1)):
        there = wrong + step
        if int(there.min()) >= 0 and int(there.max()) < len(right):
            entry, at = int(there[0]), row_at(inputs.forward, int(there[0]), len(right))
            whose = "" if at is None else f", request {at[0].request}"
            if len(right[there].unique()) == len(there):
                yield f"that is the right value of entry {entry}{whose}", right.roll(-step)


def row_at(forward: Forward, entry: int, size: int) -> tuple[Row, int] | None:
    """Return the row and the position of an entry of an input with `size` entries, if known."""
    rows = forward.rows
    if size == sum(row.computed for row in rows):
        for row in rows:
            if entry < row.computed:
                return row, row.cached + entry
            entry -= row.computed
    if size == len(rows):
        row = rows[entry]
        return row, row.cached + row.computed - 1
    return None


def owners(forward: Forward, ledger: Ledger, slot: int) -> Iterator[str]:
    """Yield whose slot a slot of a group is: of rows of a forward, or of who wrote it last."""
    name, found = ledger.group.name, False
    for row in forward.rows:
        held = row.slots.get(name)
        places = [] if held is None else (held == slot).nonzero().flatten().tolist()
        if places:
            found = True
            yield f"that of position {places[-1]} of request {row.request}"
    if found or not 0 <= slot < ledger.slots:
        return
    if not bool(ledger.usable[slot]):
        yield "one of padding"
        return
    writer = ledger.writer(slot)
    free = "free, and " if int(ledger.freed[slot]) > 0 else ""
    if writer is not None:
        yield (
            f"{free}last written for position {writer['position']} of request "
            f"{writer['request']}, in forward {writer['forward']}"
        )
    elif free:
        yield "free"
