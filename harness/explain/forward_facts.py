"""What a recorded forward did, as plain data: the first difference, the slot, and the writers."""

from collections.abc import Sequence
from typing import Final

from paritybit.harness.explain.facts import (
    FirstDifference,
    Situation,
    Slot,
    SlotTaken,
    Writer,
    WrongElement,
)
from paritybit.harness.explain.first_difference import Difference, Side, first_difference, rows_of
from paritybit.harness.explain.provenance import SlotWrite, StaticWrite
from paritybit.harness.explain.recorded import RecordedForward, StaticElement
from paritybit.harness.lockstep.requests import owner_of_place
from paritybit.reference.config import Kind, Role
from paritybit.reference.state_pool import Section
from paritybit.subjects.contracts import Axis

STATE_NAMES: Final = {
    Section.RECURRENT: (Role.TARGET, "recurrent state"),
    Section.DRAFT_TABLE: (Role.DRAFT, "table"),
}
"""The owner of each section of state beside KV, and the kind of slot that its places are."""


def situation(recorded: RecordedForward) -> Situation:
    """Return what ran: what replayed the batch, if that is not the runner of its mode."""
    turn, seen = recorded.forward_id, recorded.observation
    runner, bucket, live_size = turn.runner, recorded.bucket, recorded.live_size
    if seen is not None and (seen.replay is None) != (recorded.runner is None):
        replay = seen.replay
        runner = None if replay is None else replay.runner
        bucket = None if replay is None else replay.bucket
        live_size = None if replay is None else replay.live_size
    return Situation(turn.step, runner, bucket, live_size, recorded.run.failed)


def difference_of(recorded: RecordedForward, *, fresh: bool) -> Difference | None:
    """Return the first op of the forward with other bits than the eager world's, if any.

    With `fresh`, than the fresh engine's.
    """
    pair = recorded.pair
    left = Side(pair.eager_pools, recorded.eager_before, recorded.eager_calls)
    if fresh:
        left = Side(pair.graph_pools, recorded.graph_before, recorded.fresh_calls)
    return first_difference(left, Side(pair.graph_pools, recorded.graph_before, recorded.run.calls))


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


def slot_taken(difference: Difference) -> SlotTaken | None:
    """Return the wrong slot that a row took, with the right one."""
    index = difference.index
    if index is None:
        return None
    model, kind = _name(difference.model), _name(difference.kind)
    if difference.section is not None:
        role, kind = STATE_NAMES[difference.section]
        model = str(role)
    return SlotTaken(model or "", kind or "", index.row, index.key, index.value, index.right)


def _name(value: Role | Kind | Axis | None) -> str | None:
    return None if value is None else str(value)


def slot_of(recorded: RecordedForward, difference: Difference) -> Slot | None:
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
    by = None if write is None else _row_writer(write)
    return Slot(model=str(role), kind=kind, slot=slot, owner=owner, written_by=by)


def _row_writer(write: SlotWrite) -> Writer:
    """Return who wrote a slot. Its row is a token's if there are more rows than requests."""
    turn = write.forward_id
    axis = str(Axis.TOKEN) if len(turn.rows) > len(turn.requests) else None
    return Writer(turn.step, turn.runner, write.row, write.request, axis)


def element_of(recorded: RecordedForward, element: StaticElement) -> WrongElement:
    """Return an element of a static input with its right value, and who wrote it last."""
    name, place, right = element
    assert recorded.runner is not None
    write = recorded.ledger.of(recorded.runner.static_buffers()[name])[place]
    turn, row = write.forward_id, recorded.runner.inputs.rows.get(name)
    axis = "list" if row is None else str(row.axis)
    request = None if row is None else _request_of(recorded, write, row.axis, place)
    return WrongElement(
        holder=name,
        place=(place,),
        value=str(recorded.static[name].view(-1)[place].item()),
        right=str(right.item()),
        left_by=Writer(turn.step, turn.runner, place, request, axis),
        how=write.how,
        stale=turn.forward < recorded.forward_id.forward,
    )


def _request_of(
    recorded: RecordedForward, write: StaticWrite, axis: Axis, place: int
) -> int | None:
    """Return the request whose value an element was, by the axis of its buffer."""
    if write.how != "copied":
        return None
    turn = write.forward_id
    slots = recorded.pair.config.speculation.slots
    requests: dict[Axis, Sequence[int]] = {
        Axis.TOKEN: turn.rows,
        Axis.REQUEST: turn.requests,
        Axis.DRAFT_SLOT: [request for request in turn.requests for _ in range(slots)],
    }
    found = requests.get(axis, ())
    return found[place] if place < len(found) else None
