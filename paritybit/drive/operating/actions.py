"""Generates the actions of an operator between requests, and performs each when it is possible."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from paritybit.drive.script import Action, Planned, Wave
from paritybit.watch import journal

if TYPE_CHECKING:
    from paritybit.drive.engine import Acts

COUNT = "action: "
"""The prefix of the counts of actions."""

WHOLE = "rows served as a whole"
"""Counts the rows in which enough waves and forwards were served."""

LASTING, WHILE_RUNNING = frozenset({"pause", "retract"}), frozenset({"preempt"})
"""Actions that last until the act `continue`, and others that happen while requests run."""

AT_ONCE = (("weights",), ("flush",), ("adapters",), ("sleep",))
"""Actions before the first request of a wave arrives."""

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

FEW, LONGEST = 8, 256
"""The most tokens that a request with a repeated prompt generates, and of the repeating request."""


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
    """Add actions to waves, and let some of their requests repeat prompts of the wave before.

    No wave empties the cache, so there are entries that an action could corrupt.
    """
    chance, before = random.Random(f"actions {seed}"), Wave()
    at_once, later = (deck(chance, plans, kinds) for plans in (AT_ONCE, LATER))
    for wave in given:
        # A poll after a request arrives, its prompt or a first chunk of it has just been computed.
        arrivals = [one.arrives for one in wave.requests if one.follows is None]
        actions: list[Action] = []
        # At first, nothing is cached that could be read after an action.
        for plans in (*((at_once,) if before.requests else ()), later, later):
            first, *rest = next(plans, ("flush",))
            start = 0
            if plans is later:
                start = chance.choice(arrivals) + chance.choice((1, 1, 2, 5))
            actions.append(Action(first, start, chance.randint(len(rest), 4)))
            actions += [Action(what, start + 1) for what in rest]
        again = repeated(wave, before)
        yield replace(wave, actions=tuple(actions), requests=again, flush=False)
        before = replace(wave, requests=again)


def deck(
    chance: random.Random, plans: Sequence[tuple[str, ...]], kinds: Sequence[str]
) -> Iterator[tuple[str, ...]]:
    """Yield the plans with these kinds of actions in random order and with equal frequency."""
    possible = [plan for plan in plans if set(plan) <= set(kinds)]
    while possible:
        yield from chance.sample(possible, len(possible))


def repeated(wave: Wave, before: Wave) -> tuple[Planned, ...]:
    """Return the requests of a wave. Every second one begins like one of the wave before.

    It has the prompt, the adapter and the namespace of that one. Those with the fewest generated
    tokens come first, as a cache still has the window at their end.
    """
    requests = list(wave.requests)
    old = [one for one in before.requests if one.follows is None and one.tokens <= FEW]
    old.sort(key=lambda one: one.tokens)
    for place, earlier in zip(range(0, len(requests), 2), old, strict=False):
        one = requests[place]
        if (
            one.follows is None
            and one.session is None
            and earlier.length + one.length + one.tokens <= LONGEST
        ):
            prompt = (*earlier.prompt, *one.prompt)
            like = earlier.adapter, earlier.space
            requests[place] = replace(one, prompt=prompt, adapter=like[0], space=like[1])
    return tuple(requests)
