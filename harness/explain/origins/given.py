"""Where a value that an op was given came from: a static input, or an output that was kept."""

import torch
from torch import Tensor

from harness.explain.facts import GivenValue, KeptOutput, TableCell, Writer
from harness.explain.first_difference import results_of
from harness.explain.origins.arguments import WrongArgument, text_of
from harness.explain.origins.outputs import kept_in_batch, kept_output
from harness.explain.recorded import Element, RecordedForward, Run
from harness.explain.static_origin import (
    cell_to_blame,
    element_at,
    of_requests,
    request_of,
    stale_elements,
    static_buffers,
    written_as,
)
from harness.lockstep.bits import bits
from reference.ops import OpCall


def kept_value(recorded: RecordedForward, argument: WrongArgument | None) -> KeptOutput | None:
    """Return the earlier output that a value of the batch, or of an op's argument, is a view of."""
    planned = recorded.planned
    found = kept_in_batch(recorded.outputs, planned.graph.batch, planned.eager.batch)
    if found is None and argument is not None:
        found = kept_output(recorded.outputs, argument.name, argument.held, argument.right)
    return found


def given_value(
    recorded: RecordedForward,
    argument: WrongArgument,
    number: int,
    left: OpCall,
    row: int | None,
) -> tuple[GivenValue, bool]:
    """Return what is wrong with an argument of op `number`, and whether its static input does it.

    That is so if the row's result is that of `left` once the static input holds what the other
    run was given.
    """
    op, at = recorded.run.calls[number], argument.element
    value, right = text_of(argument.held, at), text_of(argument.right, at)
    found = element_at(static_buffers(recorded), argument.tensor, argument.place)
    if found is None:
        what = f"{argument.name} of {op.name}"
        return GivenValue(what, value, right, stale=False, left_by=None, how=None), False
    given = given_element(recorded, *found, value, right)
    mended = row is not None and _mends(recorded, argument, number, left, row)
    return given, mended


def given_element(
    recorded: RecordedForward, name: str, element: int, value: str, right: str | None
) -> GivenValue:
    """Return an element of a static input that holds what it must not, and who left it."""
    write = recorded.ledger.of(static_buffers(recorded)[name])[element]
    request = request_of(recorded, write, name, element)
    writer = Writer(write.forward_id.step, write.forward_id.runner, element, request)
    stale = (name, element) in stale_elements(recorded)
    return GivenValue(f"{name}[{element}]", value, right, stale, writer, written_as(write))


def failing_element(recorded: RecordedForward) -> GivenValue | None:
    """Return the first static element that makes a step fail; None if none is known to.

    The step must go through once the inputs of requests hold what their batch has.
    """
    tried = list(of_requests(recorded))
    elements = tuple((one.name, one.element, one.value) for one in tried)
    if not elements or recorded.again(elements).failed is not None:
        return None
    alone = (one for one in elements if recorded.again((one,)).failed is None)
    name, element, right = next(alone, elements[0])
    held = recorded.static[name].flatten()[element].item()
    return given_element(recorded, name, element, str(held), str(right.item()))


def cell_of_element(
    recorded: RecordedForward, name: str, element: int, right: Tensor
) -> TableCell | None:
    """Return the cell of the index tables that an element of a static input was made of."""
    buffer = static_buffers(recorded)[name]

    def mended(run: Run) -> bool:
        return run.failed is None and torch.equal(bits(buffer.flatten()[element]), bits(right))

    return cell_to_blame(recorded, mended)


def _mends(
    recorded: RecordedForward, argument: WrongArgument, number: int, left: OpCall, row: int
) -> bool:
    """Whether a row's result is the other run's once the static input holds what that was given."""
    expected = [result[row].clone() for result in results_of(left) if row < len(result)]
    run = recorded.again(tuple(_row_elements(recorded, argument)))
    if run.failed is not None or number >= len(run.calls) or not expected:
        return False
    results = [result[row] for result in results_of(run.calls[number])]
    pairs = zip(results, expected, strict=True)
    return all(torch.equal(bits(one), bits(other)) for one, other in pairs)


def _row_elements(recorded: RecordedForward, argument: WrongArgument) -> list[Element]:
    """Return the static elements that a row of an argument lies in, with the right values."""
    held, right, buffers = argument.held, argument.right, static_buffers(recorded)
    first = argument.place - _offset(argument.strides, argument.element)
    found = []
    for place in (bits(held) != bits(right)).nonzero().tolist():
        at = element_at(buffers, argument.tensor, first + _offset(argument.strides, place))
        if at is not None:
            found.append((*at, right[tuple(place)]))
    return found


def _offset(strides: tuple[int, ...], place: "list[int] | tuple[int, ...]") -> int:
    return sum(i * stride for i, stride in zip(place, strides, strict=True))
