"""What engines can do beyond the basics: adapters, quantised KV, shared prefixes, recapture."""

import itertools
import json
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
import torch
from paritybit.harness.campaigns.chosen import ground_of
from paritybit.harness.checks.expectations import expectation
from paritybit.harness.checks.holdings import claimed, misheld, right_cells, wrong_cells
from paritybit.harness.checks.play import Lockstep
from paritybit.harness.checks.table import PROPERTIES, STEP_PROPERTIES
from paritybit.harness.errors import MalformedError
from paritybit.harness.lockstep.config import TrialConfig, trial_from_json
from paritybit.harness.lockstep.pair import Pair, subject_alone
from paritybit.harness.schedules.boundaries import Row, scenes
from paritybit.harness.schedules.coverage import REFILLED, REFILLED_READ
from paritybit.harness.schedules.schedule import (
    Admit,
    Decode,
    Draft,
    DraftExtend,
    Evict,
    Finish,
    Idle,
    Prefill,
    Recapture,
    Refill,
    Resume,
    Retract,
    Schedule,
    Share,
    Step,
    Verify,
)
from paritybit.reference.allocator import Allocator, PageAllocation
from paritybit.reference.batch import Mode, Span
from paritybit.reference.config import PRESETS, Feature
from paritybit.reference.model import Model
from paritybit.reference.pool import HybridKVPool, PoolSizes
from paritybit.reference.torch_ops import TorchOps
from paritybit.subjects.bugs.catalogue import BUGS
from paritybit.subjects.graphs.protocol import Graph
from torch import Tensor

FEW_CAPTURES = pytest.mark.usefixtures("captures_when_needed")

SIZES: dict[str, Any] = {"buckets": (2, 4), "token_buckets": (4, 12)}

ALL = tuple(map(str, Feature))

OF_DECODES = [feature for feature in ALL if feature != Feature.CHAINS]
"""Features that a runner of decodes shows; chains are played on runners that draft."""

ROWS = (0, 1, 2, 3)

STEPS: tuple[Step, ...] = (
    *(Prefill((12, 5), 12), Evict(0), Share(0, 12, 3), Decode(ROWS), Recapture()),
    *(Verify(ROWS, 1), Evict(0), Evict(2), Idle(0), Share(1, 4, 5), Recapture(), Decode(ROWS)),
    *(DraftExtend(ROWS), Finish(0), Decode(ROWS), Retract(1), Share(0, 8, 2), Resume(0)),
    *(Refill(0), Refill(1), Recapture(), Decode((1, 0)), Finish(1), Finish(0)),
)
"""Everything that features add, with requests that leave before those that they share with."""


@FEW_CAPTURES
@pytest.mark.parametrize(
    ("feature", "page_size"), [*zip(OF_DECODES, itertools.cycle((1, 4))), ("all", 4)]
)
def test_every_property_holds_with_a_feature(feature: str, page_size: int) -> None:
    """The oracle's among them, which has adapters and 8 bits too."""
    features = ALL if feature == "all" else (feature,)
    lockstep = Lockstep(TrialConfig(features=features, page_size=page_size, **SIZES))
    lockstep.watch(PROPERTIES)
    outcome = lockstep.play(Schedule(STEPS, seed=3))
    assert outcome.error is None
    assert outcome.violations == ()
    assert outcome.events["held against the oracle"]
    if feature in {Feature.SHARING, "all"}:
        assert outcome.events["prefix shared"]


def test_a_trial_and_its_features_are_the_same_in_json() -> None:
    trial = TrialConfig(features=("lora", "recapture"))
    assert trial_from_json(json.loads(json.dumps(trial.to_json()))) == trial
    assert "features" not in TrialConfig().to_json()
    assert trial_from_json(json.loads(json.dumps(TrialConfig().to_json()))).features == ()


@pytest.mark.parametrize("features", [("recapture", "lora"), ("lora", "lora"), ("fp4",)])
def test_features_are_known_and_in_order(features: tuple[str, ...]) -> None:
    with pytest.raises(MalformedError):
        TrialConfig(features=features)


