"""Moved address: a static input differs from its capture in address, dtype or shape.

A static input whose dtype differs from that of the engine's own code is a finding, too.
"""

from collections.abc import Iterable

from paritybit.watch.facts import StaticInput
from paritybit.watch.journal import Finding
from paritybit.watch.observations import Captured, Check, Inputs


def judge(inputs: Inputs) -> Iterable[Finding]:
    """Yield a finding per static input that moved or changed."""
    for static in inputs.inputs:
        captured = inputs.captured.get(static.name)
        wrong = None if captured is None else fault(static, captured)
        if wrong is None and static.dtype not in (None, static.tensor.dtype):
            wrong = (
                f"is {name_of(static.tensor.dtype)}, but the engine gives {name_of(static.dtype)}"
            )
        if wrong is not None:
            yield inputs.finding(CHECK.name, static, f"{static.name} {wrong}")


def fault(static: StaticInput, captured: Captured) -> str | None:
    """Return how a static input differs from its capture, or None if it does not."""
    tensor = static.tensor
    if (tensor.dtype, tuple(tensor.shape)) != (captured.dtype, captured.shape):
        return (
            f"is {describe(tensor.dtype, tuple(tensor.shape))}, "
            f"but was captured as {describe(captured.dtype, captured.shape)}"
        )
    if tensor.data_ptr() != captured.address:
        return "is not at the address at which it was captured"
    return None


def describe(dtype: object, shape: tuple[int, ...]) -> str:
    """Return a dtype and a shape as text."""
    return f"{name_of(dtype)} {list(shape)}"


def name_of(dtype: object) -> str:
    """Return the name of a dtype."""
    return str(dtype).removeprefix("torch.")


CHECK = Check(
    "moved address",
    "inputs",
    "each static input has the address, dtype and shape that its graph captured, and the dtype "
    "that the engine gives such values",
    "a comparison per static input and replay",
    judge,
    lambda inputs: sum(one.name in inputs.captured for one in inputs.inputs),
)
