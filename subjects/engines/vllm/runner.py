"""The engine's model runner, built and captured by its own code over our decoder."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from inspect import signature
from types import SimpleNamespace
from typing import Any, Self

import torch
from torch import Tensor

from reference.config import ModelConfig
from reference.model import Model, Output
from reference.ops import Ops
from subjects.engines.shared.loading import Engine, named
from subjects.engines.shared.tensors import tensors_in
from subjects.engines.vllm.loading import PACKAGE
from subjects.engines.vllm.model import Decoder, layer_name, spec_of
from subjects.engines.vllm.settings import GROUPS, configuration

NO_SAMPLER = SimpleNamespace(
    penalties_state=SimpleNamespace(output_bin_counts=None), apply_staged_writes=lambda: None
)
"""What stands for the engine's sampler where it has none yet: sampling is ours."""


@dataclass(frozen=True)
class Sizes:
    """How large a runner is: requests of a bucket, at all, blocks of KV, tokens to verify.

    One without buckets captures nothing. Those of graphs in `pieces` count tokens. With `singly`,
    buckets of a token of each request are captured too.
    """

    buckets: tuple[int, ...]
    rows: int
    blocks: int
    drafts: int = 0
    pieces: bool = False
    singly: bool = False

    @property
    def captured(self) -> list[int]:
        """The tokens of each graph."""
        widths = {max(self.drafts, 1)} | ({1} if self.singly else set())
        return sorted({bucket * width for bucket in self.buckets for width in widths})


def cache_config(engine: Engine, config: ModelConfig, blocks: int) -> Any:
    """Return the engine's plan of its KV: a tensor a layer, a group of layers a kind."""
    module = engine.module("v1.kv_cache_interface")
    specs = {kind: spec_of(engine, config, kind) for kind in GROUPS}
    pages = [specs[kind].page_size_bytes * blocks for kind in config.layers]
    tensors = []
    for index, kind in enumerate(config.layers):
        names, size = [layer_name(index)], pages[index]
        if "shared_by" in signature(module.KVCacheTensor).parameters:
            tensors.append(module.KVCacheTensor(size=size, shared_by=names))
            continue
        # Later releases lay all layers out in one allocation.
        page, offset = specs[kind].page_size_bytes, sum(pages[:index])
        tensors.append(module.KVCacheTensor(sum(pages), names, size, page, offset))
    groups = [
        module.KVCacheGroupSpec([layer_name(i) for i in config.layers_of(kind)], specs[kind])
        for kind in GROUPS
    ]
    return module.KVCacheConfig(blocks, tensors, groups)


@dataclass(frozen=True)
class Ran:
    """What a forward gave: the engine's own batch, and the output of its live rows."""

    batch: Any
    output: Output


