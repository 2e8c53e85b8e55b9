"""Importing modules of kernels when they are first needed. This one imports none of them."""

import importlib
from functools import cache
from typing import Any


@cache
def imported_late(module: str) -> Any:
    """Return a module that may import Triton, by its name.

    To import Triton decides whether its interpreter is used, so nobody does before it is needed.
    """
    return importlib.import_module(module)
