"""Graph and eager differ: a replay and an eager run of the same batch compute different results."""

from collections.abc import Iterable

from paritybit.watch.journal import Finding
from paritybit.watch.observations import Check, Relation, uncounted


def judge(relation: Relation) -> Iterable[Finding]:
    """Yield the finding."""
    what = f"the replay of {relation.kind} differs from the same batch run eagerly"
    yield relation.finding(CHECK.name, what)


CHECK = Check(
    "graph and eager differ",
    "graph and eager differ",
    "the same batch run eagerly gives the same result, up to the variation of eager runs",
    judge,
    uncounted,
)
