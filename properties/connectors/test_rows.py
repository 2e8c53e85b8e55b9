"""The rows of a batch, its trees of draft tokens, and the groups of a pool."""

from types import SimpleNamespace
from typing import Any

import torch

from paritybit.connectors.sglang.pools import described
from paritybit.connectors.sglang.rows import forward_of, paths_of
from properties.connectors import parts

TABLE = torch.arange(10, 90).view(4, 20)


def rows_of(batch: Any, *requests: Any) -> Any:
    pool = described(parts.kept(parts.SlidingPool(200)), 5)
    forward, found = forward_of(batch, requests, pool, TABLE)
    return forward.rows, found.batch_rows


def tree(*nodes: tuple[int, int]) -> Any:
    """Return the links of a tree: per node, its first child and its next sibling."""
    child, sibling = zip(*nodes, strict=True)
    return SimpleNamespace(
        topk=2,
        draft_token_num=len(nodes),
        retrieve_next_token=torch.tensor([child]),
        retrieve_next_sibling=torch.tensor([sibling]),
    )


def test_each_branch_of_a_draft_tree_is_a_row() -> None:
    info = tree((1, -1), (3, 2), (-1, -1), (-1, -1))
    assert paths_of(info, 0) == [[0, 1, 3], [0, 2]]
    batch = parts.decode([1], [3], [4, 5, 6, 7], [33, 34, 35, 36])
    batch.forward_mode, batch.spec_info = parts.mode("target_verify"), info
    rows, batch_rows = rows_of(batch, parts.request("a", 1, [1, 2, 3], [4]))
    assert [row.tokens[3:] for row in rows] == [[4, 5, 7], [4, 6]]
    assert [row.slots["full"][3:].tolist() for row in rows] == [[33, 34, 36], [33, 35]]
    assert batch_rows == [0, 0]
