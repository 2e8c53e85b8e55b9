"""What a recorded forward did, as plain data: the first difference, the slot, and the writers."""

from collections.abc import Sequence
from dataclasses import replace

from paritybit.harness.explain.facts import Situation, Slot, Writer, WrongElement
from paritybit.harness.explain.first_difference import Found, Side, first_difference, rows_of
from paritybit.harness.explain.provenance import STATES, SlotWrite, StaticWrite
from paritybit.harness.explain.recorded import RecordedForward
from paritybit.harness.explain.resets import StaticElement
from paritybit.harness.lockstep.requests import owner_of, owner_of_place
from paritybit.reference.config import Kind
from paritybit.reference.state_pool import Section
from paritybit.subjects.contracts import Axis


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


def difference_of(recorded: RecordedForward, *, fresh: bool) -> Found | None:
    """Return the first op of the forward with other bits than in the eager run, if any.

    With `fresh`, than on the fresh engine.
    """
    pair = recorded.pair
    left = Side(pair.eager_pools, recorded.eager_before, recorded.eager_calls)
    if fresh:
        left = Side(pair.graph_pools, recorded.graph_before, recorded.fresh_calls)
    right = Side(pair.graph_pools, recorded.graph_before, recorded.run.calls)
    found = first_difference(left, right)
    if found is None:
        return None
    axis, turn = _axis(recorded, found), recorded.forward_id
    live_rows = len(turn.requests if axis is Axis.REQUEST else turn.rows)
    row = found.difference.row if found.taken is None else found.taken.row
    live, name = row is not None and row < live_rows, None if axis is None else str(axis)
    return found._replace(difference=replace(found.difference, row=row, live=live, axis=name))


def _axis(recorded: RecordedForward, found: Found) -> Axis | None:
    """Return what the rows of a difference's op are. When drafting, stores have a row per request.

    Returns None if a forward has as many requests as tokens, or the op's rows are neither.
    """
    if found.difference.kind == STATES[Section.DRAFT_TABLE].kind:
        return Axis.REQUEST
    runner, bucket, turn = recorded.runner, recorded.bucket, recorded.forward_id
    extents = {Axis.REQUEST: len(turn.requests), Axis.TOKEN: len(turn.rows)}
    if runner is not None and bucket is not None:
        extents = dict(runner.extents(bucket))
    if found.difference.row is None or extents.get(Axis.REQUEST) == extents.get(Axis.TOKEN):
        return None
    count = rows_of(recorded.run.calls[found.call])
    return next((axis for axis, extent in extents.items() if extent == count), None)


def slot_of(recorded: RecordedForward, found: Found) -> Slot | None:
    """Return the slot of a difference: the one that changed, or the one that was read wrongly."""
    model, kind, slot = found.difference.model, found.difference.kind, found.difference.slot
    if slot is None and found.taken is not None:
        slot = found.taken.slot
    if slot is None or model is None or kind is None:
        return None
    section = next((section for section, cache in STATES.items() if cache.kind == kind), None)
    if section is not None:
        owner = owner_of_place(section, slot, recorded.owners)
    else:
        owner = owner_of(Kind(kind), slot, recorded.spans, recorded.owners)
    write = recorded.written.of(model, kind, slot)
    return Slot(model, kind, slot, owner, None if write is None else _row_writer(write))


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
