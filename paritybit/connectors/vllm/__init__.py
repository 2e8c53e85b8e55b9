"""The connector of vLLM, for its engine core (V1) and both of its model runners.

`VllmEngine` has four layers: `blocks`, `drafting`, `sampling` and `engine`. All groups of layers
share one pool of blocks, so they are one KV group here: a request has a row for each of them.

Importing this package imports neither torch nor vllm.
"""

from paritybit.connectors import begin


def load() -> None:
    """Wrap the engine's functions. This is the entry point in the group `vllm.general_plugins`."""
    begin("vllm")


def connect() -> None:
    """Do nothing, because releases load plugins. This is the entry point of connectors."""
