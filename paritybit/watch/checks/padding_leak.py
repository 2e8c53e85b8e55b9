"""Padding leak: the results of a replay for live rows depend on the values of its padding."""

from collections.abc import Iterable
from dataclasses import replace

from paritybit.watch.journal import Finding
from paritybit.watch.observations import Check, Relation, uncounted


def judge(relation: Relation) -> Iterable[Finding]:
    """Yield the finding."""
    where = ""
    if relation.padding is not None:
        where = f" in {relation.padding}"
        relation = replace(relation, cause={"what": f"the padding{where} matters"})
    what = f"the replay of {relation.kind} depends on the values of its padding{where}"
    yield relation.finding(CHECK.name, what)


CHECK = Check(
    "padding leak",
    "padding leak",
    "other valid values in the padded part change no live output and no owned slot",
    "two more replays per padded replay that is tried",
    judge,
    uncounted,
)
