"""Trees of draft tokens in plain Python, as the compiled kernels build and verify them.

R requests have trees of k nodes. Node 0 is the token that the target model gave last; the others
are drafts. A draft's number counts all that was drafted: `topk` for each node that was expanded.
"""

from itertools import accumulate
from typing import Any

from torch import Tensor

FULL_MASK, QUERIES_ONLY = 0, 1
"""Kinds of masks: over all keys of a request, or over its tree alone."""


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

    `selected_index` holds [R, k - 1] numbers of drafts, `parent_list` [R, ...] the number of the
    draft that each expanded node is. `retrieve_next_token` and `retrieve_next_sibling` must hold
    -1. Raises NotImplementedError for a kind of mask that is packed into bits.
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
    """Return the parent node of each node; that of node 0, or of one whose parent is lost, is 0."""
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
    """Accept of each tree the longest path that the target model would have taken; return all.

    Writes the tokens of the path into `predicts`, by their place in the batch, those places into
    `accept_index` [R, longest path], and how many drafts it has into `accept_token_num`.
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
