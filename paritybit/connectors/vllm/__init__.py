"""The connector of vLLM, for its engine core (V1) and both of its model runners.

| module | reports |
|---|---|
| hooks | wraps functions of the engine |
| engine | the forwards, replays and idle moments, in order |
| requests | the live rows of a batch, from the output of the scheduler |
| blocks | the blocks that the engine allocates, frees and copies |
| drafting | the drafts that are proposed, and those that are accepted |
| drafts | the forwards of a draft model |
| speculation | the progress of each request, from the output of the sampler |
| rows | what the sampler and the adapters use for each row |
| sampling | what requests ask of both runners' samplers |
| pools | the KV tensors of the pool of blocks, by slot |
| batch | the inputs of the model and of its attention kernels |

The groups of a hybrid model share one pool of blocks and its tensors. They are therefore one KV
group here, and a request has one row for each of them: see `requests`.

Importing this package imports neither torch nor vllm.
"""

import os
from collections.abc import Callable


def load() -> None:
    """Wrap the engine's functions. This is the entry point in the group `vllm.general_plugins`."""
    if os.environ.get("PARITYBIT_WATCH"):
        from paritybit.watch.attach import start  # noqa: PLC0415

        start("vllm", _install)


def _install() -> Callable[[], None]:
    from paritybit.connectors.vllm.hooks import install  # noqa: PLC0415

    return install


def connect() -> None:
    """Do nothing, because each release with an engine core loads plugins."""
