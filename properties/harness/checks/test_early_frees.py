"""A page that leaves its owner while its next query sees it is seen at that step."""

from dataclasses import replace
from typing import Any

import pytest
from paritybit.harness.checks.holdings import left_early, owners_differ
from paritybit.harness.checks.play import Lockstep
from paritybit.harness.checks.step_properties.slot_ownership import flag
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.request_book import RequestBook
from paritybit.harness.lockstep.requests import Request
from paritybit.harness.schedules.schedule import Admit, Decode, Evict, Schedule
from paritybit.reference.allocator import Owner

pytestmark = pytest.mark.usefixtures("captures_when_needed")

EVICTED = Schedule((Admit(12, 99), Admit(3, 99), Decode((0, 1)), Evict(0), Decode((0,))), seed=1)
"""The request that is evicted is longer than any window, and then decodes."""

SIZES: dict[str, Any] = {"buckets": (2, 4), "token_buckets": (4, 12)}

OWNER = Owner(7, 2, 3, 13, 4, (5, 6, 7, 8), (None, None, 9, 4), seen_from=6)


def test_what_a_query_to_come_can_see_must_be_there() -> None:
    assert left_early(OWNER) == [1]
    assert left_early(OWNER._replace(seen_from=8)) == []
    assert left_early(OWNER._replace(seen_from=5, swa_pages=(None, 3, 9, 4))) == []


def test_the_owners_of_both_worlds_are_compared() -> None:
    lockstep = Lockstep(TrialConfig("decode", **SIZES), {"slot_ownership"})
    assert not lockstep.play(EVICTED).violations
    end = lockstep.pair.end(0)
    assert owners_differ(end) is None
    first, *others = end.graph.holders
    one_longer = (first._replace(length=first.length - 1), *others)
    for holders in (one_longer, tuple(others), (*others, first)):
        differing = replace(end, graph=replace(end.graph, holders=holders))
        assert flag(differing) is True
        assert owners_differ(differing) is not None


def early(self: RequestBook, request: Request) -> None:
    """Evict one page more than no query to come can see."""
    if request.allocation is not None:
        size = self.allocator.page_size
        unseen = max(0, request.length - self.config.window + 1)
        self.allocator.evict(request.allocation, unseen + size)


@pytest.mark.parametrize(
    ("runner", "page_size", "overlap"),
    [("decode", 1, False), ("breakable", 4, True), ("cpu_graph", 4, False)],
)
def test_a_page_given_away_while_it_is_visible_is_seen_in_every_trial(
    runner: str, page_size: int, overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the step that gives it away, before anything reads it or anybody else owns it."""
    trial = TrialConfig(runner, page_size=page_size, overlap=overlap, **SIZES)
    lockstep = Lockstep(trial, {"slot_ownership"})
    assert not lockstep.play(EVICTED).violations
    monkeypatch.setattr(RequestBook, "evict", early)
    found = lockstep.play(EVICTED).violations
    assert [violation.step for violation in found] == [3]
    assert "whose next query sees" in found[0].message
