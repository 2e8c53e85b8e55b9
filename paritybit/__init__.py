"""Find what CUDA-graph replay does to the KV caches of LLM engines.

`paritybit.harness` is the laboratory: it runs every step eagerly and by replay and compares the
bits. `paritybit.watch` is the sanitizer: it checks an engine from inside the engine's process.
"""

from paritybit.places import PACKAGE, SOURCES

__version__ = "0.4.0"

if SOURCES != PACKAGE:  # A checkout: see `paritybit.places`.
    __path__.append(str(SOURCES))
