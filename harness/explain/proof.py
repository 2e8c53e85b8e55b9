"""An explanation as a short proof: Let …, then …, but …, so …."""

from collections.abc import Iterator, Mapping

from paritybit.harness.explain.facts import (
    CAPTURE,
    BakedIn,
    Cause,
    FirstDifference,
    GivenValue,
    HeldState,
    Holding,
    How,
    IndexOrigin,
    KeptOutput,
    ListFault,
    Situation,
    Slot,
    SlotTaken,
    TableCell,
    Writer,
)

LISTS = {"swa": "window list", "full": "key list"}
"""The name of a row's list of keys on layers of each kind."""

WRITTEN: Mapping[How, str] = {
    "copied": "was copied from the batch in this step",
    "reset": "was reset as padding in this step",
    "equalized": "was not written in this step; it still holds the harness's poison value",
    "capture": "has not been written since the capture",
}
"""How an element that is not stale got its value."""

NOBODY = "nobody"
"""The owner, in words, of a slot that no request holds."""


def prove(property_id: str, at: Situation, cause: Cause) -> tuple[str, ...]:
    """Return the sentences that explain a violation, in order.

    They describe a site in the code, a wrong holding, or else the first difference, a list of keys
    or a value.
    """
    if cause.site is not None:
        return _about_site(property_id, at, cause)
    if cause.held is not None:
        return _about_holding(property_id, cause.held, contents=cause.blame == "request contents")
    if cause.difference is None and cause.state is not None:
        return (_setting(at), *_state(cause.state, cause), f"So {property_id} does not hold.")
    if cause.blame == "dispatch":
        return _about_path(property_id, at, cause)
    difference = cause.difference
    if difference is None:
        then, so = _then_alone(at, cause), f"So {property_id} does not hold."
        if at.failed is not None:
            so = f"So the step fails: {at.failed}."
    else:
        then, so = _then(at, difference, cause), _so(at, difference, cause.compared)
    setting = _setting(at) if cause.slot is None else _whose(cause.slot)
    return (setting, then, *_buts(cause), so)


def _about_path(property_id: str, at: Situation, cause: Cause) -> tuple[str, ...]:
    """Describe the wrong path of a batch, and where it was chosen."""
    then = [] if cause.given is None else [_then_alone(at, cause)]
    path = "no captured graph can run this batch" if at.bucket else "a captured graph must run it"
    fixed = "With the other path, and nothing else changed, the property holds."
    so = f"So {property_id} does not hold."
    return (_setting(at), *then, f"But {path}. {fixed}", *_where(cause), so)


def _then_alone(at: Situation, cause: Cause) -> str:
    """Describe a list of keys or a value that is wrong even if no bit of the forward differs."""
    if cause.listed is not None:
        return f"Then {_list(cause.listed)}."
    if cause.given is None and at.failed is not None:
        return f"Then step {at.step} runs {_path(at)}, and fails."
    if cause.given is None:
        return (
            "Then every op that both runs execute gives the same result in both, but the "
            "final states differ."
        )
    if cause.compared:
        first, second, _ = cause.compared
        values = f"{cause.given.right or 'not known'} {first} and {cause.given.value} {second}"
        return f"Then {cause.given.what} is {values}."
    right = "not known" if cause.given.right is None else cause.given.right
    return f"Then {cause.given.what} is {cause.given.value}; expected: {right}."


def _buts(cause: Cause) -> Iterator[str]:
    """Yield what led there, or that the cause is not known."""
    if cause.listed is not None and cause.difference is not None:
        yield f"But {_list(cause.listed, cause.difference.rows)}."
    if cause.twin_agrees:
        yield "But a freshly captured runner does the same, so stale state is not the cause."
    if cause.cell is not None:
        yield _cell(cause.cell)
    if cause.kept is not None:
        yield _kept(cause.kept)
    if cause.given is not None and not cause.compared:
        yield _given(cause.given, alone=cause.difference is None)
    if cause.index is not None:
        yield _but(cause.index)
    if cause.baked is not None:
        yield _baked(cause.baked)
    yield from _where(cause)
    if cause.compared:
        yield f"But {cause.compared[2]}."
    elif cause.blame == "not known":
        yield "But the cause is not known, because no single change made the result correct."


def _where(cause: Cause) -> Iterator[str]:
    """Yield the place in the code, or the state, that is to blame."""
    if cause.state is not None:
        yield from _state(cause.state, cause)
    elif cause.made:
        line = cause.made[0]
        yield f"It was {line.what} ({line.file}, line {line.line})."
    if cause.blame == "key lists" and cause.twin_agrees and not cause.made:
        yield (
            "But no table cell, stale element or request input leads there, so the code "
            "that builds the list is wrong."
        )
    if cause.blame == "undeclared state":
        yield (
            "But running it again from the same bytes, with nothing changed, gives a "
            "different result, so it depends on undeclared state."
        )


