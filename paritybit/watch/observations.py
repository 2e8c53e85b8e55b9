"""What a check judges: data about one forward, one replay, or one call of an allocator."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from paritybit.watch.facts import Forward, IndexList, StaticInput
from paritybit.watch.journal import Finding
from paritybit.watch.ledger import Ledger

SHOWN = 8
"""Slots that a finding lists."""


@dataclass(frozen=True)
class Check:
    """One check: its name, the stage at which it judges, its law in one sentence, and its cost."""

    name: str
    stage: str
    law: str
    cost: str
    judge: Callable[[Any], Iterable[Finding]]


def key_of(check: str, group: str | None, cause: Mapping[str, Any] | None) -> str:
    """Return the key that findings with the same check, group and cause share."""
    why = "not known" if cause is None else cause.get("input") or cause["what"]
    return f"{check} | {group or '-'} | {why}"


@dataclass(frozen=True)
class Reads:
    """The slots of one group that a forward's rows read, one entry per row and position.

    `expected` is the row's own hash at the position. `held`, `checksum`, `written` and `freed` are
    the ledger's; `freed` is positive if the slot is free. `now` is the folded checksum of the
    bytes. `judged` is False where a hash means nothing yet. Slots that no slot is (-1) or that are
    reserved are `missing`, and read slot 0.
    """

    number: int
    forward: Forward
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
    written: Tensor
    freed: Tensor

    def findings(
        self, check: str, wrong: Tensor, what: str, reused: bool = False
    ) -> Iterable[Finding]:
        """Yield a finding for each row that has wrong entries, bool [n].

        `reused` says that who freed a slot matters though it is in use again.
        """
        if not bool(wrong.any()):
            return
        places = wrong.nonzero().flatten().tolist()
        rows: dict[int, list[int]] = {}
        row = self.row.tolist()
        for place in places:
            rows.setdefault(row[place], []).append(place)
        for number, mine in rows.items():
            yield self._finding(check, self.forward.rows[number].request, mine, what, reused)

    def _finding(
        self, check: str, request: str, places: list[int], what: str, reused: bool
    ) -> Finding:
        """Return the finding for entries of one row."""
        first = places[0]
        slot, position = int(self.slots[first]), int(self.position[first])
        missing = bool(self.missing[first])
        group = self.ledger.group.name
        story = None if missing else self.ledger.stories.get(slot)
        cause = None if story is None else {"what": story.what, "forward": story.forward}
        if story is not None and story.cause is not None:
            cause = {**story.cause, "forward": story.forward}
        place = "has no slot" if missing else f"slot {slot}"
        return Finding(
            check=check,
            text=f"request {request} reads position {position} ({place}, {group}): {what}",
            key=key_of(check, group, cause),
            forward=self.number,
            forward_kind=self.forward.kind,
            group=group,
            slots=tuple(int(self.slots[place]) for place in places[:SHOWN]),
            count=len(places),
            writer=None if missing else self.ledger.writer(slot),
            reader={"request": request, "position": position, "forward": self.number},
            freed=None if missing else self.ledger.freeing(slot, reused),
            cause=cause,
        )


@dataclass(frozen=True)
class Frame:
    """The slots of one group that a forward changed without owning them, int64 [n], n > 0.

    `replay` is the engine's name for the runner if a replay changed them. `causes` has, for each
    static input whose tail explains some of the slots, these slots.
    """

    number: int
    forward: Forward
    ledger: Ledger
    stray: Tensor
    replay: str | None = None
    causes: Sequence[tuple[Mapping[str, Any] | None, Sequence[int]]] = ()
    layers: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Unwritten:
    """Slots of one group that a forward computed and did not write, int64 [n] each, n > 0.

    `row` is the number of the row, and `position` that of the token.
    """

    number: int
    forward: Forward
    ledger: Ledger
    slots: Tensor
    row: Tensor
    position: Tensor
    replay: str | None = None


@dataclass(frozen=True)
class Lists:
    """One index list of a forward, with the slots it should name."""

    number: int
    forward: Forward
    ledger: Ledger
    given: IndexList


@dataclass(frozen=True)
class Freeing:
    """Slots that the engine freed, int64 [n], each as often as it freed them.

    `call` has the ledger's number of the call that did, and `before` that of the call that had
    freed it before; it is not positive if the slot was in use.
    """

    ledger: Ledger
    slots: Tensor
    before: Tensor
    call: Tensor


@dataclass(frozen=True)
class Idle:
    """What the engine says of a group's slots while nothing runs: int64 [n] each.

    `locked` counts the cached slots that the engine says it must keep.
    """

    number: int
    ledger: Ledger
    free: Tensor
    cached: Tensor
    locked: int = 0


@dataclass(frozen=True)
class Cached:
    """How many slots of a group the prefix cache holds, and how many it says it may ever evict."""

    number: int
    group: str
    held: int
    evictable: int


@dataclass(frozen=True)
class IdleRows:
    """How many rows of the request table are free while nothing runs, and how many there are."""

    number: int
    free: int
    all: int


@dataclass(frozen=True)
class EngineError:
    """An error that the engine raised: what it means, what it says, and the line that raised it."""

    number: int
    what: str
    text: str
    source: str | None
    kind: str = ""


@dataclass(frozen=True)
class Relation:
    """A replay that was run again under a condition that must not change what it computes.

    `group` and `where` name the layer or output that differs beyond rounding; `size` is the
    difference relative to the largest value there.
    """

    number: int
    forward: Forward
    kind: str
    group: str | None
    where: str
    size: float
    cause: Mapping[str, Any] | None = None

    def finding(self, check: str, what: str) -> Finding:
        """Return the finding of a check of relations."""
        layer = self.where if self.group else None
        return Finding(
            check=check,
            text=f"{what}: {self.where} differs by {self.size:.2g} of its largest value",
            key=key_of(check, self.group, self.cause),
            forward=self.number,
            forward_kind=self.forward.kind,
            group=self.group,
            replay=self.kind,
            layer=layer,
            cause=self.cause,
        )


@dataclass(frozen=True)
class Inputs:
    """The static inputs of a replay, and what each was when the graph was captured."""

    number: int
    forward: Forward
    kind: str
    inputs: Sequence[StaticInput]
    captured: Mapping[str, "Captured"]

    def finding(self, check: str, static: StaticInput, what: str) -> Finding:
        """Return the finding about one input."""
        cause = {"what": static.name, "input": static.name, "source": static.source}
        return Finding(
            check=check,
            text=f"{self.kind}: {what}",
            key=key_of(check, None, cause),
            forward=self.number,
            forward_kind=self.forward.kind,
            replay=self.kind,
            cause=cause,
        )


@dataclass(frozen=True)
class Captured:
    """What a static input was at capture. `value` holds its bytes, if it is small."""

    address: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    value: Tensor | None


@dataclass(frozen=True)
class Logged:
    """Errors that the engine logged during a forward: the place in its source, and the message."""

    number: int
    kind: str
    records: Sequence[tuple[str, str]]
