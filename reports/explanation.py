"""Presents the explanation in a record: why the two runs differ, step by step."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from paritybit.harness.explain.facts import (
    Explanation,
    FirstDifference,
    Outcome,
    Situation,
    SlotMap,
    SlotTaken,
    Suspect,
    TimelineEntry,
    WrongElement,
)
from paritybit.reports.blame import HOW, failing_runner, to_blame, writer_words
from paritybit.reports.drawings import slot_map, static_inputs
from paritybit.reports.drawings.bit_patterns import Comparison, compare
from paritybit.reports.drawings.slot_map import MapDrawing
from paritybit.reports.drawings.static_inputs import Table, source_text
from paritybit.reports.texts import Fact

OUTCOMES: Mapping[Outcome, str] = {
    "holds": "the property holds",
    "violated": "the property is still violated",
    "fails": "the forward fails, which shows nothing",
    "nothing to reset": "nothing to reset: it has what it must have",
}
"""What a trial of a suspect showed."""


@dataclass(frozen=True)
class ExplanationView:
    """An explanation for the page.

    - `blame`: the cause.
    - `tried`: the suspects, each with what a reset of it alone showed.
    - `chain`: the facts from the cause to the first differing bits.
    - `situation`: the step, its runner and its bucket.
    - `slots`: the maps of relevant sub-pools.
    """

    blame: str
    proof: tuple[Fact, ...]
    tried: tuple[Fact, ...]
    chain: tuple[Fact, ...]
    comparison: Comparison | None
    situation: str
    table: Table | None
    slots: tuple[MapDrawing, ...]


def describe(
    explanation: Explanation | None,
    timeline: Sequence[TimelineEntry],
    paddings: Mapping[str, str],
) -> ExplanationView | None:
    """Return a finding's explanation for the page, or None without one.

    `paddings` are those of the right contract of the runner that replayed, as far as known.
    """
    if explanation is None:
        return None
    runner = failing_runner(explanation, timeline, explanation.at.step)
    found = explanation.difference
    difference = asdict(found) if found is not None else {}
    return ExplanationView(
        blame=to_blame(explanation, runner),
        proof=tuple(_sentence(text) for text in explanation.proof),
        tried=tuple(Fact(one.name, OUTCOMES[one.outcome]) for one in explanation.suspects),
        chain=tuple(_chain(explanation)),
        comparison=compare(explanation.property_id, difference),
        situation=_situation(explanation.at),
        table=static_inputs.tabulate(explanation, timeline, paddings),
        slots=tuple(
            slot_map.lay_out(pool, _taken(explanation, pool)) for pool in _that_matter(explanation)
        ),
    )


def _that_matter(explanation: Explanation) -> tuple[SlotMap, ...]:
    """Return the sub-pool with the slot used by mistake, or all sub-pools that differ."""
    pools = explanation.slots
    wanted = [
        (found.model, found.kind)
        for found in (explanation.taken, explanation.slot, explanation.difference)
        if found is not None
    ]
    of_cause = tuple(pool for pool in pools if (pool.model, pool.kind) in wanted[:1])
    return of_cause or tuple(pool for pool in pools if pool.differs)


def _taken(explanation: Explanation, pool: SlotMap) -> SlotTaken | None:
    """Return the slot of a sub-pool that was used by mistake, or None."""
    found, cause = explanation.taken, explanation.cause
    if found is None or (found.model, found.kind) != (pool.model, pool.kind):
        return None
    # A padded row has no other run to tell what is right: the element that led there does.
    element = cause.elements[0] if cause is not None and cause.elements else None
    if found.right is None and element is not None and element.value == str(found.slot):
        return replace(found, right=int(element.right))
    return found


def _sentence(text: str) -> Fact:
    """Split a sentence of the proof into its first word (let, then, but, so) and the rest."""
    first, _, rest = text.partition(" ")
    return Fact(first, rest)


def _situation(at: Situation) -> str:
    if at.bucket is None:
        return f"step {at.step}"
    return f"step {at.step}: {at.runner}, {at.live_size} live of bucket {at.bucket}"


def _chain(found: Explanation) -> Iterator[Fact]:
    """Yield the known facts: who wrote what where, the owner of the slot, and what differs."""
    if found.cause is not None:
        yield from _led_there(found.cause)
    if found.slot is not None:
        slot, written = found.slot, found.slot.written_by
        by = "never written" if written is None else f"written by {writer_words(written)}"
        whose = "no request’s" if slot.owner == "nobody" else f"{slot.owner}’s"
        yield Fact(f"{slot.model}, {slot.kind} slot {slot.slot}", f"{whose}; {by}")
    if found.difference is not None:
        yield Fact(_what(found.difference), _where(found.difference))


def _led_there(cause: Suspect) -> Iterator[Fact]:
    """Yield who wrote the elements to blame, and their values."""
    for one in cause.elements:
        if one.left_by is not None:
            yield _left(one)
        stale = "stale, " if one.stale else ""
        yield Fact(f"{one.name} = {one.value}", f"{stale}expected {one.right}")


def _left(one: WrongElement) -> Fact:
    """Return who wrote an element. Poison values come from the harness and not from a runner."""
    writer, how = one.left_by, one.how
    assert writer is not None
    if how is None:
        return Fact(writer_words(writer), "a view of its static output")
    if how == "equalized":
        return Fact(f"the harness, in {source_text(writer.step)}", HOW[how])
    return Fact(writer_words(writer, how), HOW[how])


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
