"""Uninitialised read: a row reads a slot that was never written."""

from collections.abc import Iterable

from paritybit.watch.journal import Finding
from paritybit.watch.ledger import NEVER
from paritybit.watch.observations import Check, Reads


def judge(reads: Reads) -> Iterable[Finding]:
    """Yield a finding per row."""
    wrong = reads.missing | (reads.written == NEVER)
    yield from reads.findings(CHECK.name, wrong, "it was never written")


CHECK = Check(
    "uninitialised read",
    "reads",
    "every slot that a live row reads has been written before",
    judge,
    lambda reads: len(reads.slots),
)
