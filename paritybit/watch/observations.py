"""The input of checks: data about one forward, one replay, or one call of an allocator."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from paritybit.watch.bits import on_host
from paritybit.watch.facts import Forward, IndexList, Row, RowValues, StaticInput
from paritybit.watch.journal import Finding
from paritybit.watch.ledger import FAILED, NEVER, Ledger, SlotCall
from paritybit.watch.moves import Moving
from paritybit.watch.origins import Origins
from paritybit.watch.stacks import NOWHERE, Stack, described

MOVED = "the slot of a position changed"
"""The cause of a read of another slot than the request had for the position before."""

OFFERED = "the slot is added to the "
"""The cause if the engine offers a slot to other requests, before the kind of the cache."""

BY_KEY = " by its key"
"""How a slot is restored from a pool with keys."""

KEY = "a key brought other KV of the same position"
"""The cause if a key leaves out what the KV depends on."""

SHOWN = 8
"""Number of slots that a finding lists."""


@dataclass(frozen=True)
class Check:
    """One check: its name, its stage, and its invariant in one sentence.

    `judge` gets the observation of the stage and yields findings. `compares` returns how many
    comparisons of an observation could have failed. It is `uncounted` if observations exist only
    where something is wrong.
    """

    name: str
    stage: str
    invariant: str
    judge: Callable[[Any], Iterable[Finding]]
    compares: Callable[[Any], int] = lambda _: 1


def uncounted(_: Any) -> int:
    """Return 0: the watcher counts the comparisons of the stage."""
    return 0


@dataclass(frozen=True)
class Evidence:
    """What a check judges: something in, or after, the forward with this number.

    If one runs, `during` is its kind.
    """

    number: int

    def found(
        self,
        check: str,
        text: str,
        *,
        group: str | None = None,
        cause: Mapping[str, Any] | None = None,
        why: str | None = None,
        **more: Any,
    ) -> Finding:
        """Return a finding. `why` is the cause in its key."""
        if why is None:
            why = "not known" if cause is None else cause.get("input") or cause["what"]
        key = f"{check} | {group or '-'} | {why}"
        kind = getattr(self, "during", "")
        return Finding(check, text, key, self.number, kind, group=group, cause=cause, **more)


@dataclass(frozen=True)
class InForward(Evidence):
    """What a check judges in a forward."""

    forward: Forward

    @property
    def during(self) -> str:
        """The kind of the forward."""
        return self.forward.kind

    def by(self, replay: str | None) -> str:
        """Return what wrote slots, as text: a replay, or the forward."""
        return f"the replay of {replay}" if replay else f"the {self.forward.kind} forward"


@dataclass(frozen=True)
class Reads(InForward):
    """The slots of one group that the rows of a forward read: one entry per row and position.

    - `expected`: the row's own hash at the position.
    - `held`, `checksum`, `request`, `written`, `freed`: the ledger's entries for the slot. `freed`
      is positive if the slot is free.
    - `now`: the folded checksum of the slot's bytes.
    - `judged`: False if a hash is unknown or unresolved.
    - `origins`: how requests got their slots, or None if not all forwards are checked.
    - `missing`: the position has no slot (-1) or a reserved slot. The entries of the ledger are
      then those of slot 0.
    - `offer`: the call that offers the slots to other requests, if no forward reads them yet.
    """

    ledger: Ledger
    row: Tensor
    position: Tensor
    slots: Tensor
    expected: Tensor
    judged: Tensor
    missing: Tensor
    held: Tensor
    checksum: Tensor
    now: Tensor
    request: Tensor
    written: Tensor
    freed: Tensor
    origins: Origins | None = None
    offer: SlotCall | None = None

    @property
    def unwritten(self) -> Tensor:
        """Which reads are of no slot, or of one that nothing has written, bool [n]."""
        return self.missing | (self.written == NEVER) | (self.written == FAILED)

    def findings(
        self, check: str, wrong: Tensor, what: str, reused: bool = False
    ) -> Iterable[Finding]:
        """Yield a finding for each row with wrong entries. `wrong` is a mask, bool [n].

        `reused` is that of `Ledger.last_free`.
        """
        if not bool(wrong.any()):
            return
        for number in self.row[wrong].unique().tolist():
            places = (wrong & (self.row == number)).nonzero().flatten().tolist()
            yield self._finding(check, self.forward.rows[number], places, what, reused)

    def _finding(self, check: str, row: Row, places: list[int], what: str, reused: bool) -> Finding:
        """Return the finding for entries of one row."""
        first, request = places[0], row.request
        slot, position = int(self.slots[first]), int(self.position[first])
        missing = bool(self.missing[first])
        group = self.ledger.group.name
        cause: dict[str, Any] | None = None
        overwrite = None if missing else self.ledger.overwrites.get(slot)
        if overwrite is not None:
            cause = {**(overwrite.cause or {"what": overwrite.what}), "forward": overwrite.forward}
        elif self.offer is not None:
            cause = {"what": OFFERED + self.during, **self.offer.who}
        elif not missing and self.held[first] != self.expected[first]:
            cause = self._key(slot, position)
        place = "has no slot" if missing else f"slot {slot}"
        verb = "reads" if self.offer is None else "offers"
        # Who freed the slot of another position says nothing of this one.
        freed = None if missing else self.ledger.last_free(slot, reused)
        origin = None
        if self.origins is not None:
            had = self.origins.before(self.forward, row, position, slot, group)
            if not missing:
                given = self.number, self.forward, row, position, slot, self.ledger
                origin = "; ".join(self.origins.of(*given)) or None
                if had is not None and cause is None:
                    source, via = self.origins.lines.of_slots(group)
                    cause = {"what": MOVED, "source": source, "via": via}
            elif had is not None:
                freed = self.ledger.freed_since(had[1], had[0])
                origin = f"position {position} had slot {had[1]} in forward {had[0]}"
        return self.found(
            check,
            f"request {request} {verb} position {position} ({place}, {group}): {what}",
            group=group,
            slots=tuple(int(self.slots[place]) for place in places[:SHOWN]),
            count=len(places),
            writer=None if missing else self.ledger.writer(slot),
            reader={"request": request, "position": position, "forward": self.number},
            freed=freed,
            cause=cause,
            origin=origin,
        )

    def _key(self, slot: int, position: int) -> dict[str, Any] | None:
        """Return the cause of a wrong owner of a slot that a key brought, or None."""
        for how, call in self.ledger.sources.get(slot, ()):
            if how.endswith(BY_KEY) and int(self.ledger.position[slot]) == position:
                return {"what": KEY, **call.who}
        return None


@dataclass(frozen=True)
class StrayWrites(InForward):
    """The slots of one group that a forward changed without owning them.

    - `stray`: the slots, int64 [n] with n > 0.
    - `replay`: the engine's name for the graph runner, if a replay changed them.
    - `causes`: pairs of a cause and the slots that it explains.
    - `layers`: the first changed layer of a slot.
    """

    ledger: Ledger
    stray: Tensor
    replay: str | None = None
    causes: Sequence[tuple[Mapping[str, Any] | None, Sequence[int]]] = ()
    layers: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Unwritten(InForward):
    """Slots of one group that a forward computes but did not write.

    `slots`, `row` (the index of the row) and `position` are int64 [n] with n > 0. `tensors` are
    those that it did not write in the first slot, if it wrote others there.
    """

    ledger: Ledger
    slots: Tensor
    row: Tensor
    position: Tensor
    replay: str | None = None
    tensors: Sequence[int] = ()


@dataclass(frozen=True)
class GivenList(InForward):
    """An index list of a forward, as `fetched`. The rows of the forward have the expected slots."""

    ledger: Ledger
    given: IndexList


def fetched(lists: Sequence[IndexList]) -> list[IndexList]:
    """Return index lists on the host, as int64, with no entries after those of the rows."""
    bounds = on_host([bound for one in lists for bound in (one.offsets, one.counts)])
    ends = [
        int(((offsets + counts) * (counts > 0)).max()) if len(counts) else 0
        for offsets, counts in zip(bounds[::2], bounds[1::2], strict=True)
    ]
    entries = on_host([one.entries[: max(0, end)] for one, end in zip(lists, ends, strict=True)])
    parts = zip(lists, entries, bounds[::2], bounds[1::2], strict=True)
    return [
        replace(one, entries=held.long(), offsets=offsets.long(), counts=counts.long())
        for one, held, offsets, counts in parts
    ]


@dataclass(frozen=True)
class Freeing:
    """Slots that the engine freed, int64 [n]. A slot occurs as often as it was freed.

    `call` has the number of the freeing call in the ledger, and `before` that of the previous one,
    which is not positive if the slot was in use.
    """

    ledger: Ledger
    slots: Tensor
    before: Tensor
    call: Tensor


@dataclass(frozen=True)
class IdleSlots(Evidence):
    """The free and the cached slots of a group while no request runs, int64 [n] each.

    - `used`: the slots that must be either free or cached, bool [slots].
    - `locked`: the number of cached slots that the engine reports as locked.
    - `ledger`: the ledger of the group. None for a pool on the host.
    """

    group: str
    used: Tensor
    free: Tensor
    cached: Tensor
    locked: int = 0
    ledger: Ledger | None = None


@dataclass(frozen=True)
class DuringCopy(Evidence):
    """Places that something reads, writes or copies while a copy must not let it.

    - `act`: what it does with the places, int64 [n] with n > 0, which are of a `side` of the copy.
    - `who`: the request, the forward or the other copy that does it. `request` has its name.
    - `during`: the kind of the forward, if one does it.
    """

    ledger: Ledger
    moving: Moving
    side: str
    places: Tensor
    act: str
    who: str
    request: str | None = None
    during: str = ""


@dataclass(frozen=True)
class Unfinished(Evidence):
    """A copy that has not ended, although the engine says that none runs."""

    moving: Moving


@dataclass(frozen=True)
class Outside(InForward):
    """The slots that a row holds although its window left them two forwards before, int64 [n]."""

    ledger: Ledger
    row: Row
    slots: Tensor


@dataclass(frozen=True)
class Cached(Evidence):
    """The number of slots of a group in the prefix cache, and how many of them can be evicted."""

    group: str
    held: int
    evictable: int


@dataclass(frozen=True)
class IdleRows(Evidence):
    """The free rows of the request table, and the number of all rows, while no request runs.

    A row in the free list twice occurs twice.
    """

    free: Sequence[int]
    all: int


@dataclass(frozen=True)
class EngineError(Evidence):
    """An error that the engine raised: its meaning, its message, and the lines that led to it."""

    what: str
    text: str
    lines: Stack = NOWHERE

    @property
    def source(self) -> str | None:
        """The line that is blamed, or None."""
        return described(self.lines)[0]


@dataclass(frozen=True)
class Difference:
    """A difference between two runs.

    `where` is the first layer or output that differs. `size` is relative to the largest value
    there. `kv` is True if KV differs, and False if only outputs differ.
    """

    where: str
    group: str | None
    size: float
    limit: float
    kv: bool

    @property
    def beyond_rounding(self) -> bool:
        """Whether rounding cannot explain the difference."""
        return self.size > self.limit


@dataclass(frozen=True)
class Wrong:
    """What a forward reads or ignores and must not. `text` says what it does.

    `group`, `layer` and `slots` name what it reads or ignores, as far as they are known. A
    `certain` one is a finding at its first occurrence.
    """

    text: str
    group: str | None = None
    layer: str | None = None
    slots: tuple[int, ...] = ()
    cause: Mapping[str, Any] | None = None
    certain: bool = False

    @property
    def key(self) -> str:
        """What is equal for wrong reads of one kind."""
        return f"{self.group} {self.cause['what'] if self.cause else self.text}"


@dataclass(frozen=True)
class Relation(InForward):
    """A replay that reads wrongly, or differs under a condition that must not matter."""

    kind: str
    result: Difference | Wrong
    cause: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class KernelRace(Evidence):
    """A kernel that loads a scalar at the line `load` and overwrites it at the line `store`.

    `number` counts the forwards before. `effect` says what a warp does that loads the new value,
    and `place` at which line, if it is known.
    """

    kernel: str
    warps: int
    load: str
    store: str
    effect: str
    place: str


@dataclass(frozen=True)
class Inputs(InForward):
    """The static inputs of a replay, and their states when the graph was captured.

    `before` has the values of inputs in an earlier forward, with the number of the forward.
    """

    kind: str
    inputs: Sequence[StaticInput]
    captured: Mapping[str, "Captured"]
    before: Mapping[str, tuple[int, Tensor]] = field(default_factory=dict)
    ledgers: Mapping[str, Ledger] = field(default_factory=dict)

    def finding(
        self,
        check: str,
        static: StaticInput,
        what: str,
        reader: Mapping[str, Any] | None = None,
        slots: tuple[Sequence[int], ...] = (),
        live: Tensor | None = None,
    ) -> Finding:
        """Return the finding about one input.

        `reader` is the request of the wrong entry. `slots` are the wrong and the right values.
        `live` is the live part, if its values are wrong.
        """
        writes = static.writes if slots else None
        shown = [slot for part in slots for slot in part[: SHOWN // 2] if writes and slot >= 0]
        own = {"what": static.name, "input": static.name, **static.place}
        cause = own if live is None else static.cause(live)
        found = self.found(
            check,
            f"{self.kind}: {what}",
            replay=self.kind if self.captured else None,
            slots=tuple(shown),
            count=max(1, len(shown)),
            reader=reader,
            cause=cause,
        )
        return replace(found, group=writes)


@dataclass(frozen=True)
class RowsGiven(Evidence):
    """The values that the engine uses for the rows of a batch.

    `moves` has, for each request that came into its row since the last forward, the lines that put
    it there, and a text about it.
    """

    during: str
    kind: str
    values: Sequence[RowValues]
    moves: Mapping[str, tuple[Stack, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Captured:
    """The state of a static input at capture. `value` is a copy of it, if it is small."""

    address: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    value: Tensor | None