def _state(state: HeldState, cause: Cause) -> Iterator[str]:
    """Describe the attribute whose value survives resets, and the line that set it."""
    yield (
        f"But {state.path} is {state.now}, and was {state.captured} after the capture. With what "
        "it was, and nothing else changed, the property holds."
    )
    if cause.made:
        line = cause.made[0]
        yield f"It was {line.what} ({line.file}, line {line.line})."


def _list(listed: ListFault, rows: str = "row") -> str:
    """Describe what is wrong with the keys that a row lists. `rows` is the name of a row."""
    row = f"padded {rows} {listed.row}"
    if listed.owner is not None:
        row = f"live {rows} {listed.row} ({listed.owner})"
    return f"the {LISTS[listed.kind]} of {row} {listed.message}"


def _cell(cell: TableCell) -> str:
    """Describe the cell of a table that led there, and since when it holds its value."""
    place = ", ".join(map(str, cell.place))
    since = "always" if cell.since == CAPTURE else f"since step {cell.since}"
    return (
        f"But {cell.table}[{place}] has been {cell.value} {since}. The eager run has "
        f"{cell.right} there, and with {cell.right} the row reads and writes the right "
        "slots."
    )


def _kept(kept: KeptOutput) -> str:
    """Describe the output that a value is a view of."""
    return (
        f"But {kept.what} is {kept.value}. It is a view of row {kept.row} of the static "
        f"output {kept.output} from step {kept.step} ({kept.runner}), which a later step "
        "overwrote. Code that keeps an output must copy it."
    )


def _given(given: GivenValue, *, alone: bool) -> str:
    """Describe the value that an op was given, unless it was described before, and who wrote it."""
    right = "the expected value is not known"
    if given.right is not None:
        right = f"expected {given.right}"
    value = "it" if alone else f"{given.what} = {given.value}"
    if given.stale and given.left_by is None:
        return f"But {value} held that when the graphs were captured again; {right}."
    if given.left_by is None or given.how is None:
        return f"But {value} is in no static input; {right}."
    if given.stale:
        return f"But {value} was left there by {_who(given.left_by)}; {right}."
    return f"But {value} {WRITTEN[given.how]}; {right}."


def _baked(baked: BakedIn) -> str:
    """Describe what a graph has from its capture."""
    if baked.argument is None:
        does = f"op {baked.place} of the graph is {baked.value}, whereas the function runs"
    else:
        does = (
            f"op {baked.place} of the graph, {baked.op}, has {baked.value} for "
            f"{baked.argument}, whereas the function has"
        )
    return (
        f"But {does} {baked.right} when it runs eagerly. The graph kept the value from its capture."
    )


def _about_holding(property_id: str, held: Holding, *, contents: bool) -> tuple[str, ...]:
    """Describe what is held or listed wrongly, and since which step."""
    worlds = "both runs" if held.both else f"the {held.world} run only"
    once = "Once that is put right, and nothing else, the logits of the request are right."
    return (
        f"Before step {held.since}, {held.what} is {held.before}.",
        f"Step {held.since} is: {held.step}.",
        f"But after step {held.since} {held.what} is {held.found}, in {worlds}.",
        *([once] if contents else []),
        f"So {property_id} does not hold.",
    )


def _about_site(property_id: str, at: Situation, cause: Cause) -> tuple[str, ...]:
    """Describe a fault that shows in no bit of the forward: its site, and the misread element."""
    site, index = cause.site, cause.index
    assert site is not None
    sentences = [_setting(at), f"Then {site.function} ({site.file}): {site.message}."]
    if index is not None and index.value != index.read:
        element = _element(index)
        sentences.append(f"But row {index.row} has {element}, and the store reads {index.read}.")
    elif index is not None:
        element = _element(index)
        sentences.append(f"But {element} is twice as wide as the locations that the store reads.")
    return (*sentences, f"So {property_id} does not hold, whatever the values are.")


def _element(index: IndexOrigin) -> str:
    return f"{index.buffer}[{index.element}] = {index.value}"


def _path(at: Situation) -> str:
    """Describe what ran the step."""
    if at.bucket is None:
        return "an eager forward"
    return f"{at.runner}'s graph for bucket {at.bucket} with {at.live_size} live rows"


def _setting(at: Situation) -> str:
    """Describe what ran, or what was to be captured."""
    if at.bucket is None and at.runner is not None:
        return f"The engine captures {at.runner}."
    further = "" if at.further is None else f" once more, {at.further}"
    return f"Step {at.step} runs {_path(at)}{further}."


