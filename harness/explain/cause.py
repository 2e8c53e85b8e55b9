"""The cause of a difference in bits: what differed first, which index led there, who wrote it.

The cause is found from one recorded forward, by changing one thing at a time and running it again,
without knowledge of any bug. A cause function takes a recorded forward, and returns the cause of a
violation or None. Each property names the function that explains its violations.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from paritybit.harness.explain.counterfactuals.judge import agrees
from paritybit.harness.explain.facts import (
    Cause,
    FirstDifference,
    IndexOrigin,
    ListFault,
    Slot,
    SlotTaken,
    UncapturedRun,
    Writer,
)
from paritybit.harness.explain.first_difference import (
    Difference,
    Index,
    Side,
    first_difference,
    keys_of,
    paired,
    rows_of,
)
from paritybit.harness.explain.origins.arguments import WrongArgument, baked_in, wrong_argument
from paritybit.harness.explain.origins.further import further_op
from paritybit.harness.explain.origins.given import failing_element, given_value, kept_value
from paritybit.harness.explain.origins.lists import WrongList, wrong_list
from paritybit.harness.explain.provenance import SlotWrite
from paritybit.harness.explain.recorded import RecordedForward, Run
from paritybit.harness.explain.static_origin import (
    captured_origin,
    cell_origin,
    element_read,
    origin,
    static_buffers,
)
from paritybit.harness.lockstep.requests import owner_of_place
from paritybit.reference.config import Kind, Role
from paritybit.reference.ops import OpCall
from paritybit.reference.state_pool import Section
from paritybit.subjects.contracts import Axis

CauseFinder = Callable[[RecordedForward], Cause | None]

UNDECLARED: Final = "undeclared state"
"""The blame of a forward that does not repeat."""

AS_GRAPH: Final = "as the graph"
AS_EAGER: Final = "as the eager world"
AS_NEITHER: Final = "as neither"


def diverged_cause(recorded: RecordedForward) -> Cause | None:
    """Explain worlds that have diverged: compare the graph's ops with the eager world's."""
    pair = recorded.pair
    left = Side(pair.eager_pools, recorded.eager_before, recorded.eager_calls)
    return _difference_cause(recorded, left, run_uncaptured=True)


def history_cause(recorded: RecordedForward) -> Cause | None:
    """Explain a replay that depends on its runner's history: compare with a fresh engine's ops."""
    left = Side(recorded.pair.graph_pools, recorded.graph_before, recorded.fresh_calls)
    return _difference_cause(recorded, left, run_uncaptured=False)


def _difference_cause(
    recorded: RecordedForward, left: Side, *, run_uncaptured: bool
) -> Cause | None:
    """Return the cause of the first difference of the graph's run from another run of the forward.

    With `run_uncaptured` the captured function also runs eagerly, to distinguish wrong inputs from
    wrong captured state. A freshly captured engine and the eager world's tables are then tried too.
    """
    right = Side(recorded.pair.graph_pools, recorded.graph_before, recorded.run.calls)
    difference = first_difference(left, right)
    if difference is None:
        return _unseen_cause(recorded) if run_uncaptured else None
    seen = _seen(recorded, left, difference, twin=run_uncaptured)
    shown = Cause(
        blame="not known",
        difference=shown_difference(recorded, difference),
        slot=_slot(recorded, difference),
        taken=_taken(difference),
        twin_agrees=seen.twin_agrees,
        listed=seen.listed,
    )
    kept = kept_value(recorded, seen.argument) if run_uncaptured else None
    if kept is not None:
        return replace(shown, blame="kept output", kept=kept)
    if not repeats(recorded):
        return replace(shown, blame=UNDECLARED)
    if run_uncaptured and difference.index is not None:
        cell = cell_origin(recorded, difference.index)
        if cell is not None:
            return replace(shown, blame="index tables", cell=cell)
    uncaptured, run = uncaptured_run(recorded) if run_uncaptured else (None, None)
    shown = replace(shown, uncaptured_run=uncaptured)
    if uncaptured == AS_EAGER and run is not None:
        return _captured_cause(recorded, shown, difference.index, run)
    return _input_cause(recorded, shown, difference, seen)


def _unseen_cause(recorded: RecordedForward) -> Cause | None:
    """Explain worlds that differ although all ops that both run agree.

    The cause is captured state, an op that only the graph runs, or what made the step fail.
    """
    if recorded.run.failed is not None and not repeats(recorded):
        return Cause(UNDECLARED)
    if recorded.run.failed is not None:
        given = failing_element(recorded)
        return None if given is None else Cause("inputs", given=given)
    if recorded.eager_output is None:
        return None
    if agrees(recorded, recorded.run, recorded.eager_storage, recorded.eager_output):
        return None
    further = further_op(recorded)
    if not repeats(recorded):
        return Cause(UNDECLARED, difference=further)
    uncaptured, run = uncaptured_run(recorded)
    shown = Cause("not known", uncaptured_run=uncaptured, difference=further)
    if uncaptured == AS_EAGER and run is not None:
        shown = _captured_cause(recorded, shown, None, run)
    return None if shown.baked is None and further is None else shown


@dataclass(frozen=True)
class _Seen:
    """What the tensors of a forward's ops show, read before any further run overwrites them."""

    read_from: tuple[str, int] | None
    twin_agrees: bool | None
    listed: ListFault | None
    shifted: bool
    argument: WrongArgument | None
    left: OpCall | None


