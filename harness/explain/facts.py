"""What is known of one violation: the steps that were played, and the cause that was found.

Plain data, without torch: made by this package, kept in a run's record, shown by `reports`.
A step is its place in the schedule, a request its serial number, both counted from 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

How = Literal["copied", "reset", "equalized", "capture"]
"""How a static element got its value: equalized is what the harness wrote to all padded rows."""

UncapturedRun = Literal["as the graph", "as the eager world", "as neither"]
"""Whose bits the captured function gave when it was run eagerly, through the same buffers."""

CAPTURE = -1
"""The step of what was written at capture, before any step of the schedule."""

NOBODY = -1
"""The owner of a slot that belongs to no request."""

LATER: Mapping[str, bool] = {"later": True}
"""The metadata of a field that older records lack: they have its default."""

ROWS: Mapping[str, str] = {"request": "request row", "token": "token row", "draft slot": "draft"}
"""What an element is called that a static input has for each of what its axis counts."""


@dataclass(frozen=True)
class TimelineEntry:
    """One step played: which requests were live rows, how many rows were padding, who was parked.

    `mode` is None for a step that ran no forward, `runner` and `bucket` are None where no
    graph was replayed. `padded` counts what the bucket counts, requests or tokens.
    `violated` names the properties found violated at this step.
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
    """How far a bug got in some schedules, whether or not anything saw it.

    Of `schedules` played, so many reached its code and so many triggered it. `reached_at` and
    `triggered_at` are the places of the first steps that did, in the first schedule that did;
    None where none did.
    """

    schedules: int
    reached: int
    triggered: int
    reached_at: int | None
    triggered_at: int | None


@dataclass(frozen=True)
class Writer:
    """What wrote something last: a row of a step's forward.

    `runner` is None for an eager forward. `axis` says what `row` counts: the requests, tokens or
    whatever else a static input has an element for; None for a row of an op. `request` is None
    for a padded row, and where the axis does not say whose an element is. At step CAPTURE it was
    the capture, and no request.
    """

    step: int
    runner: str | None
    row: int
    request: int | None
    axis: str | None = field(default=None, metadata=LATER)

    @property
    def place(self) -> str:
        """The row in words, by what it is a row of."""
        return f"{'row' if self.axis is None else ROWS.get(self.axis, 'element')} {self.row}"


@dataclass(frozen=True)
class FirstDifference:
    """The first bits of a forward that differ, in execution order.

    `op` gave, or stored, the `tensor`; `model`, `layer` and `kind` say on which cache it
    worked, if on one. `row` is the op's, None where no row wrote the slot, and `live` says
    whether it is a live row. `slot` is None for what lies in no cache, `head` for what has
    none. Both bit patterns are hexadecimal texts, the expected one in `eager_bits`. `axis` says
    what the rows are of, requests or tokens, where a forward has more of one than of the other.
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
        """What one of its op's rows is called."""
        return "row" if self.axis is None else ROWS.get(self.axis, "row")


