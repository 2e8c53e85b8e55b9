"""Stray write: a forward changes a slot that it does not own."""

from collections.abc import Iterable

from paritybit.watch.journal import Finding
from paritybit.watch.observations import SHOWN, Check, StrayWrites, uncounted


def judge(writes: StrayWrites) -> Iterable[Finding]:
    """Yield a finding per cause."""
    explained = {slot for _, slots in writes.causes for slot in slots}
    rest = [slot for slot in writes.stray.tolist() if slot not in explained]
    for cause, slots in [*writes.causes, (None, rest)]:
        if not slots:
            continue
        group, slot = writes.ledger.group.name, slots[0]
        by = writes.by(writes.replay)
        why = "" if cause is None else f"; {cause['what']}"
        yield writes.found(
            CHECK.name,
            f"{by} changed slot {slot} ({group}), which none of its rows owns{why}",
            group=group,
            replay=writes.replay,
            layer=writes.layers.get(slot),
            slots=tuple(slots[:SHOWN]),
            count=len(slots),
            writer=writes.ledger.writer(slot),
            freed=writes.ledger.last_free(slot),
            reader=running(writes, slot),
            cause=cause,
        )


def running(writes: StrayWrites, slot: int) -> dict[str, object] | None:
    """Return the row of this forward whose cached positions include the slot, or None."""
    for row, places in writes.forward.having(writes.ledger.group.name, slot):
        if places[0] < row.cached:
            return {"request": row.request, "position": places[0], "forward": writes.number}
    return None


CHECK = Check(
    "stray write",
    "scan",
    "a forward pass changes only the slots of its live tokens, and reserved slots",
    judge,
    uncounted,
)
