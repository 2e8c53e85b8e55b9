"""Chooses which forwards are checked, so that the sanitizer takes a given share of the time.

The ranks of an engine choose the same ones without talking. They draw the same number for each
forward, and a rank with less credit checks a part of what another one checks.
"""

import hashlib
import math
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import median

from paritybit.watch import memory
from paritybit.watch.settings import ELAPSED, TAKEN

IDLE = 1.0
"""The most seconds between two forwards that count as time of the engine."""

RECENT = 16
"""The number of checked forwards from which the cost of the next one is estimated."""

MOST_SAVED, MOST_OWED = 6, 8
"""The limits of the credit, as multiples of that cost.

So an engine that was idle is not slowed down for long, and a compilation does not stop the checks.
"""

AHEAD = 6
"""How much credit, in the same unit, may be used ahead of time."""

TOGETHER = 3
"""The forwards of a model that are checked in a row.

The second one reads what the first one wrote and what was copied since, and the host may know their
tokens only at the third one.
"""

STEP = 1 / 64
"""The weight of the last forward in the mean of what a forward adds to the credit."""

GOLDEN = 0x9E3779B97F4A7C15
"""The golden ratio, as a fraction of 2**64. Its multiples are spread evenly, with varying gaps."""


def drawn(key: str, model: str, number: int) -> float:
    """Return a number in [0, 1) for a forward of a model, which is the same in all ranks.

    Any share of the forwards is spread evenly, and includes those of any smaller share.
    """
    return (number * GOLDEN + _start(key, model)) % 2**64 / 2**64


@lru_cache
def _start(key: str, model: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{key} {model}".encode(), digest_size=8).digest(), "big")


@dataclass
class Budget:
    """A share of the time, such as 0.03. `clock` and `spent` return seconds.

    Each forward adds the share of the time since the one before to the credit, and takes what the
    sanitizer spent meanwhile. Half of the share is for checks, whatever it costs to follow the
    engine in skipped forwards. The first check is free, because it compiles kernels.

    A forward begins a row of TOGETHER checked ones of its model if it is the first of its kind, or
    if its `drawn` number is less than the rate that the credit allows. This rate doubles with the
    credit for each row. It is higher for kinds that are rarer, or were checked less than others.
    """

    share: float
    clock: Callable[[], float] = time.perf_counter
    spent: Callable[[], float] = memory.seconds
    elapsed: float = 0.0
    taken: float = 0.0
    credit: float = 0.0
    added: float | None = None
    """What a forward adds to the credit, on average."""
    checked: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    """How many forwards of each kind there were."""
    kinds: Counter[str] = field(default_factory=Counter)
    """How many forwards of each kind were checked first in a row."""
    kind: str = ""
    """The kind of the last one, or of the one that may be wrong."""
    more: Counter[str] = field(default_factory=Counter)
    """How many of the next forwards of each model are to be checked, too."""
    costs: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    before: tuple[float, float] | None = None
    """The time and the seconds spent at the last call."""
    checking: bool = False
    resting: bool = False

    def due(
        self,
        kind: str = "",
        model: str = "",
        number: float = 0.0,
        *,
        forced: bool = False,
        again: bool = False,
    ) -> bool:
        """Return whether to check the next forward, of a kind and model. Call it once per forward.

        `number` is the one `drawn` for it. `again` says that the last checked forward may be wrong,
        which more of its kind would show.
        """
        self.look()
        self.resting = False
        self.seen[kind] += 1
        together, wrong = self.more[model] > 0, again and kind == self.kind
        cost = self.cost
        begins = not self.kinds[kind] or number < self.rate(kind, TOGETHER * cost)
        able = self.credit >= -AHEAD * cost
        self.checking = forced or (able and (begins or together or wrong))
        self.more[model] -= together
        if self.checking:
            if begins:
                self.more[model] = TOGETHER - 1
                self.kinds[kind] += 1
            self.checked += 1
            self.kind = self.kind if again else kind
        return self.checking

    def rate(self, kind: str, row: float) -> float:
        """Return the share of a kind's forwards that begin a row, which costs `row` seconds."""
        if not row:
            return float(self.credit >= 0)
        shares = (count[kind] * len(count) / count.total() for count in (self.seen, self.kinds))
        return max(0.0, self.added or 0.0) / row / math.prod(shares) * math.exp2(self.credit / row)

    def rest(self) -> None:
        """Note that the engine is idle. Until its next forward, no time counts."""
        self.look()
        self.checking, self.resting = False, True

    def look(self) -> None:
        """Add what happened since the last call, unless the engine was idle then."""
        now, spent = self.clock(), self.spent()
        if self.before is not None and not self.resting:
            self.account(min(now - self.before[0], IDLE), spent - self.before[1])
        self.before = now, spent

    @property
    def cost(self) -> float:
        """The seconds that a checked forward is expected to cost."""
        return median(self.costs) if self.costs else 0.0

    def account(self, passed: float, cost: float) -> None:
        """Add a forward that took `passed` seconds, `cost` of which the sanitizer spent."""
        self.elapsed += passed
        self.taken += cost
        if self.checking and self.checked == 1:
            return
        more = self.share * passed
        if self.checking:
            self.costs.append(cost)
            more -= cost
        else:
            more -= min(cost, more / 2)
            self.added = more if self.added is None else self.added + STEP * (more - self.added)
        credit, cost = self.credit + more, self.cost
        self.credit = min(max(credit, -MOST_OWED * cost), MOST_SAVED * cost)

    def counts(self) -> dict[str, int]:
        """Return the counts of the time since the last call."""
        found = {TAKEN: round(1e6 * self.taken), ELAPSED: round(1e6 * self.elapsed)}
        self.taken = self.elapsed = 0.0
        return found
