"""The engine's model runner, built and captured by its own code over our decoder."""

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from functools import partial
from inspect import signature
from types import SimpleNamespace
from typing import Any

import torch
from paritybit.reference.batch import Mode
from paritybit.reference.config import Kind, ModelConfig, Role
from paritybit.reference.model import Model
from paritybit.reference.ops import Ops
from paritybit.subjects.engines.paged.runner import PagedRunner, Ran
from paritybit.subjects.engines.shared.loading import Engine, attribute, named, renew
from paritybit.subjects.engines.shared.missing import PartMissingError
from paritybit.subjects.engines.shared.tensors import holds_only, tensors_in
from paritybit.subjects.engines.vllm import PACKAGE
from paritybit.subjects.engines.vllm.contract import OF_PADDING, gathers_by, marks_padding
from paritybit.subjects.engines.vllm.model import Decoder, layer_name, spec_of
from paritybit.subjects.engines.vllm.settings import configuration
from torch import Tensor

GPU = "v1.worker.gpu"
"""The engine's package of its runner."""

OF_BATCHES = ("input_ids", "positions", "seq_lens", "query_start_loc")
OF_SEVERAL_RANKS = "dcp_local_seq_lens"
"""The engine's static buffers of batches; and one for several ranks, which nothing here reads."""

NO_SAMPLER = SimpleNamespace(
    penalties_state=SimpleNamespace(output_bin_counts=None), apply_staged_writes=lambda: None
)
"""What stands for the engine's sampler where it has none yet: sampling is ours."""


def cache_config(engine: Engine, config: ModelConfig, blocks: int) -> Any:
    """Return the engine's plan of its KV: a tensor a layer, a group of layers a kind."""
    module = engine.module("v1.kv_cache_interface")
    specs = {kind: spec_of(engine, config, kind) for kind in Kind}
    pages = [specs[kind].page_size_bytes * blocks for kind in config.layers]
    tensors, each_own = [], "shared_by" in signature(module.KVCacheTensor).parameters
    for index, (kind, size) in enumerate(zip(config.layers, pages, strict=True)):
        names = [layer_name(index)]
        # Later releases lay all layers out in one allocation.
        page, offset = specs[kind].page_size_bytes, sum(pages[:index])
        places = (size, names) if each_own else (sum(pages), names, size, page, offset)
        tensors.append(module.KVCacheTensor(*places))
    groups = [
        module.KVCacheGroupSpec([layer_name(i) for i in config.layers_of(kind)], specs[kind])
        for kind in Kind
    ]
    return module.KVCacheConfig(blocks, tensors, groups)


def batch_inputs(engine: Engine, buffers: Any) -> tuple[str, ...]:
    """Return the names of the static buffers that the engine fills for every batch.

    Raises PartMissingError for a tensor by any other name, and where one that marks padding is
    there and nothing says whether it is filled.
    """
    holds_only(buffers, (*OF_BATCHES, OF_PADDING, OF_SEVERAL_RANKS))
    marked = marks_padding(engine.module("envs"), buffers)
    return (*OF_BATCHES, OF_PADDING) if marked else OF_BATCHES


