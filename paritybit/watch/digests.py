"""Digests of what forwards get, by which the launcher compares the ranks of an engine afterwards.

Ranks are compared by the number of a forward of its model, which counts the skipped ones. A digest
has a hash per part, so the journal has no token. A hash depends on the key of the run and the
number of the forward: otherwise, that of a single token could be guessed. See
`paritybit.launch.ranks` for the law.
"""

import hashlib
from collections.abc import Iterable, Mapping

from torch import Tensor

from paritybit.watch.between import SlotCopy
from paritybit.watch.facts import Forward, IndexList
from paritybit.watch.journal import Journal
from paritybit.watch.settings import AGREEING, RANKS_DISAGREE, TRIED, Settings

SIZE = 4
"""The number of bytes of a hash."""


Parts = dict[str, list[bytes | SlotCopy]]
"""What a forward got, by part. What is on a GPU is fetched after the forward."""


class Digests:
    """Makes the digests of one process."""

    def __init__(self, journal: Journal, key: str) -> None:
        self.journal, self.key = journal, key.encode()[: hashlib.blake2b.MAX_KEY_SIZE]
        self.now: tuple[str, int] | None = None
        """The model of the next forward, or of the current one, and its number."""
        self.parts: Parts = {}
        self.ended: tuple[tuple[str, int, int, str], Parts] | None = None
        """The last forward that ended, until `write`."""
        journal.count(**{f"{TRIED}{RANKS_DISAGREE}": 0})

    def begin(self, forward: Forward) -> None:
        """Begin the digest of a forward."""
        self.parts = {}
        rows, names = forward.rows, sorted({name for row in forward.rows for name in row.slots})
        first = rows[: len(rows) // forward.repeats]
        self.add("rows", (forward.kind, *(f"{row.request} {row.space}" for row in first)))
        self.add("lengths", [number for row in first for number in (row.cached, row.computed)])
        self.add("slots", (row.slots[name] for name in names for row in rows if name in row.slots))
        self.add("bucket", ())

    def add(self, part: str, values: Iterable[object]) -> None:
        """Add values to a part of the current digest. Waits for no device."""
        self.parts.setdefault(part, []).extend(
            SlotCopy(one) if isinstance(one, Tensor) else f"{one}\0".encode() for one in values
        )

    def lists(self, rows: int, given: IndexList) -> None:
        """Add the live rows of an index list on the host."""
        offsets, counts = (one[:rows].tolist() for one in (given.offsets, given.counts))
        parts = zip(offsets, counts, strict=True)
        entries = (given.entries[at : at + max(0, count)] for at, count in parts)
        self.add("lists", [given.name, *counts, *entries])

    def end(self, number: int, forward: Forward) -> None:
        """End the digest of the forward, which is checked as this number."""
        if self.now is not None and forward.rows:
            self.ended = (*self.now, number, forward.kind), self.parts
        self.now = None

    def write(self) -> None:
        """Write the digest of the last forward that ended."""
        if self.ended is not None:
            (model, at, number, kind), parts = self.ended
            self.ended = None
            text = " ".join(
                self.hash(at, parts[one]) if one in parts else "" for one in AGREEING["tp"]
            )
            self.journal.digest(model, at, number, kind, text)

    def hash(self, at: int, values: Iterable[bytes | SlotCopy]) -> str:
        """Return the hash of a part of the forward with a number."""
        salt = at.to_bytes(hashlib.blake2b.SALT_SIZE, "big")
        made = hashlib.blake2b(digest_size=SIZE, key=self.key, salt=salt)
        for one in values:
            made.update(one if isinstance(one, bytes) else one.slots.numpy().tobytes())
        return made.hexdigest()


def digests_of(
    journal: Journal, rank: Mapping[str, tuple[int, int]], settings: Settings
) -> Digests | None:
    """Return what makes the digests of a process, or None if its rank is compared to no other."""
    compared = any(size > 1 for axis, (_, size) in rank.items() if axis in AGREEING)
    wanted = compared and settings.checks is None and settings.key
    return Digests(journal, settings.key) if wanted else None