def test_a_bug_brings_the_features_it_is_about() -> None:
    trial = TrialConfig().with_bug("scale_of_capture", "adapters_pad")
    assert trial.features == ("lora", "quantised")
    assert trial.clean.features == trial.features


CHAINS = (Feature.CHAINS.value,)

SPECULATE: tuple[Step, ...] = (
    *(Admit(5, 5), Admit(9, 9), DraftExtend((0, 1)), Draft((0, 1)), Verify((0, 1), 1)),
    *(DraftExtend((0, 1)), Draft((1,)), Verify((1,), 0), *[Verify((0, 1), 1)] * 3),
)
"""Two requests that are drafted for and verified, padded and in each other's company."""


@FEW_CAPTURES
@pytest.mark.parametrize(("features", "topk"), [((), 2), (CHAINS, 1)])
@pytest.mark.parametrize(("runner", "slots"), [("eagle_draft", 3), ("frozen_kv_mtp", 0)])
def test_a_draft_keeps_one_branch_where_drafts_are_chains(
    runner: str, slots: int, features: tuple[str, ...], topk: int
) -> None:
    """Otherwise two: in what is allocated, drafted, verified and accepted."""
    trial = TrialConfig(runner, features=features, page_size=4, **SIZES)
    lockstep = Lockstep(trial, PROPERTIES)
    spans, widths = defaultdict[Mode, list[Span]](list), set[int]()

    def seen(place: int, step: Step, observation: Any, new: Any) -> None:
        spans[observation.mode] += observation.graph.spans
        widths.update(observation.static[name].shape[1] for name in named(observation.static))

    outcome = lockstep.play(Schedule(SPECULATE, seed=3), seen)
    assert (outcome.error, outcome.violations) == (None, ())
    assert widths == {topk}
    drafts = [span for mode, found in spans.items() if mode.drafts for span in found]
    assert {span.end - span.begin for span in drafts} == {slots * topk}
    assert {span.branches for span in drafts} == {topk}
    parents = {tuple(parent for _, parent in span.tree) for span in spans[Mode.TARGET_VERIFY]}
    assert (parents == {(-1, 0, 1, 2)}) is (topk == 1)
    assert bool(outcome.events["accepted beside the first branch"]) is (topk == 2)


def named(static: dict[str, Tensor]) -> set[str]:
    """Return which static inputs hold a value of each branch of a request."""
    return {"topk_p", "topk_index"} & set(static)


@FEW_CAPTURES
@pytest.mark.parametrize(
    ("bug", "runner"),
    [
        ("draft_lists_of_one_branch", "eagle_draft"),
        ("draft_lists_of_one_branch", "frozen_kv_mtp"),
        ("tree_states_as_chain", "target_verify"),
    ],
)
def test_what_takes_drafts_for_chains_is_right_where_they_are(bug: str, runner: str) -> None:
    trial = TrialConfig(runner, buckets=(4,), token_buckets=(12,)).with_bug(bug)
    for features in ((), CHAINS):
        asked = PROPERTIES if features else STEP_PROPERTIES
        lockstep = Lockstep(replace(trial, features=features), asked)
        outcome = lockstep.play(Schedule(SPECULATE))
        assert outcome.error is None
        target = expectation(BUGS[bug], runner).detected_by
        assert outcome.violated == set() if features else target in outcome.violated


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_quantised_head_is_within_half_a_step_of_what_it_stands_for(dtype: torch.dtype) -> None:
    ops = TorchOps()
    heads = torch.randn(5, 2, 16, generator=torch.Generator().manual_seed(1)).to(dtype)
    heads[0] = 0
    stored = ops.quantise(heads)
    whole, scale = stored[..., :-1].float(), stored[..., -1:].float()
    assert stored.shape == (5, 2, 17)
    assert torch.equal(whole, whole.round()) and whole.abs().max() <= 127
    rounding = 2**-7 if dtype is torch.bfloat16 else 1e-6
    error = (ops.dequantised(stored).float() - heads.float()).abs()
    assert (error <= scale * 0.5 + rounding * heads.float().abs().amax(-1, keepdim=True)).all()


