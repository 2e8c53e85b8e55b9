"""Which positions of a request a rank stores, if several ranks share its context."""

from dataclasses import dataclass
from typing import Any

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
