"""The facts of one violation: the steps that were played, what differs, and the suspects tried.

This is plain data without torch. This package makes it, a run's record keeps it, and `reports`
shows it. A step is its index in the schedule and a request its serial number, both from 0.
"""

from dataclasses import dataclass
from typing import Literal

How = Literal["copied", "reset", "equalized", "capture"]
"""How a static element got its value. The harness equalizes padded rows by writing one value."""

SuspectName = Literal[
    "index tables",
    "static inputs",
    "capture",
    "engine state",
    "overlapping steps",
]

ResetOutcome = Literal["holds", "violated", "fails", "nothing to reset"]
"""What the violated property says once a suspect is reset, and nothing else."""

CAPTURE = -1
"""The step of a write at capture, before the first step of the schedule."""

NOBODY = -1
"""The owner of a slot that belongs to no request."""


@dataclass(frozen=True)
class TimelineEntry:
    """One step: its live requests, its padding, and its parked requests.

    `mode` is None without a forward, `runner` and `bucket` without a replay. `padded` is in the
    bucket's unit, requests or tokens.
    """

    index: int
    step: str
    parked: tuple[int, ...]
    violated: tuple[str, ...] = ()
    mode: str | None = None
    runner: str | None = None
    bucket: int | None = None
    live: tuple[int, ...] = ()
    padded: int = 0


@dataclass(frozen=True)
class Writer:
    """What wrote something last: a row of a step's forward, or an element of a static input.

    `runner` is None for an eager forward, and `request` for a padded row.
    """

    step: int
    runner: str | None
    row: int
    request: int | None


@dataclass(frozen=True)
class FirstDifference:
    """The first bits of a forward that differ, in execution order.

    `op` gave, or stored, the `tensor`. `model`, `layer` and `kind` are those of its cache, or None.
    `row` is a row of the op, None if no row wrote the slot. `slot` is None outside caches, and
    `head` without heads. Both bit patterns are hexadecimal, and `eager_bits` is the expected one.
    """

    op: str
    model: str | None
    layer: int | None
    kind: str | None
    tensor: str
    row: int | None
    live: bool
    slot: int | None
    head: int | None
    element: int
    eager_bits: str
    graph_bits: str


@dataclass(frozen=True)
class SlotTaken:
    """The slot that a row of an op read as key number `key`, and the right one.

    If `key` is None, the row stored there, or continued the state there. A `slot` of None means no
    slot, and a `right` of None no slot for a key, or else that it is not known.
    """

    model: str
    kind: str
    row: int
    key: int | None
    slot: int | None
    right: int | None


@dataclass(frozen=True)
class Slot:
    """The slot of a difference: its owner, in words, and its last writer before."""

    model: str
    kind: str
    slot: int
    owner: str
    written_by: Writer | None


@dataclass(frozen=True)
class SourceLine:
    """A line of code that a violation is about. `what` describes it in words."""

    what: str
    file: str
    line: int


@dataclass(frozen=True)
class WrongElement:
    """An element with a wrong value, to which a reset gave the right one.

    - `holder`, `index`: the static input, table or value of the batch, and the element's index.
    - `left_by`, `how`: who wrote it, and how. None outside static inputs.
    - `stale`: whether an earlier step wrote it, or the capture.
    """

    holder: str
    index: tuple[int, ...]
    value: str
    right: str
    left_by: Writer | None = None
    how: How | None = None
    stale: bool = False

    @property
    def name(self) -> str:
        """The element with its index."""
        return f"{self.holder}[{', '.join(map(str, self.index))}]"


@dataclass(frozen=True)
class TriedSuspect:
    """One suspect, and what the violated property says once it is reset, and nothing else.

    `elements` are those of the smallest reset with which the property holds.
    """

    name: SuspectName
    outcome: ResetOutcome
    elements: tuple[WrongElement, ...] = ()


@dataclass(frozen=True)
class SlotMap:
    """The slots of one sub-pool after a step.

    `owners` has the request of each slot, or NOBODY. `live` are the requests in the batch,
    `written` the slots that the step changed, and `differs` the slots that differ between the
    runs. The first `page_size` slots are reserved.
    """

    model: str
    kind: str
    owners: tuple[int, ...]
    live: tuple[int, ...]
    written: tuple[int, ...]
    differs: tuple[int, ...]
    page_size: int

    def __post_init__(self) -> None:
        """Raise ValueError for a slot that the sub-pool does not have."""
        if not all(0 <= slot < len(self.owners) for slot in (*self.written, *self.differs)):
            raise ValueError(f"a sub-pool of {len(self.owners)} slots has no other")


@dataclass(frozen=True)
class Situation:
    """The step with the violation, as the graph run ran it.

    `runner` is None for an eager forward. `bucket` and `live_size`, in the bucket's unit, are None
    if no graph was replayed. `failed` says why the step failed, if it did.
    """

    step: int
    runner: str | None
    bucket: int | None = None
    live_size: int | None = None
    failed: str | None = None


@dataclass(frozen=True)
class Explanation:
    """What is known about the violation of one property.

    - `taken`, `slot`: the wrong slot that a row took, and the slot's owner and last writer.
    - `suspects`: those that were tried, in the order in which they are blamed.
    - `repeats`: whether the forward violates the property again from the same bytes. If not, no
      trial shows anything. None if it was not repeated.
    - `proof`: the explanation in sentences: Let, Then, But, So.
    - `sources`: lines of code to look at, the nearest to the cause first.
    """

    property_id: str
    at: Situation
    proof: tuple[str, ...]
    difference: FirstDifference | None = None
    taken: SlotTaken | None = None
    slot: Slot | None = None
    suspects: tuple[TriedSuspect, ...] = ()
    repeats: bool | None = None
    sources: tuple[SourceLine, ...] = ()
    slots: tuple[SlotMap, ...] = ()

    @property
    def cause(self) -> TriedSuspect | None:
        """The first suspect whose reset makes the property hold, or None if no reset does."""
        return next((one for one in self.suspects if one.outcome == "holds"), None)
