"""Imports modules of an engine, and replaces objects in all of them."""

import importlib
import sys
from typing import Any


def found(name: str) -> Any:
    """Return a module, or None if the release lacks it or it cannot be imported here.

    Some modules can only be imported on other hardware.
    """
    try:
        return importlib.import_module(name)
    except (ImportError, NameError):
        return None


def replace_everywhere(original: object, stand_in: object) -> None:
    """Replace an object of the engine in all modules that refer to it."""
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "sglang":
            for key, held in list(getattr(module, "__dict__", {}).items()):
                if held is original:
                    setattr(module, key, stand_in)
