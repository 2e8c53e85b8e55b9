"""Trees of draft tokens: how they are built, and which path is accepted."""

import torch
from torch import Tensor

from paritybit.drive.stand_ins.trees import QUERIES_ONLY, build_tree, verify_tree_greedy

NODES = 5


def links() -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.full((2, NODES), -1) for _ in range(3))  # type: ignore[return-value]


def test_a_tree_of_two_branches() -> None:
    """Of topk 2: drafts 0 and 1 below the root, 2 and 3 below draft 0, 4 and 5 below draft 1."""
    index, child, sibling = links()
    lengths = torch.tensor([2, 3])
    positions = torch.empty(2 * NODES, dtype=torch.long)
    mask = torch.ones((2 + 3) * NODES + 2 * NODES * NODES, dtype=torch.bool)
    chosen = torch.tensor([[0, 1, 2, 4], [0, 1, 2, 3]])
    parents = torch.tensor([[-1, 0, 1], [-1, 0, 1]])
    build_tree(parents, chosen, lengths, mask, positions, index, child, sibling, 2, 2, NODES)
    assert index.tolist() == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert positions.tolist() == [2, 3, 3, 4, 4, 3, 4, 4, 5, 5]
    assert child.tolist() == [[1, 3, 4, -1, -1], [1, 3, -1, -1, -1]]
    assert sibling.tolist() == [[-1, 2, -1, -1, -1], [-1, 2, -1, 4, -1]]
    first = mask[: (2 + NODES) * NODES].view(NODES, 2 + NODES)
    assert first[:, :2].all()
    assert first[:, 2:].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 0, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 0, 1, 0, 1],
    ]


def test_the_longest_path_that_the_target_takes_is_accepted() -> None:
    index, child, sibling = links()
    chosen, parents = torch.tensor([[0, 1, 2, 4]] * 2), torch.tensor([[-1, 0, 1]] * 2)
    mask = torch.ones(2 * NODES * NODES, dtype=torch.bool)
    positions = torch.empty(2 * NODES, dtype=torch.long)
    lengths = torch.tensor([2, 3])
    build_tree(
        parents, chosen, lengths, mask, positions, index, child, sibling, 2, 2, NODES, QUERIES_ONLY
    )
    tokens = torch.tensor([[10, 11, 12, 13, 14]] * 2)
    target = torch.tensor([[12, 0, 14, 0, 77], [99, 0, 0, 0, 0]])
    predicts = torch.full((2 * NODES,), -1, dtype=torch.int32)
    accepted, count = torch.full((2, 3), -1, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    verify_tree_greedy(predicts, accepted, count, tokens, index, child, sibling, target)
    assert accepted.tolist() == [[0, 2, 4], [5, -1, -1]]
    assert count.tolist() == [2, 0]
    assert predicts.tolist() == [12, -1, 14, -1, 77, 99, -1, -1, -1, -1]
