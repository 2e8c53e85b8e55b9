"""The connector of sglang, for releases that have the plugin group `sglang.srt.plugins`.

`engine` follows the forwards, replays and idle moments, `allocations` the slots in between. The
other modules read facts from parts of the engine.

Importing this package imports neither torch nor sglang.
"""

from paritybit.connectors import begin


def load() -> None:
    """Wrap the engine's functions. This is the entry point in the group `sglang.srt.plugins`."""
    begin("sglang")


def connect() -> None:
    """Do nothing, because releases load plugins. This is the entry point of connectors."""
