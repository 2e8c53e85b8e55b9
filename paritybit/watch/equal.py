"""Says what the wrong values of an input equal: something known that is equal in each of them."""

from collections.abc import Iterator

import torch
from torch import Tensor

from paritybit.watch.facts import Forward, Row, StaticInput
from paritybit.watch.ledger import Ledger
from paritybit.watch.observations import Inputs

MOST = 3
"""The most equalities of one input that are said."""


def equals(inputs: Inputs, static: StaticInput, held: Tensor, wrong: Tensor) -> str:
    """Return what the wrong entries of an input equal, as the end of a sentence, or ''.

    `held` is the live part, and `wrong` are the flat indices of wrong entries, int64 [n].
    """
    held, wrong, found = held.flatten().cpu(), wrong.cpu(), list[str]()
    number, value = inputs.before.get(static.name, (0, None))
    captured = inputs.captured.get(static.name)
    first = None if captured is None else captured.value
    for when, earlier in ((f"in forward {number}", value), ("at capture", first)):
        if earlier is None or static.axis or earlier.shape[1:] != static.tensor.shape[1:]:
            continue
        other = earlier.flatten().cpu()
        if len(other) > int(wrong.max()) and torch.equal(held[wrong], other[wrong].to(held.dtype)):
            found.append(f"that is what it held {when}")
    ledger = inputs.ledgers.get(static.writes or "")
    if ledger is not None:
        slot = int(held[wrong[0]])
        found += [f"slot {slot} is {owner}" for owner in owners(inputs.forward, ledger, slot)]
    told = " and ".join(list(dict.fromkeys(found))[:MOST])
    return f"; {told}" if told else ""


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
    found = False
    for row, places in forward.having(ledger.group.name, slot):
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
