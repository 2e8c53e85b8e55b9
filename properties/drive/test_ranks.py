"""The processes of the ranks of an engine, without an engine."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn

import pytest
import torch
from torch import distributed

from paritybit.connectors.failures import surroundings
from paritybit.connectors.sglang import ranks as connected
from paritybit.drive.sglang.ranks import PLAYED, ROUNDS, Ranks, answering
from paritybit.drive.sglang.settings import SglangServed
from paritybit.drive.sglang.stand_ins import into, of_rank
from paritybit.drive.stand_ins.collectives import gathered, reduced
from paritybit.drive.stand_ins.installing import initialise

PLAYED_BY_ALL = [SimpleNamespace(rid=PLAYED)]


def in_rank(work: Callable[[], object], code: int = 0) -> NoReturn:
    """Do the work of another rank in this fork, and end it, whatever happens."""
    try:
        work()
    finally:
        os._exit(code)


def options_of(**ranks: Any) -> dict[str, object]:
    """Return the options of the engine for some ranks."""
    return {**SglangServed(**ranks)._ranks()}


def test_attention_alone_is_data_parallel() -> None:
    assert options_of() == {}
    assert options_of(tp=2, pp=2) == {"tp-size": 4 // 2, "pp-size": 2}
    given = options_of(tp=2, dp=2)
    assert (given["tp-size"], given["dp-size"], given["enable-dp-attention"]) == (4, 2, True)
    given = options_of(tp=2, split=True)
    assert (given["tp-size"], given["attn-cp-size"], given["enable-prefill-cp"]) == (2, 2, True)


def test_every_second_row_of_a_model_with_experts_gives_each_rank_some_of_them() -> None:
    sizes = [options_of(dp=2, model="gpt_oss", seed=seed).get("ep-size") for seed in range(4)]
    assert sizes == [2, None, 2, None]
    assert options_of(dp=2).get("ep-size") is None


def test_each_rank_is_a_process_and_the_first_one_knows_how_they_end() -> None:
    mine = Ranks.forked(tp=2, pp=1, dp=2)
    if not mine.plays:
        in_rank(mine.wait, mine.tp)
    assert mine.several
    assert mine.leads
    assert len(mine.leaders()) == 1
    assert mine.wait() == 1  # Of rank 1, the first that fails.


def test_the_first_rank_of_a_group_gets_its_requests_and_returns_its_outputs() -> None:
    mine = Ranks.forked(tp=1, pp=1, dp=2)

    def serve() -> None:
        answering(mine, lambda *_: None)("an output", "a request")
        given = mine.exchange()
        mine.heard += given
        mine.exchange()

    if not mine.plays:
        in_rank(serve)
    (leader,) = mine.leaders()
    leader.send(["a request"])
    leader.send([])
    assert [leader.recv(), leader.recv()] == [["an output"], ["a request"]]
    assert mine.wait() == 0


def test_a_rank_that_hangs_is_killed_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paritybit.drive.sglang.ranks.GRACE", 0.1)
    mine = Ranks.forked(tp=2, pp=1, dp=1)
    if not mine.plays:
        in_rank(lambda: mine.pipes[0, 0].poll(20))
    mine.leave()
    with pytest.raises(ChildProcessError):
        os.waitpid(mine.processes[0], 0)


@pytest.mark.parametrize(("stage", "rounds"), [(1, 1), (0, 1 + ROUNDS)])
def test_a_stage_passes_on_the_end_before_it_ends(stage: int, rounds: int) -> None:
    mine = Ranks(2, 1, pp=stage)
    given: list[list[Any]] = [PLAYED_BY_ALL, *[[]] * (rounds - 1)]
    assert not mine.ends([SimpleNamespace(rid="another")])
    assert [mine.ends(one) for one in given] == [False] * (rounds - 1) + [True]


def test_the_connector_knows_the_axes_by_which_kv_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    held = {"attn_tp_rank": 1, "attn_tp_size": 2, "pp_rank": 0, "pp_size": 1, "attn_dp_size": 1}
    monkeypatch.setattr(connected, "context", lambda: held)
    scheduler = SimpleNamespace(dp_rank=None, server_args=SimpleNamespace(dp_size=1))
    assert connected.rank_of(scheduler) == {"tp": (1, 2)}
    scheduler = SimpleNamespace(dp_rank=3, server_args=SimpleNamespace(dp_size=4))
    assert connected.rank_of(scheduler) == {"tp": (1, 2), "dp": (3, 4)}
    held |= {"attn_dp_rank": 1, "attn_dp_size": 4}
    assert connected.rank_of(scheduler)["dp"] == (1, 4)


def test_the_end_of_another_rank_is_not_the_fault_of_the_engine() -> None:
    text = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer"
    assert surroundings(RuntimeError(text))
    assert not surroundings(RuntimeError("a request is lost"))


def test_each_rank_has_other_embeddings_of_its_part_of_the_vocabulary() -> None:
    """Tokens with equal embeddings would have equal KV in the first layer."""
    ranks = []
    for start in (0, 8):
        model = torch.nn.Sequential(torch.nn.Embedding(8, 4), torch.nn.Linear(4, 4))
        vars(model[0])["shard_indices"] = SimpleNamespace(org_vocab_start_index=start)
        initialise(model)
        ranks.append(model.state_dict())
    alike = {name for name, one in ranks[0].items() if torch.equal(one, ranks[1][name])}
    assert alike == {"1.weight", "1.bias"}


class Chosen(NamedTuple):
    """The experts of each token."""

    topk_weights: torch.Tensor
    topk_ids: torch.Tensor


def test_a_rank_computes_its_own_experts_and_none_for_padding() -> None:
    """The engine's own implementation has no expert for a token twice."""

    def experts(layer: Any, x: torch.Tensor, chosen: Chosen) -> torch.Tensor:
        assert all(len(set(row.tolist())) == len(row) for row in chosen.topk_ids)
        assert int(chosen.topk_ids.max()) < layer.num_experts == len(layer.w13_weight)
        scale = layer.w13_weight[chosen.topk_ids] * chosen.topk_weights
        made: torch.Tensor = x * scale.sum(1, keepdim=True)
        return made

    x, weights = torch.randn(3, 4), torch.rand(3, 2)
    layer = SimpleNamespace(moe_ep_size=2, num_local_experts=2, w13_weight=torch.tensor([3.0, 5.0]))
    ids = torch.tensor([[1, -1], [-1, -1], [1, 0]])
    made = of_rank(experts)(layer, x, Chosen(weights, ids))
    sums = torch.tensor([5 * weights[0, 0], 0.0, 5 * weights[2, 0] + 3 * weights[2, 1]])
    assert torch.allclose(made, x * sums[:, None])
    layer.moe_ep_size, layer.num_experts = 1, 2
    whole = Chosen(weights, torch.tensor([[0, 1]] * 3))
    assert torch.equal(of_rank(experts)(layer, x, whole), experts(layer, x, whole))


