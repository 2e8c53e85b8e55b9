"""Leak: while no request runs, a slot is neither free nor in the prefix cache, or it is both.

So is a copy that never ends, a cached slot that stays locked or can never be evicted, a row of the
request table that is not freed, and a slot that a running request holds although its window has
left it. The same holds for a pool on the host. The opposite is reported, too, such as a row that is
free twice.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from paritybit.watch.journal import Finding
from paritybit.watch.ledger import Ledger
from paritybit.watch.observations import (
    SHOWN,
    Cached,
    Check,
    Evidence,
    IdleRows,
    IdleSlots,
    Outside,
    Unfinished,
)

IDLE = "no forward pass runs, and"


def judge(idle: IdleSlots | IdleRows | Cached | Outside | Unfinished) -> Iterable[Finding]:
    """Yield a finding per kind of leak."""
    if isinstance(idle, Outside):
        when = f"the window of request {idle.row.request} has left it, and"
        group, what = idle.ledger.group.name, "is not free"
        yield from found(idle, group, idle.ledger, idle.slots, what, when)
    elif isinstance(idle, Unfinished):
        moving, what = idle.moving, "a copy has not ended"
        yield idle.found(
            CHECK.name,
            f"{IDLE} {moving} has not ended",
            group=moving.copy.group,
            why=what,
            count=len(moving.target),
            origin=f"it began {moving.call}",
        )
    elif isinstance(idle, IdleRows):
        rows = len(set(idle.free))
        twice, missing = len(idle.free) - rows, idle.all - rows
        yield from wrong_count(idle, None, twice, "rows of the request table are free twice", "")
        what = "rows of the request table are not free"
        more = "free rows are not in the request table"
        yield from wrong_count(idle, None, missing, what, more)
    elif isinstance(idle, Cached):
        count = idle.held - idle.evictable
        what = "slots of the prefix cache can never be evicted"
        more = "slots count as evictable and are not in the prefix cache"
        yield from wrong_count(idle, idle.group, count, what, more)
    else:
        yield from of_slots(idle)


def of_slots(idle: IdleSlots) -> Iterable[Finding]:
    """Yield the findings about the free and the cached slots of a group or a host pool."""
    what = "slots of the prefix cache are locked"
    more = "slots of the prefix cache are unlocked twice"
    yield from wrong_count(idle, idle.group, idle.locked, what, more)
    free, cached = (torch.zeros_like(idle.used) for _ in range(2))
    free[idle.free], cached[idle.cached] = True, True
    wrong = {
        "is neither free nor in the prefix cache": idle.used & ~free & ~cached,
        "is free and in the prefix cache": free & cached,
    }
    if idle.ledger is None:  # The check for double frees follows the slots of a group.
        wrong["is free twice"] = torch.bincount(idle.free, minlength=len(free)) > 1
    for what, mask in wrong.items():
        yield from found(idle, idle.group, idle.ledger, mask.nonzero().flatten(), what)


def wrong_count(
    idle: Evidence, group: str | None, count: int, what: str, fewer: str
) -> Iterable[Finding]:
    """Yield a finding unless `count` is 0. If it is negative, `fewer` says what that means."""
    where = "" if group is None else f" ({group})"
    if count:
        count, what = abs(count), what if count > 0 else fewer
        text = f"{IDLE} {count} {what}{where}"
        yield idle.found(CHECK.name, text, group=group, why=what, count=count)


def found(
    idle: Evidence,
    group: str,
    ledger: Ledger | None,
    slots: Tensor,
    what: str,
    when: str = IDLE,
) -> Iterable[Finding]:
    """Yield one finding for all wrong slots, int64 [n], if there are any."""
    if not len(slots):
        return
    slot, known = int(slots[0]), dict[str, Any]()
    if ledger is not None:
        given = " ".join(map(str, ledger.last_allocation(slot) or ()))
        known = {
            "writer": ledger.writer(slot),
            "freed": ledger.last_free(slot),
            "origin": "; ".join(filter(None, (given, ledger.freed_beside(slot)))) or None,
        }
    yield idle.found(
        CHECK.name,
        f"{when} slot {slot} ({group}) {what}",
        group=group,
        why=what,
        slots=tuple(slots[:SHOWN].tolist()),
        count=len(slots),
        **known,
    )


CHECK = Check(
    "leak",
    "idle",
    "when nothing runs, every written slot, on the device or the host, is either free or in "
    "the prefix cache, none is locked, all cached ones can be evicted, each row of the request "
    "table is free once, and no copy is under way; in vLLM, a slot that a window left two forward "
    "passes before is free",
    judge,
)
