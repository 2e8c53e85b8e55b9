"""Unwritten slot: a forward does not write the slot of a token that it computes."""

from collections.abc import Iterable

from paritybit.watch.journal import Finding
from paritybit.watch.observations import SHOWN, Check, Unwritten, key_of, uncounted


def judge(found: Unwritten) -> Iterable[Finding]:
    """Yield a finding for all slots of a group."""
    slot, row, position = int(found.slots[0]), int(found.row[0]), int(found.position[0])
    group, request = found.ledger.group.name, found.forward.rows[row].request
    by = f"the replay of {found.replay}" if found.replay else f"the {found.forward.kind} forward"
    yield Finding(
        check=CHECK.name,
        text=f"{by} did not write slot {slot} ({group}), which is position {position} of "
        f"request {request}",
        key=key_of(CHECK.name, group, {"what": found.replay or found.forward.kind}),
        forward=found.number,
        forward_kind=found.forward.kind,
        group=group,
        replay=found.replay,
        slots=tuple(found.slots[:SHOWN].tolist()),
        count=len(found.slots),
        writer=found.ledger.writer(slot),
        freed=found.ledger.freeing(slot),
    )


CHECK = Check(
    "unwritten slot",
    "writes",
    "a forward pass writes the slot of each token that it computes",
    "nothing beyond stray write",
    judge,
    uncounted,
)
