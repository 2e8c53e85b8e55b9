"""The base class of this project's dispatch modes, which see every aten call."""

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

ALLOCATIONS = frozenset(
    {
        *("aten::empty", "aten::empty_like", "aten::empty_strided"),
        *("aten::new_empty", "aten::new_empty_strided"),
    }
)
"""Calls that return uninitialised memory."""

ALLOCATORS = frozenset(
    {
        *(torch.empty, torch.empty_like, torch.empty_strided),
        *(Tensor.new_empty, Tensor.new_empty_strided),
    }
)
"""Torch functions that make these calls."""


class UncompiledMode(TorchDispatchMode):
    """A dispatch mode in a program that compiles nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # The base class would import torch's compiler, which takes seconds.
        return False
