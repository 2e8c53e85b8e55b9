"""The settings of continuous batching in transformers, and its own configuration for them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import lcm
from typing import Annotated, Any, ClassVar

from paritybit.compat import override
from paritybit.drive.models import WINDOW
from paritybit.drive.requests import Limits, with_growth, with_returns
from paritybit.drive.script import Wave
from paritybit.drive.served import Common, Size, one_of

ROWS, CHUNK, POOL = 8, 64, 512
"""The most running requests, and the most tokens of a forward pass and of the pool."""

LARGE = 3
"""The requests of a wave that need most of the pool each, if KV moves to the host."""

Q_PADDING, KV_PADDING = 16, 128
"""Graphs are captured for multiples of these sizes."""

FLASH = "flash_attention_2"
"""The attention that has tables of blocks."""


@dataclass(frozen=True)
class TransformersServed(Common):
    """The settings of continuous batching.

    - `full`: all layers have full attention, because only such models share prefixes.
    - `offload`, `small_host`: KV moves to the host if the pool is full. A small host has only room
      for one kind of layers, so each request has to start again, or if all are of one kind, for a
      part of the pool, so some have to.
    - `samples`: the number of sequences per request, which are forked after the prompt.
    - `sampling`: each request has its own parameters of sampling.
    - `streamed`: answers come token by token.
    - `tables`: decoding gets tables of blocks, which the engine has for flash attention only.
    """

    SIMPLIFIED: ClassVar = (
        *("alone", "overlap", "small_host", "offload", "samples", "sampling", "streamed", "tables"),
        *("scheduler", "page_size"),
    )

    full: bool = False
    graphs: bool = True
    offload: bool = False
    small_host: bool = False
    samples: Size = 1
    scheduler: Annotated[str, one_of(("fifo", "prefill_first"))] = "fifo"
    sampling: bool = False
    streamed: bool = False
    tables: bool = False

    @override
    def requests(self) -> Iterator[Wave]:
        given = super().requests()
        # Texts come back while the pool has room for what is cached. With little room on the host,
        # that ends 5.24.0 soon: see `docs/reports/transformers-host-blocks.md`.
        if self.full and not self.small_host:
            given = with_returns(self.seed, given, self.limits(), flush=True)
        return with_growth(self.seed, given, self.limits(), LARGE) if self.offload else given

    @property
    @override
    def moves(self) -> bool:
        return self.offload and not self.overlap

    @override
    def limits(self) -> Limits:
        return Limits(WINDOW, self.page_size, CHUNK, POOL, POOL, ROWS)

    def configuration(self) -> dict[str, Any]:
        """Return the arguments of the model's configuration class."""
        config = dict(self.shape.config)
        if self.full:
            config["layer_types"] = ["full_attention"] * len(config["layer_types"])
        return config

    @property
    def attention(self) -> str:
        """The attention implementation."""
        if self.tables and self.device == "cpu":
            return FLASH
        return "eager" if self.model == "gpt_oss" else "sdpa"

    @property
    @override
    def extras(self) -> Sequence[str]:
        return ("ignore_eos",)

    @property
    def likelihoods(self) -> bool:
        """Whether answers have log-likelihoods: those of one row in four have none."""
        return self.streamed or self.seed % 4 > 0

    @property
    def drawn(self) -> bool:
        """Whether tokens are drawn at random."""
        return self.samples > 1 or self.sampling

    @property
    def aborts(self) -> bool:
        """False where 5.24.0 fails if running requests are cancelled: see `docs/findings.md`."""
        return not self.overlap and not self.offload

    @property
    def dtype(self) -> str:
        """The dtype of the model. On a GPU, graphs support experts only in bfloat16."""
        return "float32" if self.device == "cpu" else "bfloat16"

    def blocks(self) -> int:
        """Return the number of blocks, for POOL tokens and the sliding windows."""
        kinds: list[str] = self.configuration()["layer_types"]
        sliding = kinds.count("sliding_attention")
        pages = -(-POOL // self.page_size) * (len(kinds) - sliding)
        pages += ROWS * -(-WINDOW // self.page_size) * sliding
        return -(-pages // len(kinds))

    def space(self) -> float:
        """Return the size of the pool on the host in GiB."""
        if not self.small_host:
            return 0.01 if self.offload else 0.0
        config = self.configuration()
        kinds: list[str] = config["layer_types"]
        layers = lcm(*map(kinds.count, {*kinds}))  # Of a sector, which has pages of any kind.
        heads, width = int(config["num_key_value_heads"]), int(config["head_dim"])
        size = 4 if self.dtype == "float32" else 2
        tokens = POOL // 4 if self.full else self.page_size
        return layers * 2 * heads * width * tokens * size / 2**30

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
            "per_request_processors": self.sampling,
            "return_logprobs": self.likelihoods,
            "cpu_offload_space": self.space(),
        }
