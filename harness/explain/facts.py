"""The facts of one violation: the steps that were played, and the cause.

This is plain data without torch. This package makes it, a run's record keeps it, and `reports`
shows it. A step is its place in the schedule and a request its serial number, both from 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

How = Literal["copied", "reset", "equalized", "capture"]
"""How a static element got its value. The harness equalizes padded rows by writing one value."""

UncapturedRun = Literal["as the graph", "as the eager world", "as neither"]
"""Whose bits the captured function gave when it ran eagerly over the same buffers."""

CAPTURE = -1
"""The step of a write at capture, before the first step of the schedule."""

NOBODY = -1
"""The owner of a slot that belongs to no request."""

LATER: Mapping[str, bool] = {"later": True}
"""The metadata of a field that older records lack. They get its default."""

ROWS: Mapping[str, str] = {"request": "request row", "token": "token row", "draft slot": "draft"}
"""The name of one element along each axis of a static input."""


@dataclass(frozen=True)
class TimelineEntry:
    """One step: its live requests, its padding, and its parked requests.

    `mode` is None for a step without a forward. `runner` and `bucket` are None if no graph was
    replayed. `padded` is in the bucket's unit, requests or tokens. `violated` names the properties
    that are violated at this step.
    """

    place: int
    step: str
    mode: str | None
    runner: str | None
    bucket: int | None
    live: tuple[int, ...]
    padded: int
    parked: tuple[int, ...]
    tokens: int
    violated: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reach:
    """How far a bug got in some schedules, detected or not.

    Of `schedules`, `reached` ran its code and `triggered` gave another result. `reached_at` and
    `triggered_at` are the places of the first such steps in the first such schedule, or None.
    """

    schedules: int
    reached: int
    triggered: int
    reached_at: int | None
    triggered_at: int | None


@dataclass(frozen=True)
class Writer:
    """What wrote something last: a row of a step's forward.

    `runner` is None for an eager forward. `axis` says what `row` counts, as the axis of a static
    input. It is None for a row of an op. `request` is None for a padded row, and if the axis does
    not determine the request. At step CAPTURE the capture was the writer, for no request.
    """

    step: int
    runner: str | None
    row: int
    request: int | None
    axis: str | None = field(default=None, metadata=LATER)

    @property
    def place(self) -> str:
        """The row in words, according to its axis."""
        return f"{'row' if self.axis is None else ROWS.get(self.axis, 'element')} {self.row}"


@dataclass(frozen=True)
class FirstDifference:
    """The first bits of a forward that differ, in execution order.

    `op` gave, or stored, the `tensor`. `model`, `layer` and `kind` are those of its cache, or None.
    `row` is a row of the op, None if no row wrote the slot. `live` says whether it is a live row.
    `slot` is None outside caches, and `head` without heads. Both bit patterns are hexadecimal, and
    `eager_bits` is the expected one. `axis` says whether rows are requests or tokens, if a forward
    has different numbers of them.
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
    axis: str | None = field(default=None, metadata=LATER)

    @property
    def rows(self) -> str:
        """The name of a row of its op."""
        return "row" if self.axis is None else ROWS.get(self.axis, "row")


@dataclass(frozen=True)
class SlotTaken:
    """The slot of a sub-pool that a row of an op took, and the right one.

    Row `row` read `slot` as its key number `key`. If `key` is None, it stored there, or continued
    the state there. `slot` is None for nothing, and so is `right` for a key. Otherwise a `right` of
    None is not known.
    """

    model: str
    kind: str
    row: int
    key: int | None
    slot: int | None
    right: int | None


@dataclass(frozen=True)
class IndexOrigin:
    """An index that an op read wrongly, and the static element that led to it.

    Row `row` of the op read slot `read` as its key number `key`, or as the location to store at if
    `key` is None. The other run read `read_right` there. Either is None for nothing. Element
    `element` of the static input `buffer` led there. It held `value`, and `right` was expected. It
    is stale if this step did not write it. If `buffer` and `element` are None, the graph has the
    index from its capture.
    """

    buffer: str | None
    element: int | None
    value: int
    right: int | None
    stale: bool
    row: int
    key: int | None
    read: int | None
    read_right: int | None
    left_by: Writer
    how: How


@dataclass(frozen=True)
class Slot:
    """The slot of a difference: its owner, in words, and its last writer before."""

    model: str
    kind: str
    slot: int
    owner: str
    written_by: Writer | None


@dataclass(frozen=True)
class CodeSite:
    """The place in the code to blame: a function, its file, its line, and what happens there."""

    function: str
    file: str
    message: str
    line: int | None = field(default=None, metadata=LATER)


@dataclass(frozen=True)
class SourceLine:
    """A line of code that a violation is about. `what` describes it in words."""

    what: str
    file: str
    line: int


@dataclass(frozen=True)
class TableCell:
    """A cell of an index table that led to a wrong index.

    `place` is its row and column, or its slot. It has held `value` since step `since`, not `right`.
    """

    table: str
    place: tuple[int, ...]
    value: int
    right: int
    since: int


@dataclass(frozen=True)
class ListFault:
    """What is wrong with the keys that a row lists in one sub-pool.

    `message` describes it in words, starting with a verb. `owner` is the row's request in words, or
    None if the row is padded.
    """

    kind: str
    row: int
    owner: str | None
    message: str


