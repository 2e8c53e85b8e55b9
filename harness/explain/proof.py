"""An explanation told as a short proof: Let …, then …, but …, so …."""

from harness.explain.facts import (
    CAPTURE,
    Cause,
    FirstDifference,
    IndexOrigin,
    Situation,
    Slot,
    Writer,
)


def prove(property_id: str, at: Situation, cause: Cause) -> tuple[str, ...]:
    """Return the sentences that explain a violation, in order.

    A cause names a site in the code, or else the first difference.
    """
    if cause.site is not None:
        return _about_site(property_id, at, cause)
    assert cause.difference is not None
    sentences = [
        _setting(at) if cause.slot is None else _whose(cause.slot),
        _then(at, cause.difference, cause.index),
        "" if cause.index is None else _but(cause.index),
        _so(at, cause.difference),
    ]
    return tuple(sentence for sentence in sentences if sentence)


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
    by = slot.written_by
    written = "" if by is None else f", written last in step {by.step} by {_row_of(by)}"
    return f"Let {slot.model} {slot.kind} slot {slot.slot} be of {slot.owner}{written}."


def _row_of(writer: Writer) -> str:
    """Name the row that wrote a slot."""
    by = f"{writer.runner}'s" if writer.runner else "an eager forward's"
    if writer.request is None:
        return f"{by} padded row {writer.row}"
    return f"{by} row {writer.row} for request {writer.request}"


def _then(at: Situation, difference: FirstDifference, index: IndexOrigin | None) -> str:
    """Tell what the step's op did."""
    row = index.row if index is not None else difference.row
    liveness = "live" if difference.live else "padded"
    what = f"Then step {at.step} runs {_path(at)}, and {liveness} row {row}"
    where = "" if difference.layer is None else f" in layer {difference.layer}"
    if index is None:
        return f"{what} of {difference.op}{where} differs."
    if difference.op == "scan_states":
        return f"{what} continues the state in slot {index.read}."
    if index.key is None:
        return f"{what} stores{where} at slot {index.read}."
    return f"{what} reads{where}, as key {index.key}, slot {index.read}."


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
        return f"But {_element(index)}, written by this very step, should be {index.right}."
    return (
        f"But {_element(index)} was left there by {_who(index.left_by)}; with {index.right}, as a"
        f" runner just captured has it, the row leaves slot {index.read} alone."
    )


def _who(writer: Writer) -> str:
    """Name the writer of an element."""
    if writer.step == CAPTURE:
        return "the capture"
    request = "" if writer.request is None else f" for request {writer.request}"
    return f"step {writer.step} ({writer.runner}, row {writer.row}{request})"


def _so(at: Situation, difference: FirstDifference) -> str:
    """Tell the first bits that differ."""
    if at.failed is not None:
        return f"So {difference.op} fails: {at.failed}."
    slot, head = difference.slot, difference.head
    place = f"row {difference.row}" if slot is None else f"slot {slot}"
    of_head = "" if head is None else f", head {head}"
    return (
        f"So {difference.op} {difference.tensor}, {place}{of_head}, element {difference.element},"
        f" is {difference.graph_bits} where it should be {difference.eager_bits}."
    )
