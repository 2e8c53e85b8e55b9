"""Double free: the engine frees a slot that is already free."""

from collections.abc import Iterable

from paritybit.watch.journal import Finding
from paritybit.watch.observations import SHOWN, Check, Freeing, key_of


def judge(freeing: Freeing) -> Iterable[Finding]:
    """Yield one finding per call for all slots that were already free."""
    again = (freeing.before > 0).nonzero().flatten()
    if not len(again):
        return
    ledger, calls, group = freeing.ledger, freeing.call[again], freeing.ledger.group.name
    for call in calls.unique().tolist():
        mine = again[calls == call]
        slots = freeing.slots[mine]
        slot = int(slots[0])
        yield Finding(
            check=CHECK.name,
            text=f"slot {slot} ({group}) is freed twice",
            key=key_of(CHECK.name, group, None),
            forward=ledger.freeings[call]["forward"] - 1,
            group=group,
            slots=tuple(slots[:SHOWN].tolist()),
            count=len(slots),
            writer=ledger.writer(slot),
            freed=ledger.freeings.get(int(freeing.before[mine[0]])),
        )


CHECK = Check(
    "double free",
    "freeing",
    "no slot is freed twice without being allocated in between",
    "a ledger entry per slot that is freed",
    judge,
    lambda freeing: len(freeing.slots),
)
