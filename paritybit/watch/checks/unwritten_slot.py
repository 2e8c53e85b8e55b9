"""Unwritten slot: a forward does not write the slot of a token that it computes."""

from collections.abc import Iterable

from paritybit.watch.journal import Finding
from paritybit.watch.observations import SHOWN, Check, Unwritten, uncounted


def judge(left: Unwritten) -> Iterable[Finding]:
    """Yield a finding for all slots of a group."""
    slot, row, position = int(left.slots[0]), int(left.row[0]), int(left.position[0])
    group, request = left.ledger.group.name, left.forward.rows[row].request
    yield left.found(
        CHECK.name,
        f"{left.by(left.replay)} did not write slot {slot} ({group}), which is position {position} "
        f"of request {request}",
        group=group,
        why=left.replay or left.forward.kind,
        replay=left.replay,
        slots=tuple(left.slots[:SHOWN].tolist()),
        count=len(left.slots),
        writer=left.ledger.writer(slot),
        freed=left.ledger.last_free(slot),
    )


CHECK = Check(
    "unwritten slot",
    "writes",
    "a forward pass writes the slot of each token that it computes",
    judge,
    uncounted,
)
