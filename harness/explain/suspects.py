"""The suspects of a violation, in one loop: reset one, repeat the forward, and judge.

The first suspect whose reset makes the violated property hold is the cause. A suspect comes before
those that are made from it: a wrong table leads to wrong static inputs.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import add
from typing import TypeVar

from paritybit.harness.checks.property import Property
from paritybit.harness.checks.static_inputs import FILLS, parts
from paritybit.harness.explain.facts import Outcome, Suspect, SuspectName, Writer, WrongElement
from paritybit.harness.explain.forward_facts import element_of, stale
from paritybit.harness.explain.recorded import (
    NO_RESET,
    EarlierOutput,
    RecordedForward,
    Reset,
    StaticElement,
    TableCell,
)
from paritybit.harness.lockstep.bits import bits
from torch import Tensor

TABLES = ("req_to_token", "full_to_swa_index_mapping")
"""The names of the index tables, in the order of their numbers."""

MOST_TRIED = 64
"""The maximum number of parts of a suspect that are reset one by one."""

MOST_SHOWN = 8
"""The maximum number of elements in a report. Of several buffers, one element each is shown."""

Part = TypeVar("Part")


def cells(recorded: RecordedForward) -> list[Reset]:
    """Return the cells of the graph run's tables that differ from the eager run's."""
    pairs = enumerate(zip(recorded.tables, recorded.eager_tables, strict=True))
    return [
        Reset(cells=(TableCell(number, place, int(right.view(-1)[place])),))
        for number, (current, right) in pairs
        for place in (current != right).flatten().nonzero().flatten().tolist()
    ]


def kept_outputs(recorded: RecordedForward) -> list[Reset]:
    """Return the values of the batch that a later step overwrote, because they were not copied.

    Outputs of replays are static. The eager run's value must be a row of an earlier output.
    """
    graph, eager = recorded.plan.graph.batch, recorded.plan.eager.batch
    if graph is None or eager is None:
        return []
    names = sorted(graph.spec_info.keys() & eager.spec_info.keys())
    pairs = ((name, graph.spec_info[name], eager.spec_info[name]) for name in names)
    return [
        Reset(batch={name: right})
        for name, current, right in pairs
        if next(find_overwritten(recorded, current, right), None) is not None
    ]


def find_overwritten(
    recorded: RecordedForward, current: Tensor, right: Tensor
) -> Iterator[tuple[int, EarlierOutput, int]]:
    """Yield each wrong row of a value with the earlier output that has it, and its row there."""
    if current.shape != right.shape or current.dim() < 2:
        return
    for row in (bits(current) != bits(right)).flatten(1).any(1).nonzero().flatten().tolist():
        for earlier in reversed(recorded.outputs):
            for values in earlier.output.values():
                if values.shape[1:] == right.shape[1:] and values.dtype == right.dtype:
                    same = (bits(values) == bits(right[row])).flatten(1).all(1).nonzero()
                    if len(same):
                        yield row, earlier, int(same[0])


def as_required(recorded: RecordedForward) -> list[Reset]:
    """Return a reset for each static buffer with values that live_inputs rejects, or stale ones.

    A stale element whose right value is not known gets that of a freshly captured runner.
    """
    return by_buffer([*find_rejected(recorded), *stale(recorded)])


def as_captured(recorded: RecordedForward) -> list[Reset]:
    """Return a reset for each static buffer with stale values: those just after the capture."""
    return by_buffer(stale(recorded))


def by_buffer(elements: Iterable[StaticElement]) -> list[Reset]:
    """Return a reset for each static buffer. Of an element's values the first counts."""
    found: dict[str, dict[int, Tensor]] = {}
    for name, place, value in elements:
        found.setdefault(name, {}).setdefault(place, value)
    return [
        Reset(tuple((name, place, value) for place, value in values.items()))
        for name, values in found.items()
    ]


def find_rejected(recorded: RecordedForward) -> Iterator[StaticElement]:
    """Yield the elements of static inputs that differ from what live_inputs requires."""
    seen = recorded.observation
    if seen is None or seen.replay is None or seen.replay.runner not in FILLS:
        return
    for part in parts(seen):
        if part.current.shape != part.right.shape or part.name not in seen.static:
            continue
        right, buffer = part.right.to(part.current), seen.static[part.name]
        first = int(part.current.storage_offset() - buffer.storage_offset())
        for place in (bits(part.current) != bits(right)).nonzero().tolist():
            strides = zip(place, part.current.stride(), strict=True)
            element = first + sum(at * stride for at, stride in strides)
            yield part.name, element, right[tuple(place)].clone()


def capture(recorded: RecordedForward) -> list[Reset]:
    """Return the reset that runs the captured function eagerly, if a graph was replayed."""
    return [] if recorded.runner is None else [Reset(captured=False)]


