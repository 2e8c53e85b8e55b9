"""The checks of the slots that live rows read: their owner, their bytes, and whether they are free.

A slot's owner is a prefix: tokens, and what else their KV depends on, such as an adapter.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from paritybit.watch.journal import Finding
from paritybit.watch.observations import Check, Reads

Mask = Callable[[Reads], Tensor]
"""Returns a mask of the reads of a forward, bool [n]."""


def check(
    name: str, invariant: str, wrong: Mask, what: str, compared: Mask, reused: bool = False
) -> Check:
    """Return a check with a finding per row of the reads that are `wrong`, of those `compared`."""

    def judge(reads: Reads) -> Iterable[Finding]:
        return reads.findings(name, wrong(reads), what, reused)

    return Check(name, "reads", invariant, judge, lambda reads: int(compared(reads).sum()))


def whole(reads: Reads) -> Tensor:
    """Return which reads are of slots with the right owner and a known checksum."""
    return reads.judged & (reads.held == reads.expected) & (reads.checksum != 0)


CHECKS = (
    check(
        "wrong owner",
        "every slot that a live row reads was last written for exactly that row's tokens",
        lambda reads: reads.judged & (reads.held != reads.expected),
        "it was last written, or is read, for other tokens, or with another adapter or salt",
        lambda reads: reads.judged,
        reused=True,
    ),
    check(
        "corrupted read",
        "every slot that a live row reads still holds the bytes that were written to it",
        lambda reads: whole(reads) & (reads.now != reads.checksum),
        "its bytes changed since they were written",
        whole,
    ),
    check(
        "uninitialised read",
        "every slot that a live row reads has been written before",
        lambda reads: reads.unwritten,
        "no KV of it is there",
        lambda reads: torch.ones_like(reads.missing),
    ),
    check(
        "freed in use",
        "no slot that a live row reads was freed after it was written",
        lambda reads: ~reads.missing & (reads.freed > 0),
        "it was freed while the request needed it",
        lambda reads: ~reads.missing,
    ),
)
