"""Few trials in which every two values of different axes meet."""

import random
from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

PAGE_SIZES = (1, 4)

Row = tuple[Any, ...]
"""A value of every axis, in the order of the axes."""


def all_pairs(axes: Sequence[Sequence[Any]]) -> list[Row]:
    """Return few rows, always the same, in which every two values of different axes meet."""
    candidates = list(product(*axes))
    random.Random(0).shuffle(candidates)
    having = {row: {*combinations(enumerate(row), 2)} for row in candidates}
    missing = set().union(*having.values())
    rows = []
    while missing:
        rows.append(max(candidates, key=lambda row: len(missing & having[row])))
        missing -= having[rows[-1]]
    return rows
