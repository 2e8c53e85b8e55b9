"""The settings of transformers' continuous batching, by the names of its own configuration."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from paritybit.drive.limits import Limits
from paritybit.drive.models import WINDOW
from paritybit.drive.script import Setting
from paritybit.drive.served import Common

ROWS, CHUNK, POOL = 8, 64, 512
"""Most requests that run at once; most tokens of a forward pass, and of the pool."""

Q_PADDING, KV_PADDING = 16, 128
"""Graphs are captured for sizes that are multiples of these."""

SCHEDULERS = ("fifo", "prefill_first")

SIMPLE: Mapping[str, Setting] = {
    "overlap": False,
    "offload": False,
    "samples": 1,
    "scheduler": "fifo",
    "page_size": 16,
}
"""The simplest value of settings, in the order in which a search tries them."""


@dataclass(frozen=True)
class Served(Common):
    """What continuous batching is served with.

    `full` makes all layers ones of full attention: only such a model shares prefixes. `samples`
    are the sequences that each request asks for; more than one are forked after its prompt.
    """

    CHOICES: ClassVar = {"scheduler": SCHEDULERS}
    SIZES: ClassVar = ("page_size", "samples")

    full: bool = False
    graphs: bool = True
    offload: bool = False
    samples: int = 1
    scheduler: str = "fifo"

    def limits(self) -> Limits:
        """Return what requests must keep to."""
        return Limits(WINDOW, self.page_size, CHUNK, POOL, POOL, ROWS)

    def configuration(self) -> dict[str, Any]:
        """Return the model's configuration, as its class takes it."""
        config = dict(self.shape.config)
        if self.full:
            config["layer_types"] = ["full_attention"] * len(config["layer_types"])
        return config

    @property
    def attention(self) -> str:
        """What computes attention: the engine's own torch code, with sinks where it has them."""
        return "eager" if self.model == "gpt_oss" else "sdpa"

    @property
    def dtype(self) -> str:
        """The model's dtype. A GPU computes experts within a graph in bfloat16 alone."""
        return "float32" if self.device == "cpu" else "bfloat16"

    def blocks(self) -> int:
        """Return the size of the pool in blocks of all layers: `POOL` tokens, and the windows."""
        kinds: list[str] = self.configuration()["layer_types"]
        sliding = kinds.count("sliding_attention")
        pages = -(-POOL // self.page_size) * (len(kinds) - sliding)
        pages += ROWS * -(-WINDOW // self.page_size) * sliding
        return -(-pages // len(kinds))

    def batching(self) -> Mapping[str, Any]:
        """Return the settings of ContinuousBatchingConfig."""
        return {
            "page_size": self.page_size,
            "num_blocks": self.blocks(),
            "max_batch_tokens": CHUNK,
            "max_requests_per_batch": ROWS,
            "max_memory_percent": 1.0,
            "allow_block_sharing": self.prefix_cache,
            "use_async_batching": self.overlap,
            "use_cuda_graph": self.graphs,
            "q_padding_interval_size": Q_PADDING,
            "kv_padding_interval_size": KV_PADDING,
            "scheduler_type": self.scheduler,
            "cpu_offload_space": 0.01 if self.offload else 0.0,
        }
