"""The processes of the ranks of an engine, without an engine."""

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import torch

from paritybit.connectors.failures import surroundings
from paritybit.connectors.sglang import ranks as connected
from paritybit.drive.sglang.ranks import PLAYED, ROUNDS, Ranks, answering
from paritybit.drive.sglang.settings import SglangServed
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
