"""The cause of a difference in bits: what differed first, which index led there, who left it.

Found from one recorded forward, by changing one thing at a time and running it again. Knows
no bug. A cause function takes a recorded forward and returns the cause of a violation, or
None where it finds none; a property names the one that explains its violations.
"""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from harness.explain.facts import Cause, FirstDifference, Slot, UncapturedRun, Writer
from harness.explain.first_difference import Difference, Side, first_difference
from harness.explain.recorded import RecordedForward, Run
from harness.explain.static_origin import captured_origin, element_read, origin
from harness.lockstep.bits import bits, form
from harness.lockstep.requests import owner_of_place
from reference.config import Kind, Role
from reference.model import Output
from reference.state_pool import Section

CauseFinder = Callable[[RecordedForward], Cause | None]

AS_GRAPH: Final = "as the graph"
AS_EAGER: Final = "as the eager world"
AS_NEITHER: Final = "as neither"


def diverged_cause(recorded: RecordedForward) -> Cause | None:
    """Explain two worlds that have diverged: the graph's ops against the eager world's."""
    pair = recorded.pair
    left = Side(pair.eager_pools, recorded.eager_before, recorded.eager_calls)
    return _difference_cause(recorded, left, run_uncaptured=True)


def history_cause(recorded: RecordedForward) -> Cause | None:
    """Explain a replay that depends on its runner's history: its ops against a fresh engine's."""
    left = Side(recorded.pair.graph_pools, recorded.graph_before, recorded.fresh_calls)
    return _difference_cause(recorded, left, run_uncaptured=False)


def _difference_cause(
    recorded: RecordedForward, left: Side, *, run_uncaptured: bool
) -> Cause | None:
    """Return the cause of the first difference of the graph's run from another run of the forward.

    With `run_uncaptured` the captured function is also run eagerly, to tell wrong inputs from
    wrong captured state.
    """
    right = Side(recorded.pair.graph_pools, recorded.graph_before, recorded.run.calls)
    difference = first_difference(left, right)
    if difference is None:
        return None
    index = difference.index
    # Further runs write the tensors of these calls again: read them first.
    read_from = element_read(recorded, index) if index is not None else None
    uncaptured = _uncaptured_run(recorded) if run_uncaptured else None
    captured = uncaptured == AS_EAGER
    if index is None:
        found = None
    elif captured:
        found = captured_origin(recorded, index)
    else:
        found = origin(recorded, index, read_from)
    blame = "captured state" if captured else "inputs"
    if found is None and uncaptured not in (AS_GRAPH, AS_EAGER):
        blame = "not known"
    return Cause(
        blame=blame,
        uncaptured_run=uncaptured,
        difference=_first(difference, _live_rows(recorded, difference)),
        index=found,
        slot=_slot(recorded, difference),
    )


def _uncaptured_run(recorded: RecordedForward) -> UncapturedRun | None:
    """Say whose bits the captured function gives when it runs eagerly.

    None where nothing was captured, and where this run fails though the replay did not: what
    fails is no evidence.
    """
    if recorded.runner is None:
        return None
    run = recorded.again(captured=False)
    if run.failed is not None and recorded.run.failed is None:
        return None
    if _agrees(recorded, run, recorded.run.storage, recorded.run.output):
        return AS_GRAPH
    agrees = _agrees(recorded, run, recorded.eager_storage, recorded.eager_output)
    return AS_EAGER if agrees else AS_NEITHER


def _agrees(recorded: RecordedForward, run: Run, storage: Tensor, output: Output | None) -> bool:
    """Whether a run left KV as `storage`, the reserved slots apart, and gave `output`, if any."""
    different = (bits(run.storage) != bits(storage)) & recorded.pair.compared
    if output is None:
        return not different.any()
    return (
        not different.any()
        and form(run.output) == form(output)
        and all(torch.equal(bits(run.output[name]), bits(output[name])) for name in output)
    )


STATE_NAMES: Final = {
    Section.RECURRENT: (Role.TARGET, "recurrent state"),
    Section.DRAFT_TABLE: (Role.DRAFT, "table"),
}
"""Whose each section of state beside KV is, and what kind of slot a place of it is called."""


def _live_rows(recorded: RecordedForward, difference: Difference) -> int:
    """Return how many rows of a difference's op are live: drafting stores one a request."""
    by_request = difference.section is Section.DRAFT_TABLE
    turn = recorded.forward_id
    return len(turn.requests if by_request else turn.rows)


def _first(difference: Difference, live_rows: int) -> FirstDifference:
    """Return a difference as plain data; the first `live_rows` rows of its op are live."""
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
    )


def _name(value: Role | Kind | None) -> str | None:
    return None if value is None else str(value)


def _slot(recorded: RecordedForward, difference: Difference) -> Slot | None:
    """Return the slot that a difference is about: the one changed, or the one read wrongly."""
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
        written_by=None
        if write is None
        else Writer(write.forward_id.step, write.forward_id.runner, write.row, write.request),
    )
