"""Unrepeatable replay: two replays from the same state give different results."""

from collections.abc import Iterable

from paritybit.watch.journal import Finding
from paritybit.watch.observations import Check, Relation, uncounted


def judge(relation: Relation) -> Iterable[Finding]:
    """Yield the finding."""
    what = f"the replay of {relation.kind}, run again from the same state, differs"
    yield relation.finding(CHECK.name, what)


CHECK = Check(
    "unrepeatable replay",
    "unrepeatable replay",
    "a second replay from the same state gives the same live outputs and owned slots",
    judge,
    uncounted,
)
