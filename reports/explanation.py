"""Presents the explanation in a record: why the two runs differ, step by step."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from paritybit.harness.explain.facts import (
    Cause,
    Explanation,
    FirstDifference,
    How,
    IndexOrigin,
    Situation,
    SlotMap,
    SlotTaken,
    TimelineEntry,
    UncapturedRun,
    Writer,
)
from paritybit.harness.records.schema import Contract
from paritybit.reports.blame import HOW, failing_runner, to_blame, writer_words
from paritybit.reports.drawings import slot_map, static_inputs
from paritybit.reports.drawings.bit_patterns import Comparison, compare
from paritybit.reports.drawings.slot_map import MapDrawing
from paritybit.reports.drawings.static_inputs import Table, source_text
from paritybit.reports.texts import Fact

UNCAPTURED_RUN: Mapping[UncapturedRun | None, str] = {
    None: "",
    "as the graph": (
        "Run eagerly with the same static buffers, the captured function gives the graph’s "
        "bits. Its inputs are wrong, not the capture."
    ),
    "as the eager world": (
        "Run eagerly with the same static buffers, the captured function gives the eager "
        "bits. Its inputs are right; the capture is wrong."
    ),
    "as neither": (
        "Run eagerly with the same static buffers, the captured function gives bits that"
        " differ from both the eager and the graph run."
    ),
}
"""The conclusion from an eager run of the captured function."""


@dataclass(frozen=True)
class ExplanationView:
    """An explanation for the page.

    - `blame`: the cause.
    - `chain`: the facts from the cause to the first differing bits.
    - `situation`: the step, its runner and its bucket.
    - `slots`: the maps of relevant sub-pools.
    """

    blame: str
    uncaptured_run: str
    proof: tuple[Fact, ...]
    chain: tuple[Fact, ...]
    comparison: Comparison | None
    situation: str
    table: Table | None
    slots: tuple[MapDrawing, ...]


def describe(
    explanation: Explanation | None,
    timeline: Sequence[TimelineEntry],
    contract: Contract | None = None,
) -> ExplanationView | None:
    """Return a finding's explanation for the page, or None without one.

    `contract` is the correct contract of the runner that replayed, or None if it is not known.
    """
    if explanation is None:
        return None
    cause = explanation.cause
    runner = failing_runner(explanation, timeline, explanation.at.step)
    difference = asdict(cause.difference) if cause.difference is not None else {}
    return ExplanationView(
        blame=to_blame(explanation, runner),
        uncaptured_run=UNCAPTURED_RUN[cause.uncaptured_run],
        proof=tuple(_sentence(text) for text in explanation.proof),
        chain=tuple(_chain(cause)),
        comparison=compare(explanation.property, difference),
        situation=_situation(explanation.at),
        table=static_inputs.tabulate(explanation, timeline, contract),
        slots=tuple(
            slot_map.lay_out(pool, _taken(cause, pool)) for pool in _that_matter(explanation)
        ),
    )


def _that_matter(explanation: Explanation) -> tuple[SlotMap, ...]:
    """Return the sub-pool with the slot used by mistake, or all sub-pools that differ."""
    cause, pools = explanation.cause, explanation.slots
    wanted = [
        (found.model, found.kind)
        for found in (cause.taken, cause.slot, cause.difference)
        if found is not None
    ]
    of_cause = tuple(pool for pool in pools if (pool.model, pool.kind) in wanted[:1])
    return of_cause or tuple(pool for pool in pools if pool.differs)


def _taken(cause: Cause, pool: SlotMap) -> SlotTaken | None:
    """Return the slot of a sub-pool that was used by mistake, or None."""
    found, slot, index = cause.taken, cause.slot, cause.index
    if found is None and slot is not None and index is not None:
        found = SlotTaken(slot.model, slot.kind, index.row, index.key, index.read, index.read_right)
    # A padded row has no other run to tell what is right: the element that led there does.
    if found is not None and index is not None and index.value == index.read == found.slot:
        found = replace(found, right=found.right if found.right is not None else index.right)
    if found is None or (found.model, found.kind) != (pool.model, pool.kind):
        return None
    return found


def _sentence(text: str) -> Fact:
    """Split a sentence of the proof into its first word (let, then, but, so) and the rest."""
    first, _, rest = text.partition(" ")
    return Fact(first, rest)


def _situation(at: Situation) -> str:
    if at.bucket is None:
        return f"step {at.step}"
    return f"step {at.step}: {at.runner}, {at.live_size} live of bucket {at.bucket}"


def _chain(cause: Cause) -> Iterator[Fact]:
    """Yield the known facts: who wrote what where, the owner of the slot, and what differs."""
    yield from _led_there(cause)
    if cause.index is not None:
        yield _left(cause.index.left_by, cause.index.how)
        yield Fact(_element(cause.index), _right(cause.index))
    if cause.slot is not None:
        slot, written = cause.slot, cause.slot.written_by
        by = "never written" if written is None else f"written by {writer_words(written)}"
        whose = "no request’s" if slot.owner == "nobody" else f"{slot.owner}’s"
        yield Fact(f"{slot.model}, {slot.kind} slot {slot.slot}", f"{whose}; {by}")
    if cause.site is not None:
        yield Fact(f"{cause.site.function} in {cause.site.file}", cause.site.message)
    if cause.difference is not None:
        yield Fact(_what(cause.difference), _where(cause.difference))


def _led_there(cause: Cause) -> Iterator[Fact]:
    """Yield other causes: a table, an output, a value, a list, the capture, a step."""
    if cause.cell is not None:
        cell = cause.cell
        place, since = ", ".join(map(str, cell.place)), source_text(cell.since)
        right = f"since {since}; the eager run has {cell.right}"
        yield Fact(f"{cell.table}[{place}] = {cell.value}", right)
    if cause.kept is not None:
        kept = cause.kept
        by = f"{source_text(kept.step)}, {kept.runner}, output {kept.output}, row {kept.row}"
        yield Fact(by, f"a view of it was kept as {kept.what}, which has been {kept.value} since")
    if cause.given is not None:
        given = cause.given
        if given.left_by is not None and given.how is not None:
            yield _left(given.left_by, given.how)
        right = "the expected value is not known"
        if given.right is not None:
            right = f"expected {given.right}"
        stale = ["stale"] if given.stale else []
        yield Fact(f"{given.what} = {given.value}", ", ".join([*stale, right]))
    if cause.listed is not None:
        rows = "row" if cause.difference is None else cause.difference.rows
        row = f"{rows} {cause.listed.row}, {cause.listed.owner or 'padding'}"
        yield Fact(f"{cause.listed.kind} keys of {row}", cause.listed.message)
    if cause.baked is not None:
        baked = cause.baked
        what = baked.op if baked.argument is None else f"{baked.argument} of {baked.op}"
        text = f"{baked.value} since the capture; {baked.right} when run eagerly"
        yield Fact(f"op {baked.place}, {what}", text)
    if cause.held is not None:
        held = cause.held
        yield Fact(f"{source_text(held.since)}, {held.step}", f"before it {held.before}")
        yield Fact(held.what, held.found)


def _left(writer: Writer, how: How) -> Fact:
    """Return who wrote an element. Poison values come from the harness and not from a runner."""
    if how == "equalized":
        return Fact(f"the harness, in {source_text(writer.step)}", HOW[how])
    return Fact(writer_words(writer, how), HOW[how])


def _element(index: IndexOrigin) -> str:
    """Name the static element that led to a slot, or the slot recorded in the graph."""
    if index.buffer is None:
        return f"slot {index.value}, in no static input"
    return f"{index.buffer}[{index.element}] = {index.value}"


def _right(index: IndexOrigin) -> str:
    written = "" if index.how == "equalized" else "written in this step"
    parts = ["stale"] if index.stale else [written] if written else []
    if index.right is None:
        parts.append("the expected value is not known")
    elif index.right != index.value:
        parts.append(f"expected {index.right}")
    if index.read not in (None, index.value):
        parts.append(f"leads to slot {index.read}")
    return ", ".join(parts)


def _what(difference: FirstDifference) -> str:
    """Name the op, and what is known about its operands."""
    layer = None if difference.layer is None else f"layer {difference.layer}"
    parts = (difference.model, layer, difference.kind, difference.tensor)
    return ", ".join([difference.op, *(part for part in parts if part is not None)])


def _where(difference: FirstDifference) -> str:
    """Describe the place of the first difference in a tensor."""
    liveness = "live" if difference.live else "padded"
    row = [] if difference.row is None else [f"{liveness} {difference.rows} {difference.row}"]
    places = {"slot": difference.slot, "head": difference.head, "element": difference.element}
    parts = [f"{name} {place}" for name, place in places.items() if place is not None]
    return ", ".join(["the first difference", *row, *parts])
