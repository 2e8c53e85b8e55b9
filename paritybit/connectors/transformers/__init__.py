"""The connector of transformers, for its continuous batching.

| module | reports |
|---|---|
| hooks | wraps methods of the engine |
| engine | the forwards, replays, allocations and idle moments of one paged cache |
| eager | forwards without a graph, which are repeated |
| cache | the KV groups of a cache, and the slots of its indices |
| streams | inputs that are read before another stream has written them |
| batch | the live rows of a batch |
| inputs | the lists, masks and static inputs of a batch |
| sampling | the arguments of logits processors by row |
| sources | lines of the engine's source, and the meaning of its errors |

sglang and vLLM also import transformers. Methods are therefore wrapped only when the module of
continuous batching is imported, and nothing is reported until the engine creates a cache.
"""

from collections.abc import Callable

from paritybit.watch.attach import start, when_imported

MODULE = "transformers.generation.continuous_batching.continuous_api"
"""The module that imports all others of continuous batching."""


def connect() -> None:
    """Wrap continuous batching when it is imported.

    This is the entry point in the group `paritybit.connectors`.
    """
    when_imported(MODULE, lambda: start("transformers", _install))


def _install() -> Callable[[], None]:
    from paritybit.connectors.transformers.hooks import install  # noqa: PLC0415

    return install
