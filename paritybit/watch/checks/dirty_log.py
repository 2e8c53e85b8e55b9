"""Dirty log: the engine logs an error during a forward."""

from collections.abc import Iterable

from paritybit.watch.journal import Finding
from paritybit.watch.observations import Check, Logged, key_of


def judge(logged: Logged) -> Iterable[Finding]:
    """Yield a finding per place in the engine that logged."""
    for place, text in logged.records:
        yield Finding(
            check=CHECK.name,
            text=f"the engine logged an error: {text}",
            key=key_of(CHECK.name, None, {"what": place}),
            forward=logged.number,
            forward_kind=logged.kind,
            cause={"what": f"logged by {place}", "source": place},
        )


CHECK = Check(
    "dirty log",
    "log",
    "a forward pass logs no error; warnings are only counted",
    "none",
    judge,
)
