"""Says what the wrong values of an input equal: something known that is equal in each of them."""

from collections.abc import Iterator

import torch
from torch import Tensor

from paritybit.watch.facts import Forward, Row, StaticInput
from paritybit.watch.ledger import Ledger
from paritybit.watch.observations import Inputs

MOST = 3
"""The most equalities of one input that are said."""

NONE = -(2**31)
"""Stands for a position without a token or a slot. No input has this value."""

NEAR = 4
"""The most entries between an entry and the one whose value it has."""


def equals(inputs: Inputs, static: StaticInput, held: Tensor, right: Tensor, wrong: Tensor) -> str:
    """Return what the wrong entries of an input equal, as the end of a sentence, or ''.

    `held` and `right` are the live part and what it must be, and `wrong` are the flat indices of
    wrong entries, int64 [n].
    """
    held, right, wrong = held.flatten().cpu(), right.flatten().cpu(), wrong.cpu()
    found = [text for text, other in known(inputs, static, right) if same(held, other, wrong)]
    found += shifted(held, right, wrong, inputs.forward)
    found += further(held, right, wrong)
    ledger = inputs.ledgers.get(static.writes or "")
    if ledger is not None:
        slot = int(held[wrong[0]])
        found += [f"slot {slot} is {owner}" for owner in owners(inputs.forward, ledger, slot)]
    told = " and ".join(list(dict.fromkeys(found))[:MOST])
    return f"; {told}" if told else ""


def same(held: Tensor, other: Tensor, wrong: Tensor) -> bool:
    """Return whether each wrong entry is equal to the entry of another tensor."""
    if len(other) <= int(wrong.max()):
        return False
    return torch.equal(held[wrong].to(torch.float64), other[wrong].to(torch.float64))


def known(inputs: Inputs, static: StaticInput, right: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield other values that an input could have, flat and on the host, with their names."""
    number, value = inputs.before.get(static.name, (0, None))
    captured = inputs.captured.get(static.name)
    first = None if captured is None else captured.value
    for when, earlier in ((f"in forward {number}", value), ("at capture", first)):
        alike = earlier is not None and earlier.shape[1:] == static.tensor.shape[1:]
        if earlier is not None and alike and static.axis == 0:
            yield f"that is what it held {when}", earlier.flatten().cpu()
    rows = inputs.forward.rows
    if right.dtype == torch.bool:
        return
    if len(right) == len(rows):
        cached = torch.tensor([row.cached for row in rows])
        computed = torch.tensor([row.computed for row in rows])
        yield "that is the number of cached positions of the request", cached
        yield "that is the number of positions that it computes", computed
        yield "that is the number of cached and computed positions", cached + computed
    if len(right) == sum(row.computed for row in rows):
        for step, which in ((-1, "before"), (1, "after")):
            for name, value in of_neighbours(rows, static, step):
                yield f"that is the {name} of the position {which} it, of the same request", value


def of_neighbours(
    rows: tuple[Row, ...], static: StaticInput, step: int
) -> Iterator[tuple[str, Tensor]]:
    """Yield the token ids, and the slots, of the positions `step` after each computed one."""
    ids, slots = list[int](), list[int]()
    for row in rows:
        held = row.slots.get(static.writes or "")
        mine = [] if held is None else [int(slot) for slot in held]
        for place in range(row.cached + step, row.cached + row.computed + step):
            token = row.tokens[place] if 0 <= place < len(row.tokens) else None
            ids.append(NONE if token is None else token)
            slots.append(mine[place] if 0 <= place < len(mine) else NONE)
    if static.writes is not None:
        yield "slot", torch.tensor(slots)
    elif "ids" in static.name:
        yield "id", torch.tensor(ids)


def shifted(held: Tensor, right: Tensor, wrong: Tensor, forward: Forward) -> Iterator[str]:
    """Yield which other entry's right value each wrong entry has."""
    for step in (*range(1, NEAR + 1), *range(-1, -NEAR - 1, -1)):
        there = wrong + step
        if int(there.min()) < 0 or int(there.max()) >= len(right):
            continue
        if torch.equal(held[wrong], right[there]) and len(right[there].unique()) == len(there):
            entry = int(there[0])
            whose = request_at(forward, entry, len(right))
            which = f"entry {entry}" if whose is None else f"entry {entry}, {whose}"
            yield f"that is the right value of {which}"
            return


def request_at(forward: Forward, entry: int, size: int) -> str | None:
    """Return the request of an entry of an input with `size` entries, or None if unknown."""
    found = row_at(forward, entry, size)
    return None if found is None else f"request {found[0].request}"


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


def further(held: Tensor, right: Tensor, wrong: Tensor) -> Iterator[str]:
    """Yield by how much each of several wrong entries is too large, if all are so by as much."""
    if held.dtype.is_floating_point or held.dtype == torch.bool or len(wrong) < 2:
        return
    apart = (held[wrong].long() - right[wrong].long()).unique()
    if len(apart) == 1:
        by = int(apart)
        side = "more" if by > 0 else "less"
        yield f"each of {len(wrong)} wrong entries is {abs(by)} {side} than it must be"


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
