"""The engine's side of a world's requests: its KV cache manager, its requests, what it is told."""

from collections.abc import Sequence
from typing import Any

from paritybit.reference.batch import ForwardBatch
from paritybit.reference.config import Kind
from paritybit.subjects.engines.paged.requests import Asked, PagedRequests, name_of
from paritybit.subjects.engines.shared.loading import Engine, named
from paritybit.subjects.engines.shared.world import Known, World
from paritybit.subjects.engines.vllm.model import keys_and_values
from paritybit.subjects.engines.vllm.runner import VllmRunner
from paritybit.subjects.engines.vllm.settings import BLOCK

OUTPUT = "v1.core.sched.output"
"""The engine's module of what its scheduler tells its runner."""


class VllmRequests(PagedRequests):
    """The engine's requests, whose blocks its manager gives by a runner's plan of KV."""

    def __init__(self, engine: Engine, world: World, runner: VllmRunner) -> None:
        self.engine = engine
        self.plan = runner.plan
        caches = [keys_and_values(layer) for layer in runner.layers]
        super().__init__(world, caches, self.plan.num_blocks, runner.roles)

    def clear(self) -> None:
        """Know no request; every block is free."""
        made = self.engine.part("v1.core.kv_cache_manager:KVCacheManager")
        self.manager: Any = named(
            made,
            kv_cache_config=self.plan,
            max_model_len=self.config.max_context,
            scheduler_block_size=BLOCK,
            hash_block_size=BLOCK,
            enable_caching=False,
        )()
        super().clear()

    def told(
        self, batch: ForwardBatch, asked: Sequence[Asked], finished: set[str], preempted: set[str]
    ) -> Any:
        """Return what the engine is told of a batch as a whole, and who has left."""
        told = self.engine.part(f"{OUTPUT}:SchedulerOutput").make_empty()
        names = [name_of(one.serial) for one in asked]
        told.finished_req_ids, told.preempted_req_ids = finished, preempted
        told.num_scheduled_tokens = {
            name: one.end - one.begin for name, one in zip(names, asked, strict=True)
        }
        told.total_num_scheduled_tokens = sum(told.num_scheduled_tokens.values())
        if batch.spans[0].tree:
            told.scheduled_spec_decode_tokens = {
                name: [token for token, _ in span.tree[1:]]
                for name, span in zip(names, batch.spans, strict=True)
            }
        return told

    def give(self, told: Any, asked: Asked, known: Known) -> None:
        """Give one request of a batch blocks for its tokens, and tell the engine of it."""
        serial, tokens = asked.serial, known.tokens
        new = serial not in self.held
        if new:
            self.held[serial] = self.parked.pop(serial, None) or self._request(serial, tokens)
        request = self.held[serial]
        more = list(tokens[request.num_tokens :])
        if more:
            request.append_output_token_ids(more)
        first = asked.begin if known.kept is None else min(asked.begin, known.kept)
        request.num_computed_tokens = first
        try:
            given = self.manager.allocate_slots(request, asked.end - first)
        except AssertionError as error:  # Its own, of its own lists.
            raise RuntimeError(
                "the engine's manager reports that its own block lists are wrong"
            ) from error
        if given is None:
            raise RuntimeError("the engine's manager is full but the reference allocator has room")
        if not new:
            self.tell(told, asked, request, given.get_block_ids(allow_none=True))
            return
        made = self.engine.part(f"{OUTPUT}:NewRequestData").from_request
        blocks = self.manager.get_block_ids(request.request_id)
        data = made(request, blocks, list(request.all_token_ids))
        data.sampling_params = None  # Sampling is ours.
        told.scheduled_new_reqs.append(data)

    def _request(self, serial: int, tokens: Sequence[int]) -> Any:
        """Return a new request of the engine's."""
        sampling = self.engine.part("sampling_params:SamplingParams")
        return named(
            self.engine.part("v1.request:Request"),
            request_id=name_of(serial),
            prompt_token_ids=list(tokens),
            sampling_params=sampling(max_tokens=self.config.max_context),
            pooling_params=None,
            eos_token_id=None,
        )()

    def tell(self, told: Any, asked: Asked, request: Any, blocks: Any) -> None:
        """Tell the engine to run a request that it knows, with further blocks, if any."""
        data = told.scheduled_cached_reqs
        data.req_ids.append(request.request_id)
        data.new_block_ids.append(blocks)
        data.num_computed_tokens.append(asked.begin)
        data.num_output_tokens.append(request.num_output_tokens)

    def freed(self, request: Any) -> None:
        """Free what the manager has given a request, which may come again."""
        self.manager.free(request)
        request.num_computed_tokens = 0

    def blocks_of(self, serial: int, kind: Kind) -> list[int]:
        """Return the blocks that the manager has given a request in a group, 0 for one freed."""
        found = dict(zip(Kind, self.manager.get_block_ids(name_of(serial)), strict=True))
        return list[int](found[kind])
