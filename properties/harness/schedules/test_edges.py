"""A request grows as long as it can, in forwards of every kind, at any page size."""

from collections import defaultdict

import pytest
import torch
from paritybit.harness.campaigns.regress import smallest
from paritybit.harness.checks.play import Lockstep
from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.observation import Observation
from paritybit.harness.lockstep.pair import Pair
from paritybit.harness.schedules.coverage import LONGEST, MANY_REPLAYS
from paritybit.harness.schedules.edges import MANY, longest_context, many_replays
from paritybit.harness.schedules.schedule import Step
from paritybit.reference.batch import Mode
from paritybit.reference.config import PRESETS
from paritybit.subjects.runners import ONE_PER_ENGINE

SHORT_OF = {
    Mode.EXTEND: 0,
    Mode.DECODE: 1,
    Mode.TARGET_VERIFY: 1,
    Mode.DRAFT: 0,
    Mode.FROZEN_DRAFT: 1,
    Mode.DRAFT_EXTEND: 1,
}
"""How far from the longest context each kind of forward ends: the last token is never run alone."""


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("runner", ONE_PER_ENGINE)
def test_forwards_of_every_kind_reach_as_far_as_a_request_can_grow(
    runner: str, preset: str, page_size: int
) -> None:
    trial = smallest(TrialConfig(runner, preset, page_size=page_size))
    pair, ends = Pair(trial), defaultdict[Mode, int](int)
    replayed = set()
    schedule = longest_context(trial.model, max(trial.token_buckets))
    with torch.inference_mode():
        pair.begin(schedule)
        for place, step in schedule.flat():
            observation = pair.step(step, place)
            if observation is not None:
                mode, longest = observation.mode, max(s.end for s in observation.eager.spans)
                ends[mode] = max(ends[mode], longest)
                if observation.replay is not None and longest >= trial.model.max_context - 1:
                    replayed.add(mode)
    context = trial.model.max_context
    assert ends == {mode: context - SHORT_OF[mode] for mode in (trial.modes | {Mode.EXTEND})}
    # What the draft model has not seen for so long, no graph of it holds.
    assert replayed == trial.modes - {Mode.DRAFT_EXTEND}


@pytest.mark.parametrize("runner", ONE_PER_ENGINE)
def test_all_holds_at_the_edge_of_the_context_and_in_a_bucket_of_one(
    runner: str, device: str
) -> None:
    trial = smallest(TrialConfig(runner, device=device))
    lockstep = Lockstep(trial, PROPERTIES)
    outcome = lockstep.play(longest_context(trial.model, max(trial.token_buckets)))
    assert (outcome.error, outcome.violations) == (None, ())
    assert outcome.events[LONGEST]
    under_test = "decode" if runner == "breakable" else runner
    assert outcome.events[f"{under_test}: bucket 1 full"]


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("runner", ["decode", "frozen_kv_mtp"])
def test_a_draft_of_the_row_and_the_length_of_the_one_before_it_reads_other_slots(
    runner: str, page_size: int
) -> None:
    trial = smallest(TrialConfig(runner, page_size=page_size))
    schedule = longest_context(trial.model, max(trial.token_buckets))
    drafts = list[tuple[int, int, list[int]]]()
    pair = Pair(trial)
    with torch.inference_mode():
        pair.begin(schedule)
        for place, step in schedule.flat():
            observation = pair.step(step, place)
            if observation is not None and observation.mode.drafts:
                span = observation.eager.spans[-1]
                held = pair.eager.pools.tables.req_to_token[span.row, : span.begin]
                drafts.append((span.row, span.begin, held.tolist()))
    before, last = drafts[-2:]
    assert before[:2] == last[:2]
    assert not {*before[2]} >= {*last[2]}


def test_a_row_becomes_padding_wherever_a_counter_of_bits_begins_again(device: str) -> None:
    """At every replay whose number is a power of two, up to more than a byte counts."""
    trial = smallest(TrialConfig("decode", device=device))
    lockstep = Lockstep(trial, {"live_inputs"})
    sizes: list[int] = []

    def observer(
        place: int, step: Step, observation: Observation | None, violated: frozenset[str]
    ) -> None:
        replay = observation.replay if observation is not None else None
        if replay is not None and replay.runner == "decode":
            assert replay.bucket == max(trial.buckets)
            sizes.append(replay.live_size)

    outcome = lockstep.play(many_replays(max(trial.buckets)), observer)
    assert (outcome.error, outcome.violations) == (None, ())
    assert len(sizes) > MANY and outcome.events[MANY_REPLAYS] == 1
    assert sizes[0] < max(trial.buckets)
    for bits in range(1, 9):
        assert sizes[2**bits - 1] < sizes[2**bits - 2]
