"""An explanation told as a short proof: Let …, then …, but …, so …."""

from collections.abc import Iterator, Mapping

from paritybit.harness.explain.facts import (
    CAPTURE,
    BakedIn,
    Cause,
    FirstDifference,
    GivenValue,
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
"""What the keys that a row lists on layers of each kind are called."""

WRITTEN: Mapping[How, str] = {
    "copied": "was written by this very step, copied from its batch",
    "reset": "was written by this very step, reset as padding",
    "equalized": "was not written by this step: it is what the harness gives to all that padding"
    " keeps",
    "capture": "has been so since the capture",
}
"""How an element that is not stale came to hold what it holds."""

NOBODY = "nobody"
"""Whose a slot is that no request holds."""


def prove(property_id: str, at: Situation, cause: Cause) -> tuple[str, ...]:
    """Return the sentences that explain a violation, in order.

    A cause names a site in the code, or what is held wrongly, or else the first difference, a
    list of keys or a value.
    """
    if cause.site is not None:
        return _about_site(property_id, at, cause)
    if cause.held is not None:
        return _about_holding(property_id, cause.held)
    difference = cause.difference
    if difference is None:
        then, so = _then_alone(at, cause), f"So {property_id} does not hold."
        if at.failed is not None:
            so = f"So the step fails: {at.failed}."
    else:
        then, so = _then(at, difference, cause), _so(at, difference, cause.compared)
    setting = _setting(at) if cause.slot is None else _whose(cause.slot)
    return (setting, then, *_buts(cause), so)


def _then_alone(at: Situation, cause: Cause) -> str:
    """Tell what is wrong of which no bit of the forward need tell: a list of keys, or a value."""
    if cause.listed is not None:
        return f"Then {_list(cause.listed)}."
    if cause.given is None and at.failed is not None:
        return f"Then step {at.step} runs {_path(at)}, and fails."
    if cause.given is None:
        return (
            "Then each op that both worlds run gives the same in both, and what they leave differs."
        )
    if cause.compared:
        first, second, _ = cause.compared
        values = f"{cause.given.right or 'not known'} {first} and {cause.given.value} {second}"
        return f"Then {cause.given.what} is {values}."
    right = "not known" if cause.given.right is None else cause.given.right
    return f"Then {cause.given.what} is {cause.given.value}; what is right there is {right}."


def _buts(cause: Cause) -> Iterator[str]:
    """Yield what is known of what led there, and that nothing is."""
    if cause.listed is not None and cause.difference is not None:
        yield f"But {_list(cause.listed, cause.difference.rows)}."
    if cause.twin_agrees:
        yield "But a runner just captured does the same, so that no history is to blame."
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
    if cause.blame == "key lists" and cause.twin_agrees:
        yield (
            "But no cell of the tables, no element that is stale and no input of a request leads"
            " there: how the list is made is wrong."
        )
    if cause.blame == "undeclared state":
        yield (
            "But run again from the same bytes, with nothing changed, it gives something else: it"
            " depends on what no one declared."
        )
    if cause.compared:
        yield f"But {cause.compared[2]}."
    elif cause.blame == "not known":
        yield "But what led there is not known: nothing that was changed alone made it right."


def _list(listed: ListFault, rows: str = "row") -> str:
    """Tell what is wrong with the keys that a row lists; `rows` are what it is one of."""
    row = f"padded {rows} {listed.row}"
    if listed.owner is not None:
        row = f"live {rows} {listed.row} ({listed.owner})"
    return f"the {LISTS[listed.kind]} of {row} {listed.message}"


def _cell(cell: TableCell) -> str:
    """Tell which cell of which table led there, and since when it holds what it holds."""
    place = ", ".join(map(str, cell.place))
    since = "always" if cell.since == CAPTURE else f"since step {cell.since}"
    return (
        f"But {cell.table}[{place}] has been {cell.value} {since}, where the eager world has"
        f" {cell.right}; with {cell.right} there the row reads and writes what is right."
    )


def _kept(kept: KeptOutput) -> str:
    """Tell which output a value is a view of."""
    return (
        f"But {kept.what} is {kept.value}: it is a view of row {kept.row} of the static output"
        f" {kept.output} of step {kept.step} ({kept.runner}), which was overwritten once that"
        " step was over. Whoever kept it must copy it."
    )


def _given(given: GivenValue, *, alone: bool) -> str:
    """Tell which value an op was given, unless that was told, and who wrote it."""
    right = "what is right there is not known"
    if given.right is not None:
        right = f"{given.right} would be right"
    value = "it" if alone else f"{given.what} = {given.value}"
    if given.left_by is None or given.how is None:
        return f"But {value} is in no static input; {right}."
    if given.stale:
        return f"But {value} was left there by {_who(given.left_by)}; {right}."
    return f"But {value} {WRITTEN[given.how]}; {right}."


def _baked(baked: BakedIn) -> str:
    """Tell what a graph has from its capture."""
    if baked.argument is None:
        does = f"the graph runs {baked.value} as its op {baked.place}, where the function runs"
    else:
        does = (
            f"the graph has {baked.value} for {baked.argument} of {baked.op}, its op"
            f" {baked.place}, where the function has"
        )
    return f"But {does} {baked.right} when it runs eagerly: the graph has it from its capture."


def _about_holding(property_id: str, held: Holding) -> tuple[str, ...]:
    """Tell since which step something is held, or said of it, wrongly."""
    worlds = "both worlds alike" if held.both else f"the {held.world} world alone"
    return (
        f"Let {held.what} be {held.before} before step {held.since}.",
        f"Then step {held.since} runs: {held.step}.",
        f"But after it {held.what} is {held.found}, in {worlds}.",
        f"So {property_id} does not hold.",
    )


def _about_site(property_id: str, at: Situation, cause: Cause) -> tuple[str, ...]:
    """Tell a fault that shows in no bit of the forward: its site, and the element misread."""
    site, index = cause.site, cause.index
    assert site is not None
    sentences = [_setting(at), f"Then {site.function} ({site.file}): {site.message}."]
    if index is not None and index.value != index.read:
        element = _element(index)
        sentences.append(f"But row {index.row} is at {element}, and the store reads {index.read}.")
    elif index is not None:
        element = _element(index)
        sentences.append(f"But {element} is as wide as two of the locations that the store reads.")
    return (*sentences, f"So {property_id} does not hold, whatever the values.")


def _element(index: IndexOrigin) -> str:
    return f"{index.buffer}[{index.element}] = {index.value}"


def _path(at: Situation) -> str:
    """Say what ran the step."""
    if at.bucket is None:
        return "an eager forward"
    return f"{at.runner}'s graph of {at.bucket}, {at.live_size} of it live"


def _setting(at: Situation) -> str:
    """Tell what ran, or what was to be captured."""
    if at.bucket is None and at.runner is not None:
        return f"Let the engine of {at.runner} be captured."
    return f"Let step {at.step} run {_path(at)}."


def _whose(slot: Slot) -> str:
    """Tell whose slot it is and who wrote it before."""
    by, whose = slot.written_by, f"be of {slot.owner}"
    if slot.owner == NOBODY:
        whose = "belong to no request" if slot.slot else "be the reserved one"
    written = "" if by is None else f", written last in step {by.step} by {_row_of(by)}"
    return f"Let {slot.model} {slot.kind} slot {slot.slot} {whose}{written}."


def _row_of(writer: Writer) -> str:
    """Name the row that wrote a slot."""
    by = f"{writer.runner}'s" if writer.runner else "an eager forward's"
    if writer.request is None:
        return f"{by} padded {writer.place}"
    return f"{by} {writer.place} for request {writer.request}"


def _then(at: Situation, difference: FirstDifference, cause: Cause) -> str:
    """Tell what the step's op did; the step itself, where the proof did not begin with it."""
    index, taken = cause.index, cause.taken
    row = index.row if index is not None else difference.row
    runs = "Then" if cause.slot is None else f"Then step {at.step} runs {_path(at)}, and"
    where = "" if difference.layer is None else f" in layer {difference.layer}"
    if row is None and difference.slot is None:
        return f"{runs} what {difference.op}{where} gives differs."
    if row is None:
        return f"{runs} no row of {difference.op}{where} writes slot {difference.slot}."
    what = f"{runs} {'live' if difference.live else 'padded'} {difference.rows} {row}"
    if index is not None:
        return f"{what} {_did(index, difference.op, where)}."
    if taken is not None:
        return f"{what} {_took(taken, difference.op, where)}."
    return f"{what} of {difference.op}{where} differs."


def _took(taken: SlotTaken, op: str, where: str) -> str:
    """Tell which slot a row took where another was right, in the layer that `where` names.

    Where a padded row should have stored, no other run says.
    """
    if taken.slot is None:
        return f"reads{where} no key {taken.key}, which is slot {taken.right}"
    right = "" if taken.right is None else f", where slot {taken.right} is right"
    if taken.key is not None:
        right = right or ", where no slot is right"
        return f"reads{where}, as key {taken.key}, slot {taken.slot}{right}"
    does = f"stores{where} at" if op != "scan_states" else "continues the state in"
    return f"{does} slot {taken.slot}{right}"


def _did(index: IndexOrigin, op: str, where: str) -> str:
    """Tell what a row did by an index, in the layer that `where` names."""
    if index.read is None:
        return f"reads{where} no key {index.key}, which is slot {index.read_right}"
    if op == "scan_states":
        return f"continues the state in slot {index.read}"
    if index.key is None:
        return f"stores{where} at slot {index.read}"
    return f"reads{where}, as key {index.key}, slot {index.read}"


def _but(index: IndexOrigin) -> str:
    """Tell which element led there, and who left it."""
    right = "" if index.read_right is None else f" instead of {index.read_right}"
    if index.buffer is None:
        return (
            f"But no static input says so: run eagerly through the same buffers the function"
            f" gives the eager world's bits; the graph has slot {index.read}{right} from its"
            " capture."
        )
    if not index.stale:
        if index.right is None:
            right = "what is right there is not known"
        elif index.how == "equalized":
            return f"But {_element(index)} {WRITTEN[index.how]}; {index.right} would be right."
        elif index.value == index.read or index.read_right is None:
            right = f"{index.right} would be right"
        else:
            right = f"the row should find slot {index.right} by it"
        return f"But {_element(index)} was written by this very step; {right}."
    does = f"leaves slot {index.read} alone"
    if index.read is None:
        does = f"reads slot {index.read_right}"
    right = "another value" if index.right is None else str(index.right)
    return (
        f"But {_element(index)} was left there by {_who(index.left_by)}; with {right}, as a"
        f" runner just captured has it, the row {does}."
    )


def _who(writer: Writer) -> str:
    """Name the writer of an element."""
    if writer.step == CAPTURE:
        return "the capture"
    request = "" if writer.request is None else f" for request {writer.request}"
    runner = writer.runner or "an eager forward"
    return f"step {writer.step} ({runner}, {writer.place}{request})"


def _so(at: Situation, difference: FirstDifference, compared: tuple[str, ...]) -> str:
    """Tell the first bits that differ; `compared` are the two runs in words, if others differ."""
    if at.failed is not None:
        return f"So {difference.op} fails: {at.failed}."
    slot, head = difference.slot, difference.head
    place = "all rows" if difference.row is None else f"{difference.rows} {difference.row}"
    place = place if slot is None else f"slot {slot}"
    of_head = "" if head is None else f", head {head}"
    what = f"{difference.op} {difference.tensor}, {place}{of_head}, element {difference.element},"
    if compared:
        first, second, _ = compared
        bit_patterns = f"{difference.eager_bits} {first} and {difference.graph_bits} {second}"
        return f"So {what} is {bit_patterns}."
    return f"So {what} is {difference.graph_bits} where it should be {difference.eager_bits}."
