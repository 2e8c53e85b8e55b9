"""The connector of transformers with continuous batching.

`engine` follows one paged cache, whose KV groups `cache` describes. `batch` reads a forward from
the engine's own index lists. Importing this package imports neither torch nor transformers.
"""

from paritybit.connectors import begin

MODULE = "transformers.generation.continuous_batching.continuous_api"
"""The module that imports all others of continuous batching."""


def connect() -> None:
    """Wrap continuous batching when it is imported, as the engine has no plugins."""
    from paritybit.watch.attach import when_imported  # noqa: PLC0415

    when_imported(MODULE, lambda: begin("transformers"))
