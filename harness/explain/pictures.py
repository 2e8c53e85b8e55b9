"""What a step's static inputs and slots held, as data for a drawing."""

import torch
from torch import Tensor

from harness.explain.facts import NOBODY, SlotMap, StaticInputRow
from harness.explain.recorded import RecordedForward
from harness.explain.static_origin import stale_elements
from harness.lockstep.bits import bits
from reference.config import Kind
from subjects.contracts import Axis, StaticInput


def static_inputs(recorded: RecordedForward) -> tuple[StaticInputRow, ...]:
    """Return the replay's static inputs that are one number an element; none without a replay."""
    if recorded.runner is None:
        return ()
    stale = set(stale_elements(recorded))
    return tuple(
        _static_input(recorded, row, stale)
        for row in recorded.runner.inputs.contract
        if row.width is None and row.axis is not Axis.MASK
    )


def _static_input(
    recorded: RecordedForward, row: StaticInput, stale: set[tuple[str, int]]
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
        stale=tuple(at for at, place in enumerate(shown) if (row.name, place) in stale),
    )


def slot_maps(recorded: RecordedForward) -> tuple[SlotMap, ...]:
    """Return who owns each slot of each sub-pool, and which ones differ, after the forward."""
    pair = recorded.pair
    different = (bits(recorded.eager_storage) != bits(recorded.run.storage)) & pair.compared
    changed = bits(recorded.graph_before) != bits(recorded.run.storage)
    pools = pair.graph_pools
    arenas = zip(pools.arenas_of(different), pools.arenas_of(changed), strict=True)
    maps = []
    for (role, kind, differing), (_, _, written) in arenas:
        owners = [NOBODY] * pools.sizes.slots(kind)
        for owner in recorded.owners:
            for slot in owner.slots(kind):
                owners[slot] = owner.serial
        for span in recorded.spans:
            for slot in span.full_slots if kind is Kind.FULL else span.swa_slots:
                owners[slot] = recorded.serial_at(span.row)
        maps.append(
            SlotMap(
                model=str(role),
                kind=str(kind),
                owners=tuple(owners),
                live=tuple(recorded.forward_id.requests),
                written=_slots_of(written),
                differs=_slots_of(differing),
                page_size=pair.trial.page_size,
            )
        )
    return tuple(maps)


def _slots_of(arena: Tensor) -> tuple[int, ...]:
    """Return the slots in which a bool arena is true anywhere."""
    return tuple(arena.any(dim=(0, 1, 3, 4)).nonzero().flatten().tolist())
