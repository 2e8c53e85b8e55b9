"""The contents of a step's static inputs and slots, as data for a drawing."""

from dataclasses import dataclass

import torch
from paritybit.harness.explain.facts import NOBODY, SlotMap, StaticInputRow
from paritybit.harness.explain.recorded import RecordedForward
from paritybit.harness.explain.suspects import stale
from paritybit.harness.lockstep.bits import bits
from paritybit.harness.lockstep.requests import serial_at
from paritybit.reference.allocator import Owner
from paritybit.reference.batch import Span
from paritybit.reference.config import Kind
from paritybit.reference.pool import KVLayout, PoolSizes
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


@dataclass(frozen=True)
class Stored:
    """All KV around a forward of the graph world, and after the eager world's forward.

    `compared` is false for bits that are not compared. `owners` are the running requests, and
    `spans` the tokens that the forward ran.
    """

    layout: KVLayout
    sizes: PoolSizes
    compared: Tensor
    before: Tensor
    after: Tensor
    eager: Tensor
    owners: tuple[Owner, ...]
    spans: tuple[Span, ...]


def slot_maps(stored: Stored) -> tuple[SlotMap, ...]:
    """Return the owner of each slot of each sub-pool after a forward, and which slots differ."""
    different = (bits(stored.eager) != bits(stored.after)) & stored.compared
    changed = bits(stored.before) != bits(stored.after)
    layout, sizes = stored.layout, stored.sizes
    live = tuple(serial_at(span.row, stored.owners) for span in stored.spans)
    maps = []
    for (role, kind, differing), (_, _, written) in zip(
        layout.arenas_of(different), layout.arenas_of(changed), strict=True
    ):
        owners = [NOBODY] * sizes.slots(kind)
        for owner in stored.owners:
            for slot in owner.slots(kind):
                owners[slot] = owner.serial
        for serial, span in zip(live, stored.spans, strict=True):
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


def slots_of_forward(recorded: RecordedForward) -> tuple[SlotMap, ...]:
    """Return the slot maps of a recorded forward."""
    pair = recorded.pair
    return slot_maps(
        Stored(
            layout=pair.layout,
            sizes=pair.graph_pools.sizes,
            compared=pair.compared,
            before=recorded.graph_before,
            after=recorded.run.storage,
            eager=recorded.eager_storage,
            owners=recorded.owners,
            spans=tuple(recorded.spans),
        )
    )


def _slots_of(arena: Tensor) -> tuple[int, ...]:
    """Return the slots in which a bool arena is true anywhere."""
    return tuple(arena.any(dim=(0, 1, 3, 4)).nonzero().flatten().tolist())
