"""What an operator does to an engine between requests: generated, and done when it is possible.

An engine is paused, put to sleep and woken, gets other weights, captures its graphs again, or its
cache is emptied.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paritybit.drive.script import Action, Planned, Wave
from paritybit.watch import journal

COUNT = "action: "
"""What the counts of actions begin with."""

ENDS: Mapping[str, str] = {"pause": "continue", "retract": "continue", "sleep": "wake"}
"""The act that ends an action which lasts."""

AT_ONCE = (("sleep",), ("weights",), ("flush",))
"""What is done before the first request of a wave arrives."""

LATER = (
    ("pause",),
    ("retract",),
    ("retract", "flush"),
    ("pause", "weights"),
    ("retract", "weights"),
    ("pause", "recapture"),
    ("retract", "recapture"),
)
"""What is done while requests run: the second, if any, while the first lasts."""

FEW, LONGEST = 8, 256
"""Tokens that a request gets whose prompt is repeated, and of one that repeats it."""

Acts = Mapping[str, Callable[[], Sequence[Any]]]
"""How an engine is told to do something: its own requests, by the name of the act.

They are the names of actions, and of what ends one. Some have a variant: `flush retracted` empties
the cache while requests are retracted, and `weights kept` updates weights without emptying it.
"""


@dataclass
class Operator:
    """Does the actions of a wave. What an engine has no act for is left out."""

    acts: Acts
    _waiting: list[Action] = field(default_factory=list)
    _lasting: Action | None = None
    _since: int = 0

    @property
    def busy(self) -> bool:
        """Whether an action is under way, or is still to come."""
        return bool(self._waiting) or self._lasting is not None

    @property
    def asleep(self) -> bool:
        """Whether the engine sleeps, so that no request may arrive."""
        return self._lasting is not None and self._lasting.what == "sleep"

    def begin(self, actions: Sequence[Action]) -> None:
        """Take over the actions of a wave."""
        self._waiting = [one for one in actions if one.what in self.acts]

    def due(self, poll: int, *, idle: bool) -> list[Any]:
        """Return what the engine is told at a poll. `idle`: it serves nobody."""
        given: list[Any] = []
        if self._lasting is not None and poll > self._since + self._lasting.lasts:
            given += self._end()
        for action in [one for one in self._waiting if one.at <= poll]:
            act = self._act(action.what, poll, idle=idle)
            if act not in self.acts:
                continue
            self._waiting.remove(action)
            given += self.acts[act]()
            journal.count(**{f"{COUNT}{action.what}": 1})
            if action.what in ENDS:
                self._lasting, self._since = action, poll
                idle = False
        return given

    def leave(self) -> list[Any]:
        """Return what ends the action that is under way. Nothing else is done any more."""
        self._waiting = []
        return self._end()

    def _end(self) -> list[Any]:
        if self._lasting is None:
            return []
        act = self.acts[ENDS[self._lasting.what]]
        self._lasting = None
        return [*act()]

    def _act(self, what: str, poll: int, *, idle: bool) -> str:
        """Return the name of the act for an action now, nothing if it has to wait."""
        within = None if self._lasting is None else self._lasting.what
        if what in ENDS:
            return what if within is None and (idle or what != "sleep") else ""
        if within is None:
            return what if idle else ""
        if within == "sleep" or poll == self._since:
            return ""
        if within == "retract" and "flush retracted" in self.acts:
            return what if what == "weights" else f"{what} retracted"
        return f"{what} kept"


def with_actions(seed: int, given: Iterator[Wave], kinds: Sequence[str]) -> Iterator[Wave]:
    """Add actions to waves, and let some of their requests repeat prompts of the wave before.

    A wave does not end with an empty cache: something is there to be read wrongly after an action.
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
    """Yield plans of some kinds of actions in a random order, each as often; none without one."""
    possible = [plan for plan in plans if set(plan) <= set(kinds)]
    while possible:
        yield from chance.sample(possible, len(possible))


def repeated(wave: Wave, before: Wave) -> tuple[Planned, ...]:
    """Return the requests of a wave. Every second one begins with a whole prompt from before.

    Prompts that got the fewest tokens come first: a cache still has the window at their end.
    """
    requests = list(wave.requests)
    old = [one for one in before.requests if one.follows is None and one.tokens <= FEW]
    old.sort(key=lambda one: one.tokens)
    for place, earlier in zip(range(0, len(requests), 2), old, strict=False):
        one = requests[place]
        if one.follows is None and earlier.length + one.length + one.tokens <= LONGEST:
            requests[place] = replace(one, prompt=(*earlier.prompt, *one.prompt))
    return tuple(requests)
