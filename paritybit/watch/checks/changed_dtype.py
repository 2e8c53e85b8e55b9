"""Changed dtype: a static input has another dtype than its graph captured or the engine gives."""

from collections.abc import Iterable

import torch

from paritybit.watch.journal import Finding
from paritybit.watch.observations import Check, Inputs


def judge(inputs: Inputs) -> Iterable[Finding]:
    """Yield a finding per static input."""
    for static in inputs.inputs:
        dtype, captured = static.tensor.dtype, inputs.captured.get(static.name)
        if captured is not None and dtype != captured.dtype:
            what = f"was captured as {name_of(captured.dtype)}"
        elif static.dtype not in (None, dtype):
            what = f"the engine gives {name_of(static.dtype)}"
        else:
            continue
        text = f"{static.name} is {name_of(dtype)}, but {what}"
        yield inputs.finding(CHECK.name, static, text)


def name_of(dtype: torch.dtype | None) -> str:
    """Return the name of a dtype."""
    return str(dtype).removeprefix("torch.")


CHECK = Check(
    "changed dtype",
    "inputs",
    "each static input has the dtype that its graph captured and that the engine gives such values",
    judge,
)
