"""The connector of sglang, for releases that have the plugin group `sglang.srt.plugins`.

`engine` follows the forwards, replays and idle moments, `allocations` the slots in between. The
other modules read facts from parts of the engine. A module with the name of a part, such as `pools`
or `graphs`, knows nothing of the others.

Importing this package imports neither torch nor sglang.
"""

import os
from collections.abc import Callable


def load() -> None:
    """Wrap the engine's functions. This is the entry point in the group `sglang.srt.plugins`."""
    if os.environ.get("PARITYBIT_WATCH"):
        from paritybit.watch.attach import start  # noqa: PLC0415

        start("sglang", _install)


def _install() -> Callable[[], None]:
    from paritybit.connectors.sglang.hooks import install  # noqa: PLC0415

    return install


def connect() -> None:
    """Report a release without plugins. This is the entry point in `paritybit.connectors`."""
    from paritybit.connectors.sglang.hooks import require_plugins  # noqa: PLC0415

    require_plugins()
