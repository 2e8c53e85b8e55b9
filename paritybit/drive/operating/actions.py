"""Generates the actions of an operator between requests, and performs each when it is possible."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from paritybit.drive.script import Action, Wave
from paritybit.watch import journal

if TYPE_CHECKING:
    from paritybit.drive.engine import Acts

Plan = TypeVar("Plan")

COUNT = "action: "
"""The prefix of the counts of actions."""

WHOLE = "rows served as a whole"
"""Counts the rows in which enough waves and forwards were served."""

LASTING, WHILE_RUNNING = frozenset({"pause", "retract"}), frozenset({"preempt"})
"""Actions that last until the act `continue`, and others that happen while requests run."""

AT_ONCE = "weights", "flush", "adapters", "sleep"
"""Actions before the first request of a brief wave arrives."""

LATER = (
    ("pause",),
    ("preempt",),
    ("retract",),
    ("retract", "flush"),
    ("pause", "weights"),
    ("retract", "weights"),
    ("pause", "recapture"),
    ("retract", "recapture"),
)
"""Actions while requests run. The second one, if any, happens while the first lasts."""

FEW, MOST, LONGEST, SHORT = 8, 4, 96, 2
"""The most tokens that a repeated request generates, the most of these requests, and the most
tokens of one. A small pool has room for all. Then, the polls for which they are retracted."""


@dataclass
class Operator:
    """Performs the actions of a wave that the engine supports.

    Those that it refuses while it copies KV wait until `at_rest` returns True.
    """

    acts: "Acts"
    at_rest: Callable[[], bool] = lambda: True
    _waiting: list[Action] = field(default_factory=list)
    _lasting: Action | None = None
    _since: int = 0

    @property
    def busy(self) -> bool:
        """Whether an action is in progress or still waiting."""
        return bool(self._waiting) or self._lasting is not None

    def begin(self, actions: Sequence[Action]) -> None:
        """Begin the actions of a wave."""
        self._waiting = [one for one in actions if one.what in self.acts]

    def due(self, poll: int, *, idle: bool) -> list[Any]:
        """Return the engine's requests for the actions of a poll. If `idle`, no request runs."""
        given: list[Any] = []
        if self._lasting is not None and poll > self._since + self._lasting.lasts:
            given += self._end()
        for action in [one for one in self._waiting if one.at <= poll]:
            act = self._act(action.what, poll, idle=idle)
            if act not in self.acts or not (act in LASTING | WHILE_RUNNING or self.at_rest()):
                continue
            self._waiting.remove(action)
            given += self.acts[act]()
            journal.count(**{f"{COUNT}{action.what}": 1})
            if action.what in LASTING:
                self._lasting, self._since = action, poll
                idle = False
        return given

    def leave(self) -> list[Any]:
        """Return the engine's requests that end the current action, and drop all others."""
        self._waiting = []
        return self._end()

    def _end(self) -> list[Any]:
        if self._lasting is None:
            return []
        self._lasting = None
        return [*self.acts["continue"]()]

    def _act(self, what: str, poll: int, *, idle: bool) -> str:
        """Return the name of the act for an action now, or an empty text if it has to wait."""
        within = None if self._lasting is None else self._lasting.what
        if what in LASTING:
            return what if within is None else ""
        if within is None:
            return what if idle or what in WHILE_RUNNING else ""
        if poll == self._since:
            return ""
        if within == "retract" and "flush retracted" in self.acts:
            return what if what == "weights" else f"{what} retracted"
        return f"{what} kept"


def with_actions(seed: int, given: Iterator[Wave], kinds: Sequence[str]) -> Iterator[Wave]:
    """Add actions to waves, and let some requests of a wave come back after other actions.

    Those of the first wave come back before it after each of AT_ONCE, so any row has time for
    these, and most of them `twice`. No wave empties the cache, so there are entries that an action
    could corrupt.
    """
    chance, first = random.Random(f"actions {seed}"), True
    at_once = [one for one in AT_ONCE if one in kinds]
    turns, later = deck(chance, at_once), deck(chance, possible(LATER, kinds))
    for wave in given:
        if first and (few := brief(wave, "before")).requests:
            first = False
            yield few
            for what in chance.sample(at_once, len(at_once)):
                few = brief(wave, what, Action(what))
                yield twice(few) if ("retract", what) in possible(LATER, kinds) else few
        # A poll after a request arrives, its prompt or a first chunk of it has just been computed.
        arrivals = [one.arrives for one in wave.requests if one.follows is None]
        actions: list[Action] = []
        for _ in range(2):
            begins, *rest = next(later, ("flush",))
            start = chance.choice(arrivals) + chance.choice((1, 1, 2, 5))
            actions.append(Action(begins, start, chance.randint(len(rest), 4)))
            actions += [Action(what, start + 1) for what in rest]
        yield replace(wave, actions=tuple(actions), flush=False)
        if (few := brief(wave, "later")).requests:
            yield replace(few, actions=(Action(next(turns)),))


def twice(wave: Wave) -> Wave:
    """Let the action of a brief wave happen again when some of its requests are retracted.

    By then, the first ones have ended. All come back after that.
    """
    (action,), late = wave.actions, 2 * MOST + SHORT
    again = (
        replace(one, name=f"{one.name} again", arrives=late + one.arrives) for one in wave.requests
    )
    waits = Action("retract", MOST + 2, SHORT), replace(action, at=MOST + 3)
    return replace(wave, requests=(*wave.requests, *again), actions=(action, *waits))


def possible(plans: Sequence[tuple[str, ...]], kinds: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the plans with these kinds of actions."""
    return [plan for plan in plans if set(plan) <= set(kinds)]


def deck(chance: random.Random, plans: Sequence[Plan]) -> Iterator[Plan]:
    """Yield plans in random order and with equal frequency."""
    while plans:
        yield from chance.sample(plans, len(plans))


def brief(wave: Wave, why: str, *actions: Action) -> Wave:
    """Return a brief wave: the longest prompts of a wave whose requests generate few tokens."""
    found = [
        one
        for one in wave.requests
        if one.tokens <= FEW
        and one.length + one.tokens <= LONGEST
        and (one.follows, one.session, one.aborted) == (None, None, None)
    ]
    found.sort(key=lambda one: -one.length)
    requests = (
        replace(one, name=f"{why} {one.name}", arrives=at) for at, one in enumerate(found[:MOST])
    )
    return Wave(tuple(requests), actions=actions, brief=True)