@dataclass(frozen=True)
class SlotTaken:
    """The slot of a sub-pool that a row of an op took, and the one that it should have taken.

    Row `row` read `slot` as its key number `key` or, where that is None, stored or went on there.
    `slot` is None for nothing, and so is the `right` one of a key; of another row it is not known.
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

    Row `row` of the op read slot `read`, as its key number `key` or, where that is None, as
    the location to store at; `read_right` is what the other run read there. Either is None for
    nothing.
    Element `element` of the static input `buffer` led there: it held `value`, where `right`
    was expected, and is stale if this step did not write it. Both are None if no static
    input says so: the graph has the index from its capture.
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
    """The slot that a difference is about: whose it is, in words, and who wrote it before."""

    model: str
    kind: str
    slot: int
    owner: str
    written_by: Writer | None


@dataclass(frozen=True)
class CodeSite:
    """A place in the code that is to blame: a function, its file, its line, what it does there."""

    function: str
    file: str
    message: str
    line: int | None = field(default=None, metadata=LATER)


@dataclass(frozen=True)
class SourceLine:
    """A line of the code that a violation is about; `what` says in words what stands there."""

    what: str
    file: str
    line: int


@dataclass(frozen=True)
class TableCell:
    """A cell of an index table that led to a wrong index.

    `place` is its row and column, or slot. It has held `value` since step `since`, not `right`.
    """

    table: str
    place: tuple[int, ...]
    value: int
    right: int
    since: int


@dataclass(frozen=True)
class ListFault:
    """What is wrong with the keys that a row lists of one sub-pool.

    `message` says it in words, beginning with a verb. `owner` is the row's request in words,
    None where it is padded.
    """

    kind: str
    row: int
    owner: str | None
    message: str


@dataclass(frozen=True)
class GivenValue:
    """A wrong value: an argument of an op, or an element of a static input, named by `what`.

    `right` is None if it is not known. `left_by`, `how` and `stale` say how a static input got it:
    before the graphs were captured again, if it is stale and left by nobody.
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

    It is row `row` of `output`, which step `step` on `runner` gave, and overwritten since.
    """

    what: str
    value: str
    output: str
    row: int
    step: int
    runner: str


@dataclass(frozen=True)
class BakedIn:
    """What a graph has from its capture, and the function, run eagerly, does otherwise.

    Op `op`, the graph's number `place`, has `value` as its argument `argument`, where the
    function has `right`. Without an argument the graph runs `value` there, the function `right`.
    """

    op: str
    place: int
    argument: str | None
    value: str
    right: str


@dataclass(frozen=True)
class Holding:
    """What is held or free wrongly, or said wrongly by a table, since step `since`.

    `before` says how it was after the step before, `found` how it is since step `since`, which is
    a `step`. `both` says whether it is so in both worlds.
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
    """An attribute of a Python object, by its path: what it held after the capture, and holds."""

    path: str
    captured: str
    now: str


@dataclass(frozen=True)
class Cause:
    """What is to blame for a violation, and what shows it.

    `blame` is in words: inputs, captured state, captured output, index tables, key lists, what an
    op is given, Python state, kept output, slot bookkeeping, request contents, undeclared state,
    build, call site, dispatch, missing wait or copy, narrowed slot number, or not known.
    `uncaptured_run` is None where that was not tried, or failed, and so is `twin_agrees`: whether
    an engine just captured does the same wrong. `compared` says which two runs are compared, if
    others than the worlds' are, and what came before the first difference. `made` is the line that
    makes what is to blame, and its callers.
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
    """One static input of a replay, one number an element, in the order of its buffer.

    `live` elements at the front of each section hold the batch; `left_by` is the step that
    wrote each element last; `stale` are the places of the elements that this step did not
    write and that a runner just captured has otherwise.
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
        """Raise ValueError unless every element has a value and a step that left it."""
        if len(self.left_by) != len(self.values):
            raise ValueError(f"static input {self.name[:80]!r} has an element that no step wrote")


@dataclass(frozen=True)
class SlotMap:
    """The slots of one sub-pool after a step.

    `owners` has the request of each slot, or NOBODY; `live` are the requests in the batch,
    `written` the slots that the step changed, `differs` those that differ between the worlds.
    The first `page_size` slots are reserved.
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
    """The step that a violation was found at, as the graph world ran it.

    `runner` is None for an eager forward; `bucket` and `live_size`, in the bucket's unit, are
    None where no graph was replayed. `failed` says why the step gave nothing, if it did not.
    `further` says in which circumstances it ran once more, if only that violates the property.
    """

    step: int
    runner: str | None
    bucket: int | None = None
    live_size: int | None = None
    failed: str | None = None
    further: str | None = field(default=None, metadata=LATER)


@dataclass(frozen=True)
class Explanation:
    """Why one property was violated. `proof` tells it in sentences: Let, Then, But, So.

    `sources` are the lines of the code to look at, the nearest to the cause first.
    """

    property: str
    at: Situation
    cause: Cause
    proof: tuple[str, ...]
    static_inputs: tuple[StaticInputRow, ...] = ()
    slots: tuple[SlotMap, ...] = ()
    sources: tuple[SourceLine, ...] = field(default=(), metadata=LATER)