def engine_state(recorded: RecordedForward) -> list[Reset]:
    """Return the reset that runs the forward on a freshly captured engine."""
    fresh = recorded.pair.fresh_engine
    return [] if recorded.runner is None or fresh is recorded.engine else [Reset(fresh=True)]


SUSPECTS: Mapping[SuspectName, tuple[Callable[[RecordedForward], list[Reset]], ...]] = {
    "index tables": (cells,),
    "kept output": (kept_outputs,),
    "static inputs": (as_required, as_captured),
    "capture": (capture,),
    "engine state": (engine_state,),
}
"""The resets of each suspect, in the order in which suspects are blamed.

A function returns a reset for each of its parts. Of several functions, one must hold.
"""


def try_suspects(recorded: RecordedForward, rule: Property) -> tuple[Suspect, ...] | None:
    """Try every suspect of a violation. Returns None if the violation does not repeat.

    Without a reset the violation must occur before the first and after the last trial. Otherwise it
    depends on state that no repetition restores, and a trial shows nothing.
    """
    resets = {
        name: [one for one in (resets_of(recorded) for resets_of in ways) if one]
        for name, ways in SUSPECTS.items()
    }
    if _outcome(recorded, rule, NO_RESET) == "holds":
        return None
    found, known = list[Suspect](), False
    for name, ways in resets.items():
        outcomes = [_outcome(recorded, rule, reduce(add, way)) for way in ways]
        holding = next((way for way, one in zip(ways, outcomes, strict=True) if one == "holds"), [])
        elements: tuple[WrongElement, ...] = ()
        if holding and not known:
            elements, known = _elements(recorded, _smallest(recorded, rule, holding)), True
        outcome: Outcome = "holds" if holding else next(iter(outcomes), "nothing to reset")
        found.append(Suspect(name, outcome, elements))
    return None if _outcome(recorded, rule, NO_RESET) == "holds" else tuple(found)


def _outcome(recorded: RecordedForward, rule: Property, reset: Reset) -> Outcome:
    """Return what a property says of the forward with a reset."""
    run = recorded.again(reset)
    if run.failed is not None and recorded.run.failed is None:
        return "fails"
    return "holds" if recorded.holds(rule, run, reset) else "violated"


def _smallest(recorded: RecordedForward, rule: Property, resets: Sequence[Reset]) -> Reset:
    """Return the smallest reset found with which the property holds: few inputs, few elements."""

    def holds(some: Sequence[Reset]) -> bool:
        return bool(some) and _outcome(recorded, rule, reduce(add, some)) == "holds"

    few = fewest(resets, holds)
    if len(few) > 1 or len(few[0].elements) < 2:
        return reduce(add, few)
    return reduce(add, fewest([Reset((one,)) for one in few[0].elements], holds))


def fewest(whole: Sequence[Part], holds: Callable[[Sequence[Part]], bool]) -> Sequence[Part]:
    """Return parts of `whole` that hold and of which none can be left out. `whole` holds."""
    if len(whole) > MOST_TRIED:
        return whole
    for part in whole:
        if holds([part]):
            return [part]
    few = list(whole)
    for part in whole:
        without = [other for other in few if other is not part]
        if holds(without):
            few = without
    return few


def _elements(recorded: RecordedForward, reset: Reset) -> tuple[WrongElement, ...]:
    """Return the elements that a reset changes, with their values and writers."""
    static = {one[0]: one for one in reversed(reset.elements)}
    shown = reset.elements if len(static) == 1 else [*reversed(static.values())]
    return (
        *(element_of(recorded, one) for one in shown[:MOST_SHOWN]),
        *(_cell(recorded, cell) for cell in reset.cells[:MOST_SHOWN]),
        *(one for name, right in reset.batch.items() for one in _view_of(recorded, name, right)),
    )


def _cell(recorded: RecordedForward, cell: TableCell) -> WrongElement:
    table = recorded.tables[cell.table]
    place = divmod(cell.place, table.shape[1]) if table.dim() > 1 else (cell.place,)
    value = str(int(table.view(-1)[cell.place]))
    return WrongElement(TABLES[cell.table], place, value, str(cell.value))


def _view_of(recorded: RecordedForward, name: str, right: Tensor) -> Iterator[WrongElement]:
    """Yield the first overwritten row of a value, and the step whose output it is."""
    batch = recorded.plan.graph.batch
    assert batch is not None
    current = batch.spec_info[name]
    for row, earlier, at in find_overwritten(recorded, current, right):
        place = (row, *[0] * (current.dim() - 1))
        value, should = (str(one[place].item()) for one in (current, right))
        by = Writer(earlier.step, earlier.runner, at, None)
        yield WrongElement(name, place, value, should, by, None, stale=True)
        return
