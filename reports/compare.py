"""Compares two records of the sanitizer: which causes are new, fixed, or still there."""

from collections.abc import Iterator
from dataclasses import dataclass

from paritybit.launch.schema import Watched
from paritybit.launch.trend import changes
from paritybit.launch.words import all_causes


@dataclass(frozen=True)
class Change:
    """The change of a cause, and how often each check found it before and after."""

    kind: str
    cause: str
    before: str
    after: str


def compare_watched(before: Watched, after: Watched) -> Iterator[Change]:
    """Yield the change of each cause, new ones first."""
    earlier = {cause.name: cause.count for cause in all_causes(before.findings)}
    later = {cause.name: cause.count for cause in all_causes(after.findings)}
    for name, kind in sorted(changes(before, after).items(), key=lambda one: one[0] in earlier):
        yield Change(kind, name, earlier.get(name, ""), later.get(name, ""))
