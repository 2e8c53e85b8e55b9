"""The connector of vLLM V1, for releases that have the plugin group `vllm.general_plugins`.

`engine` follows forwards and replays, and `pools` the blocks in between. Importing this package
imports neither torch nor vllm.
"""

from paritybit.connectors import begin


def load() -> None:
    """Wrap the engine's functions. This is the entry point in the group `vllm.general_plugins`."""
    begin("vllm")


def connect() -> None:
    """Do nothing, because releases load plugins. This is the entry point of connectors."""
