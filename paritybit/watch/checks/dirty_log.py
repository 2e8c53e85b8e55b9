"""Dirty log: the engine logs an error during a forward."""

from collections.abc import Iterable

from paritybit.watch.journal import Finding
from paritybit.watch.observations import Check, Logged


def judge(logged: Logged) -> Iterable[Finding]:
    """Yield a finding per place in the engine that logged."""
    for place, text in logged.records:
        cause = {"what": f"logged by {place}", "source": place}
        told = f"the engine logged an error: {text}"
        yield logged.found(CHECK.name, told, cause=cause, why=place)


CHECK = Check(
    "dirty log",
    "log",
    "a forward pass logs no error; warnings are only counted",
    judge,
)
