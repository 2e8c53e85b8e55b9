"""The settings of a whole vLLM as its engine arguments take them, whatever the release."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from paritybit.drive.models import WINDOW
from paritybit.drive.requests import Limits
from paritybit.drive.script import Setting
from paritybit.drive.served import Common

DEVICES = ("cpu",)

BUCKETS = (2, 4, 8)
"""Batch sizes that decoding captures."""

TOKEN_BUCKETS = (2, 4, 8, 16, 32, 64)
"""Numbers of tokens that batches with prompts capture."""

ROWS, CHUNK, CONTEXT, POOL = 8, 64, 1536, 1536
"""Most requests that run at once; most tokens of a forward, of a request, and of the pool."""

WINDOW_BLOCKS = 32
"""Blocks beyond those of the pool's tokens, for the windows of layers that slide."""

GRAPHS: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "none": ("NONE", ()),
    "decode": ("FULL_DECODE_ONLY", BUCKETS),
    "full": ("FULL", TOKEN_BUCKETS),
    "breakable": ("PIECEWISE", TOKEN_BUCKETS),
}
"""What is captured, as the engine calls it, and the sizes."""

SIMPLE: Mapping[str, Setting] = {
    "overlap": False,
    "runner": 1,
    "whole_prompts": False,
    "page_size": 16,
    "graphs": "decode",
}
"""The simplest value of settings, in the order in which a search tries them."""


@dataclass(frozen=True)
class Served(Common):
    """What a whole vLLM is served with. `runner` is 1 for its older model runner, or 2."""

    ACTIONS: ClassVar = ("flush", "pause", "retract")
    CHOICES: ClassVar = {"device": DEVICES, "graphs": tuple(GRAPHS), "runner": (1, 2)}

    whole_prompts: bool = False
    graphs: str = "decode"
    runner: int = 1

    def limits(self) -> Limits:
        """Return what requests must keep to."""
        return Limits(WINDOW, self.page_size, CHUNK, CONTEXT, POOL, ROWS)

    def arguments(self, folder: Path) -> dict[str, object]:
        """Return the engine's arguments, for a model that is written into a folder."""
        mode, sizes = GRAPHS[self.graphs]
        return {
            "model": str(self.shape.write(folder)),
            "skip_tokenizer_init": True,
            "load_format": "dummy",
            "dtype": "float32",
            "seed": self.seed,
            "block_size": self.page_size,
            "max_model_len": CONTEXT,
            "max_num_seqs": ROWS,
            "max_num_batched_tokens": CONTEXT if self.whole_prompts else CHUNK,
            "enable_prefix_caching": self.prefix_cache,
            "async_scheduling": self.overlap,
            "enforce_eager": self.graphs == "none",
            # So few that requests are preempted, and cached blocks are evicted.
            "num_gpu_blocks_override": POOL // self.page_size + WINDOW_BLOCKS,
            "kv_cache_memory_bytes": 2**28,
            "compilation_config": {
                "mode": 0,
                "custom_ops": ["none"],  # The engine's own torch implementations run.
                "cudagraph_mode": mode,
                "cudagraph_capture_sizes": list(sizes),
                "cudagraph_num_of_warmups": 0,
            },
        }
