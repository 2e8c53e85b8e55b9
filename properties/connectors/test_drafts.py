"""The rows of a draft model's forwards, what they imply, and the lists of its steps."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from paritybit.connectors.sglang.attention import lists_of
from paritybit.connectors.sglang.pools import Pool, described
from paritybit.connectors.sglang.rows import (
    Rows,
    draft_forward_of,
    forward_of,
    implied_by_draft,
    kept_ids,
    paths_of,
)
from paritybit.watch.checks import wrong_list
from paritybit.watch.facts import Forward
from paritybit.watch.ledger import Ledger, Names
from paritybit.watch.observations import GivenList
from properties.connectors import parts

TABLE = torch.arange(10, 90).view(4, 20)
STEPS = 3
REQUESTS = (parts.request("a", 1, [1, 2, 3], [4]), parts.request("b", 2, [5, 6], [7]))


def batch_of(mode: str, totals: list[int], **more: Any) -> Any:
    """Return a batch of the rows 1 and 2 of the table, which are those of "a" and "b"."""
    return SimpleNamespace(
        forward_mode=SimpleNamespace(name=mode.upper()),
        req_pool_indices=torch.tensor([1, 2]),
        seq_lens=torch.tensor(totals),
        spec_info=None,
        **more,
    )


def described_by(batch: Any, topk: int | None, ahead: bool = False) -> tuple[Forward, Rows, Pool]:
    pool = described(parts.kept(parts.SubPool(100, 1)), None, "draft.")
    steps = SimpleNamespace(topk=topk, speculative_num_steps=STEPS)
    forward, found = draft_forward_of(batch, REQUESTS, pool, TABLE, steps, ahead)
    return forward, found, pool


def chain() -> Any:
    """Return a batch for a graph of steps without branches."""
    locations = torch.cat((TABLE[1, 4:7], TABLE[2, 2:5]))
    return batch_of("decode", [4, 2], out_cache_loc=locations)


def tree() -> Any:
    """Return a batch for a graph of steps with two branches per request."""
    return batch_of("decode", [4, 2], out_cache_loc=torch.arange(70, 82))


def accepted() -> Any:
    """Return a batch that takes up two and three accepted tokens."""
    return batch_of(
        "draft_extend_v2",
        [5, 5],
        out_cache_loc=torch.cat((TABLE[1, 3:5], TABLE[2, 2:5])),
        extend_seq_lens_cpu=[2, 3],
        extend_seq_lens=None,
    )


def test_a_draft_that_is_given_the_next_token_has_rows_without_the_first() -> None:
    _, found, _ = described_by(accepted(), None, ahead=True)
    assert [row.tokens for row in found.rows] == [[2, 3, 4, None, None], [6, 7, None, None, None]]
    assert [row.space for row in found.rows] == [" after 1", " after 5"]


def prefilled(totals: list[int]) -> Any:
    """Return a batch that prefills the first tokens of both requests."""
    return batch_of("extend", totals, extend_seq_lens_cpu=totals, extend_seq_lens=None)


def verified(counts: list[int]) -> Any:
    """Return a batch that takes up so many accepted tokens."""
    batch = accepted()
    batch.spec_info = SimpleNamespace(num_accept_tokens=torch.tensor(counts))
    return batch


@pytest.mark.parametrize(
    ("batch", "names_next", "kept"),
    [
        (prefilled([4, 3]), False, [4, 3]),
        (prefilled([2, 1]), False, [1, 0]),
        (prefilled([2, 1]), True, [2, 1]),
        (prefilled([3, 2]), True, [2, 1]),
        (accepted(), True, [0, 0]),
        (verified([2, 1]), True, [2, 1]),
        (chain(), True, [0, 0]),
    ],
    ids=["whole", "chunks", "next token is named", "next token is the request's own",
         "accepted", "verified", "steps"],
)  # fmt: skip
def test_only_ids_that_belong_to_the_tokens_of_a_request_are_judged(
    batch: Any, names_next: bool, kept: list[int]
) -> None:
    """The last id of a chunk is one of them where the release knows the next token."""
    assert kept_ids(batch, REQUESTS, names_next) == kept


@pytest.mark.parametrize("batch", [chain(), tree(), accepted()], ids=["chain", "tree", "accepted"])
def test_rows_imply_what_a_right_batch_holds(batch: Any) -> None:
    forward, found, _ = described_by(batch, 2 if len(batch.out_cache_loc) == 12 else 1)
    inputs = implied_by_draft(found, forward.kind, "draft.full")
    assert inputs["out_cache_loc"].tolist() == batch.out_cache_loc.tolist()
    assert inputs["positions"][0] == (3 if "extend" in forward.kind else 4)
    assert inputs["seq_lens"].tolist() == batch.seq_lens.tolist()


def lists_of_steps(batch: Any, topk: int) -> tuple[Forward, Pool, Any]:
    """Return a forward, its pool, and the backend that lists its steps, with a padded request."""
    forward, found, pool = described_by(batch, topk)
    bounds = torch.zeros(STEPS, 3 * topk + 1, dtype=torch.int32)
    entries = torch.zeros(STEPS, 60, dtype=torch.int64)
    for step in range(STEPS - 1):
        rows = [row.slots["draft.full"][: row.cached + step + 1] for row in found.rows]
        rows += [torch.zeros(1, dtype=torch.int64)] * topk
        bounds[step, 1:] = torch.tensor([len(row) for row in rows]).cumsum(0)
        entries[step, : int(bounds[step, -1])] = torch.cat(rows)
    kind = type("TritonMultiStepDraftBackend", (SimpleNamespace,), {})
    backend = kind(
        topk=topk,
        attn_backends=[None] * (STEPS - 1),
        kv_indptr=bounds,
        cuda_graph_kv_indices=entries,
    )
    return forward, pool, backend


def wrong(forward: Forward, pool: Pool, backend: Any) -> list[str]:
    """Return what the check says of the lists of a graph for three requests."""
    ledger = Ledger(pool.groups["draft.full"], Names())
    found = Rows(list(forward.rows), list(range(len(forward.rows))))
    given = lists_of(backend, pool, "decode", found, 3, graph=True)
    assert [one.step for one in given] == [0, 1]
    return [
        finding.text
        for one in given
        for finding in wrong_list.judge(GivenList(1, forward, ledger, one))
    ]


@pytest.mark.parametrize(("batch", "topk"), [(chain(), 1), (tree(), 2)], ids=["chain", "tree"])
def test_the_lists_of_each_step_are_judged(batch: Any, topk: int) -> None:
    forward, pool, backend = lists_of_steps(batch, topk)
    assert not wrong(forward, pool, backend)
    entries: Tensor = backend.cuda_graph_kv_indices
    entries[1, 2] += 1
    assert ["position 2 as slot" in text for text in wrong(forward, pool, backend)] == [True]


def test_each_branch_of_a_draft_tree_is_a_row() -> None:
    links = torch.tensor([[[1, 3, -1, -1]], [[-1, 2, -1, -1]]])  # First children, next siblings.
    info = SimpleNamespace(
        topk=2,
        draft_token_num=4,
        retrieve_next_token=links[0],
        retrieve_next_sibling=links[1],
    )
    assert paths_of(info, 0) == [[0, 1, 3], [0, 2]]
    batch = parts.decode([1], [3], [4, 5, 6, 7], [33, 34, 35, 36])
    batch.forward_mode, batch.spec_info = parts.mode("target_verify"), info
    pool = described(parts.kept(parts.SlidingPool(200)), 5)
    forward, found = forward_of(batch, [parts.request("a", 1, [1, 2, 3], [4])], pool, TABLE)
    assert [row.tokens[3:] for row in forward.rows] == [[4, 5, 7], [4, 6]]
    assert [row.slots["full"][3:].tolist() for row in forward.rows] == [[33, 34, 36], [33, 35]]
    assert found.batch_rows == [0, 0]