def _whose(slot: Slot) -> str:
    """Describe the owner of a slot, and who wrote it before."""
    by, whose = slot.written_by, f"belongs to {slot.owner}"
    if slot.owner == NOBODY:
        whose = "belongs to no request" if slot.slot else "is the reserved slot"
    written = "" if by is None else f" and was last written in step {by.step} by {_row_of(by)}"
    return f"{slot.model.capitalize()} {slot.kind} slot {slot.slot} {whose}{written}."


def _row_of(writer: Writer) -> str:
    """Name the row that wrote a slot."""
    by = f"{writer.runner}'s" if writer.runner else "an eager forward's"
    if writer.request is None:
        return f"{by} padded {writer.place}"
    return f"{by} {writer.place} for request {writer.request}"


def _then(at: Situation, difference: FirstDifference, cause: Cause) -> str:
    """Describe what the step's op did, and the step itself if the proof has not described it."""
    index, taken = cause.index, cause.taken
    row = index.row if index is not None else difference.row
    runs = "Then" if cause.slot is None else f"Then step {at.step} runs {_path(at)}, and"
    where = "" if difference.layer is None else f" in layer {difference.layer}"
    if row is None:
        return f"{runs} no row of {difference.op}{where} writes slot {difference.slot}."
    what = f"{runs} {'live' if difference.live else 'padded'} {difference.rows} {row}"
    if index is not None:
        return f"{what} {_did(index, difference.op, where)}."
    if taken is not None:
        return f"{what} {_took(taken, difference.op, where)}."
    return f"{what} of {difference.op}{where} differs."


def _took(taken: SlotTaken, op: str, where: str) -> str:
    """Describe the slot that a row took and the right one, in the layer that `where` names.

    No other run shows where a padded row should have stored.
    """
    if taken.slot is None:
        return f"does not read key {taken.key} (slot {taken.right}){where}"
    right = "" if taken.right is None else f"; expected slot {taken.right}"
    if taken.key is not None:
        right = right or "; expected no slot"
        return f"reads slot {taken.slot} as key {taken.key}{where}{right}"
    if op == "scan_states":
        return f"continues the state in slot {taken.slot}{right}"
    return f"stores at slot {taken.slot}{where}{right}"


def _did(index: IndexOrigin, op: str, where: str) -> str:
    """Describe what a row did with an index, in the layer that `where` names."""
    if index.read is None:
        return f"does not read key {index.key} (slot {index.read_right}){where}"
    if op == "scan_states":
        return f"continues the state in slot {index.read}"
    if index.key is None:
        return f"stores at slot {index.read}{where}"
    return f"reads slot {index.read} as key {index.key}{where}"


def _but(index: IndexOrigin) -> str:
    """Describe the element that led there, and who wrote it."""
    right = "" if index.read_right is None else f" instead of {index.read_right}"
    if index.buffer is None:
        return (
            "But no static input leads there. Run eagerly with the same buffers, the "
            "function gives the eager bits, so the graph has kept slot "
            f"{index.read}{right} from its capture."
        )
    if not index.stale:
        if index.right is None:
            right = "the expected value is not known"
        elif index.how == "equalized":
            return f"But {_element(index)} {WRITTEN[index.how]}; expected {index.right}."
        elif index.value == index.read or index.read_right is None:
            right = f"expected {index.right}"
        else:
            right = f"it should lead the row to slot {index.right}"
        return f"But {_element(index)} was written in this step; {right}."
    does = f"does not touch slot {index.read}"
    if index.read is None:
        does = f"reads slot {index.read_right}"
    right = "another value" if index.right is None else str(index.right)
    return (
        f"But {_element(index)} was left there by {_who(index.left_by)}. With {right}, as "
        f"in a freshly captured runner, the row {does}."
    )


def _who(writer: Writer) -> str:
    """Name the writer of an element."""
    if writer.step == CAPTURE:
        return "the capture"
    request = "" if writer.request is None else f" for request {writer.request}"
    runner = writer.runner or "an eager forward"
    return f"step {writer.step} ({runner}, {writer.place}{request})"


def _so(at: Situation, difference: FirstDifference, compared: tuple[str, ...]) -> str:
    """Describe the first bits that differ. `compared` names the two runs, if not the worlds'."""
    if at.failed is not None:
        return f"So {difference.op} fails: {at.failed}."
    slot, head = difference.slot, difference.head
    place = f"{difference.rows} {difference.row}" if slot is None else f"slot {slot}"
    of_head = "" if head is None else f", head {head}"
    what = f"{difference.op} {difference.tensor}, {place}{of_head}, element {difference.element},"
    if compared:
        first, second, _ = compared
        bit_patterns = f"{difference.eager_bits} {first} and {difference.graph_bits} {second}"
        return f"So {what} is {bit_patterns}."
    return f"So {what} is {difference.graph_bits}; expected {difference.eager_bits}."
