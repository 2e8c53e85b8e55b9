"""The engine's own speculative runners, replayed beside the reference, in two releases."""

from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paritybit.reference.config import SPECULATION
from paritybit.reference.model import Output
from paritybit.reference.speculative import propose
from paritybit.reference.torch_ops import TorchOps
from paritybit.subjects.engines.sglang.model.attention import listed_keys
from paritybit.subjects.engines.sglang.runners.candidates import Candidates, proposed
from paritybit.subjects.engines.sglang.runners.draft_extend import listed_slots
from torch import Tensor

from properties.support.releases import told_by

WITH_WINDOWS, STALE = "0.5.23", "0.5.12"
RUNNERS = ("eagle_draft_extend", "eagle_draft", "frozen_kv_mtp")
TOPK = SPECULATION.topk


@cache
def all_shown(version: str, plants: str) -> Any:
    """Return what one schedule shows of each runner of a release that lies here."""
    return told_by("properties.engines.mutated_drafts", version, plants, *RUNNERS)


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_release_that_lists_windows_for_drafts_is_clean(runner: str) -> None:
    shown = all_shown(WITH_WINDOWS, "plant")[runner]
    assert shown["none"] == []
    assert shown["refused"] is None
    assert shown["replays"] > shown["padded"] > 0


PLANTED = {
    ("eagle_draft_extend", "locations_not_reset"): "kv_parity",
    ("eagle_draft_extend", "length_one_short"): "read_frame",
    ("eagle_draft_extend", "position_stale"): "logits_parity",
    ("eagle_draft_extend", "hidden_states_stale"): "logits_parity",
    ("eagle_draft_extend", "input_ids_wrong"): "logits_parity",
    ("eagle_draft", "rows_not_reset"): "hermetic_replay",
    ("eagle_draft", "locations_not_reset"): "kv_parity",
    ("eagle_draft", "length_one_short"): "read_frame",
    ("eagle_draft", "position_stale"): "logits_parity",
    ("eagle_draft", "hidden_states_stale"): "logits_parity",
    ("eagle_draft", "topk_index_wrong"): "logits_parity",
    ("frozen_kv_mtp", "rows_not_reset"): "hermetic_replay",
    ("frozen_kv_mtp", "length_one_short"): "read_frame",
    ("frozen_kv_mtp", "hidden_states_stale"): "logits_parity",
}
"""What is planted in each runner, and a property that it violates."""

UNREAD = {
    ("eagle_draft_extend", "rows_not_reset"): "a padded request's prefix is empty",
    ("eagle_draft", "input_ids_wrong"): "a draft's tokens are those of `topk_index`",
    ("frozen_kv_mtp", "position_stale"): "each forward of a draft finds positions from lengths",
    ("frozen_kv_mtp", "topk_index_wrong"): "a draft starts from hidden states alone",
}
"""What is planted where nothing reads it, and why."""


@pytest.mark.parametrize("runner", RUNNERS)
def test_what_is_planted_in_a_runner_is_seen_unless_nothing_reads_it(runner: str) -> None:
    shown = all_shown(WITH_WINDOWS, "plant")[runner]
    planted = {(runner, name) for name in shown} & (PLANTED.keys() | UNREAD.keys())
    assert planted == {pair for pair in PLANTED.keys() | UNREAD.keys() if pair[0] == runner}
    for pair in planted & PLANTED.keys():
        assert PLANTED[pair] in shown[pair[1]], pair
    for pair in planted & UNREAD.keys():
        assert shown[pair[1]] == [], pair


def test_stale_request_rows_of_a_frozen_draft_are_seen() -> None:
    shown = all_shown(STALE, "none")["frozen_kv_mtp"]
    assert shown["none"] == ["hermetic_replay", "read_frame"]


def test_stale_request_rows_are_seen_where_another_fault_lets_the_worlds_diverge_before() -> None:
    history = {name: shown["history"] for name, shown in all_shown(STALE, "none").items()}
    stale = ["hermetic_replay"]
    assert history == {"eagle_draft_extend": stale, "eagle_draft": [], "frozen_kv_mtp": stale}


def test_a_prefix_that_lists_the_new_tokens_too_is_seen() -> None:
    shown = all_shown(STALE, "none")["eagle_draft_extend"]
    assert {"logits_parity", "read_frame"} <= set(shown["none"])


