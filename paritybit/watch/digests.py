"""Digests of what forwards get, by which the launcher compares the ranks of an engine afterwards.

Ranks are compared by the number of a forward of its model, which counts the skipped ones. A digest
has a hash per part, so the journal has no token. A hash depends on the key of the run and the
number of the forward: otherwise, that of a single token could be guessed. See
`paritybit.launch.ranks` for the law.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from torch import Tensor

from paritybit.watch.between import SlotCopy
from paritybit.watch.bits import sums_of
from paritybit.watch.facts import Forward, IndexList
from paritybit.watch.journal import Journal
from paritybit.watch.settings import AGREEING, RANKS_DISAGREE, TRIED, Settings

SIZE = 4
"""The number of bytes of a hash."""


PIECES = 64
"""About how many hashes a tensor has that the stages of a pipeline exchange."""

Parts = dict[str, list[bytes | SlotCopy]]
"""What a forward got, by part. What is on a GPU is fetched after the forward."""

Piece = tuple[int, int]
"""The first and the last token of a part of a row. They are equal if it is not compared."""


@dataclass(frozen=True)
class Exchanged:
    """The checksum of each token in a tensor that stages exchange, and the pieces of each row."""

    sums: SlotCopy
    rows: Sequence[Sequence[Piece]]


Exchanges = dict[str, dict[str, Exchanged]]
"""What a stage exchanged, by "sent" or "received" and by the name of a tensor."""


class Digests:
    """Makes the digests of one process."""

    def __init__(
        self, journal: Journal, key: str, rank: Mapping[str, tuple[int, int]] = MappingProxyType({})
    ) -> None:
        self.journal, self.key = journal, key.encode()[: hashlib.blake2b.MAX_KEY_SIZE]
        self.stages, self.share = "pp" in rank, rank.get("tp", (0, 1))
        """Whether stages are compared, and which part of a tensor this rank sends: one of how many.
        """
        self.now: tuple[str, int] | None = None
        """The model of the next forward, or of the current one, and its number."""
        self.parts: Parts = {}
        self.exchanged: Exchanges = {}
        self.ended: tuple[tuple[str, int, int, str], Parts, Exchanges] | None = None
        """The last forward that ended, until `write`."""
        journal.count(**{f"{TRIED}{RANKS_DISAGREE}": 0})

    def begin(self, forward: Forward) -> None:
        """Begin the digest of a forward."""
        self.parts, self.exchanged = {}, {}
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

    def exchange(
        self, way: str, forward: Forward, tensors: Mapping[str, Tensor], live: int
    ) -> None:
        """Add tensors that stages exchange, of which the first `live` entries belong to rows.

        Each row gets a hash per some tokens. Tensor-parallel ranks may send a part each, because
        the parts are equal in all of them, perhaps up to rounding. Tokens of which this rank does
        not send everything are not compared.
        """
        counts = [row.computed for row in forward.rows[: len(forward.rows) // forward.repeats]]
        counts = counts if sum(counts) == live else [live]
        step, (part, parts) = max(1, -(-live // PIECES)), self.share
        for name, tensor in tensors.items():
            if not tensor.ndim or not 0 < live <= len(tensor):
                continue
            first, last = 0, tensor.numel()
            if way == "sent" and last % parts == 0:
                first, last = part * last // parts, (part + 1) * last // parts
            width, rows, at = tensor[0].numel(), list[list[Piece]](), 0
            for count in counts:
                ends = [min(begin + step, at + count) for begin in range(at, at + count, step)]
                spans = zip([at, *ends], ends, strict=False)
                rows.append(
                    [(a, b if first <= a * width and b * width <= last else a) for a, b in spans]
                )
                at += count
            sums = SlotCopy(sums_of(tensor[:live]))
            self.exchanged.setdefault(way, {})[name] = Exchanged(sums, rows)

    def lists(self, rows: int, given: IndexList) -> None:
        """Add the live rows of an index list on the host."""
        offsets, counts = (one[:rows].tolist() for one in (given.offsets, given.counts))
        parts = zip(offsets, counts, strict=True)
        entries = (given.entries[at : at + max(0, count)] for at, count in parts)
        self.add("lists", [given.name, *counts, *entries])

    def end(self, number: int, forward: Forward) -> None:
        """End the digest of the forward, which is checked as this number."""
        if self.now is not None and forward.rows:
            self.ended = (*self.now, number, forward.kind), self.parts, self.exchanged
        self.now = None

    def write(self) -> None:
        """Write the digest of the last forward that ended."""
        if self.ended is not None:
            (model, at, number, kind), parts, exchanged = self.ended
            self.ended = None
            text = " ".join(
                self.hash(at, parts[one]) if one in parts else "" for one in AGREEING["tp"]
            )
            made = {
                way: {name: self.hashes(at, one) for name, one in tensors.items()}
                for way, tensors in exchanged.items()
            }
            self.journal.digest(model, at, number, kind, text, *([made] if made else []))

    def hashes(self, at: int, given: Exchanged) -> list[list[str]]:
        """Return the hashes of each row. An empty one stands for what is not compared."""
        sums = given.sums.slots.numpy()
        return [
            [self.hash(at, [sums[a:b].tobytes()]) if a < b else "" for a, b in pieces]
            for pieces in given.rows
        ]

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
    return Digests(journal, settings.key, rank) if wanted else None
