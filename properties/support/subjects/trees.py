"""Trees of drafts, given by the parent of each node: -1 for the root, which comes first."""

from collections.abc import Sequence

from paritybit.reference.speculative import Tree


def parents_of(tree: Tree) -> list[int]:
    """Return the parent of each node of a tree of tokens."""
    return [parent for _, parent in tree]


def path_to(parents: Sequence[int], node: int) -> list[int]:
    """Return a node and all above it, from the root down."""
    above = path_to(parents, parents[node]) if parents[node] >= 0 else []
    return [*above, node]


SHAPES: dict[str, tuple[int, ...]] = {
    "a chain": (-1, 0, 1, 2),
    "two branches": (-1, 0, 0, 2),
    "two branches, the first longer": (-1, 0, 0, 1),
    "a fork below the first draft": (-1, 0, 1, 1),
    "a star": (-1, 0, 0, 0),
}
"""Trees as large as those that are verified."""
