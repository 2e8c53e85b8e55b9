"""The relations between two runs of a replay that a correct one keeps, and when each is tried."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from paritybit.watch.replays.differences import Difference, difference
from paritybit.watch.replays.trial import Trial, Values, cause_of, other_tails

NAMES = ("unrepeatable replay", "padding leak", "graph and eager differ")
"""The checks that judge relations, in the order in which they are tried."""

AT_FIRST = 64
"""Replays of a kind of which each is tried; after that every `THEN`-th."""

THEN = 4

SAMPLED = 16
"""Of the replays of a kind, where forwards are sampled, one in so many is tried."""

STREAK = 3
"""Times in a row that outputs alone must differ: one flip of a choice may be due to rounding."""

NOISE = 8
"""How much larger than eager's own noise a difference from eager must be."""


@dataclass(frozen=True)
class Tried:
    """A relation that was tried: `found` is a difference that rounding cannot explain.

    `rounding` says that the bits differed by no more than rounding may.
    """

    name: str
    found: Difference | None = None
    rounding: bool = False
    cause: Mapping[str, Any] | None = None


@dataclass
class Relations:
    """Tries relations. Where forwards are sampled, one of them is, on one in `SAMPLED` replays."""

    every: int
    names: tuple[str, ...]
    streak: int = STREAK
    replays: dict[str, int] = field(default_factory=dict)
    streaks: dict[tuple[str, str], int] = field(default_factory=dict)

    def due(self, kind: str) -> tuple[str, ...]:
        """Return the relations to try on the next replay of a kind."""
        number = self.replays[kind] = self.replays.get(kind, -1) + 1
        if not self.names:
            return ()
        if self.every > 1:
            turn, rest = divmod(number, SAMPLED)
            return () if rest else (self.names[turn % len(self.names)],)
        return self.names if number < AT_FIRST or number % THEN == 0 else ()

    def tried(self, trial: Trial, names: tuple[str, ...], number: int) -> Iterator[Tried]:
        """Try relations on a replay; the caller puts everything back.

        If two equal runs differ, the others mean nothing and are left out.
        """
        again = None
        if NAMES[0] in names or NAMES[1] in names:
            trial.again()
            again = self.judged(trial, NAMES[0], difference(trial.first, trial.values()))
            yield again
        if again is not None and (again.found or again.rounding):
            return
        if NAMES[1] in names and (tails := other_tails(trial.replay.inputs, number)):
            trial.again(tails)
            leak = self.judged(trial, NAMES[1], difference(trial.first, trial.values()))
            yield leak if leak.found is None else blamed(trial, leak, tails)
        if NAMES[2] in names and trial.replay.eager is not None:
            yield self.judged(trial, NAMES[2], against_eager(trial))

    def judged(self, trial: Trial, name: str, found: Difference | None) -> Tried:
        """Return what a difference means."""
        key = (name, trial.replay.kind)
        beyond = found is not None and found.beyond_rounding
        self.streaks[key] = self.streaks.get(key, 0) + 1 if beyond else 0
        lone = found is not None and not found.kv and name != NAMES[0]
        if beyond and not (lone and self.streaks[key] < self.streak):
            return Tried(name, found)
        return Tried(name, rounding=found is not None)


def blamed(trial: Trial, leak: Tried, tails: Mapping[str, Any]) -> Tried:
    """Return a leak with the one input whose tail alone causes it, if there is one."""
    for static in trial.replay.inputs:
        if static.name in tails:
            trial.again({static.name: tails[static.name]})
            alone = difference(trial.first, trial.values())
            if alone is not None and alone.beyond_rounding:
                return Tried(leak.name, leak.found, cause=cause_of(static))
    return leak


def against_eager(trial: Trial) -> Difference | None:
    """Return how eager differs from the replay, or None if by no more than eager from itself."""
    eager = run_eagerly(trial)
    found = difference(trial.first, eager)
    if found is None or not found.beyond_rounding:
        return found
    noise = difference(eager, run_eagerly(trial))
    return found if noise is None or found.size > NOISE * noise.size else None


def run_eagerly(trial: Trial) -> Values:
    """Run the same batch without the graph, from the state before the replay."""
    assert trial.replay.eager is not None
    trial.rewind()
    outputs = {name: value.clone() for name, value in trial.replay.eager().items()}
    return Values(outputs, trial.owned_slots())
