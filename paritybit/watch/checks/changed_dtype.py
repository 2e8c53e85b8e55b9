"""Changed dtype: a static input has another dtype or shape than its graph captured."""

from collections.abc import Iterable

from paritybit.watch.journal import Finding
from paritybit.watch.observations import Check, Inputs, key_of


def judge(inputs: Inputs) -> Iterable[Finding]:
    """Yield a finding per static input that changed."""
    for static in inputs.inputs:
        captured = inputs.captured.get(static.name)
        now = (static.tensor.dtype, tuple(static.tensor.shape))
        if captured is None or now == (captured.dtype, captured.shape):
            continue
        cause = {"what": static.name, "input": static.name, "source": static.source}
        yield Finding(
            check=CHECK.name,
            text=f"{static.name} is {describe(*now)}, but {inputs.kind} captured "
            f"{describe(captured.dtype, captured.shape)}",
            key=key_of(CHECK.name, None, cause),
            forward=inputs.number,
            forward_kind=inputs.forward.kind,
            replay=inputs.kind,
            cause=cause,
        )


def describe(dtype: object, shape: tuple[int, ...]) -> str:
    """Return a dtype and a shape in words."""
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"


CHECK = Check(
    "changed dtype",
    "inputs",
    "a static input has the dtype and shape that its graph captured",
    "a comparison per static input and replay",
    judge,
)
