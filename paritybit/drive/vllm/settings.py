"""The settings of a whole vLLM, and its engine arguments for them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

from msgspec import Meta

from paritybit.compat import override
from paritybit.drive.models import (
    DEEPSEEK_V2,
    DEEPSEEK_V32,
    GPT_OSS,
    LFM2,
    LLAMA4,
    QWEN2_VL,
    QWEN3_NEXT,
    RECURRENT,
    WINDOW,
    Model,
)
from paritybit.drive.operating.adapters import LOADED, with_adapters
from paritybit.drive.operating.images import MOST_IMAGES, with_images
from paritybit.drive.requests import (
    Limits,
    sample,
    with_each,
    with_moves,
    with_returns,
    with_spaces,
)
from paritybit.drive.script import LARGEST, Part, Planned, Wave
from paritybit.drive.served import Adapters, Common, Size, extras_with_drafts, one_of

BUCKETS = (2, 4, 8)
"""Batch sizes of the graphs for decoding."""

TOKEN_BUCKETS = (2, 4, 8, 16, 32, 64)
"""Numbers of tokens of the graphs for batches with prompts."""

ROWS, CHUNK, CONTEXT, POOL = 8, 64, 512, 512
"""The most running requests, and the most tokens of a forward, of a request, and of the pool."""

WINDOW_BLOCKS = 2
"""Additional blocks of the pool per row, for the windows of each group of sliding layers."""

GRAPHS: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "decode": ("FULL_DECODE_ONLY", BUCKETS),
    "full": ("FULL", TOKEN_BUCKETS),
    "breakable": ("PIECEWISE", TOKEN_BUCKETS),
    "piecewise": ("PIECEWISE", TOKEN_BUCKETS),
    "mixed": ("FULL_AND_PIECEWISE", TOKEN_BUCKETS),
}
"""The captured graphs: the engine's name for the mode, and the sizes."""

WHOLE = ("decode", "full", "mixed")
"""Modes with graphs of whole forwards."""

COMPILED = ("piecewise", "mixed")
"""Modes in which torch.compile splits the model into parts. All others do not compile."""

KV_DTYPES: Mapping[str, tuple[str, float]] = {
    "fp8": ("fp8_e4m3", 0.25),
    "scaled_fp8": ("fp8_per_token_head", 0.27),
    "scaled_int8": ("int8_per_token_head", 0.27),
}
"""Quantised KV: the engine's name for its dtype, and its size per size of plain KV on a CPU. If
scaled, a slot has a scale for each head."""

BACKENDS: Mapping[str, str] = {"triton": "TRITON_ATTN", "flash": "FLASH_ATTN"}
"""The engine's names of attention backends. A CPU only has the first."""

VARIABLES = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
"""Environment variables of the engine's process."""

SPECULATION: Mapping[str, Mapping[str, object]] = {
    "ngram": {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 2},
    "eagle": {"method": "eagle"},
}
"""The engine's settings for each kind of speculation."""

FORCED = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.0}
"""How drafts are verified if `forced`: so many tokens per forward are accepted on average."""

SAMPLED = {"draft_sample_method": "probabilistic"}
"""How drafts are verified otherwise: they are sampled, so that some are accepted."""

DRAFT = Model(
    "eagle",
    {**(GPT_OSS.draft or {}), "architectures": ["EagleLlamaForCausalLM"]},
)
"""The draft model for EAGLE, which shares the embeddings of its target."""

HOST, TIGHT = 2048, 1024
"""Bytes of the host per token of the pool, also of a `tight` one. A token has HOST bytes in each
layer of a group."""

WAITED = "sync_load_budget_bytes"
"""The setting with which a forward waits for loads of up to four blocks. None of these fails."""

CONNECTORS: Mapping[str, Mapping[str, tuple[int, object]]] = {
    "OffloadingConnector": {
        "offload_prompt_only": (1, False),
        WAITED: (2, 2**18),
    },
    "SimpleCPUOffloadConnector": {"lazy_offload": (4, True)},
}
"""The connectors for KV on the host, and the settings that each has if a bit of the seed is set."""

