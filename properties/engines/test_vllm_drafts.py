"""vLLM's drafter: what trials say of releases, what is planted in it, and what it needs of us."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from paritybit.harness.checks.of_steps.hermetic_replay import run_fresh
from paritybit.harness.checks.property import judge
from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.engines.adapters.vllm_faults import FAULTS
from paritybit.harness.engines.faults import Verdict, faults_shown
from paritybit.harness.lockstep.scheduler import Scheduler
from paritybit.harness.schedules.schedule import Admit, Draft, DraftExtend
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.config import PRESETS, SPECULATION, Kind, Role, draft_config
from paritybit.reference.eager import EagerDecoder
from paritybit.reference.model import Model, Output
from paritybit.reference.pool import KVPools, PoolSizes
from paritybit.reference.speculative import chain_of, keep_candidates, propose, tree_of
from paritybit.reference.torch_ops import TorchOps
from paritybit.subjects.engines.paged.drafting import joined
from paritybit.subjects.engines.paged.pages import PairedPages
from paritybit.subjects.engines.paged.runner import Verified, accepted
from paritybit.subjects.engines.shared.loading import attribute
from paritybit.subjects.engines.shared.missing import PartMissingError
from paritybit.subjects.engines.shared.tensors import given_back
from paritybit.subjects.protocol import Forward, Offer
from torch import Tensor

from properties.engines.mutated_vllm_drafts import MUTATIONS
from properties.support.harness.observations import observation
from properties.support.releases import package_of, told_of

SCRIPT = "properties.engines.mutated_vllm_drafts"
NEWEST = "0.33.0"
RUNNERS = ("eagle_draft", "eagle_draft_extend")

SEEN_BY = {
    "leave_last_tokens": {"live_inputs"},
    "sample_after_the_rejected": {"logits_parity", "kv_parity"},
    "leave_draft_lengths": {"live_inputs"},
    "count_the_rejected": {"live_inputs", "logits_parity", "hermetic_replay"},
    "leave_draft_rows": {"live_inputs"},
    "leave_draft_slots": {"live_inputs", "logits_parity", "kv_parity"},
    "keep_hidden_states": {"logits_parity", "kv_parity"},
}
"""The properties that must see what is planted; padded rows run no query, so that a wrong value in
them changes no output."""


@cache
def newest() -> Any:
    """Return what the newest release shows, as it is and with each fault planted."""
    return told_of(SCRIPT, package_of(NEWEST, "vllm"), *MUTATIONS)


@pytest.mark.parametrize("runner", RUNNERS)
def test_the_drafter_of_the_newest_release_is_clean(runner: str) -> None:
    shown = newest()[runner]
    assert shown["violated"] == {}
    assert set(shown["faults"].values()) == {Verdict.ABSENT}
    assert shown["replays"] > shown["padded"] > 1


@pytest.mark.parametrize("mutation", SEEN_BY)
def test_what_is_planted_in_the_drafter_is_seen(mutation: str) -> None:
    assert SEEN_BY[mutation] <= newest()[mutation]["violated"].keys()


def test_everything_that_is_planted_is_asked_about() -> None:
    assert MUTATIONS.keys() == {*RUNNERS, *SEEN_BY}


def test_a_release_that_stores_by_stale_slots_does_so_beside_its_drafter_too() -> None:
    shown = told_of(SCRIPT, package_of("0.17.0", "vllm"), "eagle_draft")["eagle_draft"]
    assert shown["faults"]["slot_tail"] == Verdict.PRESENT


def test_a_release_that_asks_for_uniform_batches_with_padding_counted_is_told_by_that() -> None:
    shown = told_of(SCRIPT, package_of("0.20.2", "vllm"), "eagle_draft_extend")
    found = shown["eagle_draft_extend"]
    assert found["violated"].keys() == {"captured_path"}
    assert found["faults"]["padding_unreplayed"] == Verdict.PRESENT
    assert found["padded"] == 0


def test_a_padded_batch_that_is_not_replayed_shows_its_fault_class() -> None:
    right = observation(Mode.DRAFT_EXTEND)
    eagerly = replace(right, replay=None, facts=None, static={}, expected_graph=True)
    violated = {one.property for one in judge(PROPERTIES.values(), eagerly)}
    assert "captured_path" in violated
    assert "padding_unreplayed" in faults_shown("captured_path", eagerly, FAULTS)
    unexpected = replace(eagerly, expected_graph=False)
    assert "captured_path" not in {one.property for one in judge(PROPERTIES.values(), unexpected)}
    assert not FAULTS["padding_unreplayed"].shows(unexpected)


def test_a_chain_is_the_likeliest_token_after_each_forward() -> None:
    ops, draw = TorchOps(), torch.Generator().manual_seed(1)
    said = [torch.randn(2, 9, generator=draw) for _ in range(SPECULATION.forwards)]
    asked = []

    def forward(step: int, input_ids: Tensor, hidden: Tensor) -> Output:
        asked.append((input_ids.tolist(), hidden.tolist()))
        return {"logits": said[step], "hidden": hidden + 1}

    first_logits = torch.randn(2, 9, generator=draw)
    first, index = ops.largest(ops.probabilities(first_logits), 1)
    found = propose(ops, first, index, torch.zeros(2, 1), forward)
    best = [index[:, 0], *(step.argmax(-1) for step in said)]
    assert found["tokens"].T.tolist() == [step.tolist() for step in best]
    assert asked == [(best[i].tolist(), [[float(i)]] * 2) for i in range(SPECULATION.forwards)]
    likely = [first[:, 0], *(step.softmax(-1).amax(-1) for step in said)]
    assert torch.allclose(found["scores"], torch.stack(likely, 1).cumprod(1))
    known = chain_of(ops, found["tokens"], torch.stack([first_logits, *said]))
    assert {name: values.tolist() for name, values in known.items()} == {
        name: values.tolist() for name, values in found.items()
    }
    rows = [found[name][0].tolist() for name in ("scores", "tokens", "chosen")]
    chain = tuple((int(step[0]), i) for i, step in enumerate(best))
    assert tree_of(7, *rows) == ((7, -1), *chain)


def test_what_is_kept_of_a_chain_leaves_zeros_behind_it() -> None:
    table = torch.full((3, 2 * SPECULATION.candidates), 5.0)
    found = {"scores": torch.ones(1, 3), "tokens": torch.tensor([[6, 7, 8]])}
    keep_candidates(TorchOps(), table, torch.tensor([1]), found)
    assert table[1].tolist() == [1.0, 1.0, 1.0, 6.0, 7.0, 8.0] + [0.0] * (table.shape[1] - 6)
    assert (table[[0, 2]] == 5).all()


class EagerlyFresh:
    """Stands for a pair whose fresh engine runs a step eagerly."""

    restored = False

    def run_fresh(self, planned: Any) -> Forward:
        """Return a forward without a replay."""
        return Forward({}, None)

    def restore_graph(self) -> None:
        """Note that KV was given back."""
        self.restored = True


def test_a_fresh_engine_that_replays_nothing_says_nothing_and_gives_kv_back() -> None:
    pair: Any = EagerlyFresh()
    assert run_fresh(pair, pair) is None
    assert pair.restored


def test_an_engine_of_chains_drafts_one_branch_from_where_its_draft_model_caught_up() -> None:
    config = PRESETS["gpt_oss"].tiny
    sizes = PoolSizes(full_slots=40, swa_slots=40, page_size=1, rows=4)
    cpu = torch.device("cpu")
    pools = KVPools(config, draft_config(config), sizes, torch.float32, cpu)
    models = Model(config, torch.float32, cpu), Model(draft_config(config), torch.float32, cpu, 1)
    decoder = EagerDecoder(TorchOps(), *models, pools)
    modes = frozenset({Mode.DRAFT, Mode.DRAFT_EXTEND})
    world = Scheduler(config, pools, 4, modes, lacks=frozenset({Offer.TREES}))
    world.reset(0)
    found = list[ForwardBatch]()
    for step in (Admit(3, 3), Admit(2, 2), DraftExtend((0, 1)), Draft((0, 1))):
        planned = world.plan(step)
        assert planned is not None and planned.batch is not None
        world.commit(planned.batch, decoder.forward(planned.batch))
        found.append(planned.batch)
    draft = found[-1]
    assert draft.spec_info["topk_p"].shape == draft.spec_info["topk_index"].shape == (2, 1)
    assert draft.positions.tolist() == [3, 2]
    assert draft.out_cache_loc.shape == (2 * SPECULATION.steps,)
    trees = [[parent for _, parent in request.tree] for request in world.running]
    assert trees == [list(range(-1, SPECULATION.draft_tokens - 1))] * 2


def test_kv_of_both_models_goes_through_the_pairs_of_pages_and_blocks() -> None:
    config, block = PRESETS["gpt_oss"].tiny, 4
    sizes = PoolSizes(full_slots=3 * block, swa_slots=3 * block, page_size=block, rows=2)
    world = KVPools(config, draft_config(config), sizes, torch.float32, torch.device("cpu"))
    pools = [world[role] for role in Role]
    layers = [kind for pool in pools for kind in pool.config.layers]
    shapes = [
        (6, block, config.shape(kind).kv_heads, config.shape(kind).head_dim) for kind in layers
    ]
    made = PairedPages(pools, [(torch.zeros(shape), torch.zeros(shape)) for shape in shapes], 6)
    for kind in Kind:
        made.pair(kind, [(2, 1)], [[5, 4]])
    made.write_kv()
    target, draft = made.caches[0][0], made.caches[len(config.layers)][0]
    assert torch.equal(target[5], world[Role.TARGET].cache(0)[0][2 * block : 3 * block])
    assert torch.equal(draft[5], world[Role.DRAFT].cache(0)[0][2 * block : 3 * block])
    assert not torch.equal(draft[5], target[5])


def test_what_places_of_tensors_held_is_given_back_whatever_happens() -> None:
    whole, part = torch.arange(3), torch.arange(4)
    with pytest.raises(KeyError), given_back((whole, ...), (part, torch.tensor([1, 2]))):
        whole.zero_()
        part.zero_()
        raise KeyError
    assert whole.tolist() == [0, 1, 2]
    assert part.tolist() == [0, 1, 2, 0]


def test_what_an_engine_s_object_has_under_no_name_is_named() -> None:
    assert attribute(torch.Size([]), "gone", "numel")() == 1
    with pytest.raises(PartMissingError, match="the engine's Size has no gone nor moved"):
        attribute(torch.Size([]), "gone", "moved")


def test_what_batches_of_one_request_gave_is_joined_by_name_whichever_has_it() -> None:
    parts: list[dict[str, Tensor]] = [{}, {"a": torch.tensor([1])}, {"a": torch.tensor([2, 3])}]
    assert {name: held.tolist() for name, held in joined(parts).items()} == {"a": [1, 2, 3]}


def test_what_was_accepted_lies_before_what_was_rejected_of_each_request() -> None:
    hidden = torch.arange(3.0)[:, None]
    first = Verified(4, 7, 9, [1, 2, 3], hidden[:2], rejected=2)
    second = Verified(5, 0, 1, [6, 7], hidden[2:], rejected=3)
    places, tokens, states = accepted((first, second))
    assert (places, tokens, first.end, second.end) == ([0, 1, 4], [1, 2, 6], 9, 1)
    assert states.tolist() == hidden.tolist()
