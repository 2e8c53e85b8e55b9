"""Packages that an engine imports and, as served here, never uses: empty modules."""

import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import FrameType
from typing import Any

from paritybit.engines.stubs import StubFinder

OPTIONAL = (
    "IPython",
    "cuda",
    "cutlass",
    "gguf",
    "sentencepiece",
    "sgl_kernel",
    "torchvision",
    "vllm",
)
"""Packages that do without: formats, tokenizers, media, interactive use, compiled kernels."""


OLDEST = "0"
"""The version that their empty modules have, for who compares it with what it needs."""

MEDIA = "torchvision"
"""The one that is there from the start: some releases import what another needs of it first."""

ABSENT = ("vllm.logger",)
"""Modules of them without which an engine does: it would call what they hold."""


class UnavailableFinder(StubFinder):
    """Gives an empty module to what imports a package, and nothing to what asks whether it is here.

    A library that finds a package available would use it.
    """

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of a stub for an import of a name on the list or below one."""
        if self.names and _asked_for_availability(sys._getframe(1)):
            return None
        return super().find_spec(fullname, path, target)


def _asked_for_availability(frame: FrameType | None) -> bool:
    """Whether `importlib.util.find_spec` is nearer than an import."""
    while frame is not None:
        if frame.f_code.co_name == "_find_and_load":
            return False
        if frame.f_globals is vars(importlib.util):
            return True
        frame = frame.f_back
    return False


def stand_in_for_packages() -> str:
    """Let the import of a package that is not installed give an empty module. Return their names.

    Without any, the text is empty.
    """
    missing = tuple(name for name in OPTIONAL if importlib.util.find_spec(name) is None)
    versions = {name: {"__version__": OLDEST} for name in missing}
    sys.meta_path.append(UnavailableFinder(missing, absent=ABSENT, answers=versions))
    if MEDIA in missing:
        importlib.import_module(MEDIA)
    return ", ".join(missing)
