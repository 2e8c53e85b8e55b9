"""Engine error: the engine accesses memory out of bounds, or a check of its own pool fails."""

from collections.abc import Iterable

from paritybit.watch.journal import Finding
from paritybit.watch.observations import Check, EngineError, uncounted
from paritybit.watch.stacks import described

INDEX_ERRORS = ("out of bounds", "index out of range in self")
"""What torch's message for an index out of bounds contains, in lower case."""


def judge(error: EngineError) -> Iterable[Finding]:
    """Yield one finding, with the engine's message and line."""
    source, via = described(error.lines)
    cause = {"what": "the line that raised", "source": source, "via": via}
    known = None if source is None else cause
    yield error.found(CHECK.name, f"{error.what}: {error.text}", cause=known, why=error.what)


CHECK = Check(
    "engine error",
    "error",
    "no forward pass accesses memory out of bounds, the engine's own checks of slots pass, "
    "and no request that it accepts ends it",
    judge,
    uncounted,
)
