"""Trees of drafts: what is drafted, what is accepted, and where the tokens of a tree stand.

Held against their definitions in plain Python.
"""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paritybit.reference.batch import Mode, Span
from paritybit.reference.config import SPECULATION
from paritybit.reference.speculative import Tree, accepted_path, tree_of

from properties.support.subjects.trees import parents_of, path_to

TOPK, NODES = SPECULATION.topk, SPECULATION.draft_tokens

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
@given(found=candidates(), root=st.integers(0, 9))
def test_a_tree_has_the_best_candidates_each_below_the_one_it_continues(
    found: Candidates, root: int
) -> None:
    """Of equal scores the earlier candidate; whatever is kept, so is all above it."""
    scores, tokens, chosen = found
    tree = tree_of(root, scores, tokens, chosen)
    best = sorted(range(len(scores)), key=lambda place: (-scores[place], place))
    kept = sorted(best[: NODES - 1])
    above = ancestries(chosen)
    assert tree[0] == (root, -1)
    for (token, parent), place in zip(tree[1:], kept, strict=True):
        assert token == tokens[place]
        assert parent == (kept.index(above[place][0]) + 1 if above[place] else 0)


@settings(max_examples=60)
@given(
    scores=st.lists(
        st.sampled_from([0.0, 0.5, 1.0, 2.0]),
        min_size=SPECULATION.candidates,
        max_size=SPECULATION.candidates,
    ),
    found=candidates(),
)
def test_a_child_whose_parent_was_dropped_hangs_below_the_next_one_above(
    scores: list[float], found: Candidates
) -> None:
    """Whatever the scores are, the tree is one, and parents come before their children."""
    _, tokens, chosen = found
    tree = tree_of(5, scores, tokens, chosen)
    kept = sorted(sorted(range(len(scores)), key=lambda place: -scores[place])[: NODES - 1])
    above = ancestries(chosen)
    for node, ((token, parent), place) in enumerate(zip(tree[1:], kept, strict=True), 1):
        nearest = next((other for other in above[place] if other in kept), None)
        assert parent == (0 if nearest is None else kept.index(nearest) + 1)
        assert 0 <= parent < node
        assert token == tokens[place]


def test_a_chain_is_kept_where_one_branch_outdoes_the_other() -> None:
    """The second forward goes on from the second candidate of the first branch."""
    scores = [0.9, 0.05, 0.1, 0.8, 0.01, 0.01, 0.7, 0.02, 0.01, 0.01]
    tokens = list(range(10, 20))
    assert tree_of(3, scores, tokens, [1, 0, 0, 1]) == ((3, -1), (10, 0), (13, 1), (16, 2))


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
    said = data.draw(st.lists(st.integers(0, 2), min_size=len(tree), max_size=len(tree)))
    path = accepted_path(tree, said, at_least)
    assert path == path_to(parents_of(tree), path[-1])

    def right(node: int) -> int | None:
        """Return what must follow a node."""
        children = [child for child, (_, parent) in enumerate(tree) if parent == node]
        accepted = len(path_to(parents_of(tree), node)) - 1
        for child in children:
            if tree[child][0] == said[node]:
                return child
        return max(children) if children and accepted < at_least else None

    assert [right(node) for node in path] == [*path[1:], None]


FORK = ((7, -1), (1, 0), (2, 0), (3, 2))
"""Two branches, of which the second is longer."""


ACCEPTED: dict[str, tuple[list[int], int, list[int]]] = {
    "nothing fits": ([9, 9, 9, 9], 0, [0]),
    "the first branch fits": ([1, 9, 9, 9], 0, [0, 1]),
    "the second branch fits, and its end": ([2, 9, 3, 9], 0, [0, 2, 3]),
    "the end fits, but not what is above it": ([9, 9, 3, 9], 0, [0]),
    "one is forced: the last child": ([9, 9, 9, 9], 1, [0, 2]),
    "one is forced, and the next fits": ([9, 9, 3, 9], 1, [0, 2, 3]),
    "two are forced": ([9, 9, 9, 9], 2, [0, 2, 3]),
    "one fits, and a forced one after it": ([2, 9, 9, 9], 2, [0, 2, 3]),
    "one fits, so that none is forced": ([2, 9, 9, 9], 1, [0, 2]),
    "one fits, below which there is none to force": ([1, 9, 9, 9], 3, [0, 1]),
    "more are forced than there are": ([9, 9, 9, 9], 2**31 - 1, [0, 2, 3]),
}
"""What the target says at each node of the fork, how many must pass, and the path accepted."""


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_fits_is_accepted_and_what_is_forced(name: str) -> None:
    said, at_least, path = ACCEPTED[name]
    assert accepted_path(FORK, said, at_least) == path


def test_of_two_children_that_fit_the_first_is_accepted() -> None:
    tree = ((7, -1), (1, 0), (1, 0), (1, 1), (1, 2))
    assert accepted_path(tree, [1] * 5, 0) == [0, 1, 3]


def span_of(begin: int, tree: Tree) -> Span:
    """Return a span that verifies a tree after `begin` tokens."""
    slots = range(begin, begin + len(tree))
    return Span(1, 0, begin, begin + len(tree), slots, slots, 0, 0, False, 0, tree)


def test_the_mask_of_a_tree_is_this_table() -> None:
    """Each draft sees the request's tokens, what is above it, and itself."""
    table = [
        "xx x...",
        "xx xx..",
        "xx x.x.",
        "xx x.xx",
    ]
    wanted = [letter == "x" for row in table for letter in row if letter != " "]
    assert span_of(2, FORK).tree_mask() == wanted


@given(tree=trees(), begin=st.integers(0, 5))
def test_masks_depths_and_positions_follow_from_the_paths(tree: Tree, begin: int) -> None:
    span, nodes = span_of(begin, tree), range(len(tree))
    paths = [path_to(parents_of(tree), node) for node in nodes]
    assert span.depths == [len(path) - 1 for path in paths]
    assert span.positions(Mode.TARGET_VERIFY) == [begin + depth for depth in span.depths]
    mask = span.tree_mask()
    keys = begin + len(tree)
    assert len(mask) == len(tree) * keys
    for node in nodes:
        row = mask[node * keys : (node + 1) * keys]
        assert row == [True] * begin + [other in paths[node] for other in nodes]


def test_where_tokens_stand_and_what_keys_a_request_has_follow_from_the_mode() -> None:
    """Drafts not yet accepted are no keys of their request; a frozen draft stands on its last."""
    span = span_of(5, ())._replace(end=8)
    assert {mode: span.positions(mode) for mode in Mode if mode is not Mode.TARGET_VERIFY} == {
        Mode.EXTEND: [5, 6, 7],
        Mode.DECODE: [5, 6, 7],
        Mode.DRAFT: [5] * TOPK,
        Mode.FROZEN_DRAFT: [4] * TOPK,
        Mode.DRAFT_EXTEND: [5, 6, 7],
    }
    assert {mode: span.seq_len(mode) for mode in Mode} == {
        Mode.EXTEND: 8,
        Mode.DECODE: 8,
        Mode.TARGET_VERIFY: 5,
        Mode.DRAFT: 5,
        Mode.FROZEN_DRAFT: 5,
        Mode.DRAFT_EXTEND: 8,
    }