def test_a_release_without_windows_for_drafts_says_so_and_drafts_without() -> None:
    shown = all_shown(STALE, "none")["eagle_draft"]
    assert "lists no keys" in shown["refused"]
    assert shown["none"] == []
    assert shown["padded"] > 0


def drafted(seed: int, requests: int) -> tuple[Output, Candidates, list[Tensor]]:
    """Return a draft of random logits, all its candidates, and the tree an engine makes of them."""
    draw, ops = torch.Generator().manual_seed(seed), TorchOps()

    def forward(step: int, input_ids: Tensor, hidden: Tensor) -> Output:
        return {"logits": torch.randn(len(input_ids), 16, generator=draw), "hidden": hidden}

    topk_p, topk_index = ops.largest(torch.rand(requests, 16, generator=draw), TOPK)
    found = propose(ops, topk_p, topk_index, torch.zeros(requests, 4), forward)
    sizes = [TOPK, *[TOPK**2] * SPECULATION.forwards]
    first = torch.arange(-1, TOPK).expand(requests, -1)
    later = [
        part + TOPK + step * TOPK**2 for step, part in enumerate(found["chosen"].split(TOPK, 1))
    ]
    candidates = Candidates(
        found["scores"].split(sizes, 1), found["tokens"].split(sizes, 1), [first, *later]
    )
    best = found["scores"].topk(SPECULATION.draft_tokens - 1).indices.sort().values
    tree = [torch.cat([*candidates.parents[:-1]], 1), best, found["tokens"].gather(1, best)]
    return found, candidates, tree


@given(seed=st.integers(0, 10_000), requests=st.integers(1, 3))
def test_what_an_engine_proposes_has_the_reference_s_names(seed: int, requests: int) -> None:
    found, candidates, tree = drafted(seed, requests + 1)
    given_back = proposed(candidates, tree, requests)
    assert given_back.keys() == found.keys()
    assert all(torch.equal(given_back[name], found[name][:requests]) for name in found)


def test_what_a_tree_says_otherwise_than_its_candidates_is_seen() -> None:
    found, candidates, (parents, best, tokens) = drafted(0, 2)
    assert not torch.equal(
        proposed(candidates, [parents, best, tokens + 1], 2)["tokens"], found["tokens"]
    )
    assert not torch.equal(
        proposed(candidates, [parents + 1, best, tokens], 2)["chosen"], found["chosen"]
    )
    with pytest.raises(RuntimeError, match="most likely candidates"):
        proposed(candidates, [parents, candidates_but(best), tokens], 2)


def candidates_but(best: Tensor) -> Tensor:
    """Return as many other candidates of each request."""
    places = range(SPECULATION.candidates)
    others = [[place for place in places if place not in row] for row in best.tolist()]
    return torch.tensor(others)[:, : best.shape[1]]


@settings(deadline=None)
@given(data=st.data())
def test_keys_of_new_tokens_are_the_same_on_the_host_and_on_the_device(data: st.DataObject) -> None:
    """Also those of tokens that follow the last request's, which are its."""
    counts = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    prefixes = [data.draw(st.integers(0, 6)) for _ in counts]
    window, stored = data.draw(st.sampled_from([None, 1, 3])), 20
    starts = torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()])
    indptr = torch.tensor([0, *torch.tensor(prefixes).cumsum(0).tolist()])
    listed = st.lists(st.integers(0, stored - 1), min_size=sum(prefixes), max_size=sum(prefixes))
    indices = torch.tensor(data.draw(listed), dtype=torch.int64)
    tokens = sum(counts)
    new = torch.arange(stored, stored + tokens)
    expected = listed_slots(list(range(tokens)), starts, indptr, indices, new, window)
    slots, begin, end = listed_keys(tokens, stored, starts, indptr, indices, 12, window)
    bounds = zip(begin.tolist(), end.tolist(), strict=True)
    assert [slots[first:last].tolist() for first, last in bounds] == expected


@given(seed=st.integers(0, 10_000))
def test_the_engine_s_order_of_unequal_values_is_ours(seed: int) -> None:
    """Torch, whose order the engine has, orders equal values as it likes; ours is by place."""
    values = torch.rand(4, 96, generator=torch.Generator().manual_seed(seed))
    ours, theirs = TorchOps().largest(values, TOPK), values.topk(TOPK)
    distinct = all(len(set(row)) == len(row) for row in values.tolist())
    assert not distinct or all(map(torch.equal, ours, theirs))
