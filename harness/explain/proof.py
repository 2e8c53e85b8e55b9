"""An explanation as a short proof: Let …, then …, but …, so …."""

from collections.abc import Iterator, Mapping

from paritybit.harness.explain.facts import (
    CAPTURE,
    Explanation,
    FirstDifference,
    How,
    Situation,
    Slot,
    SlotTaken,
    SuspectName,
    Writer,
    WrongElement,
)

NOBODY = "nobody"
"""The owner, in words, of a slot that no request holds."""

RESETS: Mapping[SuspectName, str] = {
    "index tables": "with the index tables of the eager run",
    "static inputs": "with the static inputs that the batch and its padding need",
    "capture": "when the captured function runs eagerly over the same static inputs",
    "engine state": "when a freshly captured engine runs it over the same static inputs",
    "overlapping steps": "when each step ends before the next one begins",
}
"""How each suspect is reset, in words."""

WRITTEN: Mapping[How, str] = {
    "copied": "was copied from the batch in this step",
    "reset": "was reset as padding in this step",
    "equalized": "was not written in this step; it still holds the harness's poison value",
    "capture": "has not been written since the capture",
}
"""How an element that is not stale got its value."""


def prove(found: Explanation, message: str) -> Iterator[str]:
    """Yield the sentences that explain a violation, in order. `message` is its own."""
    difference = found.difference
    at = found.at
    yield f"Step {at.step} runs {_path(at)}." if found.slot is None else _whose(found.slot)
    if difference is None:
        yield f"Then {message}."
    else:
        yield _then(found, difference)
    yield _but(found)
    if difference is None:
        yield f"So {found.property_id} does not hold."
    elif at.failed is not None:
        yield f"So {difference.op} fails: {at.failed}."
    else:
        yield _so(difference)


def _but(found: Explanation) -> str:
    cause, holds = found.cause, f"and nothing else changed, {found.property_id} holds"
    if cause is not None and cause.elements:
        first, more = cause.elements[0], len(cause.elements) - 1
        others = f" and {more} more element{'s' * (more > 1)}" if more else ""
        return f"But {_element(first)}. With {first.name} = {first.right}{others}, {holds}."
    if cause is not None:
        return f"But {RESETS[cause.name]}, {holds}."
    without = [f"the {one.name}" for one in found.suspects if one.outcome == "violated"]
    if found.repeats is False:
        return (
            "But run again from the same bytes, the step does not violate it, so it depends on "
            "memory that no reset restores."
        )
    if not without:
        return "But the cause is not known, because no repetition of a forward can show it."
    reset = " or ".join(without)
    return f"But the cause is not known, because a reset of {reset} does not help."


def _element(one: WrongElement) -> str:
    value = f"{one.name} = {one.value}"
    if one.left_by is None or one.how is None:
        return f"{value}, whereas the eager run has {one.right}"
    if one.stale and one.how != "equalized":
        return f"{value} was left there by {_who(one.left_by)}; expected {one.right}"
    return f"{value} {WRITTEN[one.how]}; expected {one.right}"


def _who(writer: Writer) -> str:
    if writer.step == CAPTURE:
        return "the capture"
    request = "" if writer.request is None else f" for request {writer.request}"
    return f"step {writer.step} ({writer.runner or 'an eager forward'}, row {writer.row}{request})"


def _path(at: Situation) -> str:
    if at.bucket is None:
        return "an eager forward" if at.runner is None else at.runner
    return f"{at.runner}'s graph for bucket {at.bucket} with {at.live_size} live rows"


def _whose(slot: Slot) -> str:
    by, whose = slot.written_by, f"belongs to {slot.owner}"
    if slot.owner == NOBODY:
        whose = "belongs to no request" if slot.slot else "is the reserved slot"
    written = "" if by is None else f" and was last written in step {by.step} by {_row_of(by)}"
    return f"{slot.model.capitalize()} {slot.kind} slot {slot.slot} {whose}{written}."


def _row_of(writer: Writer) -> str:
    by = f"{writer.runner}'s" if writer.runner else "an eager forward's"
    if writer.request is None:
        return f"{by} padded row {writer.row}"
    return f"{by} row {writer.row} for request {writer.request}"


def _then(found: Explanation, difference: FirstDifference) -> str:
    at, row = found.at, difference.row
    runs = "Then" if found.slot is None else f"Then step {at.step} runs {_path(at)}, and"
    where = "" if difference.layer is None else f" in layer {difference.layer}"
    if row is None:
        return f"{runs} no row of {difference.op}{where} writes slot {difference.slot}."
    what = f"{runs} {'live' if difference.live else 'padded'} row {row}"
    if found.taken is not None:
        return f"{what} {_took(found.taken, difference.op, where)}."
    return f"{what} of {difference.op}{where} differs."


def _took(taken: SlotTaken, op: str, where: str) -> str:
    if taken.slot is None:
        return f"does not read key {taken.key} (slot {taken.right}){where}"
    right = "" if taken.right is None else f"; expected slot {taken.right}"
    if taken.key is not None:
        right = right or "; expected no slot"
        return f"reads slot {taken.slot} as key {taken.key}{where}{right}"
    if op == "scan_states":
        return f"continues the state in slot {taken.slot}{right}"
    return f"stores at slot {taken.slot}{where}{right}"


def _so(difference: FirstDifference) -> str:
    slot, head = difference.slot, difference.head
    place = f"row {difference.row}" if slot is None else f"slot {slot}"
    of_head = "" if head is None else f", head {head}"
    what = f"{difference.op} {difference.tensor}, {place}{of_head}, element {difference.element},"
    return f"So {what} is {difference.graph_bits}; expected {difference.eager_bits}."
