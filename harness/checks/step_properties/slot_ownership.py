"""slot_ownership: detects leaks and double frees before they change any byte."""

import torch
from paritybit.harness.checks.device import launches
from paritybit.harness.checks.device.flags import Flag
from paritybit.harness.checks.device.host_arrays import on_device
from paritybit.harness.checks.holdings import (
    RIGHT,
    misheld,
    owners_differ,
    right_cells,
    wrong_cells,
)
from paritybit.harness.checks.property import Description, EndOfStep, Property
from paritybit.harness.lockstep.bits import any_set
from paritybit.harness.lockstep.observation import Observation, StepEnd
from paritybit.reference.allocator import Ownership
from torch import Tensor


def flag(end: StepEnd) -> Flag:
    """Whether any slot or row has no single owner or free entry, or a table is wrong.

    It is also set if a page was freed too early, or if the worlds' owners differ.
    """
    if end.graph.holders != end.eager.holders:
        return True
    both = [end.graph, end.eager]
    alike = holdings(end.graph) == holdings(end.eager)
    if any(misheld(world) for world in (both[:1] if alike else both)):
        return True
    judged = [both] if alike else [[world] for world in both]
    by_cells = [(worlds, right_cells(worlds[0], end.sizes)) for worlds in judged]
    device = end.graph.mapping.device
    if launches.asks_kernels(device):
        return launches.tables_wrong(by_cells)
    flags = [
        any_set(wrong_cells(worlds, on_device(cells[None], device))) for worlds, cells in by_cells
    ]
    return flags[0] if alike else torch.stack(flags).any()


def holdings(world: Ownership) -> tuple[object, ...]:
    """Return the owners and the shapes of the tables, without the content of the tables."""
    return (
        world.mapping.shape,
        world.req_to_token.shape,
        world.holders,
        world.all,
        world.free_full,
        world.free_swa,
        world.free_rows,
        world.free_states,
        world.free_token_rows,
        world.retracted,
    )


def describe(end: StepEnd) -> Description:
    """List the wrong owners, or name the first wrong cell of a table."""
    for name, world in (("graph", end.graph), ("eager", end.eager)):
        found = misheld(world)
        if found:
            return f"in the {name} run, {found[0]}", {"world": name, "breaches": found}
    differ = owners_differ(end)
    if differ is not None:
        return differ, {"breaches": [differ]}
    for name, world in (("graph", end.graph), ("eager", end.eager)):
        cells = on_device(right_cells(world, end.sizes), world.mapping.device)
        wrong = wrong_cells([world], cells[None])[0]
        if wrong.any():
            return _describe_cell(name, world, cells, int(wrong.nonzero()[0, 0]))
    raise ValueError("nothing is held wrongly")


def _describe_cell(name: str, world: Ownership, cells: Tensor, cell: int) -> Description:
    """Describe a wrong cell, counted over the mapping and then `req_to_token`."""
    right, mapped = int(cells[RIGHT, cell]), world.mapping.shape[0]
    if cell < mapped:
        held = int(world.mapping[cell])
        where = {"world": name, "table": "full_to_swa_index_mapping", "slot": cell}
        words = f"full slot {cell} is mapped to SWA slot {held}"
    else:
        row, column = divmod(cell - mapped, world.req_to_token.shape[1])
        held = int(world.req_to_token[row, column])
        where = {"world": name, "table": "req_to_token", "row": row, "column": column}
        words = f"row {row}, column {column} of req_to_token is full slot {held}"
    return f"in the {name} run, {words}; expected {right}", {**where, "held": held, "right": right}


def flag_step(observation: Observation) -> Flag:
    """Check the state after a step with a forward."""
    return flag(observation.end)


def describe_step(observation: Observation) -> Description:
    """Describe the state after a step with a forward."""
    return describe(observation.end)


SLOT_OWNERSHIP = Property(
    id="slot_ownership",
    statement=(
        "each slot and row either has one owner or is free once, and the index tables match "
        "the owners"
    ),
    flag=flag_step,
    describe=describe_step,
    end_of_step=EndOfStep(flag, describe),
)
