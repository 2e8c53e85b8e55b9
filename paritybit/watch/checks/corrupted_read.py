"""Corrupted read: the bytes of a slot have changed since they were written for a row's tokens."""

from collections.abc import Iterable

from torch import Tensor

from paritybit.watch.journal import Finding
from paritybit.watch.observations import Check, Reads


def judge(reads: Reads) -> Iterable[Finding]:
    """Yield a finding per row."""
    wrong = whole(reads) & (reads.now != reads.checksum)
    yield from reads.findings(CHECK.name, wrong, "its bytes changed since they were written")


def whole(reads: Reads) -> Tensor:
    """Return which reads are of slots with the right owner and a known checksum, bool [n]."""
    return reads.judged & (reads.held == reads.expected) & (reads.checksum != 0)


CHECK = Check(
    "corrupted read",
    "reads",
    "every slot that a live row reads still holds the bytes that were written to it",
    judge,
    lambda reads: int(whole(reads).sum()),
)