def test_parts_of_different_sizes_are_gathered_and_reduced(tmp_path: Path) -> None:
    """Gloo has no collective for them."""
    sizes, store = [1, 3], f"file://{tmp_path}/store"

    def work(rank: int) -> None:
        distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
        one = SimpleNamespace(
            world_size=2, ranks=[0, 1], rank_in_group=rank, device_group=distributed.group.WORLD
        )
        mine = torch.full((sizes[rank], 2), float(rank + 1))
        both = torch.tensor([1.0, 2.0, 2.0, 2.0])[:, None].expand(4, 2)
        assert torch.equal(gathered(one, mine, sizes=sizes), both)
        assert [part.tolist() for part in gathered(one, [mine[:1, 0]])] == [[1.0, 2.0]]
        total = reduced(one, torch.arange(4.0) * (rank + 1), sizes=sizes)
        assert total.tolist() == [[0.0], [3.0, 6.0, 9.0]][rank]
        into(mine[: len(total), 0], total)
        assert mine[: len(total), 0].tolist() == total.tolist()
        distributed.destroy_process_group()

    other = os.fork()
    if not other:
        code = 1
        try:
            work(1)
            code = 0
        finally:
            os._exit(code)
    work(0)
    assert os.waitpid(other, 0)[1] == 0
