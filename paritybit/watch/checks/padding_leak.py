"""Padding leak: the results of a replay for live rows depend on the values of its padding."""

from collections.abc import Iterable
from dataclasses import replace

from paritybit.watch.journal import Finding
from paritybit.watch.observations import Check, Relation, uncounted


def judge(relation: Relation) -> Iterable[Finding]:
    """Yield the finding."""
    where, static = "", relation.padding
    if static is not None:
        where = f" in {static.name}"
        cause = {"what": f"the padding{where} matters", **static.place}
        relation = replace(relation, cause=cause)
    what = f"the replay of {relation.kind} depends on the values of its padding{where}"
    yield relation.finding(CHECK.name, what)


CHECK = Check(
    "padding leak",
    "padding leak",
    "other valid values in the padded part, or in entries that the engine does not fill for a "
    "replay, change no live output and no owned slot",
    judge,
    uncounted,
)
