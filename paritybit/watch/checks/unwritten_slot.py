"""Unwritten slot: a forward does not write the slot of a token that it computes."""

from collections.abc import Iterable

from paritybit.watch.journal import Finding
from paritybit.watch.observations import SHOWN, Check, Unwritten, uncounted

MOST = 3
"""The most tensors that are named."""


def judge(left: Unwritten) -> Iterable[Finding]:
    """Yield a finding for all slots of a group."""
    slot, row, position = int(left.slots[0]), int(left.row[0]), int(left.position[0])
    group, request = left.ledger.group.name, left.forward.rows[row].request
    names = [left.ledger.tensor(number) for number in left.tensors]
    more = [f"{len(names) - MOST} more"] if len(names) > MOST else []
    part = f"{', '.join([*names[:MOST], *more])} in " if names else ""
    yield left.found(
        CHECK.name,
        f"{left.by(left.replay)} did not write {part}slot {slot} ({group}), "
        f"which is position {position} of request {request}",
        group=group,
        why=left.replay or left.forward.kind,
        replay=left.replay,
        layer=left.ledger.layers[left.tensors[0]] if names else None,
        slots=tuple(left.slots[:SHOWN].tolist()),
        count=len(left.slots),
        writer=left.ledger.writer(slot),
        freed=left.ledger.last_free(slot),
    )


CHECK = Check(
    "unwritten slot",
    "writes",
    "a forward pass writes the slot of each token that it computes, in each tensor",
    judge,
    uncounted,
)
