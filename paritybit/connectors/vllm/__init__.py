"""The connector of vLLM, for its engine core (V1) and both of its model runners.

`Engine` has four layers: `blocks`, `drafting`, `rows` and `engine`. The other modules read facts
from parts of the engine. The groups of a hybrid model share one pool of blocks and its tensors.
They are therefore one KV group here, and a request has one row for each of them: see `requests`.

Importing this package imports neither torch nor vllm.
"""

from paritybit.connectors import begin


def load() -> None:
    """Wrap the engine's functions. This is the entry point in the group `vllm.general_plugins`."""
    begin("vllm")


def connect() -> None:
    """Do nothing, because releases load plugins. This is the entry point of connectors."""
