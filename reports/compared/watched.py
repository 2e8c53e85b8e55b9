"""Two records of the sanitizer side by side: which causes are new, gone, or still there."""

from collections.abc import Iterator
from dataclasses import dataclass

from paritybit.launch.schema import Watched
from paritybit.launch.words import causes_of

NEW, GONE, FIXED, STAYS = "new", "gone", "fixed", "still there"
"""What became of a cause. It is gone, not fixed, if no leg that had it was tried again."""


@dataclass(frozen=True)
class Change:
    """What became of a cause, and how often each check found it before and after."""

    kind: str
    cause: str
    before: str
    after: str


def compare_watched(before: Watched, after: Watched) -> Iterator[Change]:
    """Yield what became of each cause, new ones first."""
    earlier = {cause.name: cause for cause in causes_of(before.findings)}
    later = {cause.name: cause for cause in causes_of(after.findings)}
    tried = {leg.name for leg in after.legs}
    for name, cause in later.items():
        if name not in earlier:
            yield Change(NEW, name, "", cause.count)
    for name, cause in earlier.items():
        if name in later:
            yield Change(STAYS, name, cause.count, later[name].count)
        else:
            again = any(finding.leg in tried for finding in cause.findings)
            yield Change(FIXED if again else GONE, name, cause.count, "")
