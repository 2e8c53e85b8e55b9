"""Chooses which forwards are checked, so that the sanitizer takes a given share of the time."""

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from statistics import median

from paritybit.watch import memory
from paritybit.watch.settings import ELAPSED, TAKEN

IDLE = 1.0
"""The most seconds between two forwards that count as time of the engine."""

RECENT = 16
"""The number of checked forwards from which the cost of the next one is estimated."""

MOST_SAVED, MOST_OWED = 2, 8
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


@dataclass
class Budget:
    """A share of the time, such as 0.03. `clock` and `spent` return seconds.

    A forward is checked once the credit covers what a check has cost. Each forward adds the share
    of the time since the one before, and takes what the sanitizer spent meanwhile. Half of the
    share is for checks, whatever it costs to follow the engine in skipped forwards. The first check
    is free, because it compiles kernels. Forwards of the kind that was checked least need least
    credit. Some are checked on credit: the first of a kind, and the rest of the TOGETHER forwards
    of a model in a row.
    """

    share: float
    clock: Callable[[], float] = time.perf_counter
    spent: Callable[[], float] = memory.seconds
    random: Random = field(default_factory=lambda: Random(0))
    elapsed: float = 0.0
    taken: float = 0.0
    credit: float = 0.0
    checked: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    """How many forwards of each kind were checked first in a row."""
    kind: str = ""
    """The kind of the last one, or of the one that may be wrong."""
    model: str = ""
    """The model of the last one."""
    more: int = 0
    """How many of the next forwards of the model are to be checked, too."""
    costs: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    before: tuple[float, float] | None = None
    """The time and the seconds spent at the last call."""
    checking: bool = False
    resting: bool = False

    def due(
        self, kind: str = "", model: str = "", *, forced: bool = False, again: bool = False
    ) -> bool:
        """Return whether to check the next forward, of a kind and model. Call it once per forward.

        `again` says that the last checked forward may be wrong, which more of its kind would show.
        """
        self.look()
        self.resting = False
        # With a constant threshold, the checked forwards could all be of one kind.
        least = self.kinds[kind] <= min(self.kinds.values(), default=0)
        needed = self.random.uniform(0.5, 1.0) if least else self.random.uniform(1.0, 2.0)
        together = self.more > 0 and model == self.model
        wrong = again and kind == self.kind
        if together or wrong or not self.kinds[kind]:
            needed = -AHEAD
        self.checking = forced or self.credit >= self.cost * needed
        self.more -= together
        if self.checking:
            if not together and not wrong:
                self.model, self.more = model, TOGETHER - 1
                self.kinds[kind] += 1
            self.checked += 1
            self.kind = self.kind if again else kind
        return self.checking

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
        credit = self.credit + more
        self.credit = min(max(credit, -MOST_OWED * self.cost), MOST_SAVED * self.cost)

    def counts(self) -> dict[str, int]:
        """Return the counts of the time since the last call."""
        found = {TAKEN: round(1e6 * self.taken), ELAPSED: round(1e6 * self.elapsed)}
        self.taken = self.elapsed = 0.0
        return found
