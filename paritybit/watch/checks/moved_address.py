"""Moved address: a static input is not the tensor that its graph captured."""

from collections.abc import Iterable

from paritybit.watch.facts import StaticInput
from paritybit.watch.journal import Finding
from paritybit.watch.observations import Captured, Check, Inputs


def judge(inputs: Inputs) -> Iterable[Finding]:
    """Yield a finding per static input that moved. "changed dtype" reports other dtypes."""
    for static in inputs.inputs:
        captured = inputs.captured.get(static.name)
        if captured is None or static.tensor.dtype != captured.dtype:
            continue
        if (wrong := fault(static, captured)) is not None:
            yield inputs.finding(CHECK.name, static, f"{static.name} {wrong}")


def fault(static: StaticInput, captured: Captured) -> str | None:
    """Return how a static input differs from its capture in address or shape, or None."""
    shape = tuple(static.tensor.shape)
    if shape != captured.shape:
        return f"has the shape {list(shape)}, but was captured with {list(captured.shape)}"
    if static.tensor.data_ptr() != captured.address:
        return "is not at the address at which it was captured"
    return None


CHECK = Check(
    "moved address",
    "inputs",
    "each static input has the address and the shape that its graph captured",
    judge,
    lambda inputs: sum(one.name in inputs.captured for one in inputs.inputs),
)
