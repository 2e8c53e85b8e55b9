"""Trees of drafts: what is drafted, what is accepted, and where the tokens of a tree stand.

Held against their definitions in plain Python.
"""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paritybit.reference.batch import Mode, RequestSpan
from paritybit.reference.config import CHAIN, SPECULATION
from paritybit.reference.speculative import Tree, accepted_path, tree_of

TOPK, NODES = SPECULATION.topk, SPECULATION.draft_tokens
CANDIDATES = TOPK + SPECULATION.forwards * TOPK**2


def path_to(tree: Tree, node: int) -> list[int]:
    """Return a node and all above it, from the root down."""
    parent = tree[node][1]
    return [*(path_to(tree, parent) if parent >= 0 else []), node]


Candidates = tuple[list[float], list[int], list[int]]
"""One row of each of `scores`, `tokens` and `chosen`."""


@st.composite
def candidates(draw: st.DrawFn) -> Candidates:
    """Draw what a draft may propose: few probabilities, 1 among them, so that scores tie."""
    likely = st.sampled_from([1.0, 0.5, 0.25])
    branches = draw(st.lists(likely, min_size=TOPK, max_size=TOPK))
    branches.sort(reverse=True)
    scores, chosen = list(branches), list[int]()
    for _ in range(SPECULATION.forwards):
        found = [score * draw(likely) for score in branches for _ in range(TOPK)]
        best = sorted(range(len(found)), key=lambda place: (-found[place], place))[:TOPK]
        scores += found
        chosen += best
        branches = [found[place] for place in best]
    tokens = draw(st.lists(st.integers(0, 9), min_size=len(scores), max_size=len(scores)))
    return scores, tokens, chosen


def ancestries(chosen: Sequence[int]) -> list[list[int]]:
    """Return the candidates above each candidate, the nearest first, as drafting goes on."""
    branches: list[list[int]] = [[place] for place in range(TOPK)]
    above: list[list[int]] = [[] for _ in range(TOPK)]
    for step in range(SPECULATION.forwards):
        first = len(above)
        above += [list(branch) for branch in branches for _ in range(TOPK)]
        picked = [first + place for place in chosen[step * TOPK : (step + 1) * TOPK]]
        branches = [[place, *above[place]] for place in picked]
    return above


@settings(max_examples=60)
@given(
    scores=st.lists(
        st.sampled_from([0.0, 0.5, 1.0, 2.0]),
        min_size=CANDIDATES,
        max_size=CANDIDATES,
    ),
    found=candidates(),
)
def test_a_child_whose_parent_was_dropped_hangs_below_the_next_one_above(
    scores: list[float], found: Candidates
) -> None:
    """Whatever the scores are, the tree is one, and parents come before their children."""
    _, tokens, chosen = found
    tree = tree_of(5, scores, tokens, chosen)
    assert tree[0] == (5, -1)
    best = sorted(sorted(range(len(scores)), key=lambda place: -scores[place])[: NODES - 1])
    above = ancestries(chosen)
    for node, ((token, parent), place) in enumerate(zip(tree[1:], best, strict=True), 1):
        nearest = next((other for other in above[place] if other in best), None)
        assert parent == (0 if nearest is None else best.index(nearest) + 1)
        assert 0 <= parent < node
        assert token == tokens[place]


@pytest.mark.parametrize("scores", [[0.5, 0.25, 0.125], [1.0, 1.0, 1.0]])
def test_of_one_branch_the_tree_is_the_chain_that_was_drafted(scores: list[float]) -> None:
    """All of it, in as many slots as it has drafts."""
    assert tree_of(7, scores, [3, 1, 4], [0, 0]) == ((7, -1), (3, 0), (1, 1), (4, 2))
    assert CHAIN.slots == CHAIN.steps


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Draw any tree of few tokens, parents before their children."""
    tokens = draw(st.lists(st.integers(0, 2), min_size=1, max_size=8))
    parents = [-1, *(draw(st.integers(0, node - 1)) for node in range(1, len(tokens)))]
    return tuple(zip(tokens, parents, strict=True))


@settings(max_examples=120)
@given(tree=trees(), data=st.data(), at_least=st.integers(0, 9))
def test_an_accepted_path_is_its_definition(tree: Tree, data: st.DataObject, at_least: int) -> None:
    """Of all paths from the root, the one at which every choice is right and none is left."""
    greedy = data.draw(st.lists(st.integers(0, 2), min_size=len(tree), max_size=len(tree)))
    path = accepted_path(tree, greedy, at_least)
    assert path == path_to(tree, path[-1])

    def right(node: int) -> int | None:
        """Return what must follow a node."""
        children = [child for child, (_, parent) in enumerate(tree) if parent == node]
        accepted = len(path_to(tree, node)) - 1
        for child in children:
            if tree[child][0] == greedy[node]:
                return child
        return max(children) if children and accepted < at_least else None

    assert [right(node) for node in path] == [*path[1:], None]


def span_of(begin: int, tree: Tree) -> RequestSpan:
    """Return a span that verifies a tree after `begin` tokens."""
    slots = range(begin, begin + len(tree))
    return RequestSpan(1, 0, begin, begin + len(tree), slots, slots, 0, tree)


@given(tree=trees(), begin=st.integers(0, 5))
def test_masks_depths_and_positions_follow_from_the_paths(tree: Tree, begin: int) -> None:
    span, nodes = span_of(begin, tree), range(len(tree))
    paths = [path_to(tree, node) for node in nodes]
    assert span.depths == [len(path) - 1 for path in paths]
    assert span.positions(Mode.TARGET_VERIFY) == [begin + depth for depth in span.depths]
    mask = span.tree_mask()
    keys = begin + len(tree)
    assert len(mask) == len(tree) * keys
    for node in nodes:
        row = mask[node * keys : (node + 1) * keys]
        assert row == [True] * begin + [other in paths[node] for other in nodes]