def test_attention_to_quantised_kv_is_attention_to_what_it_stands_for() -> None:
    ops, generator = TorchOps(), torch.Generator().manual_seed(2)
    query, key, value = (torch.randn(3, 2, 16, generator=generator) for _ in range(3))
    stored = torch.zeros(2, 9, 2, 17)
    slots = torch.tensor([8, 2, 5])
    ops.store_kv(stored, slots, torch.int64, *ops.as_stored(stored, key, value))
    begin, end = torch.tensor([0, 0, 1]), torch.tensor([1, 3, 3])
    lists = begin, end, slots, None, 4
    plain = ops.dequantised(stored)
    assert torch.equal(ops.attention(query, stored, *lists), ops.attention(query, plain, *lists))
    assert plain[:, slots].abs().sum() > 0


def test_an_adapter_changes_its_own_rows_and_the_first_one_none() -> None:
    config = replace(PRESETS["gpt_oss"].tiny, features=frozenset({Feature.LORA}))
    model, ops = Model(config, torch.float32, torch.device("cpu")), TorchOps()
    assert model.adapters is not None
    payload, ids = torch.zeros(3, config.hidden), torch.tensor([7, 7, 9])
    found = ops.adapt(payload, torch.tensor([0, 2, 2]), ids, *model.adapters)
    down, up = model.adapters
    assert torch.equal(found[0], payload[0])
    assert torch.allclose(found[1:], torch.stack([down[2, 7] @ up[2], down[2, 9] @ up[2]]))


# Shared prefixes.


def allocator(page_size: int = 1) -> Allocator:
    """Return an allocator over a small pool."""
    sizes = PoolSizes(24, 24, page_size, 5)
    config = PRESETS["gpt_oss"].tiny
    return Allocator(HybridKVPool(config, sizes, torch.float32, torch.device("cpu")))


def admitted(pages: Allocator, tokens: int) -> PageAllocation:
    """Return an allocation of so many tokens."""
    allocation = pages.alloc_row()
    assert allocation is not None and pages.extend(allocation, 0, tokens) is not None
    return allocation


@pytest.mark.parametrize(("page_size", "tokens", "shared"), [(1, 7, 7), (4, 7, 4), (4, 3, 0)])
def test_whole_pages_are_shared(page_size: int, tokens: int, shared: int) -> None:
    pages = allocator(page_size)
    donor, other = admitted(pages, 9), pages.alloc_row()
    assert other is not None
    assert pages.share(other, donor, tokens, window=8) == shared
    count = shared // page_size
    assert other.full_pages == donor.full_pages[:count] and other.shared == count


@pytest.mark.parametrize(("evicted", "shared"), [(0, 9), (2, 9), (3, 2)])
def test_a_prefix_is_shared_up_to_where_its_window_is_whole(evicted: int, shared: int) -> None:
    """A SWA page that is gone does no harm if the next token does not see it."""
    pages = allocator()
    donor, other = admitted(pages, 9), pages.alloc_row()
    assert other is not None
    pages.evict(donor, evicted)
    if evicted == 3:
        donor.swa_pages[:2] = [7, 8]
    assert pages.share(other, donor, 9, window=8) == shared
    assert other.swa_pages == donor.swa_pages[:shared]


@pytest.mark.parametrize("first", [0, 1])
def test_a_shared_page_is_free_once_nobody_has_it(first: int) -> None:
    pages = allocator()
    donor, other = admitted(pages, 4), pages.alloc_row()
    assert other is not None
    pages.share(other, donor, 4, window=8)
    mapping = pages.pool.full_to_swa_index_mapping
    full, swa = list(donor.full_pages), list(donor.swa_pages)
    mapping[full] = torch.tensor([page or 0 for page in swa])
    both = [donor, other]
    pages.free(both[first])
    assert not {*full} & {*pages.free_full} and not {*swa} & {*pages.free_swa}
    assert mapping[full].tolist() == swa
    pages.free(both[1 - first])
    assert sorted(pages.free_full) == sorted(pages.free_swa) == list(range(1, 25))
    assert not mapping[full].any()


