"""Freed in use: a row reads a slot that was freed after it was written."""

from collections.abc import Iterable

from paritybit.watch.journal import Finding
from paritybit.watch.observations import Check, Reads


def judge(reads: Reads) -> Iterable[Finding]:
    """Yield a finding per row."""
    wrong = ~reads.missing & (reads.freed > 0)
    yield from reads.findings(CHECK.name, wrong, "it was freed while the request needed it")


CHECK = Check(
    "freed in use",
    "reads",
    "no slot that a live row reads was freed after it was written",
    judge,
    lambda reads: int((~reads.missing).sum()),
)
