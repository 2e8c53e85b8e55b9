"""What a recorded forward did, as plain data: the first difference, the writers, the drawings."""

from dataclasses import replace

from paritybit.harness.explain.facts import (
    NOBODY,
    Situation,
    Slot,
    SlotMap,
    Writer,
    WrongElement,
)
from paritybit.harness.explain.first_difference import (
    STATES,
    Found,
    first_difference,
    pair_ops,
    rows_of,
)
from paritybit.harness.explain.recorded import NewElement, RecordedForward
from paritybit.harness.lockstep.bits import unequal
from paritybit.reference.config import Kind
from paritybit.subjects.contracts import Axis
from torch import Tensor


def situation(recorded: RecordedForward) -> Situation:
    """Return what ran: what replayed the batch, or the runner of a forward that failed."""
    step, seen, failed = recorded.forward_id.step, recorded.observation, recorded.failed
    if seen is None:
        return Situation(step, recorded.forward_id.runner, failed=failed)
    if seen.replay is None:
        return Situation(step, None)
    return Situation(step, seen.replay.runner, seen.replay.bucket, seen.replay.live_size)


def difference_of(recorded: RecordedForward, *, fresh: bool) -> Found | None:
    """Return the first op of the forward with other bits than in the eager run, if any.

    With `fresh`, than on the fresh engine. A row is live if the eager run's op has it too.
    """
    pair, calls, before = recorded.pair, recorded.calls, recorded.graph_before
    left, pools = recorded.eager_calls, pair.eager_pools
    if fresh:
        left, pools = recorded.fresh_calls, pair.graph_pools
    found = first_difference(left, calls, pools, pair.graph_pools, before)
    if found is None:
        return None
    eager = {number: one for number, one, _ in pair_ops(recorded.eager_calls, calls)}[found.call]
    row = found.difference.row if found.taken is None else found.taken.row
    live = row is not None and eager is not None and row < rows_of(eager)
    return found._replace(difference=replace(found.difference, row=row, live=live))


def slot_of(recorded: RecordedForward, found: Found) -> Slot | None:
    """Return the slot of a difference: the one that changed, or the one that was read wrongly."""
    model, kind, slot = found.difference.model, found.difference.kind, found.difference.slot
    if slot is None and found.taken is not None:
        slot = found.taken.slot
    if slot is None or model is None or kind is None:
        return None
    if kind == STATES.kind:
        owner = recorded.owner_of_state(slot)
    else:
        owner = recorded.owner_of(Kind(kind), slot)
    return Slot(model, kind, slot, owner, recorded.written.get((model, kind, slot)))


def element_of(recorded: RecordedForward, element: NewElement) -> WrongElement:
    """Return an element with its right value, and who wrote it last if it is a static input's."""
    name, place, right = element
    if name in recorded.tables:
        table = recorded.tables[name]
        index = divmod(place, table.shape[1]) if table.dim() > 1 else (place,)
        return WrongElement(name, index, str(table.view(-1)[place].item()), str(right.item()))
    assert recorded.runner is not None
    write = recorded.writers.of(recorded.runner.static_buffers()[name])[place]
    turn, row = write.forward_id, recorded.runner.inputs.rows.get(name)
    copied = row is not None and write.how == "copied"
    requests = {Axis.TOKEN: turn.rows, Axis.REQUEST: turn.requests}
    owners = requests.get(row.axis, ()) if copied and row is not None else ()
    return WrongElement(
        holder=name,
        index=(place,),
        value=str(recorded.static[name].view(-1)[place].item()),
        right=str(right.item()),
        left_by=Writer(
            turn.step, turn.runner, place, owners[place] if place < len(owners) else None
        ),
        how=write.how,
        stale=turn.forward < recorded.forward_id.forward,
    )


def stale(recorded: RecordedForward) -> list[NewElement]:
    """Return the elements that this forward did not write and a fresh runner differs in.

    Each has the value of the freshly captured runner.
    """
    runner, found = recorded.runner, list[NewElement]()
    for name, buffer in ({} if runner is None else runner.static_buffers()).items():
        current, fresh = recorded.static[name], recorded.fresh[name]
        if fresh.shape != current.shape:
            continue
        places = unequal(current, fresh).flatten().nonzero().flatten().tolist()
        writes = recorded.writers.of(buffer) if places else []
        found += [
            (name, place, fresh.view(-1)[place].clone())
            for place in places
            if writes[place].forward_id.forward < recorded.forward_id.forward
        ]
    return found


def slot_maps(recorded: RecordedForward) -> tuple[SlotMap, ...]:
    """Return the owner of each slot of each sub-pool after the forward, and which slots differ."""
    pair, after = recorded.pair, recorded.storage
    different = unequal(recorded.eager_storage, after) & pair.compared
    changed = unequal(recorded.graph_before, after)
    live = tuple(recorded.serial_at(span.row) for span in recorded.spans)
    sizes, maps = pair.graph_pools.sizes, []
    for (role, kind, differing), (_, _, written) in zip(
        pair.layout.arenas_of(different), pair.layout.arenas_of(changed), strict=True
    ):
        owners = [NOBODY] * sizes.slots(kind)
        for owner in recorded.owners:
            for slot in owner.slots(kind):
                owners[slot] = owner.serial
        for serial, span in zip(live, recorded.spans, strict=True):
            for slot in span.full_slots if kind is Kind.FULL else span.swa_slots:
                owners[slot] = serial
        maps.append(
            SlotMap(
                model=str(role),
                kind=str(kind),
                owners=tuple(owners),
                live=live,
                written=_slots_of(written),
                differs=_slots_of(differing),
                page_size=sizes.page_size,
            )
        )
    return tuple(maps)


def _slots_of(arena: Tensor) -> tuple[int, ...]:
    return tuple(arena.any(dim=(0, 1, 3, 4)).nonzero().flatten().tolist())
