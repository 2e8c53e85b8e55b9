"""Corrupted read: the bytes of a slot have changed since they were written for a row's tokens."""

from collections.abc import Iterable

from paritybit.watch.journal import Finding
from paritybit.watch.observations import Check, Reads


def judge(reads: Reads) -> Iterable[Finding]:
    """Yield a finding per row."""
    right = reads.judged & (reads.held == reads.expected)
    wrong = right & (reads.checksum != 0) & (reads.now != reads.checksum)
    yield from reads.findings(CHECK.name, wrong, "its bytes changed since they were written")


CHECK = Check(
    "corrupted read",
    "reads",
    "every slot that a live row reads still holds the bytes that were written to it",
    "a pass over the pool per checked forward pass, shared with stray write",
    judge,
)
