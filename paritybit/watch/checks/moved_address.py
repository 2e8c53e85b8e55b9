"""Moved address: a static input is not where it was when the graph captured it."""

from collections.abc import Iterable

from paritybit.watch.journal import Finding
from paritybit.watch.observations import Check, Inputs, key_of


def judge(inputs: Inputs) -> Iterable[Finding]:
    """Yield a finding per static input that moved."""
    for static in inputs.inputs:
        captured = inputs.captured.get(static.name)
        if captured is None or static.tensor.data_ptr() == captured.address:
            continue
        cause = {"what": static.name, "input": static.name, "source": static.source}
        yield Finding(
            check=CHECK.name,
            text=f"{static.name} is not at the address that {inputs.kind} captured",
            key=key_of(CHECK.name, None, cause),
            forward=inputs.number,
            forward_kind=inputs.forward.kind,
            replay=inputs.kind,
            cause=cause,
        )


CHECK = Check(
    "moved address",
    "inputs",
    "a static input is at the address at which its graph captured it",
    "a comparison per static input and replay",
    judge,
)
