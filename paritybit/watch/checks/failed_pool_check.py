"""Failed pool check: while nothing runs, the engine's own check of its pools fails."""

from collections.abc import Iterable

from paritybit.watch.journal import Finding
from paritybit.watch.observations import Check, OwnCheck, key_of


def judge(own: OwnCheck) -> Iterable[Finding]:
    """Yield one finding, with what the engine says and where."""
    yield Finding(
        check=CHECK.name,
        text=f"the engine's own check of its pools fails: {own.text}",
        key=key_of(CHECK.name, None, None),
        forward=own.number,
        cause=None if own.source is None else {"what": "the check", "source": own.source},
    )


CHECK = Check(
    "failed pool check",
    "own check",
    "when nothing runs, the engine's own check of its pools passes",
    "none",
    judge,
)
