"""The shape of the traffic before a finding: who ran when, how far, and what they shared.

It holds no token. Requests are numbered in the order in which they were seen.
"""

from array import array
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from paritybit.watch.chains import Chain
from paritybit.watch.facts import Forward

KEPT = 512
"""Checked forward passes that are remembered."""


@dataclass
class Seen:
    """A request as the last forward passes show it.

    `since` and `until` are the first and the last one with it. `prompt` is how many tokens it had
    before its first decode step, `reached` how many at the end. Its first `shared` tokens are those
    of the request with the number `of`, None for none.
    """

    since: int
    until: int
    prompt: int
    reached: int
    of: int | None = None
    shared: int = 0


class Recorder:
    """Remembers the rows of the last forward passes."""

    def __init__(self) -> None:
        self.forwards: deque[tuple[int, list[tuple[str, int, int]]]] = deque(maxlen=KEPT)

    def note(self, number: int, forward: Forward) -> None:
        """Remember a forward pass, unless it is one of a draft."""
        if not forward.model:
            rows = [(row.request, row.cached, row.computed) for row in forward.rows]
            self.forwards.append((number, rows))

    def traffic(self, chains: Mapping[str, Chain]) -> list[dict[str, Any]]:
        """Return the requests in the order in which they came, as JSON data."""
        seen: dict[str, Seen] = {}
        for number, rows in self.forwards:
            for request, cached, computed in rows:
                end = cached + computed
                one = seen.setdefault(request, Seen(number, number, end, end))
                if computed > 1 and one.prompt == one.reached:  # A further chunk of its prompt.
                    one.prompt = end
                one.until, one.reached = number, max(one.reached, end)
        names = list(seen)
        for place, name in enumerate(names):
            mine = hashes(chains, name)[: seen[name].prompt]
            shared = [
                (alike(mine, hashes(chains, other)), at) for at, other in enumerate(names[:place])
            ]
            length, other = max(shared, key=lambda one: (one[0], -one[1]), default=(0, 0))
            if length:
                seen[name].of, seen[name].shared = other, length
        return [asdict(one) for one in seen.values()]


def hashes(chains: Mapping[str, Chain], request: str) -> "array[int]":
    """Return the hashes at the positions of a request; none for one that was forgotten."""
    chain = chains.get(request)
    return array("q") if chain is None else chain.hashes


def alike(one: "array[int]", two: "array[int]") -> int:
    """Return how many hashes two requests have in common. Where they part, they stay apart."""
    low, high = 0, min(len(one), len(two))
    while low < high:
        middle = (low + high + 1) // 2
        if one[middle - 1] == two[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