def _seen(recorded: RecordedForward, left: Side, difference: Difference, *, twin: bool) -> _Seen:
    """Return what the ops of both runs show about their first difference."""
    calls, index = recorded.run.calls, difference.index
    pairs = ((one, place) for place, one, _ in paired(left.calls, calls))
    one = next((one for one, place in pairs if place == difference.call), None)
    other, row = calls[difference.call], difference.row
    agrees, listed, argument = None, None, None
    if twin and recorded.fresh_calls:
        graph = Side(recorded.pair.graph_pools, recorded.graph_before, recorded.fresh_calls)
        agrees = first_difference(left, graph) == difference
    if one is not None and row is not None:
        if other.name == "attention" and difference.kind is not None:
            lists = keys_of(other, row), keys_of(one, row)
            listed = list_fault(recorded, difference.kind, row, *lists)
        if index is None and difference.slot is None:
            argument = wrong_argument(one, other, row)
    return _Seen(
        read_from=element_read(recorded, index) if index is not None else None,
        twin_agrees=agrees,
        listed=listed[0] if listed is not None else None,
        shifted=listed is not None and listed[1].shifted,
        argument=argument,
        left=one,
    )


def _captured_cause(
    recorded: RecordedForward, shown: Cause, index: Index | None, run: Run
) -> Cause:
    """Complete the cause if the function, run eagerly, gives another result than the graph."""
    return replace(
        shown,
        blame="captured state",
        index=None if index is None or index.value is None else captured_origin(recorded, index),
        baked=baked_in(recorded.run.calls, run.calls, static_buffers(recorded)),
    )


def _input_cause(
    recorded: RecordedForward, shown: Cause, difference: Difference, seen: _Seen
) -> Cause:
    """Complete the cause if the capture is correct: a static element, or how lists are made."""
    index = difference.index
    if index is not None:
        stale, own = not shown.twin_agrees, not seen.shifted
        found = origin(recorded, index, seen.read_from, stale=stale, own=own)
        if found is not None:
            return replace(shown, blame=blame_of(recorded, shown, found), index=found)
        return replace(shown, blame=blame_of_lists(shown))
    if seen.argument is None or seen.left is None:
        return shown
    given, fixed = given_value(recorded, seen.argument, difference.call, seen.left, difference.row)
    return replace(shown, blame="inputs" if fixed else "not known", given=given)


def blame_of(recorded: RecordedForward, shown: Cause, found: IndexOrigin) -> str:
    """Return the blame if a static element led to an index: the element, or what lists it."""
    listing = recorded.runner.metadata.buffers if recorded.runner is not None else {}
    of_list = found.buffer in listing and not found.stale and shown.twin_agrees
    return blame_of_lists(shown) if of_list else "inputs"


def blame_of_lists(shown: Cause) -> str:
    """Return the blame if only a list of keys led to an index."""
    return "key lists" if shown.twin_agrees and shown.listed is not None else "not known"


def list_fault(
    recorded: RecordedForward,
    kind: Kind,
    row: int,
    found: Sequence[int],
    right: Sequence[int],
    *,
    live: bool = True,
) -> tuple[ListFault, WrongList] | None:
    """Return what is wrong with the slots that a row lists, or None."""
    rows = recorded.forward_id.rows
    serial = rows[row] if live and row < len(rows) else None
    owner = next((owner for owner in recorded.owners if owner.serial == serial), None)
    columns: dict[int, int] = {}
    if owner is not None:
        pages = owner.full_pages if kind is Kind.FULL else owner.swa_pages
        size = owner.page_size
        columns = {owner.slot(kind, at): at for at in range(len(pages) * size)}
    wrong = wrong_list(kind, found, right, columns.get)
    if wrong is None:
        return None
    named = None if owner is None else f"request {owner.serial}"
    return ListFault(str(kind), row, named, wrong.message), wrong


def repeats(recorded: RecordedForward) -> bool:
    """Whether the forward does the same when it is run again without changes.

    If not, it depends on state that is not restored, so further runs show nothing.
    """
    run = recorded.again()
    if run.failed != recorded.run.failed:
        return False
    return run.failed is not None or _as_it_was(recorded, run)


