"""Wrong read: a forward reads slots that it must not read, or ignores the K or V of a layer."""

from collections.abc import Iterable

from paritybit.watch.journal import Finding
from paritybit.watch.observations import Check, Relation, Wrong, uncounted


def judge(read: Relation) -> Iterable[Finding]:
    """Yield the finding."""
    wrong = read.result
    assert isinstance(wrong, Wrong)
    yield read.found(
        CHECK.name,
        f"{read.kind} {wrong.text}",
        group=wrong.group,
        replay=read.kind,
        layer=wrong.layer,
        slots=wrong.slots,
        count=max(1, len(wrong.slots)),
        cause=wrong.cause,
    )


CHECK = Check(
    "wrong read",
    "wrong read",
    "other values in slots that no live row reads change no live output and no owned slot; other "
    "values in what live rows read of a layer's K or V change one; layers of one group share no "
    "memory",
    judge,
    uncounted,
)
