"""Wrong read: a forward reads slots that it must not read, or ignores the K or V of a layer."""

from collections.abc import Iterable

from paritybit.watch.journal import Finding
from paritybit.watch.observations import Check, WrongRead, key_of, uncounted


def judge(read: WrongRead) -> Iterable[Finding]:
    """Yield the finding."""
    found = read.found
    yield Finding(
        check=CHECK.name,
        text=f"{read.kind} {found.text}",
        key=key_of(CHECK.name, found.group, found.cause),
        forward=read.number,
        forward_kind=read.forward.kind,
        group=found.group,
        replay=read.kind,
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
