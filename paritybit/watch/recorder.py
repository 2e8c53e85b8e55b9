"""Records the shape of the traffic before a finding.

For each request, it records when it ran, how many tokens it reached, and how long a prefix it
shared. It records no tokens. Requests are numbered in order of appearance.
"""

from bisect import bisect
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from paritybit.watch.chains import Chain
from paritybit.watch.facts import Forward

KEPT = 512
"""Number of checked forward passes that are remembered."""


@dataclass
class Seen:
    """A request in the last forward passes.

    - `since`, `until`: the first and the last forward pass with the request.
    - `prompt`: its number of tokens before its first decode step.
    - `reached`: its number of tokens at the end.
    - `of`, `shared`: its first `shared` tokens are those of request number `of`, or of none.
    """

    since: int
    until: int
    prompt: int
    reached: int
    of: int | None = None
    shared: int = 0


class Recorder:
    """Records the rows of the last forward passes."""

    def __init__(self) -> None:
        self.forwards: deque[tuple[int, list[tuple[str, int, int]]]] = deque(maxlen=KEPT)

    def note(self, number: int, forward: Forward) -> None:
        """Record a forward pass, unless a draft model computes it."""
        if not forward.model:
            rows = [(row.request, row.cached, row.computed) for row in forward.rows]
            self.forwards.append((number, rows))

    def traffic(self, chains: Mapping[str, Chain]) -> list[dict[str, Any]]:
        """Return the requests in order of appearance, as JSON data."""
        seen: dict[str, Seen] = {}
        for number, rows in self.forwards:
            for request, cached, computed in rows:
                end = cached + computed
                one = seen.setdefault(request, Seen(number, number, end, end))
                if computed > 1 and one.prompt == one.reached:  # Another chunk of its prompt.
                    one.prompt = end
                one.until, one.reached = number, max(one.reached, end)
        names = list(seen)
        hashes = [list(chains[name].hashes) if name in chains else [] for name in names]
        for place, name in enumerate(names):
            mine = hashes[place][: seen[name].prompt]
            for at, other in enumerate(hashes[:place]):
                if (length := alike(mine, other)) > seen[name].shared:
                    seen[name].of, seen[name].shared = at, length
        return [asdict(one) for one in seen.values()]


def alike(one: Sequence[int], two: Sequence[int]) -> int:
    """Return the number of leading hashes that two requests have in common."""
    # Equal hashes stand for equal tokens before them, too.
    return bisect(range(1, min(len(one), len(two)) + 1), 0, key=lambda n: one[n - 1] != two[n - 1])