def _as_it_was(recorded: RecordedForward, run: Run) -> bool:
    """Whether a run gave the same as the recorded one. An idle run gives no live output."""
    return agrees(recorded, run, recorded.run.storage, recorded.run.output or None)


def uncaptured_run(recorded: RecordedForward) -> tuple[UncapturedRun | None, Run | None]:
    """Return whose bits the captured function gives when it runs eagerly, and that run.

    Returns None if nothing was captured. Also returns None if this run fails although the replay
    did not, because the failure is no evidence.
    """
    if recorded.runner is None:
        return None, None
    run = recorded.again(captured=False)
    if run.failed is not None and recorded.run.failed is None:
        return None, None
    if _as_it_was(recorded, run):
        return AS_GRAPH, run
    as_eager = agrees(recorded, run, recorded.eager_storage, recorded.eager_output)
    return (AS_EAGER if as_eager else AS_NEITHER), run


STATE_NAMES: Final = {
    Section.RECURRENT: (Role.TARGET, "recurrent state"),
    Section.DRAFT_TABLE: (Role.DRAFT, "table"),
}
"""The owner of each section of state beside KV, and the kind of slot that its places are."""


def _axis(recorded: RecordedForward, difference: Difference) -> Axis | None:
    """Return what the rows of a difference's op are. When drafting, stores have a row per request.

    Returns None if a forward has as many requests as tokens, or the op's rows are neither.
    """
    if difference.section is Section.DRAFT_TABLE:
        return Axis.REQUEST
    runner, bucket, turn = recorded.runner, recorded.bucket, recorded.forward_id
    extents = {Axis.REQUEST: len(turn.requests), Axis.TOKEN: len(turn.rows)}
    if runner is not None and bucket is not None:
        extents = dict(runner.extents(bucket))
    if difference.row is None or extents.get(Axis.REQUEST) == extents.get(Axis.TOKEN):
        return None
    count = rows_of(recorded.run.calls[difference.call])
    return next((axis for axis, extent in extents.items() if extent == count), None)


def _taken(difference: Difference) -> SlotTaken | None:
    """Return the wrong slot that a row took, with the right one."""
    index = difference.index
    if index is None:
        return None
    model, kind = _name(difference.model), _name(difference.kind)
    if difference.section is not None:
        role, kind = STATE_NAMES[difference.section]
        model = str(role)
    return SlotTaken(model or "", kind or "", index.row, index.key, index.value, index.right)


def shown_difference(recorded: RecordedForward, difference: Difference) -> FirstDifference:
    """Return a difference as plain data."""
    axis, turn = _axis(recorded, difference), recorded.forward_id
    live_rows = len(turn.requests if axis is Axis.REQUEST else turn.rows)
    row = difference.index.row if difference.index is not None else difference.row
    model, kind = _name(difference.model), _name(difference.kind)
    if difference.section is not None:
        role, kind = STATE_NAMES[difference.section]
        model = str(role)
    return FirstDifference(
        op=difference.op,
        model=model,
        layer=difference.layer,
        kind=kind,
        tensor=difference.tensor,
        row=row,
        live=row is not None and row < live_rows,
        slot=difference.slot,
        head=difference.head,
        element=difference.element,
        eager_bits=difference.left_bits,
        graph_bits=difference.right_bits,
        axis=_name(axis),
    )


def _name(value: Role | Kind | Axis | None) -> str | None:
    return None if value is None else str(value)


def _slot(recorded: RecordedForward, difference: Difference) -> Slot | None:
    """Return the slot of a difference: the one that changed, or the one that was read wrongly."""
    index = difference.index
    slot = difference.slot if difference.slot is not None else index.value if index else None
    if slot is None:
        return None
    role: Role
    if difference.section is not None:
        role, kind = STATE_NAMES[difference.section]
        write = recorded.written.of_place(difference.section, slot)
        owner = owner_of_place(difference.section, slot, recorded.owners)
    elif difference.model is not None and difference.kind is not None:
        role, kind = difference.model, str(difference.kind)
        write = recorded.written.of(difference.model, difference.kind, slot)
        owner = recorded.owner_of(difference.kind, slot)
    else:
        return None
    return Slot(
        model=str(role),
        kind=kind,
        slot=slot,
        owner=owner,
        written_by=None if write is None else _row_writer(write),
    )


def _row_writer(write: SlotWrite) -> Writer:
    """Return who wrote a slot. Its row is a token's if there are more rows than requests."""
    turn = write.forward_id
    axis = str(Axis.TOKEN) if len(turn.rows) > len(turn.requests) else None
    return Writer(turn.step, turn.runner, write.row, write.request, axis)
