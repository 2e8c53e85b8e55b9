"""Any two boundary conditions meet in some scene, and each scene reaches what it names."""

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import combinations, product

import pytest
import torch
from paritybit.harness.campaigns.scenes import ground_of, longest
from paritybit.harness.checks.play import Lockstep
from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.observation import Observation
from paritybit.harness.lockstep.pair import Pair, subject_alone
from paritybit.harness.schedules.boundaries import FACTORS, MANY, Row, rows, scenes
from paritybit.harness.schedules.buckets import FILLINGS, SMALLEST, SMALLEST_TOKENS, filling
from paritybit.harness.schedules.coverage import (
    LONGEST,
    MANY_REPLAYS,
)
from paritybit.harness.schedules.schedule import Schedule, Step
from paritybit.reference.batch import Mode
from paritybit.reference.config import PRESETS
from paritybit.subjects.runners import ONE_PER_ENGINE, RUNNERS

from properties.support.harness.planned import Planned
from properties.support.trials import PAGE_SIZES, all_pairs


def smallest(trial: TrialConfig) -> TrialConfig:
    """Return a trial with the smallest captured sizes."""
    return replace(trial, buckets=SMALLEST, token_buckets=SMALLEST_TOKENS)


SHORT_OF = {
    Mode.EXTEND: 0,
    Mode.DECODE: 1,
    Mode.TARGET_VERIFY: 1,
    Mode.DRAFT: 0,
    Mode.FROZEN_DRAFT: 1,
    Mode.DRAFT_EXTEND: 1,
}
"""How far from the longest context each kind of forward ends: the last token is never run alone."""


REACHED = {
    "one": "prompt of one token",
    "below": "length window - 1",
    "beyond": "length window + 1",
    "evicted": "evicted",
    "again": "slot issued again",
    "replaced": "finished",
    "resumed": "resumed",
    "chunks": "prompt in chunks",
}
"""What some scene of each value reaches; the longest context has a test of its own."""


@pytest.mark.parametrize(("runner", "preset"), all_pairs([list(RUNNERS), list(PRESETS)]))
def test_every_two_values_that_fit_meet_and_reach_what_they_name(runner: str, preset: str) -> None:
    trial = TrialConfig(runner, preset, page_size=4)
    ground, world = ground_of(trial), Planned(trial)
    found = rows(ground)
    every = map(Row._make, product(ground.sizes, *FACTORS.values()))
    pairs = [{*combinations(enumerate(row), 2)} for row in every if ground.fits(row)]
    met = [{*combinations(enumerate(row), 2)} for row in found]
    assert set().union(*met) == set().union(*pairs)
    events: dict[object, Counter[str]] = defaultdict(Counter)
    for row in found:
        reached = world.play(Schedule(scenes(ground, [row])))
        for value in row:
            events[value] += reached
    assert [
        value for value in REACHED if value in events and not events[value][REACHED[value]]
    ] == []
    wanted = [(size, filling(runner, size, how)) for size in ground.sizes for how in FILLINGS]
    assert [event for size, event in wanted if not events[size][event]] == []


@pytest.mark.parametrize(
    ("runner", "preset", "page_size"), all_pairs([ONE_PER_ENGINE, list(PRESETS), PAGE_SIZES])
)
def test_forwards_of_every_kind_reach_as_far_as_a_request_can_grow(
    runner: str, preset: str, page_size: int
) -> None:
    trial = smallest(TrialConfig(runner, preset, page_size=page_size))
    pair, ends = Pair(trial, engines=subject_alone), defaultdict[Mode, int](int)
    replayed = set()
    schedule = longest(trial)
    with torch.inference_mode():
        pair.begin(schedule)
        for place, step in schedule.flat():
            observation = pair.step(step, place)
            if observation is not None:
                mode, end = (
                    observation.mode,
                    max((s.end for s in observation.eager.spans), default=0),
                )
                ends[mode] = max(ends[mode], end)
                if observation.replay is not None and end >= trial.model.max_context - 1:
                    replayed.add(mode)
    context = trial.model.max_context
    assert ends == {mode: context - SHORT_OF[mode] for mode in (trial.modes | {Mode.EXTEND})}
    assert replayed == trial.modes


@pytest.mark.parametrize("runner", ONE_PER_ENGINE)
def test_all_holds_at_the_edge_of_the_context_and_in_a_bucket_of_one(
    runner: str, device: str
) -> None:
    trial = smallest(TrialConfig(runner, device=device))
    lockstep = Lockstep(trial, PROPERTIES)
    outcome = lockstep.play(longest(trial))
    assert (outcome.error, outcome.violations) == (None, ())
    assert outcome.events[LONGEST]
    under_test = "decode" if runner == "breakable" else runner
    assert outcome.events[f"{under_test}: bucket 1 full"]


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize(
    ("runner", "length", "event"),
    [
        ("eagle_draft", "short", "again"),
        ("frozen_kv_mtp", "short", "again"),
        ("piecewise", "longest", "again"),
        ("piecewise", "longest", "evicted"),
    ],
)
def test_a_forward_of_the_row_and_the_length_of_the_one_before_it_reads_other_slots(
    runner: str, length: str, event: str, page_size: int
) -> None:
    """Of both sub-pools, or of the SWA sub-pool alone where requests were only evicted from."""
    trial = TrialConfig(runner, page_size=page_size, buckets=(4,), token_buckets=(12,))
    row = Row(4, length, event, filled="short")
    schedule = Schedule(scenes(ground_of(trial), [row]))
    forwards = list[tuple[int, int, set[int], set[int]]]()
    pair = Pair(trial, engines=subject_alone)
    with torch.inference_mode():
        pair.begin(schedule)
        for place, step in schedule.flat():
            seen = pair.step(step, place)
            if seen is not None and seen.mode is RUNNERS[runner].mode:
                span = seen.eager.spans[-1]
                end = span.begin or span.end
                full = pair.eager.pools.tables.req_to_token[span.row, :end].long()
                swa = seen.eager.mapping[full]
                forwards.append((span.row, end, {*full.tolist()}, {*swa.tolist()}))
    before, last = forwards[-2:]
    assert before[:2] == last[:2]
    assert (before[2] >= last[2]) is (event == "evicted")
    assert not before[3] >= last[3]


def test_a_row_becomes_padding_wherever_a_counter_of_bits_begins_again(device: str) -> None:
    """At every replay whose number is a power of two, up to more than a byte counts."""
    trial = smallest(TrialConfig("decode", device=device))
    lockstep = Lockstep(trial, {"live_inputs"}, engines=subject_alone)
    sizes: list[int] = []

    def observer(
        place: int, step: Step, observation: Observation | None, violated: frozenset[str]
    ) -> None:
        replay = observation.replay if observation is not None else None
        if replay is not None and replay.runner == "decode":
            sizes.append(replay.live_size)

    row = Row(max(trial.buckets), "one", "many")
    outcome = lockstep.play(Schedule(scenes(ground_of(trial), [row])), observer)
    assert (outcome.error, outcome.violations) == (None, ())
    assert len(sizes) > MANY and outcome.events[MANY_REPLAYS] == 1
    for bits in range(1, 9):
        before, at = sizes[2**bits - 2 : 2**bits]
        assert min(trial.buckets) < at < before == max(trial.buckets)