class VllmRunner:
    """The engine's runner for `buckets` of requests, `drafts` tokens of each if it verifies.

    `rows` requests at most are known to it; its KV has so many `blocks`. A replay is of so many
    `graphs`; a bucket is of requests where it `pads_requests`.
    """

    decodes: type[Decoder] = Decoder
    pads_requests = True
    graphs = 1

    def __init__(
        self,
        engine: Engine,
        model: Model,
        ops: Ops,
        trial: Sizes,
        asked: set[str],
        *,
        own_kernels: bool = False,
    ) -> None:
        self.model = model
        self.ops = ops
        self.tokens_per_request = max(trial.drafts, 1)
        self.inputs = engine.module("v1.worker.gpu.input_batch")
        settings = engine.module("envs")
        self.marks_padding = bool(getattr(settings, "VLLM_MOE_SKIP_PADDING", False))
        self.device = device = model.embedding.device
        config = configuration(
            *(engine, model.config, trial.captured, trial.rows, trial.drafts, asked),
            pieces=trial.pieces,
        )
        self.plan = cache_config(engine, self.cached, trial.blocks)
        engine.fill("v1.worker.gpu.model_runner", {"init_speculator": self.speculator})
        self.runner = engine.part("v1.worker.gpu.model_runner:GPUModelRunner")(config, device)
        self.decoder = self.decodes(engine, model, ops, own_kernels=own_kernels)
        layers = config.compilation_config.static_forward_context
        for index, layer in enumerate(self.decoder.attention):
            layers[layer_name(index)] = layer
        made = engine.part("v1.worker.gpu.model_states:init_model_state")
        runner = self.runner
        runner.model = self.decoder
        runner.model_state = made(config, self.decoder, None, device)
        runner.decode_query_len = self.tokens_per_request
        if getattr(runner, "sampler", None) is None:
            runner.sampler = NO_SAMPLER
        runner.initialize_kv_cache(self.plan)
        self._tables = [(held, held.clone()) for held in tensors_in(self._shared(), PACKAGE)]
        self.rows = list(runner.req_states.free_indices)
        if trial.buckets:
            self.capture()

    @property
    def cached(self) -> ModelConfig:
        """The configuration of all layers that have KV."""
        return self.model.config

    @property
    def layers(self) -> list[Any]:
        """The engine's layers that have KV."""
        return self.decoder.attention

    def speculator(self, config: Any, device: torch.device, *rest: Any) -> Any:
        """Return what the engine drafts with: nothing."""

    def _shared(self) -> list[Any]:
        """Return the engine's own tables of requests, which a fresh runner reads too."""
        tables = self.runner.block_tables
        return [self.runner.req_states, *tables.block_tables, tables.num_blocks]

    def capture(self) -> Any:
        """Let the engine capture its graphs; return what it keeps of that, if anything."""
        runner, self.decoder.masked = self.runner, self.tokens_per_request > 1
        return named(
            runner.cudagraph_manager.capture,
            model=runner.model,
            model_state=runner.model_state,
            input_buffers=runner.input_buffers,
            intermediate_tensors=None,
            block_tables=runner.block_tables,
            attn_groups=runner.attn_groups,
            kv_cache_config=runner.kv_cache_config,
        )()

    def fresh(self) -> Self:
        """Return another runner just captured, over the same KV and tables of requests."""
        other = copy(self)
        other.runner = runner = copy(self.runner)
        held = runner.input_buffers
        runner.input_buffers = type(held)(held.max_num_reqs, held.max_num_tokens, held.device)
        runner.block_tables = tables = copy(runner.block_tables)
        tables.input_block_tables = [torch.zeros_like(one) for one in tables.input_block_tables]
        tables.input_block_table_ptrs = tables._make_ptr_tensor(tables.input_block_tables)
        tables.slot_mappings = torch.zeros_like(tables.slot_mappings)
        runner.cudagraph_manager = manager = copy(runner.cudagraph_manager)
        manager.graphs, manager.hidden_states = {}, None
        manager.pool = torch.cuda.graph_pool_handle()
        other.renew()
        other.capture()
        return other

    def renew(self) -> None:
        """Make anew what a fresh runner has besides: nothing."""

    def clear(self) -> None:
        """Let the engine's tables know no request, as they were just made."""
        for held, before in self._tables:
            held.copy_(before)
        states = self.runner.req_states
        states.req_id_to_index.clear()
        getattr(states, "index_to_req_id", {}).clear()
        states.free_indices[:] = self.rows
        self.runner.execute_model_state = None
        torch.cuda.synchronize()  # The engine writes memory next that a GPU has a view of.

    def run(self, told: Any, *, verifies: bool) -> Ran:
        """Run what the engine is told to, by replay where it can; return what it gave.

        Drafts lie where the engine's own drafter would have put them.
        """
        states = self.runner.req_states
        for name, drafts in told.scheduled_spec_decode_tokens.items():
            row = states.draft_tokens[states.req_id_to_index[name]]
            row[: len(drafts)] = torch.tensor(drafts)
        self.decoder.masked = verifies
        self.runner.execute_model(told)
        parts = self.kept()
        batch = next(one for one in parts if hasattr(one, "logits_indices"))
        hidden = next(one for one in parts if isinstance(one, Tensor))
        rows = hidden[batch.logits_indices]
        logits = self.model.logits(self.ops, rows)
        torch.cuda.synchronize()  # The engine's memory on the host has room for two batches.
        return Ran(batch, {"logits": logits, "hidden": hidden[: batch.num_tokens]})

    def kept(self) -> tuple[Any, ...]:
        """Return what the engine keeps of the forward that just ran."""
        state = self.runner.execute_model_state
        return state if isinstance(state, tuple) else tuple(vars(state).values())

    def settle(
        self, batch: Any, starts: Tensor, sampled: Sequence[Sequence[int]], rejected: list[int]
    ) -> None:
        """Let the engine follow a forward: what each request sampled, and how much it rejected.

        `starts` are the batch's, which the engine's own buffer may hold no more.
        """
        width = max(1, *(len(tokens) for tokens in sampled))
        padded = [[*one, *[0] * (width - len(one))] for one in sampled]
        whole = partial(torch.tensor, dtype=torch.int32, device=self.device)
        states = self.runner.req_states
        counted = self.runner.sampler.penalties_state.output_bin_counts
        named(
            self.inputs.post_update,
            idx_mapping=batch.idx_mapping,
            num_computed_tokens=states.num_computed_tokens.gpu,
            last_sampled_tokens=states.last_sampled_tokens,
            output_bin_counts=counted,
            sampled_tokens=torch.tensor(padded, device=self.device),
            num_sampled=whole([len(one) for one in sampled]),
            num_rejected=whole(rejected),
            query_start_loc=starts,
            all_token_ids=states.all_token_ids.gpu,
            total_len=states.total_len.gpu,
        )()
        computed, rows = states.num_computed_prefill_tokens, batch.idx_mapping_np
        computed[rows] += batch.num_scheduled_tokens
        computed[:] = computed.clip(max=states.prefill_len.np)

    def statics(self) -> dict[str, Tensor]:
        """Return every static buffer that a replay reads, by name, a view for each group."""
        buffers, tables = self.runner.input_buffers, self.runner.block_tables
        names = ("input_ids", "positions", "seq_lens", "query_start_loc")
        found = {name: getattr(buffers, name) for name in names}
        if self.marks_padding:
            found["is_padding"] = buffers.is_padding
        for group, kind in enumerate(GROUPS):
            found[f"slot_mapping.{kind}"] = tables.slot_mappings[group]
            found[f"block_table.{kind}"] = tables.input_block_tables[group]
        return found
