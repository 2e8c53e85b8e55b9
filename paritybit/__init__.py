"""Find what CUDA-graph replay does to the KV caches of LLM engines.

`paritybit.harness` is the laboratory: it runs every step eagerly and by replay and compares the
bits. `paritybit.watch` is the sanitizer: it checks an engine from inside the engine's process.
"""

import importlib
from typing import Any

from paritybit.places import PACKAGE, SOURCES

__version__ = "0.4.0"

if SOURCES != PACKAGE:  # A checkout: see `paritybit.places`.
    __path__.append(str(SOURCES))


def pytest_configure(config: Any) -> None:
    """Watch the engines of all tests: pytest calls this where it is run with `-p paritybit`."""
    importlib.import_module("paritybit.testing.plugin").register(config)
