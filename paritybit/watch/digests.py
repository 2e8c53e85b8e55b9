"""Digests of what forwards get, by which the launcher compares the ranks of an engine afterwards.

Ranks are compared by the number of a forward of its model, which counts the skipped ones. A digest
has a hash per part, so the journal has no token. A hash depends on the key of the run and the
number of the forward: otherwise, that of a single token could be guessed. See
`paritybit.launch.ranks` for the law.
"""

import hashlib
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from paritybit.watch.facts import Forward, IndexList
from paritybit.watch.journal import Journal
from paritybit.watch.settings import AGREEING, RANKS_DISAGREE, TRIED, Settings

SIZE = 4
"""The number of bytes of a hash."""


class Digests:
    """Makes the digests of one process."""

    def __init__(self, journal: Journal, key: str) -> None:
        self.journal, self.key = journal, key.encode()[: hashlib.blake2b.MAX_KEY_SIZE]
        self.now: tuple[str, int] | None = None
        """The model of the next forward, or of the current one, and its number."""
        self.hashes: dict[str, hashlib.blake2b] = {}
        journal.count(**{f"{TRIED}{RANKS_DISAGREE}": 0})

    def begin(self, forward: Forward) -> None:
        """Begin the digest of a forward."""
        self.hashes = {}
        rows, names = forward.rows, sorted({name for row in forward.rows for name in row.slots})
        first = rows[: len(rows) // forward.repeats]
        self.add("rows", (forward.kind, *(f"{row.request} {row.space}" for row in first)))
        self.add("lengths", [number for row in first for number in (row.cached, row.computed)])
        self.add("slots", (row.slots[name] for name in names for row in rows if name in row.slots))
        self.add("bucket", ())

    def add(self, part: str, values: Iterable[object]) -> None:
        """Add values to a part of the current digest."""
        salt = (0 if self.now is None else self.now[1]).to_bytes(hashlib.blake2b.SALT_SIZE, "big")
        fresh = hashlib.blake2b(digest_size=SIZE, key=self.key, salt=salt)
        part_s = self.hashes.setdefault(part, fresh)
        for value in values:
            if isinstance(value, Tensor):
                part_s.update(value.detach().to("cpu", torch.int64).contiguous().numpy().tobytes())
            else:
                part_s.update(f"{value}\0".encode())

    def lists(self, forward: Forward, given: IndexList) -> None:
        """Add the live rows of an index list."""
        offsets, counts = (
            one[: len(forward.rows)].tolist() for one in (given.offsets, given.counts)
        )
        used = max((at + count for at, count in zip(offsets, counts, strict=True)), default=0)
        entries = given.entries[: max(0, used)].to("cpu", torch.int64)
        parts = zip(offsets, counts, strict=True)
        self.add("lists", [given.name, *counts, *(entries[at : at + count] for at, count in parts)])

    def end(self, number: int, forward: Forward) -> None:
        """Write the digest of the forward, which is checked as this number."""
        if self.now is not None and forward.rows:
            parts = (
                self.hashes[one].hexdigest() if one in self.hashes else "" for one in AGREEING["tp"]
            )
            self.journal.digest(*self.now, number, forward.kind, " ".join(parts))
        self.now = None


def digests_of(
    journal: Journal, rank: Mapping[str, tuple[int, int]], settings: Settings
) -> Digests | None:
    """Return what makes the digests of a process, or None if its rank is compared to no other."""
    compared = any(size > 1 for axis, (_, size) in rank.items() if axis in AGREEING)
    wanted = compared and settings.checks is None and settings.key
    return Digests(journal, settings.key) if wanted else None
