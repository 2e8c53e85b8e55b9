"""Double free: the engine frees a slot that is already free."""

from collections.abc import Iterable, Mapping
from typing import Any

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
            forward=ledger.calls[call]["forward"] - 1,
            group=group,
            slots=tuple(slots[:SHOWN].tolist()),
            count=len(slots),
            writer=ledger.writer(slot),
            freed=ledger.calls.get(int(freeing.before[mine[0]])),
            origin=again_by(ledger.calls[call]),
        )


def again_by(call: Mapping[str, Any]) -> str | None:
    """Return the lines of the second free as text, or None if they are unknown."""
    lines = ", ".join(one for one in (call["source"], call.get("via")) if one)
    return f"freed again by {lines}" if lines else None


CHECK = Check(
    "double free",
    "freeing",
    "no slot is freed twice without being allocated in between",
    judge,
    lambda freeing: len(freeing.slots),
)
