"""Leak: while nothing runs, a slot is neither free nor in the prefix cache, or both.

A cached slot that stays locked, and a row of the request table that stays taken, leak too: nothing
can use them again.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from paritybit.watch.journal import Finding
from paritybit.watch.ledger import MAYBE, NEVER
from paritybit.watch.observations import SHOWN, Check, Idle, IdleRows, key_of


def judge(idle: Idle | IdleRows) -> Iterable[Finding]:
    """Yield a finding per kind of leak."""
    if isinstance(idle, IdleRows):
        if idle.free < idle.all:
            count = idle.all - idle.free
            yield held(idle.number, None, count, "rows of the request table are not free")
        return
    ledger = idle.ledger
    if idle.locked > 0:
        group = ledger.group.name
        yield held(idle.number, group, idle.locked, "slots of the prefix cache are locked")

    def marks(slots: Tensor) -> Tensor:
        mask = torch.zeros(ledger.slots, dtype=torch.bool, device=ledger.device)
        mask[slots] = True
        return mask

    free, cached = marks(idle.free), marks(idle.cached)
    used = (ledger.forward != NEVER) & (ledger.forward != MAYBE)
    used[ledger.reserved] = False
    yield from found(idle, used & ~free & ~cached, "is neither free nor in the prefix cache")
    yield from found(idle, free & cached, "is free and in the prefix cache")


def held(number: int, group: str | None, count: int, what: str) -> Finding:
    """Return the finding for something that is counted alone."""
    where = "" if group is None else f" ({group})"
    return Finding(
        check=CHECK.name,
        text=f"nothing runs, and {count} {what}{where}",
        key=key_of(CHECK.name, group, {"what": what}),
        forward=number,
        group=group,
        count=count,
    )


def found(idle: Idle, wrong: Tensor, what: str) -> Iterable[Finding]:
    """Yield one finding if any slot is wrong."""
    slots = wrong.nonzero().flatten()
    if not len(slots):
        return
    slot, group = int(slots[0]), idle.ledger.group.name
    yield Finding(
        check=CHECK.name,
        text=f"nothing runs, and slot {slot} ({group}) {what}",
        key=key_of(CHECK.name, group, {"what": what}),
        forward=idle.number,
        group=group,
        slots=tuple(slots[:SHOWN].tolist()),
        count=len(slots),
        writer=idle.ledger.writer(slot),
        freed=idle.ledger.freeing(slot),
    )


CHECK = Check(
    "leak",
    "idle",
    "when nothing runs, every slot ever written is either free or in the prefix cache, none is "
    "locked, and all rows of the request table are free",
    "a pass over the ledger whenever the engine is idle",
    judge,
)