CHUNKS = 24
"""The number of chunks that LMCache keeps in memory."""

AGAIN = "again "

EXPERTS = 4
"""The number of experts in a layer, with data-parallel ranks."""

LFM2_EXPERTS: Mapping[str, object] = {
    "architectures": ["Lfm2MoeForCausalLM"],
    "model_type": "lfm2_moe",
    "num_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "num_dense_layers": 1,
    "use_expert_bias": False,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
}
"""What the model with states of convolutions has for experts in all layers but the first."""

SPLIT = 2
"""The number of ranks that share the context of each request."""

DRAFTS = 3
"""The number of drafts of a request in a forward."""

MEMORY_SHARE = 0.02
"""The fraction of a GPU's memory that the engine may use."""

MOST_RANK = 8
"""The largest rank of adapters. The engine knows no smaller one but 1."""


@dataclass(frozen=True)
class VllmServed(Common):
    """The settings of a whole vLLM. `runner` is 1 for its older model runner, or 2.

    With `ordered`, the older runner puts decoding requests first, as some backends of GPUs need it.
    With `offload`, KV is also kept on the host, with `simple` by the simple connector, and with
    `several` by both. The pool there is `tight` if it often evicts, and files `below` it keep what
    it had, some of which get lost. Some loads fail with `failing`, and with `several` for odd
    seeds. See CONNECTORS. With `files`, prompts are kept in files, and with `cached` in LMCache,
    for a model without windows. So is that of odd seeds with `failing`, where loads also fail by
    block. With `apart`, an engine in another process computes the prompts,
    and some transfers also fail with `failing`. With an `interleave`, SPLIT ranks share the context
    of each request, so many tokens at a time, by FlashAttention. KV is `quantised` as KV_DTYPES
    says. With `images`, which Qwen2-VL alone has, some prompts have images. With `split`, each rank
    computes a part of each prompt.
    """

    ACTIONS: ClassVar = ("flush", "weights", "sleep", "adapters", "pause", "retract", "preempt")
    SEVERAL: ClassVar = ("tp", "pp", "dp")
    SIMPLIFIED: ClassVar = (
        *("alone", "overlap", "runner", "page_size", "window", "graphs", "backend", "speculative"),
        *("ordered", "quantised"),
    )

    graphs: Annotated[str, one_of(GRAPHS)] = "decode"
    runner: Annotated[int, Meta(ge=1, le=2)] = 1
    backend: Annotated[str, one_of(BACKENDS)] = "triton"
    speculative: Annotated[str, one_of(SPECULATION)] | None = None
    window: Size = WINDOW
    full: bool = False
    offload: bool = False
    simple: bool = False
    several: bool = False
    tight: bool = False
    below: bool = False
    failing: bool = False
    files: bool = False
    cached: bool = False
    apart: bool = False
    ordered: bool = False
    interleave: Annotated[int, Meta(ge=0, le=LARGEST)] = 0
    adapters: Adapters = 0
    quantised: Annotated[str, one_of(KV_DTYPES)] | None = None
    images: bool = False
    split: bool = False

    def requests(self) -> Iterator[Wave]:
        """Return the generated requests. If KV is kept, each wave comes again after a flush."""
        given = super().requests()
        given = with_moves(self.seed, given, self.limits()) if self.offload else given
        if self.model in RECURRENT:  # Texts with a state are computed again.
            given = with_returns(self.seed, given, self.limits(), flush=True)
        given = with_adapters(self.seed, given, self.adapters)
        given = with_images(self.seed, given) if self.images else given
        given = with_each(given, self.startable)
        keeps = self.offload or self.files or self.cached
        # The names of files leave out salts and adapters. Rows with adapters show it.
        spaces = not (self.files or self.cached) or self.adapters
        for wave in with_spaces(self.seed, given) if spaces else given:
            yield replace(wave, flush=wave.flush or keeps)
            if keeps:
                requests = (
                    replace(one, name=AGAIN + one.name, follows=one.follows and AGAIN + one.follows)
                    for one in wave.requests
                )
                yield replace(wave, requests=tuple(requests), flush=True)

    def startable(self, one: Planned) -> Planned:
        """Return a request, with some graphs and states of two tokens: see `docs/findings.md`.

        With drafts, none has the size of a row with all of them, either.

        The connector for files cannot take prompts of one token more than some blocks.
        """
        if self.files:
            one = replace(one, follows=None)
            more = one.length % self.page_size == 1
            return replace(one, prompt=(*one.prompt, Part("another token", 1))) if more else one
        as_decodes = self.runner == 1 and self.graphs in WHOLE
        short = one.length == 1 and (as_decodes or self.speculative is not None)
        short |= as_decodes and one.length == self.queries
        if self.model not in RECURRENT or not short or one.follows:
            return one
        return replace(one, prompt=(*one.prompt, Part("another token", 1)))

    @property
    @override
    def moves(self) -> bool:
        return self.offload or self.apart

    @property
    def fails(self) -> bool:
        """Whether some loads or transfers fail."""
        return self.failing or (self.several and self.seed % 2 == 1)

    @property
    def retracts(self) -> bool:
        """Whether the engine often preempts a request, as in every second pair of rows.

        Requests with a single copy of their KV elsewhere may not come back. With states, a hit
        inside of a block read other bytes, which is not yet explained.
        """
        others = self.files or self.cached or self.apart or self.model in RECURRENT
        return self.seed // 2 % 2 == 1 and not others

    @property
    def policy(self) -> str:
        """What the engine does with a request whose load fails."""
        return "fail" if self.seed % 4 == 2 else "recompute"

    @property
    def forced(self) -> bool:
        """Whether the engine accepts drafts whatever their requests ask."""
        return self.speculative == "eagle" and self.seed % 3 != 0

    @property
    @override
    def extras(self) -> Sequence[str]:
        extras = extras_with_drafts(self.speculative is not None, self.forced)
        # A router would add the likelihoods of a prompt, which only one of two engines has.
        return [one for one in extras if not (self.apart and one == "likelihoods")]

    @property
    @override
    def repeatable(self) -> bool:
        # Rounding may change much of quantised KV, and new weights make other tokens likely.
        indexed = self.model == DEEPSEEK_V32.name
        others = self.actions or self.files or self.cached or self.apart or self.forced
        return self.device == "cpu" and not (self.quantised or indexed or others)

    @override
    def company(self) -> Wave | None:
        given = with_each([sample(self.limits())], self.startable)
        # A fork of the engine would share its files, or the other engine. Rounding may change much
        # of quantised KV.
        indexed = self.model == DEEPSEEK_V32.name
        shares = self.files or self.below or self.cached or self.apart or self.quantised or indexed
        alone = self.device == "cpu" and self.ranks == 1 and not shares
        return next(given) if alone else None

    @property
    @override
    def shape(self) -> Model:
        model = super().shape
        states = model is LFM2
        others = DEEPSEEK_V2.name, DEEPSEEK_V32.name, QWEN2_VL.name, LLAMA4.name
        windows = model.name not in {*RECURRENT, *others}
        own: dict[str, object] = {"sliding_window": self.window} if windows else {}
        if model is QWEN3_NEXT:  # The engine requires a layer with experts.
            own["mlp_only_layers"] = [*range(len(model.kinds) - 1)]
        if self.dp > 1:  # Without experts, ranks are engines that know nothing of one another.
            own |= LFM2_EXPERTS if states else {"num_experts": EXPERTS, "top_k_experts": 2}
        if self.interleave:  # Ranks share the context of a head that each of them has.
            own |= {"num_key_value_heads": 1, "num_global_key_value_heads": 1}
        by_block = self.failing and self.offload and self.seed % 2 == 1
        if (self.full or self.cached or by_block) and windows:
            own["layer_types"] = ["full_attention"] * len(model.kinds)
        return replace(model, config={**model.config, **own})

    @property
    def queries(self) -> int:
        """The number of tokens of a decoding request in a forward."""
        return 1 if self.speculative is None else 1 + DRAFTS

    @property
    def blocks(self) -> int:
        """The number of blocks, so few that requests are preempted, and cached blocks evicted.

        All groups of layers share them. A group has as many layers of one kind as there are of the
        kind with fewer layers. A draft model adds a layer with full attention.
        """
        kinds = self.shape.kinds
        sliding = sum(kind != "full_attention" for kind in kinds)  # Or states.
        full = len(kinds) - sliding + (self.speculative == "eagle")
        size = min(full, sliding or full)
        windows = max(2, -(-sliding // size) * ROWS * WINDOW_BLOCKS)
        # The connector for files cannot resume a request that was preempted after its prompt.
        pool = ROWS * CONTEXT if self.files and self.images else POOL
        pool *= max(1, self.page_size // 32)  # Few large blocks would serve few requests.
        return -(-full // size) * pool // self.page_size + windows

    def connector(self, folder: Path) -> Mapping[str, object]:
        """Return the engine's settings for KV on the host, and in files of a folder."""
        size = (TIGHT if self.tight else HOST) * self.blocks * self.page_size
        policy = {"kv_load_failure_policy": self.policy}
        if self.quantised is not None:
            size = int(size * KV_DTYPES[self.quantised][1])
        files = {"type": "fs", "root_dir": str(folder / "blocks")}
        tiers = {"spec_name": "TieringOffloadingSpec", "secondary_tiers": [files]}
        found = [
            {
                "kv_connector": name,
                "kv_role": "kv_both",
                **policy,
                "kv_connector_extra_config": {
                    "cpu_bytes_to_use": size,
                    **{
                        key: one
                        for key, (bit, one) in more.items()
                        if self.seed & bit and not (self.fails and key == WAITED)
                    },
                    **(tiers if self.below else {}),
                },
            }
            for name, more in CONNECTORS.items()
        ]
        if not self.several:
            return found[self.simple]
        config = {"connectors": found[::-1] if self.seed & 8 else found}
        several = {"kv_connector": "MultiConnector", "kv_connector_extra_config": config}
        return {**several, **policy, "kv_role": "kv_both"}

    def chunks(self, folder: Path) -> Mapping[str, object]:
        """Return the settings of LMCache, with so little memory that it also needs files."""
        tokens, layers = 2 * self.page_size, len(self.shape.kinds)
        found: dict[str, object] = {
            "chunk_size": tokens,
            "max_local_cpu_size": CHUNKS * tokens * layers * HOST / 2**30,
            "save_decode_cache": self.seed % 2 == 1,
        }
        if self.seed % 3:
            found |= {"local_disk": f"file://{folder}/chunks/", "max_local_disk_size": 1}
        return {f"lmcache.{name}": one for name, one in found.items()}

    @override
    def limits(self) -> Limits:
        chunks = self.shape.config.get("attention_chunk_size", self.window)
        return Limits(chunks, self.page_size, CHUNK, CONTEXT, POOL, ROWS)

    def variables(self) -> dict[str, str]:
        """Return the variables that the engine reads when it starts."""
        return {
            "VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE": str(int(not self.full)),
            "VLLM_USE_V2_MODEL_RUNNER": str(self.runner - 1),
            "VLLM_USE_BREAKABLE_CUDAGRAPH": str(int(self.graphs == "breakable")),
        }

    def arguments(self, folder: Path) -> dict[str, object]:
        """Return the engine's arguments. `folder` gets the configuration of the model."""
        mode, sizes = GRAPHS[self.graphs]
        compilation: dict[str, object] = {
            "mode": 3 if self.graphs in COMPILED else 0,
            "cudagraph_mode": mode,
            "cudagraph_capture_sizes": [size * self.queries for size in sizes],
        }
        of_device: dict[str, object] = {
            "attention_backend": BACKENDS["flash" if self.interleave else self.backend],
            "gpu_memory_utilization": MEMORY_SHARE,
            "dtype": "bfloat16",
        }
        if self.device == "cpu":
            of_device = {"dtype": "float32"}
            compilation["custom_ops"] = ["none"]  # The engine's own torch implementations run.
            compilation["cudagraph_num_of_warmups"] = 0
        if self.adapters:
            of_device |= {
                "enable_lora": True,
                "max_loras": LOADED,
                "max_cpu_loras": LOADED,
                "max_lora_rank": MOST_RANK,
            }
        if self.model == QWEN2_VL.name:
            limits = {"image": MOST_IMAGES, "video": 0}
            of_device |= {"limit_mm_per_prompt": limits, "enable_mm_embeds": True}
            of_device |= {"skip_mm_profiling": True, "mm_processor_cache_gb": 0}
        if self.quantised is not None:
            of_device["kv_cache_dtype"] = KV_DTYPES[self.quantised][0]
        if self.offload:
            of_device["kv_transfer_config"] = self.connector(folder)
        if self.apart:
            of_device["kv_transfer_config"] = {
                "kv_connector": "NixlConnector",
                "kv_buffer_device": "cpu",
                "kv_load_failure_policy": self.policy,
            }
        if self.cached:
            of_device |= {
                "disable_hybrid_kv_cache_manager": True,
                "kv_transfer_config": {
                    "kv_connector": "LMCacheConnectorV1",
                    "kv_role": "kv_both",
                    "kv_connector_extra_config": self.chunks(folder),
                },
            }
        if self.files:
            kept = {"shared_storage_path": str(folder / "prompts")}
            of_device |= {
                "disable_hybrid_kv_cache_manager": True,
                "kv_transfer_config": {
                    "kv_connector": "ExampleConnector",
                    "kv_role": "kv_both",
                    "kv_connector_extra_config": kept,
                },
            }
        if self.speculative is not None:
            how: dict[str, object] = {
                **SPECULATION[self.speculative],
                "num_speculative_tokens": DRAFTS,
            }
            if self.speculative == "eagle":
                how |= FORCED if self.forced else SAMPLED
                # Its blocks have the size of those of its target.
                target = self.shape.config
                size = target["hidden_size"] // target["num_attention_heads"]
                config = {**DRAFT.config, "head_dim": target.get("head_dim", size)}
                how["model"] = str(replace(DRAFT, config=config).write(folder))
            of_device["speculative_config"] = how
        return {
            **of_device,
            "model": str(self.shape.write(folder)),
            "skip_tokenizer_init": True,
            "load_format": "dummy",
            "seed": self.seed,
            "block_size": self.page_size,
            # Hits end inside of a block.
            "prefix_match_unit": self.page_size // 2 if self.model in RECURRENT else None,
            "max_model_len": CONTEXT,
            "max_num_seqs": ROWS,
            # The connector for files stores all of a prompt after its first chunk.
            "max_num_batched_tokens": CONTEXT * ROWS if self.files else CHUNK,
            "enable_prefix_caching": self.prefix_cache,
            "enable_sleep_mode": self.actions,
            "async_scheduling": self.overlap,
            "tensor_parallel_size": 1 if self.split else self.tp,
            **({"prefill_context_parallel_size": self.tp} if self.split else {}),
            "pipeline_parallel_size": self.pp,
            "decode_context_parallel_size": SPLIT if self.interleave else 1,
            "cp_kv_cache_interleave_size": max(1, self.interleave),
            # It learns from variables which of the data-parallel ranks it is.
            **({"distributed_executor_backend": "uni"} if self.ranks == self.dp else {}),
            "scheduling_policy": "priority" if self.priorities else "fcfs",
            "num_gpu_blocks_override": self.blocks,
            "kv_cache_memory_bytes": 2**28,
            "compilation_config": compilation,
        }
