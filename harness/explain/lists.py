"""The cause of a row that reads wrong keys: which key of its list, and what led there."""

from collections.abc import Sequence
from dataclasses import replace

from paritybit.harness.explain.cause import (
    UNDECLARED,
    blame_of,
    blame_of_lists,
    list_fault,
    repeats,
    uncaptured_run,
)
from paritybit.harness.explain.facts import Cause, ListFault, SlotTaken
from paritybit.harness.explain.first_difference import Index, keys_of, read_again
from paritybit.harness.explain.origins.lists import WrongList
from paritybit.harness.explain.provenance import layer_of
from paritybit.harness.explain.recorded import RecordedForward
from paritybit.harness.explain.static_origin import (
    captured_origin,
    cell_origin,
    element_read,
    origin,
)
from paritybit.reference.config import Kind


def listed_cause(
    recorded: RecordedForward, kind: Kind, at: tuple[int, int], right: Sequence[int] | None
) -> Cause | None:
    """Explain a row whose keys are not `right`. None for a padded row, which may read slot 0.

    `at` is (forward of a draft, or 0 otherwise; row in it). Returns None if no op's keys can be
    observed.
    """
    call = attention_call(recorded, kind, at[0])
    if call is None:
        return None
    found = keys_of(recorded.run.calls[call], at[1])
    expected = [0] * len(found) if right is None else list(right)
    wrong = list_fault(recorded, kind, at[1], found, expected, live=right is not None)
    if wrong is None:
        return None
    agrees = None
    if call < len(recorded.fresh_calls):
        agrees = keys_of(recorded.fresh_calls[call], at[1]) == found
    fault, key = wrong
    cache = recorded.run.calls[call].inputs[1]
    role, _, _ = layer_of(cache, recorded.pair.graph_pools)
    taken = SlotTaken(str(role), fault.kind, fault.row, key.key, key.value, key.right)
    shown = Cause("not known", listed=fault, twin_agrees=agrees, taken=taken)
    return _led_to(recorded, shown, call, wrong)


def _led_to(
    recorded: RecordedForward, shown: Cause, call: int, wrong: tuple[ListFault, WrongList]
) -> Cause:
    """Complete the cause of a wrong list by what led to its first key that differs."""
    fault, key = wrong
    index = Index(call, fault.row, key.key, key.value, key.right)
    read_from = element_read(recorded, index)
    if not repeats(recorded):
        return replace(shown, blame=UNDECLARED)
    cell = cell_origin(recorded, index)
    if cell is not None:
        return replace(shown, blame="index tables", cell=cell)
    stale, own = not shown.twin_agrees, not key.shifted
    found = origin(recorded, index, read_from, stale=stale, own=own)
    if found is not None:
        return replace(shown, blame=blame_of(recorded, shown, found), index=found)
    uncaptured, run = uncaptured_run(recorded)
    if run is not None and read_again(index, run.calls, recorded.pair.graph_pools) != key.value:
        held = captured_origin(recorded, index) if index.value is not None else None
        return replace(shown, blame="captured state", uncaptured_run=uncaptured, index=held)
    return replace(shown, blame=blame_of_lists(shown))


def attention_call(recorded: RecordedForward, kind: Kind, forward: int) -> int | None:
    """Return the place of a forward's first attention on layers of one kind, or None."""
    pools = recorded.pair.graph_pools
    caches = [
        (place, call.inputs[1].data_ptr())
        for place, call in enumerate(recorded.run.calls)
        if call.name == "attention" and layer_of(call.inputs[1], pools)[2] is kind
    ]
    places = [place for place, cache in caches if cache == caches[0][1]]
    return places[forward] if forward < len(places) else None
