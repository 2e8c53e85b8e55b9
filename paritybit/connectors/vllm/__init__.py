"""The connector of vLLM, for its engine core (V1) with either of its model runners.

| module | reports |
|---|---|
| hooks | which functions of the engine are wrapped |
| engine | the forwards, replays and idle moments, in the order in which they happen |
| requests | the live rows of a batch, from what the scheduler says |
| blocks | the blocks that are taken, freed and copied |
| drafting | the drafts that are proposed, and those that are accepted |
| drafts | the forwards of a draft model |
| speculation | how far each request has come, by what the sampler returns |
| pools | the KV tensors of the pool of blocks, by slot |
| batch | what the attention kernels and the model are given |

The groups of a hybrid model share one pool of blocks and its tensors. So they are one KV group
here, and a request has a row for each of them: see `requests`.

Importing this package imports neither torch nor vllm.
"""

import os


def load() -> None:
    """Wrap the engine's functions. This is the entry point in the group `vllm.general_plugins`.

    Does nothing if `PARITYBIT_WATCH` is not set.
    """
    if os.environ.get("PARITYBIT_WATCH"):
        from paritybit.connectors.vllm.hooks import install  # noqa: PLC0415

        install()


def connect() -> None:
    """Do nothing: each release with an engine core loads plugins. This is for attaching."""
