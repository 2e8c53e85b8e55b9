"""Stray write: a forward changes a slot that it does not own."""

from collections.abc import Iterable

from paritybit.watch.journal import Finding
from paritybit.watch.observations import SHOWN, Check, StrayWrites, uncounted


def judge(frame: StrayWrites) -> Iterable[Finding]:
    """Yield a finding per cause."""
    explained = {slot for _, slots in frame.causes for slot in slots}
    rest = [slot for slot in frame.stray.tolist() if slot not in explained]
    for cause, slots in [*frame.causes, (None, rest)]:
        if not slots:
            continue
        group, slot = frame.ledger.group.name, slots[0]
        by = (
            f"the replay of {frame.replay}" if frame.replay else f"the {frame.forward.kind} forward"
        )
        why = "" if cause is None else f"; {cause['what']}"
        yield frame.found(
            CHECK.name,
            f"{by} changed slot {slot} ({group}), which none of its rows owns{why}",
            group=group,
            replay=frame.replay,
            layer=frame.layers.get(slot),
            slots=tuple(slots[:SHOWN]),
            count=len(slots),
            writer=frame.ledger.writer(slot),
            freed=frame.ledger.freeing(slot),
            reader=running(frame, slot),
            cause=cause,
        )


def running(frame: StrayWrites, slot: int) -> dict[str, object] | None:
    """Return the row of this forward whose cached positions include the slot, or None."""
    name = frame.ledger.group.name
    for row in frame.forward.rows:
        if name not in row.slots:
            continue
        places = (row.slots[name][: row.cached] == slot).nonzero().flatten()
        if len(places):
            return {"request": row.request, "position": int(places[0]), "forward": frame.number}
    return None


CHECK = Check(
    "stray write",
    "frame",
    "a forward pass changes only the slots of its live tokens, and reserved slots",
    judge,
    uncounted,
)
