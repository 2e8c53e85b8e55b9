"""What the engine's configuration is told, as data: one rank, no extras, its graphs for decodes.

Every other name that the engine asks for is refused and noted.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from paritybit.reference.config import ModelConfig
from paritybit.subjects.engines.paged.runner import PagedRunner
from paritybit.subjects.engines.shared.bags import Bag, declared_in
from paritybit.subjects.engines.shared.loading import Engine

BLOCK = 16
"""Slots of a block: the smallest that the engine's attention backend takes."""

TOKENS = 64
"""The most tokens of a forward, at least a request's longest."""


DECLARED = declared_in(Path(__file__).with_name("declared.toml"))
"""What is declared of the engine: stubs, what is off, and words."""


def sizes_of(config: ModelConfig) -> dict[str, Any]:
    """Return what the engine asks of a model's sizes; a draft model has the target's."""
    return {
        "max_model_len": config.max_context,
        "get_vocab_size": lambda: config.vocab,
        "get_hidden_size": lambda: config.hidden,
        "get_inputs_embeds_size": lambda: config.hidden,
        "get_num_attention_heads": lambda parallel: config.heads,
        "get_num_kv_heads": lambda parallel: config.full.kv_heads,
        "get_head_size": lambda: config.full.head_dim,
    }


def configuration(
    engine: Engine, runner: PagedRunner, sizes: Sequence[int], rows: int, asked: set[str]
) -> Bag:
    """Return the engine's configuration for a runner, graphs of so many tokens, requests at most.

    `asked` collects the names that are asked for in vain.
    """
    modes = engine.module("config.compilation")
    graphs = ("PIECEWISE" if runner.pieces else "FULL_DECODE_ONLY") if sizes else "NONE"
    replaying = modes.CUDAGraphMode[graphs]

    def bag(label: str, **values: Any) -> Bag:
        return Bag({**DECLARED["off"][label], **values}, asked, label)

    proposed = runner.tokens_per_request - 1
    parts = {
        "model_config": bag("model", dtype=torch.float32, **sizes_of(runner.model.config)),
        "cache_config": bag(
            "cache",
            get_resolved_kv_cache_layout=lambda: (
                engine.part("v1.kv_cache_layout:KVCacheLayout").LBNHC
            ),
        ),
        "compilation_config": bag(
            "compilation",
            static_forward_context={},
            mode=modes.CompilationMode.NONE,
            cudagraph_mode=replaying,
            resolve_cudagraph_mode_and_sizes=lambda *rest, **named: replaying,
            cudagraph_capture_sizes=list(sizes),
            max_cudagraph_capture_size=max(sizes, default=0),
        ),
        "parallel_config": bag("parallel"),
        "scheduler_config": bag("scheduler", max_num_seqs=rows, max_num_batched_tokens=TOKENS),
    }
    draft = parts["model_config"]
    speculative = bag("speculative", num_speculative_tokens=proposed, draft_model_config=draft)
    return bag(
        "engine",
        **parts,
        speculative_config=speculative if runner.drafts else None,
        num_speculative_tokens=proposed,
        kernel_config=SimpleNamespace(ir_op_priority=SimpleNamespace(set_priority=nullcontext)),
    )
