"""Relations between two runs that hold for a correct replay, and how often each is tested."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from paritybit.watch.observations import Difference, Wrong
from paritybit.watch.replays.aimed import aimed
from paritybit.watch.replays.causes import Suspect
from paritybit.watch.replays.differences import difference, matters
from paritybit.watch.replays.influence import FOREIGN, NO_ROWS, LiveReads, Result, foreign
from paritybit.watch.replays.rerun import Rerun, other_tails
from paritybit.watch.replays.ties import Ties
from paritybit.watch.replays.unread import Shown, unread

NAMES = ("unrepeatable replay", "padding leak", "graph and eager differ", "wrong read")
"""The checks for relations, in the order in which they are tested."""

REPEAT, PADDING, EAGER, READ = NAMES

AT_FIRST, THEN = 64, 4
"""The first replays of a kind are all tested, then every `THEN`-th one."""

FEW_AT_FIRST, FEW_THEN = 4, 64
"""The same for each bucket of a kind, if one relation is tested on few replays."""

AGAIN = 9
"""The replays of a kind that are all tested after a difference that is no finding yet."""

STREAK = 3
"""How many times a difference must occur that something else may cause.

In a row: one in outputs alone, and one between graph and eager without a known cause, because
rounding may choose another expert now and then. At any time: a read of one key or tensor, because a
forward may need none of it.
"""

NOISE = 8
"""How many times larger than the variation of eager runs a difference from eager must be."""

MOST = 2.0
"""The largest difference of finite values, relative to the largest of both."""

FAILS = "the replay fails with other values in padding"
UNUSED = "other values in padding change nothing that padding computes"
COUPLED = "live rows depend on padding"
UNEQUAL = "two equal replays differ"
VARYING = "eager runs differ as much"
CHANGING = "the forward pass does not repeat"

Differs = Callable[[Rerun], Difference | None]
Way = Callable[[Rerun, int], Result]
"""Tests which slots a replay reads, with a seed."""


@dataclass(frozen=True)
class Tried:
    """The result of testing a relation.

    `found` is a wrong read, or a difference that rounding cannot explain. `reason` is why the
    relation was not tested.
    """

    name: str
    found: Difference | Wrong | None = None
    cause: Mapping[str, Any] | None = None
    reason: str | None = None


@dataclass
class Relations:
    """Tests relations: all on many replays, or if `few`, one at a time on some of each bucket.

    If forwards are `sampled`, the first of each bucket are tested and then every `THEN`-th one.
    """

    few: bool
    names: tuple[str, ...]
    sampled: bool = False
    streak: int = STREAK
    replays: dict[tuple[str, int], int] = field(default_factory=dict)
    again: dict[str, int] = field(default_factory=dict)
    """How many of the next replays of a kind are tested, because a difference may occur again."""
    streaks: dict[tuple[str, str], int] = field(default_factory=dict)
    turns: dict[str, int] = field(default_factory=dict)
    tests: Counter[tuple[object, ...]] = field(default_factory=Counter)
    """How often each relation was tested alone, per kind, and per kind and bucket."""
    tensors: dict[str, int] = field(default_factory=dict)
    shown: Shown = field(default_factory=set)
    """The tensors of groups whose other values have shown clearly."""

    def due(
        self, kind: str, bucket: int, able: Sequence[str] = NAMES, padded: bool = True
    ) -> tuple[str, ...]:
        """Return the relations to test on the next replay of a kind, of those that are `able`.

        A single one is the least tested of the bucket, then of the kind. Padding comes first in a
        replay with padded rows, and last in another one. A repetition is part of the other tests,
        except of the one against an eager run.
        """
        names = tuple(name for name in self.names if name in able)
        key = kind, bucket if self.few else 0
        number = self.replays[key] = self.replays.get(key, -1) + 1
        again = self.again.get(kind, 0)
        self.again[kind] = max(0, again - 1)
        if not self.few or again:
            return names if again or number < AT_FIRST or number % THEN == 0 else ()
        then = THEN if self.sampled else FEW_THEN
        if not names or (number >= FEW_AT_FIRST and number % then):
            return ()
        if {PADDING, READ} & {*names}:
            names = tuple(name for name in names if name != REPEAT)
        turns = [
            (self.tests[kind, bucket, name], self.tests[kind, name], (name == PADDING) != padded)
            for name in names
        ]
        name = names[turns.index(min(turns))]
        self.tests.update([(kind, bucket, name), (kind, name)])
        return (name,)

    def tried(
        self,
        rerun: Rerun,
        names: tuple[str, ...],
        number: int,
        reads: LiveReads,
        suspects: Sequence[Suspect] = (),
    ) -> Iterator[Tried]:
        """Test relations on a replay. The caller restores the state. `reads` are of its live rows.

        If two equal runs differ, the other relations are skipped. Wrong reads are not judged if
        padding matters, because a live row may show what a padded one read. If it matters by
        rounding alone, single keys are not tried.
        """
        if names != (EAGER,):
            rerun.again()
            again = difference(rerun.first, rerun.values())
            yield self.judged(rerun, REPEAT, again)
            if again is not None:
                yield from (Tried(name, reason=UNEQUAL) for name in names if name != REPEAT)
                return
        leak: Difference | None = None
        if {PADDING, READ} & {*names} and (tails := other_tails(rerun.replay.inputs, number)):
            before = rerun.padding()
            try:
                leak = with_tails(rerun, tails)
            except Exception:
                yield from (Tried(name, reason=FAILS) for name in names if name in (PADDING, READ))
                return
            unused = leak is None and all(map(torch.equal, before, rerun.padding()))
            if PADDING in names and unused:
                yield Tried(PADDING, reason=UNUSED)
            elif PADDING in names:
                yield self.leak(rerun, leak, tails, suspects)
        if EAGER in names and rerun.replay.eager is not None:
            yield self.eager(rerun, suspects)
        if READ in names and matters(leak):
            yield Tried(READ, reason=COUPLED)
        elif READ in names:
            yield from self.read(rerun, reads, number, suspects, single=leak is None)

    def leak(
        self,
        rerun: Rerun,
        found: Difference | None,
        tails: Mapping[str, Tensor],
        suspects: Sequence[Suspect],
    ) -> Tried:
        """Return the result for the difference that other tails make.

        With any valid values in its tail, an input must do no harm. So it is a cause only if no
        other one is, and if its tail alone makes the difference.
        """
        others = [one for one in suspects if one.static.name not in tails]
        tried = self.judged(rerun, PADDING, found)
        tried = explained(tried, rerun, others, lambda rerun: with_tails(rerun, tails))
        if tried.found is None or tried.cause is not None:
            return tried
        for name, value in tails.items():
            if matters(with_tails(rerun, {name: value})):
                mine = next(one for one in rerun.replay.inputs if one.name == name)
                what = f"the padding in {name} matters"
                return replace(tried, cause={"what": what, **mine.place})
        return tried

    def eager(self, rerun: Rerun, suspects: Sequence[Suspect]) -> Tried:
        """Test that a replay gives what an eager run gives."""
        found = against_eager(rerun)
        if found is not None and found.limit >= MOST:
            return Tried(EAGER, reason=VARYING)
        tried = self.judged(rerun, EAGER, found)
        tried = explained(tried, rerun, suspects, against_eager)
        often = self.streaks[EAGER, rerun.replay.kind] >= self.streak
        if tried.found is None or tried.cause is not None or often:
            return tried
        self.again[rerun.replay.kind] = AGAIN
        return Tried(EAGER)

    def tried_without_graph(self, rerun: Rerun, number: int, reads: LiveReads) -> Iterator[Tried]:
        """Test which slots a forward without a graph reads.

        Whether it can be repeated is only asked if a difference says that it reads wrongly.
        """
        before = self.streaks.copy()
        tried = [*self.read(rerun, reads, number)]
        if any(streak > before.get(key, 0) for key, streak in self.streaks.items()):
            rerun.again()
            if difference(rerun.first, rerun.values()) is not None:
                self.streaks = before
                yield Tried(READ, reason=CHANGING)
                return
        yield from tried

    def read(
        self,
        rerun: Rerun,
        reads: LiveReads,
        number: int,
        suspects: Sequence[Suspect] = (),
        single: bool = True,
    ) -> Iterator[Tried]:
        """Test which slots a replay reads, in one of three ways. `single` allows single keys.

        The state that a row goes on from is tried each time, because few forwards have such rows.
        Single keys of a draft are not tried: its next step depends on what the one before drafted.
        """
        if not any(row.computed for row in reads.forward.rows):
            yield Tried(READ, reason=NO_ROWS)
            return
        kind = rerun.replay.kind
        if states := reads.states(number):
            yield from self.unread(rerun, states, number, suspects, f"{kind} from states")
        shown, way = bool(self.shown), 0
        if any(map(len, reads.slots.values())):
            turn = self.turns[kind] = self.turns.get(kind, -1) + 1
            way = turn % (3 if single and not reads.forward.model else 2)

        of_slots, of_key = partial(foreign, reads, shown), partial(aimed, reads)
        if way == 1:
            yield from self.unread(rerun, reads, number, suspects, kind)
        elif way == 2:
            yield self.wrongly(rerun, of_key, of_key(rerun, number), number, suspects)
        else:
            found = of_slots(rerun, number)
            if not isinstance(found, Wrong):
                self.streaks.pop((FOREIGN.key, kind), None)
            tried = self.wrongly(rerun, of_slots, found, number, suspects)
            if tried.found is not None:
                which = of_slots(rerun, number, seek=True)
                if isinstance(which, Wrong):
                    tried = replace(tried, found=replace(which, cause=tried.cause or which.cause))
            yield tried

    def unread(
        self, rerun: Rerun, reads: LiveReads, number: int, suspects: Sequence[Suspect], kind: str
    ) -> Iterator[Tried]:
        """Test that the content of a tensor per group matters, up to the first that does not.

        Each test of a kind takes the next tensor, unless the last one is to be tried again.
        """
        turn, seeds = self.tensors.get(kind, 0), range(number + 1, number + self.streak)
        read = [ledger for name, ledger in rerun.ledgers.items() if len(reads.slots[name])]
        for ledger in read or rerun.ledgers.values():
            way = partial(unread, reads, ledger, turn, self.shown)
            found = way(rerun, number)
            yield self.wrongly(rerun, way, found, number, suspects, seeds)
            if isinstance(found, Wrong):
                return
        self.tensors[kind] = turn + bool(read)

    def wrongly(
        self,
        rerun: Rerun,
        way: Way,
        found: Result,
        number: int,
        suspects: Sequence[Suspect],
        seeds: Sequence[int] = (),
    ) -> Tried:
        """Return the result of a test, which is a wrong read once it occurred several times.

        `way` repeats the test. With each of `seeds`, it must show the same.
        """
        if not isinstance(found, Wrong):
            return Tried(READ, reason=None if found is None else found.reason)
        key = found.key, rerun.replay.kind
        self.streaks[key] = self.streaks.get(key, 0) + 1
        if not found.certain and self.streaks[key] < self.streak:
            self.again[rerun.replay.kind] = AGAIN
            return Tried(READ)
        if not all(isinstance(way(rerun, seed), Wrong) for seed in seeds):
            return Tried(READ)

        # The padding of an input cannot keep live rows from reading what they must.
        able = [
            suspect for suspect in suspects if suspect.live or not found.key.endswith("not read")
        ]
        cause = cause_among(able, rerun, lambda rerun: way(rerun, number) is not None)
        return Tried(READ, replace(found, cause=cause or found.cause), cause=cause)

    def judged(self, rerun: Rerun, name: str, found: Difference | None) -> Tried:
        """Return the result for a difference between two runs."""
        key = (name, rerun.replay.kind)
        if found is None or not found.beyond_rounding:
            self.streaks[key] = 0
            return Tried(name)
        self.streaks[key] = self.streaks.get(key, 0) + 1
        if found.kv or name == REPEAT or self.streaks[key] >= self.streak:
            return Tried(name, found)
        self.again[rerun.replay.kind] = AGAIN
        return Tried(name)


def with_tails(rerun: Rerun, tails: Mapping[str, Tensor]) -> Difference | None:
    """Return the difference that other tails of inputs make."""
    rerun.again(tails)
    return difference(rerun.first, rerun.values())


def explained(tried: Tried, rerun: Rerun, suspects: Sequence[Suspect], differs: Differs) -> Tried:
    """Return a result with its cause. `differs` tests the relation on a rerun."""
    if tried.found is None:
        return tried
    cause = cause_among(suspects, rerun, lambda rerun: matters(differs(rerun)))
    return replace(tried, cause=cause)


def cause_among(
    suspects: Sequence[Suspect], rerun: Rerun, violated: Callable[[Rerun], bool]
) -> Mapping[str, Any] | None:
    """Return the cause of a violation: the first input whose reset makes the invariant hold."""
    found = (suspect.cause for suspect in suspects if suspect.explains(rerun, violated))
    return next(found, None)


def against_eager(rerun: Rerun) -> Difference | None:
    """Return the difference of an eager run. Its limit is not below that between eager runs."""
    eager = rerun.run_eagerly()
    found = difference(rerun.first, eager, kernels=True)
    if found is None or not found.beyond_rounding:
        return found
    with Ties():  # type: ignore[no-untyped-call]
        noise = difference(eager, rerun.run_eagerly(), kernels=True)
    return found if noise is None else replace(found, limit=max(found.limit, NOISE * noise.size))
