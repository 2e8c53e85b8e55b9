"""Compares two records of the sanitizer: which causes are new, gone, or still there."""

from collections.abc import Iterator
from dataclasses import dataclass

from paritybit.launch.schema import Watched
from paritybit.launch.trend import became, point_of
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
    names = sorted({**later, **earlier}, key=lambda name: name in earlier)
    for name in names:
        kind = became(name, point_of(before), point_of(after))
        yield Change(kind, name, earlier.get(name, ""), later.get(name, ""))
