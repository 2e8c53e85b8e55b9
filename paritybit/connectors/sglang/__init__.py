"""The connector of sglang, for releases that have the plugin group `sglang.srt.plugins`.

| module | reports |
|---|---|
| hooks | wraps functions of the engine, through its HookRegistry |
| engine | the forwards, replays and idle moments, in order |
| allocations | the slots that the engine allocates, frees, copies or caches |
| models | the models of the engine, and its settings |
| pools | the KV groups of a pool, and the slots of a group |
| rows | the live rows of a batch |
| host | the slots of pools on the host |
| recurrent | the states of recurrent layers |
| lists | the index lists of an attention backend |
| graphs | the static inputs and outputs of a graph runner |
| sources | the line of the engine's source that fills a static input |

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
