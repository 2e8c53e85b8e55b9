"""The connector of transformers, for its continuous batching.

| module | reports |
|---|---|
| hooks | which methods of the engine are wrapped |
| engine | the forwards, replays, allocations and idle moments of one paged cache |
| cache | the KV groups of a cache, and the slots that its indices name |
| streams | inputs that are read before another stream has written them |
| batch | the live rows of a batch, its lists and its static inputs |

sglang and vLLM import transformers, too. So nothing is wrapped until the module of continuous
batching is imported, and nothing is reported until a cache is made.
"""

from paritybit.watch.attach import when_imported

MODULE = "transformers.generation.continuous_batching.continuous_api"
"""The module that imports all others of continuous batching."""


def connect() -> None:
    """Wrap continuous batching once it is imported. This is the entry point for attaching."""
    when_imported(MODULE, _install)


def _install() -> None:
    from paritybit.connectors.transformers.hooks import install  # noqa: PLC0415

    install()
