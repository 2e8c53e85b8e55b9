"""Builds and verifies trees of draft tokens in Python, like the compiled kernels.

R requests have trees of k nodes. Node 0 is the last token of the target model, and the others are
drafts. Drafts are numbered in the order of drafting, with `topk` drafts per expanded node.
"""

from itertools import accumulate
from typing import Any

from torch import Tensor

FULL_MASK, QUERIES_ONLY = 0, 1
"""Kinds of masks: over all keys of a request, or only over its tree."""


def build_tree(
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    topk: int,
    depth: int,
    nodes: int,
    mask_mode: int = FULL_MASK,
) -> None:
    """Write the mask, the positions and the links of each request's tree.

    `selected_index`, [R, k - 1], has the numbers of the drafts in the tree, and `parent_list`,
    [R, ...], the draft number of each expanded node. `retrieve_next_token` and
    `retrieve_next_sibling` must be filled with -1. Raises NotImplementedError for packed masks.
    """
    if int(mask_mode) not in {FULL_MASK, QUERIES_ONLY}:
        raise NotImplementedError("a packed mask of a tree has no stand-in")
    lengths = [int(length) for length in verified_seq_len.tolist()]
    before = lengths if int(mask_mode) == FULL_MASK else [0] * len(lengths)
    starts = [0, *accumulate((length + nodes) * nodes for length in before)]
    for request, chosen in enumerate(selected_index.tolist()):
        parents = _parents(chosen, parent_list[request].tolist(), topk)
        width = before[request] + nodes
        block = tree_mask[starts[request] : starts[request] + nodes * width].view(nodes, width)
        for node in range(nodes):
            line = [False] * nodes
            line[0] = True
            above, level = node, 0
            while above > 0:
                line[above] = True
                above, level = parents[above], level + 1
            block[node, before[request] :] = block.new_tensor(line)
            positions[request * nodes + node] = lengths[request] + level
            retrieve_index[request, node] = request * nodes + node
        _link(parents, retrieve_next_token[request], retrieve_next_sibling[request])


def _parents(chosen: list[int], expanded: list[int], topk: int) -> list[int]:
    """Return the parent of each node. It is 0 for node 0, and for a node with a missing parent."""
    nodes = {number: node for node, number in reversed(list(enumerate(chosen, 1)))}
    places = [number // topk for number in chosen]
    return [0, *(nodes.get(int(expanded[place]), 0) if place else 0 for place in places)]


def _link(parents: list[int], first_child: Tensor, next_sibling: Tensor) -> None:
    children, siblings = first_child.tolist(), next_sibling.tolist()
    for node in range(len(parents) - 1, 0, -1):
        siblings[node] = children[parents[node]]
        children[parents[node]] = node
    first_child.copy_(first_child.new_tensor(children))
    next_sibling.copy_(next_sibling.new_tensor(siblings))


def verify_tree_greedy(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    target_predict: Tensor,
    topk: Any = -1,
) -> tuple[Tensor, Tensor, Tensor]:
    """Accept the longest path of each tree that agrees with the target model.

    Writes and returns `predicts`, which has the tokens of the path by their index in the batch,
    `accept_index`, [R, longest path], with these indices, and the number of accepted drafts.
    """
    target = target_predict.flatten().tolist()
    for request in range(candidates.shape[0]):
        tokens, places = candidates[request].tolist(), retrieve_index[request].tolist()
        children = retrieve_next_token[request].tolist()
        siblings = retrieve_next_sibling[request].tolist()
        node, path = 0, [places[0]]
        while len(path) < accept_index.shape[1]:
            wanted, child = target[path[-1]], children[node]
            while child != -1 and tokens[child] != wanted:
                child = siblings[child]
            if child == -1:
                break
            predicts[path[-1]] = wanted
            path.append(places[child])
            node = child
        accept_index[request, : len(path)] = accept_index.new_tensor(path)
        accept_token_num[request] = len(path) - 1
        predicts[path[-1]] = target[path[-1]]
    return predicts, accept_index, accept_token_num