@dataclass(frozen=True)
class GivenValue:
    """A wrong value: an argument of an op, or an element of a static input, named by `what`.

    `right` is None if it is not known. `left_by`, `how` and `stale` say how a static input got it.
    If it is stale and `left_by` is None, it is from before the graphs were captured again.
    """

    what: str
    value: str
    right: str | None
    stale: bool
    left_by: Writer | None
    how: How | None


@dataclass(frozen=True)
class KeptOutput:
    """A value of a step's batch, or of a static input, that is a view of an earlier output.

    It is row `row` of `output` from step `step` on `runner`, which has been overwritten since.
    """

    what: str
    value: str
    output: str
    row: int
    step: int
    runner: str


@dataclass(frozen=True)
class BakedIn:
    """What a graph has from its capture, where the function, run eagerly, has something else.

    Op `op`, number `place` of the graph, has `value` as its argument `argument`, and the function
    has `right`. Without an argument, `value` and `right` are the ops that run there.
    """

    op: str
    place: int
    argument: str | None
    value: str
    right: str


@dataclass(frozen=True)
class Holding:
    """What is wrongly held, free or listed in a table since step `since`.

    `before` is its state after the previous step, and `found` since step `since`, which is a
    `step`. `both` says whether this is the same in both worlds.
    """

    what: str
    before: str
    found: str
    since: int
    step: str
    world: str
    both: bool


@dataclass(frozen=True)
class HeldState:
    """An attribute of a Python object, by its path: its values after the capture and now."""

    path: str
    captured: str
    now: str


@dataclass(frozen=True)
class Cause:
    """What is to blame for a violation, and the evidence.

    `blame` is in words: inputs, captured state, captured output, index tables, key lists, what an
    op is given, Python state, kept output, slot bookkeeping, request contents, undeclared state,
    build, call site, dispatch, missing wait or copy, narrowed slot number, sampled tokens, or not
    known.
    `uncaptured_run` is None if it was not tried or failed. So is `twin_agrees`: whether a freshly
    captured engine does the same. `compared` names the two compared runs, if they are not the
    worlds', and what preceded the first difference. `made` is the line that makes the cause, and
    its callers.
    """

    blame: str
    uncaptured_run: UncapturedRun | None = None
    difference: FirstDifference | None = None
    index: IndexOrigin | None = None
    slot: Slot | None = None
    site: CodeSite | None = None
    twin_agrees: bool | None = field(default=None, metadata=LATER)
    compared: tuple[str, ...] = field(default=(), metadata=LATER)
    cell: TableCell | None = field(default=None, metadata=LATER)
    listed: ListFault | None = field(default=None, metadata=LATER)
    given: GivenValue | None = field(default=None, metadata=LATER)
    kept: KeptOutput | None = field(default=None, metadata=LATER)
    baked: BakedIn | None = field(default=None, metadata=LATER)
    held: Holding | None = field(default=None, metadata=LATER)
    taken: SlotTaken | None = field(default=None, metadata=LATER)
    state: HeldState | None = field(default=None, metadata=LATER)
    made: tuple[SourceLine, ...] = field(default=(), metadata=LATER)


@dataclass(frozen=True)
class StaticInputRow:
    """One static input of a replay: a number per element, in the order of its buffer.

    The first `live` elements of each section hold the batch. `left_by` is the step that wrote each
    element last. `stale` are the places of elements that this step did not write and that differ in
    a freshly captured runner.
    """

    name: str
    dtype: str
    axis: str
    padding: str
    live: int
    values: tuple[int, ...]
    left_by: tuple[int, ...]
    stale: tuple[int, ...]

    def __post_init__(self) -> None:
        """Raise ValueError unless every element has a value and a step that wrote it."""
        if len(self.left_by) != len(self.values):
            raise ValueError(f"static input {self.name[:80]!r} has an element that no step wrote")


@dataclass(frozen=True)
class SlotMap:
    """The slots of one sub-pool after a step.

    `owners` has the request of each slot, or NOBODY. `live` are the requests in the batch,
    `written` the slots that the step changed, and `differs` the slots that differ between the
    worlds. The first `page_size` slots are reserved.
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
    """The step with the violation, as the graph world ran it.

    `runner` is None for an eager forward. `bucket` and `live_size`, in the bucket's unit, are None
    if no graph was replayed. `failed` says why the step failed, if it did. `further` describes the
    further run, if only that violates the property.
    """

    step: int
    runner: str | None
    bucket: int | None = None
    live_size: int | None = None
    failed: str | None = None
    further: str | None = field(default=None, metadata=LATER)


@dataclass(frozen=True)
class Explanation:
    """Why one property was violated. `proof` explains it in sentences: Let, Then, But, So.

    `sources` are the lines of code to look at, nearest to the cause first.
    """

    property: str
    at: Situation
    cause: Cause
    proof: tuple[str, ...]
    static_inputs: tuple[StaticInputRow, ...] = ()
    slots: tuple[SlotMap, ...] = ()
    sources: tuple[SourceLine, ...] = field(default=(), metadata=LATER)
