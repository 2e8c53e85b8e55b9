"""Empty modules for packages that an engine imports, but does not use here."""

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import FrameType
from typing import Any

from paritybit.engines.stubs import StubFinder


class UnavailableFinder(StubFinder):
    """Finds an empty module for an import only. A library would use a package that it finds."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of a stub for an import of a listed name, or of a module below one."""
        if self.names and _asked_for_availability(sys._getframe(1)):
            return None
        return super().find_spec(fullname, path, target)


def _asked_for_availability(frame: FrameType | None) -> bool:
    """Return whether the caller is `importlib.util.find_spec`, and not an import."""
    while frame is not None:
        if frame.f_code.co_name == "_find_and_load":
            return False
        if frame.f_globals is vars(importlib.util):
            return True
        frame = frame.f_back
    return False


def replaced(names: tuple[str, ...], absent: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Replace packages that are not installed by empty modules. Returns their names."""
    missing = tuple(name for name in names if importlib.util.find_spec(name) is None)
    versions = {name: {"__version__": "0"} for name in missing}  # Some code compares it.
    sys.meta_path.append(UnavailableFinder(missing, absent=absent, answers=versions))
    return missing