COMPUTED_AGAIN: tuple[tuple[int, int, dict[int, str]], ...] = (
    (1, 4, {0: "own", 1: "own", 2: "own", 3: "own"}),
    (1, 9, {**dict.fromkeys(range(6), "own"), **dict.fromkeys(range(6, 9), "donor's")}),
    (4, 4, {0: "own"}),
    (4, 9, {0: "own", 1: "donor's"}),
    (4, 3, {}),
)
"""Page size, tokens that two requests have alike, and of each page whose SWA page stays."""


@pytest.mark.parametrize("evicted", [0, 1])
@pytest.mark.parametrize(("page_size", "alike", "stays"), COMPUTED_AGAIN)
def test_swa_pages_that_are_gone_are_refilled_by_who_computes_them_again(
    page_size: int, alike: int, stays: dict[int, str], evicted: int
) -> None:
    """Both have the donor's full pages then, and what either has beside them is mapped."""
    pages = allocator(page_size)
    donor, other = admitted(pages, 9), admitted(pages, 9)
    pages.evict(donor, 6)
    pages.evict(other, evicted * page_size)
    full, theirs, own = list(donor.full_pages), list(donor.swa_pages), list(other.swa_pages)
    refilled = {index for index, whose in stays.items() if whose == "own"} - {*range(evicted)}
    count = alike // page_size
    assert pages.refill(other, donor, count, [donor, other]) is bool(refilled)
    assert donor.full_pages == full and other.full_pages[:count] == full[:count]
    assert not {*other.full_pages[count:]} & {*full} and other.shared == count
    held = [own[i] if i in refilled else theirs[i] for i in range(len(full))]
    assert donor.swa_pages == held
    assert other.swa_pages[evicted:count] == held[evicted:count]
    assert pages.refilled == {own[index] for index in refilled}
    mapping = pages.pool.full_to_swa_index_mapping
    for index in refilled:
        slots = [
            page * page_size + torch.arange(page_size) for page in (full[index], held[index] or 0)
        ]
        assert torch.equal(mapping[slots[0]], slots[1])
    for one in (donor, other):
        pages.free(one)
    assert sorted(pages.free_full) == sorted(pages.free_swa) == list(range(1, 24 // page_size + 1))
    assert not mapping[:-1].any() and not pages.refilled


@pytest.mark.parametrize("holds", ["a full page of its own", "the SWA page"])
def test_what_a_third_request_holds_is_not_refilled(holds: str) -> None:
    pages = allocator()
    donor, other, third = admitted(pages, 4), admitted(pages, 4), pages.alloc_row()
    assert third is not None
    pages.share(third, donor if holds == "the SWA page" else other, 4, window=8)
    pages.evict(donor, 4)
    assert not pages.refill(other, donor, 4, [donor, other, third])
    assert donor.swa_pages == [None] * 4
    assert (third.full_pages == other.full_pages) and third.swa_pages == other.swa_pages


REFILLS: tuple[Step, ...] = scenes(
    ground_of(TrialConfig(features=("sharing",), **SIZES)), [Row(4, "short", "refilled")]
)
REFILL_BUGS = (
    *("refill_frees_held_pages", "refilled_window_freed"),
    *("refill_beyond_eviction", "tombstone_in_window"),
)


@FEW_CAPTURES
@pytest.mark.parametrize("bug", [None, *REFILL_BUGS])
def test_a_refilled_prefix_is_read_right_and_bugs_show_in_it_alone(bug: str | None) -> None:
    """Without the refills, the same schedule shows no bug."""
    trial = TrialConfig(features=("sharing",), **SIZES)
    broken = Lockstep(trial.with_bug(bug), STEP_PROPERTIES) if bug else None
    lockstep = broken or Lockstep(trial, PROPERTIES)
    outcome = lockstep.play(Schedule(REFILLS, seed=2))
    assert outcome.error is None
    assert bool(outcome.violations) is (bug is not None)
    assert bug or outcome.events[REFILLED_READ]
    left_out = tuple(step for step in REFILLS if not isinstance(step, Refill))
    outcome = lockstep.play(Schedule(left_out, seed=2))
    assert (outcome.error, outcome.violations) == (None, ())
    assert not outcome.events[REFILLED]


def sharing() -> Pair:
    """Return a pair whose requests may share prefixes. Nothing here needs a fresh engine."""
    trial = TrialConfig(features=("sharing",), **SIZES)
    return Pair(trial, engines=subject_alone)


def shared_world(pair: Pair) -> tuple[Tensor, Tensor]:
    """Play a share after an eviction; return the graph world's tables that are wrong then."""
    with torch.inference_mode():
        pair.begin(Schedule((), seed=1))
        for step in (Admit(9, 9), Share(0, 9, 3), Decode((0, 1)), Evict(1)):
            pair.step(step)
        world = pair.graph.ownership()
        cells = torch.from_numpy(right_cells(world, pair.graph_pools.sizes))
        return wrong_cells([world], cells[None]), torch.tensor(len(misheld(world)))


def test_what_requests_share_is_held_once_and_mapped_for_both() -> None:
    """One has given back a SWA page that the other still has: its slot stays mapped."""
    pair = sharing()
    wrong, held = shared_world(pair)
    assert not wrong.any() and not held
    owners = pair.graph.ownership().holders
    one, other = claimed("full_pages", owners)
    assert [owner.shared for owner in owners] == [0, 9]
    assert one == owners[0].full_pages and set(other[:9]) == {None}
    assert None in owners[1].swa_pages and None not in owners[0].swa_pages[:9]


def test_a_request_that_shares_is_what_it_is_by_itself() -> None:
    """Its tokens are those of a request whose whole prompt is prefilled."""

    def tokens(steps: tuple[Step, ...]) -> list[int]:
        pair = sharing()
        with torch.inference_mode():
            pair.begin(Schedule(steps, seed=1))
            for step in steps:
                pair.step(step)
        request = pair.graph.running[-1]
        found: list[int] = pair.graph.tokens[request.token_row, : request.known].tolist()
        return found

    shared: tuple[Step, ...] = (Admit(9, 9), Share(0, 9, 3))
    on = Decode((1,)), Decode((1,)), Decode((1,))
    again: tuple[Step, ...] = (Retract(1), Resume(0))  # Its prefill says one more token.
    assert tokens((*shared, *on)) == tokens((*shared, *again, *on[1:]))


# Recapture.


def graphs(pair: Pair) -> list[Graph]:
    """Return the graphs of the runner on trial."""
    runner = pair.subject.engine.under_test
    return [graph for bucket in runner.buckets for graph in runner.graphs(bucket)]


@FEW_CAPTURES
def test_a_capture_writes_to_reserved_slots_alone_and_a_reset_brings_the_first_graphs_back() -> (
    None
):
    pair = Pair(TrialConfig(features=("recapture",), **SIZES))
    steps: tuple[Step, ...] = (Admit(5, 5), Admit(3, 3), Decode((0, 1)))
    with torch.inference_mode():
        pair.begin(Schedule((*steps, Recapture()), seed=1))
        first = graphs(pair)
        for step in steps:
            pair.step(step)
        before = pair.graph_pools.storage.clone()
        pair.step(Recapture())
        changed = pair.graph_pools.storage != before
        again = graphs(pair)
        assert not (changed & pair.compared).any() and changed.any()
        assert not {*map(id, first)} & {*map(id, again)}
        observation = pair.step(Decode((0, 1)))
        assert observation is not None and observation.replay is not None
        pair.reset(1)
        assert [*map(id, graphs(pair))] == [*map(id, first)]
