"""The connector of sglang, for releases that have the plugin group `sglang.srt.plugins`.

`engine` follows forwards, replays and idle moments, and `allocations` the slots in between.
Importing this package imports neither torch nor sglang.
"""

from paritybit.connectors import begin


def load() -> None:
    """Wrap the engine's functions. The entry point in the group `sglang.srt.plugins`."""
    begin("sglang")


def connect() -> None:
    """Do nothing, because releases load plugins. The entry point of connectors."""
