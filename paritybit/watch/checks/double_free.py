"""Double free: a slot is freed that is free already."""

from collections.abc import Iterable

from paritybit.watch.journal import Finding
from paritybit.watch.observations import SHOWN, Check, Freeing, key_of


def judge(freeing: Freeing) -> Iterable[Finding]:
    """Yield one finding for all slots of a call."""
    ledger = freeing.ledger
    slots, times = freeing.slots.unique(return_counts=True)
    again = slots[(ledger.freed[slots] != 0) | (times > 1)]
    if not len(again):
        return
    slot, group = int(again[0]), ledger.group.name
    yield Finding(
        check=CHECK.name,
        text=f"slot {slot} ({group}) is freed twice",
        key=key_of(CHECK.name, group, None),
        forward=freeing.number,
        group=group,
        slots=tuple(again[:SHOWN].tolist()),
        count=len(again),
        writer=ledger.writer(slot),
        freed=ledger.freeing(slot),
    )


CHECK = Check(
    "double free",
    "freeing",
    "no slot is freed twice without being allocated in between",
    "a ledger entry per slot that is freed",
    judge,
)
