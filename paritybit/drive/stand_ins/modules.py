"""Modules of an engine by name, and how something of them is replaced wherever it is imported."""

import importlib
import sys
from typing import Any


def found(name: str) -> Any:
    """Return a module, None where the release has none of the name, or none that can be imported.

    The second is so where it is made for other hardware alone.
    """
    try:
        return importlib.import_module(name)
    except (ImportError, NameError):
        return None


def replace_everywhere(original: object, stand_in: object) -> None:
    """Replace an object of the engine in each of its modules that holds it."""
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "sglang":
            for key, held in list(getattr(module, "__dict__", {}).items()):
                if held is original:
                    setattr(module, key, stand_in)
