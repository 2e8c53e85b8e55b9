"""An explanation told as a short proof: Let …, then …, but …, so …."""

from typing import Any

Data = dict[str, Any]


def prove(facts: Data) -> list[str]:
    """Return the sentences of an explanation, in order."""
    if facts["site"] is not None:
        return _site(facts)
    sentences = [_let(facts), _then(facts), _but(facts), _so(facts)]
    return [sentence for sentence in sentences if sentence]


def _site(facts: Data) -> list[str]:
    """Tell a fault that shows in no bit of the forward: its site, and the element misread."""
    site, index = facts["site"], facts["index"]
    message = [
        _setting(facts),
        f"Then {site['function']} ({site['file']}): {site['message']}.",
    ]
    if index is not None:
        element = f"{index['buffer']}[{index['element']}] = {index['value']}"
        misread = index["value"] != index["read"]
        message.append(
            f"But row {index['row']} is at {element}, and the store reads {index['read']}."
            if misread
            else f"But {element} is as wide as two of the locations that the store reads."
        )
    return [*message, f"So {facts['property']} does not hold, whatever the values."]


def path(facts: Data) -> str:
    """Say what ran the step."""
    if facts["bucket"] is None:
        return "an eager forward"
    return f"{facts['runner']}'s graph of {facts['bucket']}, {facts['live_size']} of it live"


def _setting(facts: Data) -> str:
    """Tell what ran, or what was to be captured."""
    if facts["bucket"] is None and facts["runner"] is not None:
        return f"Let the engine of {facts['runner']} be captured."
    return f"Let step {facts['step']} run {path(facts)}."


def _let(facts: Data) -> str:
    """Tell whose slot it is and who wrote it before."""
    slot = facts["slot"]
    if slot is None:
        return _setting(facts)
    by = slot["written_by"]
    written = "" if by is None else f", written last in step {by['step']} by {written_by(by)}"
    owned = f"Let {slot['model']} {slot['kind']} slot {slot['slot']} be of {slot['owner']}"
    return f"{owned}{written}."


def written_by(write: Data) -> str:
    """Name the row that wrote a slot."""
    by = f"{write['runner']}'s" if write["runner"] else "an eager forward's"
    if write["request"] is None:
        return f"{by} padded row {write['row']}"
    return f"{by} row {write['row']} for request {write['request']}"


def _then(facts: Data) -> str:
    """Tell what the step's op did."""
    difference, index = facts["difference"], facts["index"]
    what = f"Then step {facts['step']} runs {path(facts)}, and {row_of(facts)}"
    where = "" if difference["layer"] is None else f" in layer {difference['layer']}"
    if index is None:
        return f"{what} of {difference['op']}{where} differs."
    if index["key"] is None:
        return f"{what} stores{where} at slot {index['read']}."
    return f"{what} reads{where}, as key {index['key']}, slot {index['read']}."


def row_of(facts: Data) -> str:
    """Name the row that the difference is of."""
    difference, index = facts["difference"], facts["index"]
    row = index["row"] if index is not None else difference["row"]
    return f"{'live' if difference['live'] else 'padded'} row {row}"


def _but(facts: Data) -> str:
    """Tell which element led there, and who left it."""
    index = facts["index"]
    if index is None:
        return ""
    right = "" if index["read_right"] is None else f" instead of {index['read_right']}"
    if index["buffer"] is None:
        return (
            f"But no static input says so: run eagerly through the same buffers the function"
            f" gives the eager world's bits; the graph has slot {index['read']}{right} from its"
            " capture."
        )
    element = f"{index['buffer']}[{index['element']}] = {index['value']}"
    left_by = index["left_by"]
    if not index["stale"]:
        return f"But {element}, written by this very step, should be {index['right']}."
    return (
        f"But {element} was left there by {who(left_by)}; with {index['right']}, as a runner just"
        f" captured has it, the row leaves slot {index['read']} alone."
    )


def who(left_by: Data) -> str:
    """Name the writer of an element."""
    if left_by["step"] < 0:
        return "the capture"
    request = "" if left_by["request"] is None else f" for request {left_by['request']}"
    return f"step {left_by['step']} ({left_by['runner']}, row {left_by['row']}{request})"


def _so(facts: Data) -> str:
    """Tell the first bits that differ."""
    each = facts["difference"]
    if facts["failed"] is not None:
        return f"So {each['op']} fails: {facts['failed']}."
    place = f"row {each['row']}" if each["slot"] is None else f"slot {each['slot']}"
    head = "" if each["head"] is None else f", head {each['head']}"
    tensor = f"{each['op']} {each['tensor']}"
    return (
        f"So {tensor}, {place}{head}, element {each['element']}, is {each['graph_bits']} where"
        f" it should be {each['eager_bits']}."
    )
