"""The contents of a step's static inputs and slots, as data for a drawing."""

import torch
from paritybit.harness.explain.facts import NOBODY, SlotMap, StaticInputRow
from paritybit.harness.explain.recorded import RecordedForward
from paritybit.harness.explain.suspects import stale
from paritybit.harness.lockstep.bits import bits
from paritybit.harness.lockstep.requests import serial_at
from paritybit.reference.config import Kind
from paritybit.subjects.contracts import Axis, StaticInput
from torch import Tensor


def static_inputs(recorded: RecordedForward) -> tuple[StaticInputRow, ...]:
    """Return the replay's static inputs with one number per element, if there is a replay."""
    if recorded.runner is None:
        return ()
    left = {(name, place) for name, place, _ in stale(recorded)}
    return tuple(
        _static_input(recorded, row, left)
        for row in recorded.runner.inputs.contract
        if row.width is None and row.axis is not Axis.MASK
    )


def _static_input(
    recorded: RecordedForward, row: StaticInput, left: set[tuple[str, int]]
) -> StaticInputRow:
    runner, bucket = recorded.runner, recorded.bucket
    assert runner is not None and bucket is not None
    buffer = runner.inputs.buffers[row.name]
    columns = runner.view(row.name, bucket).shape[-1]
    places = torch.arange(buffer.numel()).view(buffer.shape)
    shown = places[..., :columns].flatten().tolist()
    writes = recorded.ledger.of(buffer)
    values = recorded.static[row.name].flatten().tolist()
    copied = [
        writes[place].how == "copied"
        and writes[place].forward_id.forward == recorded.forward_id.forward
        for place in shown[:columns]
    ]
    return StaticInputRow(
        name=row.name,
        dtype=str(buffer.dtype).removeprefix("torch."),
        axis=str(row.axis),
        padding=row.padding,
        live=sum(copied),
        values=tuple(int(values[place]) for place in shown),
        left_by=tuple(writes[place].forward_id.step for place in shown),
        stale=tuple(at for at, place in enumerate(shown) if (row.name, place) in left),
    )


def slot_maps(recorded: RecordedForward) -> tuple[SlotMap, ...]:
    """Return the owner of each slot of each sub-pool after the forward, and which slots differ."""
    pair, after = recorded.pair, recorded.run.storage
    different = (bits(recorded.eager_storage) != bits(after)) & pair.compared
    changed = bits(recorded.graph_before) != bits(after)
    live = tuple(serial_at(span.row, recorded.owners) for span in recorded.spans)
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
    """Return the slots in which a bool arena is true anywhere."""
    return tuple(arena.any(dim=(0, 1, 3, 4)).nonzero().flatten().tolist())
