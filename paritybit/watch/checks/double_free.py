"""Double free: the engine frees a slot that is already free."""

from collections.abc import Iterable

from paritybit.watch.journal import Finding
from paritybit.watch.observations import SHOWN, Check, Evidence, Freeing


def judge(freeing: Freeing) -> Iterable[Finding]:
    """Yield one finding per call for all slots that were already free."""
    again = (freeing.before > 0).nonzero().flatten()
    if not len(again):
        return
    ledger, calls, group = freeing.ledger, freeing.call[again], freeing.ledger.group.name
    for call in calls.unique().tolist():
        mine = again[calls == call]
        slots = freeing.slots[mine]
        slot, before = int(slots[0]), ledger.calls.get(int(freeing.before[mine[0]]))
        yield Evidence(ledger.calls[call].forward - 1).found(
            CHECK.name,
            f"slot {slot} ({group}) is freed twice",
            group=group,
            slots=tuple(slots[:SHOWN].tolist()),
            count=len(slots),
            writer=ledger.writer(slot),
            freed=None if before is None else before.who,
            origin=f"freed again {ledger.calls[call]}",
        )


CHECK = Check(
    "double free",
    "freeing",
    "no slot is freed twice without being allocated in between",
    judge,
    lambda freeing: len(freeing.slots),
)
