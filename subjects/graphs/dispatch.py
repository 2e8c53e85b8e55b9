"""The base of this project's dispatch modes, which see every aten call."""

from torch.utils._python_dispatch import TorchDispatchMode


class UncompiledMode(TorchDispatchMode):
    """A dispatch mode of a program that compiles nothing."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # The base would import torch's compiler to decide this, which takes seconds.
        return False
