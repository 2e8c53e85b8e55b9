"""Drafting: a tree of likely tokens, a few forwards deep, `topk` branches wide.

This module selects the branches to keep after a forward. The caller decides where forwards read and
write KV. As in engines, a branch keeps its own KV slots whichever branch it continues: drafts are
verified, so only their quality depends on it.
"""

from collections.abc import Callable

import torch
from paritybit.reference.config import SPECULATION
from paritybit.reference.model import Output
from paritybit.reference.ops import Ops
from torch import Tensor

Tree = tuple[tuple[int, int], ...]
"""Draft tokens of one request as (token, parent), the root first, its parent -1."""

DraftForward = Callable[[int, Tensor, Tensor], Output]
"""Runs forward `step` on input_ids int64 [B topk] and hidden states [B topk, H]."""


def propose(
    ops: Ops, topk_p: Tensor, topk_index: Tensor, hidden_states: Tensor, forward: DraftForward
) -> Output:
    """Return all candidates of B requests, in the order in which they were found.

    `scores` float32 and `tokens` int64 are [B, candidates]: first the given `topk`, then topk x
    topk per forward. `chosen` int64 [B, forwards x topk] is, for each forward and branch, the
    candidate of that forward that the branch continues from.
    """
    requests, topk = topk_p.shape
    first = topk * torch.arange(requests, device=topk_p.device)[:, None]
    scores, tokens, chosen = [topk_p], [topk_index], []
    branch_scores, input_ids = topk_p, topk_index.reshape(-1)
    hidden = hidden_states[:, None].expand(-1, topk, -1).reshape(requests * topk, -1)
    for step in range(SPECULATION.forwards):
        output = forward(step, input_ids, hidden)
        probability, index = ops.largest(ops.probabilities(output["logits"]), topk)
        expanded = branch_scores[:, :, None] * probability.view(requests, topk, topk)
        branch_scores, place = ops.largest(expanded.flatten(1), topk)
        scores.append(expanded.flatten(1))
        tokens.append(index.view(requests, topk * topk))
        chosen.append(place)
        input_ids = tokens[-1].gather(1, place).reshape(-1)
        hidden = output["hidden"][(first + place // topk).reshape(-1)]
    return {
        "scores": torch.cat(scores, 1),
        "tokens": torch.cat(tokens, 1),
        "chosen": torch.cat(chosen, 1),
    }


def likeliest(ops: Ops, output: Output, topk: int) -> Output:
    """Return `output` plus the likeliest next tokens: `topk_p`, `topk_index` [rows, topk]."""
    topk_p, topk_index = ops.largest(ops.probabilities(output["logits"]), topk)
    return {**output, "topk_p": topk_p, "topk_index": topk_index}


def tree_of(root: int, scores: list[float], tokens: list[int], chosen: list[int]) -> Tree:
    """Return the tree of the best candidates of one request below `root`.

    Each list is one row of the output of `propose`. Parents come before their children.
    """
    topk = len(chosen) // SPECULATION.forwards
    best = sorted(range(len(scores)), key=lambda place: (-scores[place], place))
    chosen_places = sorted(best[: SPECULATION.draft_tokens - 1])
    above = {place: _parent(place, chosen, topk) for place in range(len(scores))}
    node_of = {-1: 0}
    nodes = [(root, -1)]
    for place in chosen_places:
        parent = above[place]
        while parent not in node_of:  # Rounding may drop a parent of equal score.
            parent = above[parent]
        node_of[place] = len(nodes)
        nodes.append((tokens[place], node_of[parent]))
    return tuple(nodes)


def _parent(place: int, chosen: list[int], topk: int) -> int:
    """Return the candidate that candidate `place` continues; -1 for the root."""
    if place < topk:
        return -1
    step, within = divmod(place - topk, topk * topk)
    branch = within // topk
    if step == 0:
        return branch
    return topk + (step - 1) * topk * topk + chosen[(step - 1) * topk + branch]


def path_to(tree: Tree, node: int) -> list[int]:
    """Return a node of a tree and its ancestors, from the root down."""
    path = [node]
    while (parent := tree[path[-1]][1]) >= 0:
        path.append(parent)
    return path[::-1]


def accepted_path(tree: Tree, greedy: list[int], at_least: int) -> list[int]:
    """Return the accepted nodes of a verified tree, from the root down.

    A node is accepted if its token is the target's greedy token at its parent. At least `at_least`
    drafts are accepted whatever the target's tokens are, as engines do to simulate an acceptance
    length: if no child matches, the last one is taken.
    """
    path = [0]
    while True:
        children = [i for i, (_, parent) in enumerate(tree) if parent == path[-1]]
        matching = [i for i in children if tree[i][0] == greedy[path[-1]]]
        if matching:
            path.append(matching[0])
        elif children and len(path) <= at_least:
            path.append(children[-1])
        else:
            return path
