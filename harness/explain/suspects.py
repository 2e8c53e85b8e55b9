"""The suspects of a violation, in one loop: reset one, repeat the forward, and judge.

The first suspect whose reset makes the violated property hold is the cause. A suspect comes before
those that are made from it: a wrong table leads to wrong static inputs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import TypeVar

from paritybit.harness.checks.property import Property
from paritybit.harness.checks.static_inputs import FILLS, parts
from paritybit.harness.explain.facts import ResetOutcome, SuspectName, TriedSuspect, WrongElement
from paritybit.harness.explain.forward_facts import element_of, stale
from paritybit.harness.explain.recorded import NO_RESET, NewElement, RecordedForward, Reset
from paritybit.harness.lockstep.bits import unequal

MOST_TRIED = 64
"""The maximum number of parts of a suspect that are reset one by one."""

MOST_SHOWN = 8
"""The maximum number of elements in a report. Of several buffers, one element each is shown."""

LENGTHS = ("seq_lens", "seq_lens_cpu")
"""Inputs that are reset together. The host's copy sizes the lists that the other one fills."""

Part = TypeVar("Part")


def cells(recorded: RecordedForward) -> list[Reset]:
    """Return a reset for each cell of the graph run's tables that differs from the eager run's."""
    return [
        Reset(((name, place, right.view(-1)[place]),))
        for name, right in recorded.eager_tables.items()
        for place in (recorded.tables[name] != right).flatten().nonzero().flatten().tolist()
    ]


def inputs(recorded: RecordedForward) -> list[Reset]:
    """Return a reset for each static buffer with stale values, or values that live_inputs rejects.

    A stale element gets the value of a freshly captured runner.
    """
    found: dict[str, dict[int, NewElement]] = {}
    for element in (*stale(recorded), *find_rejected(recorded)):
        found.setdefault(element[0], {}).setdefault(element[1], element)
    return [Reset(tuple(elements.values())) for elements in found.values()]


def find_rejected(recorded: RecordedForward) -> Iterator[NewElement]:
    """Yield the elements of static inputs that differ from what live_inputs requires."""
    seen = recorded.observation
    if seen is None or seen.replay is None or seen.replay.runner not in FILLS:
        return
    for part in parts(seen):
        if part.current.shape != part.right.shape or part.name not in seen.static:
            continue
        right, buffer = part.right.to(part.current), seen.static[part.name]
        first = int(part.current.storage_offset() - buffer.storage_offset())
        for place in unequal(part.current, right).nonzero().tolist():
            strides = zip(place, part.current.stride(), strict=True)
            element = first + sum(at * stride for at, stride in strides)
            yield part.name, element, right[tuple(place)].clone()


SUSPECTS: Mapping[SuspectName, Callable[[RecordedForward], list[Reset]]] = {
    "index tables": cells,
    "static inputs": inputs,
    "capture": lambda recorded: [Reset(captured=False)] * (recorded.runner is not None),
    "engine state": lambda recorded: [Reset(fresh=True)] * (recorded.runner is not None),
}
"""The resets of each suspect, one for each of its parts. Suspects are blamed in this order."""


def try_suspects(recorded: RecordedForward, rule: Property) -> tuple[TriedSuspect, ...] | None:
    """Try every suspect of a violation. Returns None if the violation does not repeat.

    Without a reset the violation must occur before the first and after the last trial. Otherwise it
    depends on state that no repetition restores, and a trial shows nothing.
    """
    resets = {name: resets_of(recorded) for name, resets_of in SUSPECTS.items()}
    if outcome_of(recorded, rule, NO_RESET) == "holds":
        return None
    found, known = list[TriedSuspect](), False
    for name, parts_of in resets.items():
        outcome: ResetOutcome = "nothing to reset"
        elements: tuple[WrongElement, ...] = ()
        if parts_of:
            outcome = outcome_of(recorded, rule, reduce(add, parts_of))
        if outcome == "holds" and not known:
            elements, known = _elements(recorded, _smallest(recorded, rule, parts_of)), True
        found.append(TriedSuspect(name, outcome, elements))
    return None if outcome_of(recorded, rule, NO_RESET) == "holds" else tuple(found)


def outcome_of(recorded: RecordedForward, rule: Property, reset: Reset) -> ResetOutcome:
    """Repeat the forward with a reset, and return what a property says of it.

    For a step that failed, it holds if the graph run now has the KV of the eager run.
    """
    first, seen = recorded.observation, recorded.again(reset)
    if seen is None:
        return "fails" if recorded.failed is None else "violated"
    if first is None or rule.judge is None:
        return "violated" if seen.differing.any() else "holds"
    # The fresh engine is not heard, and no replay runs all lines of the function.
    if reset.fresh or not reset.captured:
        seen = replace(seen, warnings=first.warnings)
    return "holds" if rule.judge(seen) is None else "violated"


def _smallest(recorded: RecordedForward, rule: Property, resets: Sequence[Reset]) -> Reset:
    """Return the smallest reset found with which the property holds: few inputs, few elements."""

    def holds(some: Sequence[Reset]) -> bool:
        return bool(some) and outcome_of(recorded, rule, reduce(add, some)) == "holds"

    if any(name in LENGTHS for reset in resets for name, _, _ in reset.elements):
        return reduce(add, resets)
    few = fewest(resets, holds)
    if len(few) > 1 or len(few[0].elements) < 2:
        return reduce(add, few)
    return reduce(add, fewest([Reset((one,)) for one in few[0].elements], holds))


def fewest(whole: Sequence[Part], holds: Callable[[Sequence[Part]], bool]) -> Sequence[Part]:
    """Return parts of `whole` that hold and of which none can be left out. `whole` holds."""
    if len(whole) > MOST_TRIED:
        return whole
    few = list(whole)
    for part in whole:
        without = [other for other in few if other is not part]
        if holds(without):
            few = without
    return few


def _elements(recorded: RecordedForward, reset: Reset) -> tuple[WrongElement, ...]:
    by_name = {one[0]: one for one in reversed(reset.elements)}
    shown = reset.elements if len(by_name) == 1 else [*reversed(by_name.values())]
    return tuple(element_of(recorded, one) for one in shown[:MOST_SHOWN])
