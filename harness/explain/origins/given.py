"""Where a value in an op's argument came from: a static input, or a kept output."""

from collections.abc import Sequence
from itertools import islice

import torch
from paritybit.harness.explain.counterfactuals.elements import Element
from paritybit.harness.explain.facts import GivenValue, KeptOutput, TableCell
from paritybit.harness.explain.first_difference import results_of
from paritybit.harness.explain.origins.arguments import WrongArgument, text_of
from paritybit.harness.explain.origins.outputs import kept_in_batch, kept_output
from paritybit.harness.explain.recorded import RecordedForward, Run
from paritybit.harness.explain.static_origin import (
    MOST_CANDIDATES,
    cell_to_blame,
    element_at,
    of_batch,
    stale_elements,
    static_buffers,
    writer_of,
)
from paritybit.harness.lockstep.bits import bits
from paritybit.reference.ops import OpCall
from torch import Tensor


def kept_value(recorded: RecordedForward, argument: WrongArgument | None) -> KeptOutput | None:
    """Return the earlier output that a value of the batch or an op's argument is a view of."""
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
    """Return the wrong value of an argument of op `number`, and whether its static input causes it.

    It does if the row's result equals that of `left` once the static input has the other run's
    value.
    """
    op, at = recorded.run.calls[number], argument.element
    value, right = text_of(argument.held, at), text_of(argument.right, at)
    found = element_at(static_buffers(recorded), argument.tensor, argument.place)
    rows = results_of(left)
    expected = [one[row].clone() for one in rows if row is not None and row < len(one)]

    def fixes(elements: Sequence[Element]) -> bool:
        run = recorded.again(tuple(elements))
        if run.failed is not None or number >= len(run.calls) or not expected:
            return False
        results = [result[row] for result in results_of(run.calls[number])]
        pairs = zip(results, expected, strict=True)
        return all(torch.equal(bits(one), bits(other)) for one, other in pairs)

    if found is not None:
        fixed = fixes(_row_elements(recorded, argument))
        return given_element(recorded, *found, value, right), fixed
    for one in islice(of_batch(recorded), MOST_CANDIDATES):
        element = one.name, one.element, one.value
        if fixes([element]):
            return tried_element(recorded, element), True
    what = f"{argument.name} of {op.name}"
    return GivenValue(what, value, right, stale=False, left_by=None, how=None), False


def tried_element(recorded: RecordedForward, element: Element) -> GivenValue:
    """Return the wrong value of an element, for which the right value was tried."""
    name, place, value = element
    held = recorded.static[name].flatten()[place].item()
    return given_element(recorded, name, place, str(held), str(value.item()))


def given_element(
    recorded: RecordedForward, name: str, element: int, value: str, right: str | None
) -> GivenValue:
    """Return an element of a static input with a wrong value, and who wrote it."""
    write = recorded.ledger.of(static_buffers(recorded)[name])[element]
    writer = writer_of(recorded, write, name, element)
    stale = (name, element) in stale_elements(recorded)
    return GivenValue(f"{name}[{element}]", value, right, stale, writer, write.how)


def failing_element(recorded: RecordedForward) -> GivenValue | None:
    """Return the first static element that makes a step fail, or None.

    The step must succeed once the inputs of requests hold the values of their batch.
    """
    elements = tuple((one.name, one.element, one.value) for one in of_batch(recorded))
    if not elements or recorded.again(elements).failed is not None:
        return None
    alone = (element for element in elements if recorded.again((element,)).failed is None)
    return tried_element(recorded, next(alone, elements[0]))


def cell_of_element(
    recorded: RecordedForward, name: str, element: int, right: Tensor
) -> TableCell | None:
    """Return the cell of the index tables from which an element of a static input was made."""
    buffer = static_buffers(recorded)[name]

    def fixed(run: Run) -> bool:
        return run.failed is None and torch.equal(bits(buffer.flatten()[element]), bits(right))

    return cell_to_blame(recorded, fixed)


def _row_elements(recorded: RecordedForward, argument: WrongArgument) -> list[Element]:
    """Return the static elements of a row of an argument, with the right values."""
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
