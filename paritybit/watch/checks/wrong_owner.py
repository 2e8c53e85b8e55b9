"""Wrong owner (use after free): a row reads a slot that was last written for another prefix.

A prefix is tokens, and what else their KV depends on, such as an adapter.
"""

from collections.abc import Iterable

from paritybit.watch.journal import Finding
from paritybit.watch.observations import Check, Reads


def judge(reads: Reads) -> Iterable[Finding]:
    """Yield a finding per row."""
    wrong = reads.judged & (reads.held != reads.expected)
    what = "it was last written for other tokens, or with another adapter or salt"
    yield from reads.findings(CHECK.name, wrong, what, reused=True)


CHECK = Check(
    "wrong owner",
    "reads",
    "every slot that a live row reads was last written for exactly that row's tokens",
    judge,
    lambda reads: int(reads.judged.sum()),
)
