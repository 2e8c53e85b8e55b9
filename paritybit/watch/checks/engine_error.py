"""Engine error: memory is accessed out of bounds, or the engine finds its own pool wrong."""

from collections.abc import Iterable

from paritybit.watch.journal import Finding
from paritybit.watch.observations import Check, EngineError, key_of

INDEX_ERRORS = ("out of bounds", "index out of range in self")
"""What torch says, in lower case, of an index that no element has."""


def judge(error: EngineError) -> Iterable[Finding]:
    """Yield one finding, with what the engine says and where."""
    cause = (
        None if error.source is None else {"what": "the line that raised", "source": error.source}
    )
    yield Finding(
        check=CHECK.name,
        text=f"{error.what}: {error.text}",
        key=key_of(CHECK.name, None, {"what": error.what}),
        forward=error.number,
        forward_kind=error.kind,
        cause=cause,
    )


CHECK = Check(
    "engine error",
    "error",
    "no forward pass accesses memory out of bounds, the engine's own checks of slots pass, "
    "and each request that it accepts ends without ending it",
    "none",
    judge,
)
