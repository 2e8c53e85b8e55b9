"""Relations between two runs that hold for a correct replay, and how often each is tested."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from paritybit.watch.facts import StaticInput
from paritybit.watch.replays.aimed import aimable, aimed
from paritybit.watch.replays.causes import Suspect
from paritybit.watch.replays.differences import Difference, difference
from paritybit.watch.replays.influence import (
    NO_ROWS,
    Certain,
    NotTried,
    Reads,
    Wrong,
    blamed_slot,
    changed,
    foreign,
)
from paritybit.watch.replays.trial import Trial, other_tails
from paritybit.watch.replays.unread import unread
from paritybit.watch.replays.values import Draw

NAMES = ("unrepeatable replay", "padding leak", "graph and eager differ", "wrong read")
"""The checks for relations, in the order in which they are tested."""

AT_FIRST = 64
"""The first replays of a kind are all tested, then every `THEN`-th one."""

THEN = 4

SAMPLED = 4
"""If forwards are sampled, one in SAMPLED replays of a kind is tested."""

WAYS = 3
"""The number of ways to see which slots a replay reads. Each test of it takes the next one."""

STREAK = 3
"""How many times in a row a difference must occur that rounding may cause.

This is one in outputs alone, or one between graph and eager without a known cause.
"""

NOISE = 8
"""How many times larger than the variation of eager runs a difference from eager must be."""

SHAKEN = 16
"""The number of eager runs from KV with other last bits."""

FAILS = "the replay fails with other values in padding"

UNUSED = "other values in padding change nothing that padding computes"


Results = Sequence[Wrong | NotTried | None]


@dataclass(frozen=True)
class Tried:
    """The result of testing a relation.

    `found` is a difference that rounding cannot explain. `rounding` is True if the bits differ, but
    rounding can explain it. `wrong` describes a wrong read. `padding` is the input whose padding
    alone makes the difference, if there is no cause. `reason` is why the relation was not tested.
    """

    name: str
    found: Difference | None = None
    rounding: bool = False
    cause: Mapping[str, Any] | None = None
    wrong: Wrong | None = None
    padding: StaticInput | None = None
    reason: str | None = None


@dataclass
class Relations:
    """Tests relations. If forwards are sampled, it tests one relation on one in SAMPLED replays."""

    every: int
    names: tuple[str, ...]
    streak: int = STREAK
    replays: dict[str, int] = field(default_factory=dict)
    streaks: dict[tuple[str, str], int] = field(default_factory=dict)
    turns: dict[str, int] = field(default_factory=dict)
    tensors: dict[str, int] = field(default_factory=dict)
    shown: set[tuple[str, int]] = field(default_factory=set)
    """The tensors of groups whose other values have shown clearly."""

    def due(self, kind: str) -> tuple[str, ...]:
        """Return the relations to test on the next replay of a kind."""
        number = self.replays[kind] = self.replays.get(kind, -1) + 1
        if not self.names:
            return ()
        if self.every > 1:
            turn, rest = divmod(number, SAMPLED)
            return () if rest else (self.names[turn % len(self.names)],)
        return self.names if number < AT_FIRST or number % THEN == 0 else ()

    def tried(
        self,
        trial: Trial,
        names: tuple[str, ...],
        number: int,
        reads: Reads,
        suspects: Sequence[Suspect] = (),
    ) -> Iterator[Tried]:
        """Test relations on a replay. The caller restores the state. `reads` are of its live rows.

        If two equal runs differ, the remaining relations are meaningless and are skipped. Wrong
        reads are not judged if padding matters, because a live row may show what a padded one read.
        If it matters by rounding alone, single keys are not tried.
        `suspects` are the inputs that may explain a relation that does not hold.
        """
        again = None
        if names != NAMES[2:3]:
            trial.again()
            again = self.judged(trial, NAMES[0], difference(trial.first, trial.values()))
            yield again
        if again is not None and (again.found or again.rounding):
            for name in names:
                if name != NAMES[0]:
                    yield Tried(name, reason="two equal replays differ")
            return
        found: Difference | None = None
        padding = NAMES[1] in names or NAMES[3] in names
        if padding and (tails := other_tails(trial.replay.inputs, number)):
            before = trial.padding()

            def leak(trial: Trial) -> Difference | None:
                trial.again(tails)
                return difference(trial.first, trial.values())

            try:
                found = leak(trial)
            except Exception:
                yield from (Tried(name, reason=FAILS) for name in names if name in NAMES[1::2])
                return
            unused = found is None and all(map(torch.equal, before, trial.padding()))
            if NAMES[1] in names and unused:
                yield Tried(NAMES[1], reason=UNUSED)
            elif NAMES[1] in names:
                # With any valid values in its tail, an input must do no harm.
                others = [one for one in suspects if one.static.name not in tails]
                tried = explained(self.judged(trial, NAMES[1], found), trial, others, leak)
                if tried.found is not None and tried.cause is None:
                    tried = replace(tried, padding=leaking(trial, tails))
                yield tried
        if NAMES[2] in names and trial.replay.eager is not None:
            yield self.eager(trial, reads, suspects)
        if NAMES[3] in names and found is not None and found.beyond_rounding:
            yield Tried(NAMES[3], reason="live rows depend on padding")
        elif NAMES[3] in names:
            yield from self.read(trial, reads, number, suspects, single=found is None)

    def eager(self, trial: Trial, reads: Reads, suspects: Sequence[Suspect]) -> Tried:
        """Test that a replay gives what an eager run gives.

        Rounding may choose another expert now and then, which no size shows. A difference without a
        known cause must therefore occur several times.
        """

        def differs(trial: Trial) -> Difference | None:
            return against_eager(trial, reads)

        tried = explained(self.judged(trial, NAMES[2], differs(trial)), trial, suspects, differs)
        often = self.streaks[NAMES[2], trial.replay.kind] >= self.streak
        if tried.found is None or tried.cause is not None or often:
            return tried
        return Tried(NAMES[2], rounding=True)

    def tried_eagerly(self, trial: Trial, number: int, reads: Reads) -> Iterator[Tried]:
        """Test which slots a forward without a graph reads.

        Whether it can be repeated is only asked if a difference says that it reads wrongly.
        """
        before = self.streaks.copy()
        tried = [*self.read(trial, reads, number)]
        if any(streak > before.get(key, 0) for key, streak in self.streaks.items()):
            trial.again()
            if difference(trial.first, trial.values()) is not None:
                self.streaks = before
                yield Tried(NAMES[3], reason="the forward pass does not repeat")
                return
        yield from tried

    def read(
        self,
        trial: Trial,
        reads: Reads,
        number: int,
        suspects: Sequence[Suspect] = (),
        single: bool = True,
    ) -> Iterator[Tried]:
        """Test which slots a replay reads, in one of three ways. `single` allows single keys.

        The state that a row goes on from is tried each time, because few forwards have such rows.
        """
        if not reads.known:
            yield Tried(NAMES[3], reason=NO_ROWS)
            return
        kind = trial.replay.kind
        if states := reads.states(number):
            yield from self.unread(trial, states, number, suspects, f"{kind} from states")
        if any(map(len, reads.slots.values())):
            turn = self.turns[kind] = self.turns.get(kind, -1) + 1
            way = turn % (WAYS if single and aimable(reads) else WAYS - 1)
        else:
            way = 0
        if way == 0:
            yield self.foreign(trial, reads, Draw(number), suspects)
        elif way == 1:
            yield from self.unread(trial, reads, number, suspects, kind)
        else:
            found = aimed(trial, reads, number)
            key = (f"{found.group} {found.key}" if isinstance(found, Wrong) else "", kind)

            def again(trial: Trial, seed: int) -> Results:
                return [aimed(trial, reads, seed)]

            yield self.wrongly(trial, again, 0, found, number, suspects, key, sure=False)

    def unread(
        self, trial: Trial, reads: Reads, number: int, suspects: Sequence[Suspect], kind: str
    ) -> Iterator[Tried]:
        """Test that the content of a tensor matters. Each test of a kind takes the next tensor."""
        tensor = self.tensors.get(kind, 0)

        def results(trial: Trial, seed: int) -> Results:
            return [*unread(trial, reads, tensor, seed, self.shown)]

        found = results(trial, number)
        if not any(isinstance(one, Wrong) for one in found) and any(map(len, reads.slots.values())):
            # Else the next test tries it again.
            self.tensors[kind], self.streaks["a tensor", kind] = tensor + 1, 0
        for place, one in enumerate(found):
            certain = isinstance(one, Certain)
            key = (f"a tensor of {one.group}" if isinstance(one, Certain) else "a tensor", kind)
            yield self.wrongly(trial, results, place, one, number, suspects, key, certain)

    def wrongly(
        self,
        trial: Trial,
        results: Callable[[Trial, int], Results],
        place: int,
        one: Wrong | NotTried | None,
        number: int,
        suspects: Sequence[Suspect],
        key: tuple[str, str],
        sure: bool,
    ) -> Tried:
        """Return the result of a test, which is a wrong read once it occurred several times.

        `results` repeats the test with a seed, and `place` is that of this result. With `sure`,
        other values must show the same. `key` counts the wrong reads.
        """
        if not isinstance(one, Wrong):
            return Tried(NAMES[3], reason=None if one is None else one.reason)
        self.streaks[key] = self.streaks.get(key, 0) + 1
        others = range(number + 1, number + self.streak) if sure else ()
        if self.streaks[key] < self.streak or not all(
            isinstance(results(trial, seed)[place], Wrong) for seed in others
        ):
            return Tried(NAMES[3])

        def violated(trial: Trial) -> bool:
            return results(trial, number)[place:][:1] != [None]

        # The padding of an input cannot keep live rows from reading what they must.
        unread_one = one.key.endswith("not read")
        able = [suspect for suspect in suspects if suspect.live or not unread_one]
        cause = cause_among(able, trial, violated)
        return Tried(NAMES[3], cause=cause, wrong=replace(one, cause=cause or one.cause))

    def foreign(self, trial: Trial, reads: Reads, draw: Draw, suspects: Sequence[Suspect]) -> Tried:
        """Test that a replay reads no slot that its rows do not read."""
        found, draw = foreign(trial, reads, draw, bool(self.shown))
        if isinstance(found, NotTried):
            return Tried(NAMES[3], reason=found.reason)
        tried = self.judged(trial, NAMES[3], found)
        if tried.found is None:
            return tried

        def again(trial: Trial) -> Difference | None:
            with changed(trial, reads, reads.others(trial, draw)) as values:
                return difference(trial.first, values)

        tried = explained(tried, trial, suspects, again)
        which = blamed_slot(trial, reads, draw)
        return replace(tried, wrong=replace(which, cause=tried.cause or which.cause))

    def judged(self, trial: Trial, name: str, found: Difference | None) -> Tried:
        """Return the result for a difference between two runs."""
        key = (name, trial.replay.kind)
        beyond = found is not None and found.beyond_rounding
        self.streaks[key] = self.streaks.get(key, 0) + 1 if beyond else 0
        lone = found is not None and not found.kv and name != NAMES[0]
        if beyond and not (lone and self.streaks[key] < self.streak):
            return Tried(name, found)
        return Tried(name, rounding=found is not None)


def leaking(trial: Trial, tails: Mapping[str, Tensor]) -> StaticInput | None:
    """Return the input whose changed tail alone makes a difference, or None if there is none."""
    for name, value in tails.items():
        trial.again({name: value})
        found = difference(trial.first, trial.values())
        if found is not None and found.beyond_rounding:
            return next(one for one in trial.replay.inputs if one.name == name)
    return None


def explained(
    tried: Tried,
    trial: Trial,
    suspects: Sequence[Suspect],
    differs: Callable[[Trial], Difference | None],
) -> Tried:
    """Return a result with its cause. `differs` tests the relation on a trial."""
    if tried.found is None:
        return tried

    def violated(trial: Trial) -> bool:
        found = differs(trial)
        return found is not None and found.beyond_rounding

    return replace(tried, cause=cause_among(suspects, trial, violated))


def cause_among(
    suspects: Sequence[Suspect], trial: Trial, violated: Callable[[Trial], bool]
) -> Mapping[str, Any] | None:
    """Return the cause of a violated law: the first input whose reset makes the law hold."""
    found = (suspect.cause for suspect in suspects if suspect.explains(trial, violated))
    return next(found, None)


def against_eager(trial: Trial, reads: Reads) -> Difference | None:
    """Return the difference between the replay and an eager run.

    Returns None if it is within the variation between eager runs, of which some start from KV with
    other last bits. Rounding may make any difference in a later layer, if a router chooses another
    expert.
    """
    eager = trial.run_eagerly()
    found = difference(trial.first, eager, kernels=True)
    if found is None or not found.beyond_rounding:
        return found
    for seed in range(SHAKEN + 1):
        other = reads.shaken(trial, seed) if seed else []
        noise = difference(eager, trial.run_eagerly(other), kernels=True)
        if noise is not None and found.size <= NOISE * noise.size:
            return None
    return found
