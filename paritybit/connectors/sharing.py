"""Which positions of a request a rank stores, or computes, if several ranks share them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Share:
    """The positions that a rank stores: `interleave` at a time, in turn with the other ranks.

    It stores them in order, so each has a place among its own.
    """

    rank: int = 0
    ranks: int = 1
    interleave: int = 1

    def mine(self, positions: Tensor) -> Tensor:
        """Return which positions this rank stores."""
        return positions // self.interleave % self.ranks == self.rank

    def places(self, positions: Tensor) -> Tensor:
        """Return the places of positions that this rank stores."""
        rounds = positions // (self.interleave * self.ranks)
        return rounds * self.interleave + positions % self.interleave

    def counts(self, ends: Tensor) -> Tensor:
        """Return how many positions before each of some ends this rank stores."""
        rest = ends % (self.interleave * self.ranks) - self.rank * self.interleave
        rounds = ends // (self.interleave * self.ranks)
        return rounds * self.interleave + rest.clamp(0, self.interleave)

    def ends(self, counts: Tensor) -> Tensor:
        """Return the first end before which this rank stores so many positions."""
        last = counts - 1
        first = last // self.interleave * self.ranks + self.rank
        return (first * self.interleave + last % self.interleave + 1).where(counts > 0, 0)

    def slots(self, tables: Tensor, positions: Tensor, page: int) -> Tensor:
        """Return the slots of positions in rows of a block table [..., blocks], or else -1."""
        places = self.places(positions)
        blocks = tables.long().gather(-1, (places // page).expand(*tables.shape[:-1], -1))
        return (blocks * page + places % page).masked_fill(~self.mine(positions), -1)


WHOLE = Share()
"""The share of the only rank."""


Part = tuple[int, int, int]
"""A row, and the first position and the end of a part of what it computes."""


def in_chunks(spans: Sequence[tuple[int, int]], size: int | None) -> list[Part]:
    """Return the parts of rows that lie in one chunk of positions each, or all rows as they are.

    `spans` have the numbers of cached and of computed positions.
    """
    found = list[Part]()
    for row, (cached, computed) in enumerate(spans):
        last = cached + computed
        edges = [] if size is None else range((cached // size + 1) * size, last, size)
        found += [(row, *span) for span in pairwise([cached, *edges, last])]
    return found


def of_lines(parts: Sequence[Part], counts: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return where rows begin in a flat table, and how many entries they have, padded ones last.

    A part of a row is a line of the table, with its count. Lines after these are padded rows.
    """
    lines = [row for row, _, _ in parts]
    lines += range(lines[-1] + 1, lines[-1] + 1 + len(counts) - len(lines))
    of_row, rows = torch.tensor(lines), lines[-1] + 1
    firsts = torch.searchsorted(of_row, torch.arange(rows)) * width
    counts = torch.nn.functional.pad(counts, (0, len(lines) - len(counts)))
    return firsts, counts.new_zeros(rows).index_add_(0, of_row.to(counts.device), counts)


def mirrored(spans: Sequence[tuple[int, int]], ranks: int) -> list[list[Part]]:
    """Return the parts of prompts that each rank computes: the first ones of all, then the others.

    `spans` have the numbers of cached and of computed positions. Of two parts per rank, a rank has
    one, and the one that is as far from the end. Earlier parts may be longer by one.
    """

    def edge(cached: int, computed: int, number: int) -> int:
        size, more = divmod(computed, 2 * ranks)
        return cached + size * number + min(number, more)

    return [
        [
            (row, edge(*span, number), edge(*span, number + 1))
            for number in (one, 2 * ranks - 1 - one)
            for row, span in enumerate(spans)
        ]
        for one in range(ranks)
    ]


def dealt(
    spans: Sequence[tuple[int, int]], prompts: Sequence[bool], ranks: int
) -> list[list[Part]]:
    """Return the parts of rows that each rank computes: decoding rows first, then `prompts`.

    As `mirrored`, but the last parts of a prompt may be shorter or missing. Decoding rows belong
    to the ranks in turn.
    """
    every, turn = [list[tuple[bool, int, int, int]]() for _ in range(ranks)], 0
    for row, (cached, computed) in enumerate(spans):
        if not prompts[row]:
            every[turn % ranks].append((False, row, cached, cached + computed))
            turn += 1
            continue
        size = -(-computed // (2 * ranks))
        for number, first in enumerate(range(0, computed, size)):
            part = True, row, cached + first, cached + min(computed, first + size)
            every[min(number, 2 * ranks - 1 - number)].append(part)
    return [[part[1:] for part in sorted(mine)] for mine in every]


def places_of(parts: Sequence[Part], spans: Sequence[tuple[int, int]]) -> list[int]:
    """Return the places of the positions in parts among all that rows compute."""
    starts = [0, *accumulate(computed for _, computed in spans)]
    return [
        starts[row] + position - spans[row][0]
        for row, first, last in parts
        for position in range(first, last)
    ]


def parted(
    ranks: dict[str, tuple[int, int]], shared: tuple[Any, Any]
) -> dict[str, tuple[int, int]]:
    """Return the rank of a process, and the number of ranks, by axis, if contexts are `shared`.

    That is the rank among those that share contexts, and their number. They are neighbours among
    the tensor-parallel ranks.
    """
    mine, parts = shared
    if not parts or int(parts) < 2:
        return ranks
    (rank, size), found = ranks["tp"], {axis: one for axis, one in ranks.items() if axis != "tp"}
    if size > parts:
        found["tp"] = rank // int(parts), size // int(parts)
    return {**found, "dcp": (int(mine), int(parts))}
