"""slot_ownership on owners made by hand, and on faults that change no bit."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from paritybit.harness.checks.step_properties.slot_ownership import judge_end
from paritybit.harness.checks.table import CHEAP_PROPERTIES
from paritybit.harness.lockstep.request_book import RequestBook
from paritybit.harness.lockstep.requests import ScheduledRequest
from paritybit.harness.schedules.schedule import (
    Admit,
    Decode,
    Evict,
    Finish,
    Retract,
    Schedule,
    Step,
)
from paritybit.reference.allocator import Owner, Ownership
from torch import Tensor

from properties.support.harness.faults import (
    freed_twice,
    row_of_a_retracted_request_freed,
    still_mapped,
)
from properties.support.harness.observations import FREE, observation
from properties.support.harness.planting import Plant, shared


def first(owners: Ownership, **changes: object) -> tuple[Owner, ...]:
    """Return the holders with the first one changed."""
    return (owners.holders[0]._replace(**changes), *owners.holders[1:])  # type: ignore[arg-type]


WRONG_HOLDINGS: list[tuple[str, Callable[[Ownership], Ownership]]] = [
    (
        "full page 2 is held by nobody and appears 0 times in the free list",
        lambda w: replace(w, free_full=tuple(p for p in w.free_full if p != 2)),
    ),
    (
        "full page 3 is held by request 7 and appears 1 times in the free list",
        lambda w: replace(w, free_full=(*w.free_full, 3)),
    ),
    (
        ("swa page 1 is held by request 7, request 4 and appears 0 times in the free list"),
        lambda w: replace(
            w, holders=first(w, swa_pages=(1, 8, 5, 11, 6)), free_swa=(*w.free_swa, 2)
        ),
    ),
    (
        "row 1 is held by request 7, request 4 and appears 0 times in the free list",
        lambda w: replace(w, holders=first(w, row=1), free_rows=(*w.free_rows, 2)),
    ),
    (
        "token row 3 is held by request 9 and appears 1 times in the free list",
        lambda w: replace(w, retracted=((9, 3),)),
    ),
    (
        "token row 0 is held by request 7, request 9 and appears 0 times in the free list",
        lambda w: replace(w, retracted=((9, 0),)),
    ),
    (
        "token row 7 is held by nobody and appears 0 times in the free list",
        lambda w: replace(w, free_token_rows=w.free_token_rows[:-1]),
    ),
    (
        "request 7 has 5 full pages for 4 tokens",
        lambda w: replace(w, holders=first(w, length=4)),
    ),
]


@pytest.mark.parametrize("run", ["eager", "graph"])
@pytest.mark.parametrize(("message", "change"), WRONG_HOLDINGS)
def test_a_page_or_row_without_one_owner_is_named(
    message: str, change: Callable[[Ownership], Ownership], run: str
) -> None:
    end = observation().end
    changes: dict[str, Any] = {run: change(getattr(end, run))}
    found = judge_end(replace(end, **changes))
    assert found is not None
    assert found[0] == f"in the {run} run, {message}"
    assert found[1]["run"] == run


WRONG_CELLS: list[tuple[str, Callable[[Ownership], Tensor]]] = [
    ("full slot 3 is mapped to SWA slot 4; expected 2", lambda w: w.mapping[3:4].fill_(4)),
    ("full slot 3 is mapped to SWA slot 0; expected 2", lambda w: w.mapping[3:4].fill_(0)),
    (
        "full slot 23 is mapped to SWA slot 1; expected 0",
        lambda w: w.mapping[FREE : FREE + 1].fill_(1),
    ),
    ("full slot 0 is mapped to SWA slot 1; expected 0", lambda w: w.mapping[:1].fill_(1)),
    ("full slot 25 is mapped to SWA slot 0; expected -1", lambda w: w.mapping[-1:].fill_(0)),
    (
        "row 2, column 1 of req_to_token is full slot 3; expected 9",
        lambda w: w.req_to_token[2, 1:2].fill_(3),
    ),
    (
        "row 0, column 4 of req_to_token is full slot 3; expected 0",
        lambda w: w.req_to_token[0, 4:5].fill_(3),
    ),
]


@pytest.mark.parametrize("run", ["eager", "graph"])
@pytest.mark.parametrize(("message", "spoil"), WRONG_CELLS)
def test_a_wrong_cell_of_an_index_table_is_named(
    message: str, spoil: Callable[[Ownership], Tensor], run: str
) -> None:
    end = observation().end
    spoil(getattr(end, run))
    found = judge_end(end)
    assert found is not None
    assert found[0] == f"in the {run} run, {message}"


def test_evicted_slots_map_to_0_and_unused_cells_may_have_any_value() -> None:
    end = observation().end
    for owners in (end.eager, end.graph):
        owners.req_to_token[2, 5:] = 9
        owners.req_to_token[3] = 9
    assert judge_end(end) is None
    eager, graph = (
        replace(
            owners,
            holders=first(owners, swa_pages=(None, 8, 5, 11, 6)),
            free_swa=(*owners.free_swa, 2),
        )
        for owners in (end.eager, end.graph)
    )
    evicted = replace(end, eager=eager, graph=graph)
    assert judge_end(evicted) is not None
    for owners in (eager, graph):
        owners.mapping[3] = 0
    assert judge_end(evicted) is None


@pytest.mark.parametrize("change", [{"length": 4}, {"known": 9}])
def test_the_owners_of_both_runs_are_compared(change: dict[str, int]) -> None:
    end = observation().end
    graph = replace(end.graph, holders=first(end.graph, **change))
    assert judge_end(replace(end, graph=graph)) is not None


def evicts_early(self: RequestBook, request: ScheduledRequest) -> None:
    """Evict one page more than no future query can see."""
    if request.allocation is not None:
        unseen = max(0, request.length - self.config.window + 1)
        self.allocator.evict(request.allocation, unseen + self.allocator.page_size)


def early(_player: object, _runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Free a page while the next query sees it, in both runs."""
    monkeypatch.setattr(RequestBook, "evict", evicts_early)


@pytest.mark.parametrize(
    ("fault", "steps"),
    [
        (freed_twice, (Finish(0),)),
        (row_of_a_retracted_request_freed, (Retract(0),)),
        (still_mapped, (Evict(0),)),
        (early, (Evict(0),)),
    ],
)
def test_wrong_owners_are_detected_at_a_step_without_a_forward(
    fault: Plant, steps: tuple[Step, ...], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No bit differs."""
    player = shared(device, "cpu_graph")
    player.set_properties(CHEAP_PROPERTIES)
    fault(player, "cpu_graph", monkeypatch)
    outcome = player.play(Schedule((Admit(12, 99), Admit(8, 99), Decode((0, 1)), *steps)))
    found = [(violation.property, violation.step) for violation in outcome.violations]
    assert found == [("slot_ownership", 3)]
