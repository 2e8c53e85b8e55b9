"""The scheduler keeps exact books, whatever steps it plans and whatever drafts are accepted."""

from collections import Counter

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from paritybit.harness.lockstep.scheduler import Scheduler
from paritybit.harness.schedules.schedule import (
    Admit,
    Decode,
    Draft,
    DraftExtend,
    Resume,
    Retract,
    Schedule,
    Step,
    Verify,
)
from paritybit.reference.batch import Mode
from paritybit.reference.config import PRESETS, draft_config
from paritybit.reference.pool import KVPools, PoolSizes

from properties.support.harness.wild_steps import WILD_STEPS, made_up

EAGLE = frozenset(Mode) - {Mode.FROZEN_DRAFT}
FROZEN = frozenset(Mode) - {Mode.DRAFT}
WHOLE = 100
"""More tokens than any prompt has."""


SMALL = st.integers(0, 5)
FEW = st.lists(SMALL, min_size=1, max_size=6).map(tuple)
ADMIT = st.builds(Admit, st.integers(1, 20), st.sampled_from([4, WHOLE, WHOLE]))
STEPS: st.SearchStrategy[Step] = st.one_of(
    ADMIT,
    st.builds(Decode, FEW),
    st.builds(DraftExtend, FEW),
    st.builds(Draft, FEW),
    st.builds(Verify, FEW, SMALL),
    WILD_STEPS,
)
ROUNDS = st.builds(
    lambda picks, accept: (DraftExtend(picks), Draft(picks), Verify(picks, accept)), FEW, SMALL
)
PARTS = st.lists(
    st.one_of(STEPS.map(lambda step: (step,)), ADMIT.map(lambda step: (step,)), ROUNDS),
    min_size=10,
    max_size=40,
)
SCHEDULES = st.builds(
    lambda parts, seed: Schedule(tuple(step for part in parts for step in part), seed),
    PARTS,
    st.integers(0, 2**31 - 1),
)
"""Any steps with any numbers, and among them admissions and whole rounds of speculation."""


def check_ledger(side: Scheduler) -> None:
    """Every page and row is its holders' or free, and every request is what it says it is."""
    sizes, free = side.pools.sizes, side.allocator
    held = [request.allocation for request in side.running if request.allocation is not None]
    assert len(held) == len(side.running)
    pages = {
        "full": ([page for holder in held for page in holder.full_pages], free.free_full),
        "swa": ([p for holder in held for p in holder.swa_pages if p is not None], free.free_swa),
        "rows": ([holder.row for holder in held], free.free_rows),
    }
    last = {
        "full": sizes.full_slots // sizes.page_size,
        "swa": sizes.swa_slots // sizes.page_size,
        "rows": sizes.rows,
    }
    for name, (owned, unowned) in pages.items():
        assert sorted([*owned, *unowned]) == list(range(1, last[name] + 1)), name
    every = side.running + side.retracted
    rows = [request.token_row for request in every] + side.free_token_rows
    assert sorted(rows) == list(range(side.token_rows))
    for request in every:
        assert request.drafted <= request.length <= request.known <= side.config.max_context
        caught_up = request.drafted == request.length == request.known - 1
        assert request.state is None or caught_up
        assert not request.tree or request.state is not None
    assert all(request.allocation is None for request in side.retracted)
    assert all(request.drafted == 0 for request in side.retracted)


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("modes", [EAGLE, FROZEN], ids=["eagle", "frozen"])
def test_whatever_is_played_the_ledger_is_exact(modes: frozenset[Mode], page_size: int) -> None:
    """After each plan and each forward; and what was played reached all there is of speculation."""
    config = PRESETS["gpt_oss"]
    pools = KVPools(
        config,
        draft_config(config),
        PoolSizes(64, 52, page_size, rows=5),
        torch.float32,
        torch.device("cpu"),
    )
    side = Scheduler(config, pools, 4, modes)
    events: Counter[str] = Counter()

    @settings(max_examples=80)  # The draws depend on what modules are imported.
    @given(SCHEDULES)
    @example(Schedule((Admit(3, WHOLE), Retract(0), Resume(0))))  # Few that are drawn resume any.
    def play(schedule: Schedule) -> None:
        generator = torch.Generator().manual_seed(schedule.seed)
        side.reset(schedule.seed)
        for step in schedule.steps:
            work = side.plan(step)
            check_ledger(side)
            if work is not None and work.batch is not None:
                assert 1 <= len(work.batch.spans) <= side.max_bs
                side.commit(work.batch, made_up(work.batch, generator))
                check_ledger(side)
        events.update(side.events)

    play()
    reached = {
        *("tree of a draft model", "tree of the harness", "accepted beside the first branch"),
        *("draft accepted", "draft rejected", "draft caught up in several steps"),
        *("pool full", "evicted", "retracted", "resumed", "finished"),
    }
    assert {event for event in reached if not events[event]} == set()