class VllmRunner(PagedRunner):
    """The engine's runner, of so many blocks of KV and requests at most: see `PagedRunner`.

    One without buckets captures nothing.
    """

    decodes: type[Decoder] = Decoder

    def __init__(
        self,
        engine: Engine,
        models: Mapping[Role, Model],
        mode: Mode,
        ops: Ops,
        buckets: Sequence[int],
        rows: int,
        blocks: int,
        asked: set[str],
        *,
        own_kernels: bool = False,
    ) -> None:
        super().__init__(models, mode, ops)
        self.engine = engine
        config = configuration(engine, self, self.captured(buckets), rows, asked)
        self.plan = cache_config(engine, self.cached, blocks)
        self.prepare()
        self.runner = engine.part(f"{GPU}.model_runner:GPUModelRunner")(config, self.device)
        self.decoder = self.decodes(engine, self.model, ops, own_kernels=own_kernels)
        known = config.compilation_config.static_forward_context
        known.update(zip(self.decoder.names, self.decoder.attention, strict=True))
        runner = self.runner
        runner.model = self.decoder
        made = engine.part(f"{GPU}.model_states:init_model_state")
        runner.model_state = made(config, self.decoder, None, self.device)
        runner.decode_query_len = self.tokens_per_request
        if getattr(runner, "sampler", None) is None:
            runner.sampler = NO_SAMPLER
        runner.initialize_kv_cache(self.plan)
        self.names = batch_inputs(engine, runner.input_buffers)
        # Its own tables of requests, which a fresh runner reads too.
        held = runner.req_states, *runner.block_tables.block_tables, runner.block_tables.num_blocks
        self._tables = [(one, one.clone()) for one in tensors_in(held, PACKAGE)]
        self.rows = list(runner.req_states.free_indices)
        if buckets:
            self.capture()

    def prepare(self) -> None:
        """Bring about what the engine's runner needs to be built."""
        self.engine.fill(f"{GPU}.model_runner", {"init_speculator": self.speculator})

    @property
    def layers(self) -> list[Any]:
        """The engine's layers that have KV, in the same order."""
        return self.decoder.attention

    @property
    def clears_below_windows(self) -> bool:
        """Whether the engine is told where windows begin: it clears the blocks below them."""
        return gathers_by(self.runner.block_tables, "num_computed_tokens")

    @property
    def marks_padding(self) -> bool:
        """Whether the engine fills a static buffer of which tokens are padding."""
        return OF_PADDING in self.names

    def speculator(self, config: Any, device: torch.device, *rest: Any) -> Any:
        """Return what the engine drafts with: nothing."""

    def capture(self) -> Any:
        """Let the engine capture its graphs; return what it keeps of that, if anything."""
        self.decoder.masked = self.tokens_per_request > 1
        held = {"intermediate_tensors": None, **vars(self.runner)}
        return named(self.runner.cudagraph_manager.capture, **held)()

    def fresh(self) -> "VllmRunner":
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
        renew(manager, graphs={}, hidden_states=None, pool=torch.cuda.graph_pool_handle())
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
        renew(self.runner, execute_model_state=None)
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
        batch, parts = self.kept()
        hidden = next(one for one in parts if isinstance(one, Tensor))
        logits = self.model.logits(self.ops, hidden[batch.logits_indices])
        torch.cuda.synchronize()  # The engine's memory on the host has room for two batches.
        output = {"logits": logits, "hidden": hidden[: batch.num_tokens]}
        return Ran(batch, output, batch.num_tokens_after_padding, batch.query_start_loc.clone())

    def kept(self) -> tuple[Any, Collection[Any]]:
        """Return the engine's batch of the forward that just ran, and all that it keeps of it."""
        state = self.runner.execute_model_state
        parts = state if isinstance(state, tuple) else tuple(vars(state).values())
        batch = next((one for one in parts if hasattr(one, "logits_indices")), None)
        if batch is None:
            raise PartMissingError("the engine keeps no batch that has logits_indices")
        return batch, parts

    def settle(
        self, batch: Any, starts: Tensor, sampled: Sequence[Sequence[int]], rejected: list[int]
    ) -> None:
        """Let the engine follow a forward: what each request sampled, and how much it rejected."""
        width = max(1, *(len(tokens) for tokens in sampled))
        padded = [[*one, *[0] * (width - len(one))] for one in sampled]
        whole = partial(torch.tensor, dtype=torch.int32, device=self.device)
        states = self.runner.req_states
        named(
            self.engine.part(f"{GPU}.input_batch:post_update"),
            idx_mapping=batch.idx_mapping,
            num_computed_tokens=states.num_computed_tokens.gpu,
            last_sampled_tokens=states.last_sampled_tokens,
            output_bin_counts=self.runner.sampler.penalties_state.output_bin_counts,
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
        found = {name: attribute(buffers, name) for name in self.names}
        for group, kind in enumerate(Kind):
            found[f"slot_mapping.{kind}"] = tables.slot_mappings[group]
            found[f"block_table.{kind}"] = tables.input_block_tables[group]
        return found
