"""Wrong read: a forward reads slots that it must not read, or ignores the K or V of a layer."""

from collections.abc import Iterable

from paritybit.watch.journal import Finding
from paritybit.watch.observations import Check, WrongRead, key_of, uncounted


def judge(found: WrongRead) -> Iterable[Finding]:
    """Yield the finding."""
    yield Finding(
        check=CHECK.name,
        text=f"{found.kind} {found.text}",
        key=key_of(CHECK.name, found.group, found.cause),
        forward=found.number,
        forward_kind=found.forward.kind,
        group=found.group,
        replay=found.kind,
        layer=found.layer,
        slots=found.slots,
        count=max(1, len(found.slots)),
        cause=found.cause,
    )


CHECK = Check(
    "wrong read",
    "wrong read",
    "other values in slots that no live row reads change no live output and no owned slot; other "
    "values in what live rows read of a layer's K or V change one; layers of one group share no "
    "memory",
    "two or three more runs per replay, or forward pass without a graph, that is tried",
    judge,
    uncounted,
)
