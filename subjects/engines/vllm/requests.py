"""The engine's side of a world's requests: its KV cache manager, its requests, what it schedules.

The world's scheduler says who runs; the engine's manager then gives and takes blocks. Between
the world's pages and the engine's blocks of a group lies a bijection, through which all KV is
read in the world's layout and slot numbers, and written. A page is as large as a block.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from reference.allocator import Owner
from reference.batch import ForwardBatch
from reference.config import Kind, Role
from reference.pool import KVPools
from subjects.engines.shared.loading import Engine, named
from subjects.engines.shared.slots import inverse, pair_slots
from subjects.engines.vllm.model import keys_and_values
from subjects.engines.vllm.settings import BLOCK, GROUPS


@dataclass(frozen=True)
class Known:
    """What a world knows of a running request: its tokens, and how many have their KV."""

    owner: Owner
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class World:
    """What an engine asks of the graph world: its running requests, by serial, and the parked.

    `retracted` are the serials of those that may come again.
    """

    pools: KVPools
    running: Callable[[], dict[int, Known]]
    retracted: Callable[[], Collection[int]]


@dataclass
class Settling:
    """The engine's own batch of the last forward, until the engine is told what it sampled.

    `starts` is where the tokens of each request begin in it, `ends` are the requests and how
    many tokens of them had run.
    """

    batch: Any
    starts: Tensor
    ends: tuple[tuple[int, int], ...]


class VllmRequests:
    """The engine's requests by serial, those that are parked, and what it is yet to be told.

    `caches` are K and V of every layer, each [blocks, slots of a block, kv_heads, head_dim].
    """

    def __init__(self, engine: Engine, world: World, plan: Any, layers: Sequence[Any]) -> None:
        self.engine = engine
        self.world = world
        self.plan = plan
        self.caches = [keys_and_values(layer) for layer in layers]
        self.max_context = world.pools.layout.configs[Role.TARGET].max_context
        self.manager: Any = None
        self.clear()

    def clear(self) -> None:
        """Know no request; every block is free."""
        made = self.engine.part("v1.core.kv_cache_manager:KVCacheManager")
        self.manager = named(
            made,
            kv_cache_config=self.plan,
            max_model_len=self.max_context,
            scheduler_block_size=BLOCK,
            hash_block_size=BLOCK,
            enable_caching=False,
        )()
        self.held: dict[int, Any] = {}
        self.parked: dict[int, Any] = {}
        self.finished: set[str] = set()
        self.preempted: set[str] = set()
        self.ran: Settling | None = None
        self._placed: tuple[tuple[int, int, int], ...] | None = None
        self._pair(())

    def place(self, batch: ForwardBatch, settle: Callable[[Settling], None]) -> Any:
        """Give a batch's requests blocks; return what the engine is told to run.

        A batch that is run again keeps its blocks. `settle` is called once with the batch before.
        Raises RuntimeError if the manager has no room, or freed a block that a window reaches.
        """
        known = self.world.running()
        serials = {one.owner.row: serial for serial, one in known.items()}
        asked = tuple((serials[span.row], span.begin, span.end) for span in batch.spans)
        told = self.engine.part("v1.core.sched.output:SchedulerOutput").make_empty()
        told.num_scheduled_tokens = {name_of(serial): end - begin for serial, begin, end in asked}
        told.total_num_scheduled_tokens = sum(told.num_scheduled_tokens.values())
        if batch.spans[0].tree:
            told.scheduled_spec_decode_tokens = {
                name_of(serials[span.row]): [token for token, _ in span.tree[1:]]
                for span in batch.spans
            }
        if self._placed == asked:
            self._run_again(told, asked)
            return told
        if self.ran is not None:
            settle(self.ran)
        self.ran, self._placed = None, asked
        told.finished_req_ids, self.finished = self.finished, set()
        told.preempted_req_ids, self.preempted = self.preempted, set()
        for serial, begin, end in asked:
            self._schedule(told, serial, begin, end, known[serial].tokens)
        self._check_windows(asked)
        self._pair(tuple(one.owner for one in known.values()))
        self.write_kv()
        return told

    def _schedule(
        self, told: Any, serial: int, begin: int, end: int, tokens: Sequence[int]
    ) -> None:
        """Give one request blocks for its tokens begin .. end-1, and tell the engine of it."""
        new = serial not in self.held
        if new:
            self.held[serial] = self.parked.pop(serial, None) or self._request(serial, tokens)
        request = self.held[serial]
        more = list(tokens[request.num_tokens :])
        if more:
            request.append_output_token_ids(more)
        request.num_computed_tokens = begin
        given = self.manager.allocate_slots(request, end - begin)
        if given is None:
            raise RuntimeError("the engine's manager has no room where ours has")
        name = request.request_id
        if new:
            made = self.engine.part("v1.core.sched.output:NewRequestData").from_request
            data = made(request, self.manager.get_block_ids(name), list(request.all_token_ids))
            data.sampling_params = None  # Sampling is ours.
            told.scheduled_new_reqs.append(data)
            return
        blocks = given.get_block_ids(allow_none=True)
        self._continue(told, name, begin, blocks, request.num_output_tokens)

    def _request(self, serial: int, tokens: Sequence[int]) -> Any:
        """Return a new request of the engine's."""
        sampling = self.engine.part("sampling_params:SamplingParams")(max_tokens=self.max_context)
        made = self.engine.part("v1.request:Request")
        return named(
            made,
            request_id=name_of(serial),
            prompt_token_ids=list(tokens),
            sampling_params=sampling,
            pooling_params=None,
            eos_token_id=None,
        )()

    def _run_again(self, told: Any, asked: Sequence[tuple[int, int, int]]) -> None:
        """Tell the engine to run a batch that it was told of before."""
        for serial, begin, _ in asked:
            request = self.held[serial]
            self._continue(told, request.request_id, begin, None, request.num_output_tokens)

    @staticmethod
    def _continue(told: Any, name: str, computed: int, blocks: Any, outputs: int) -> None:
        """Tell the engine to run a request that it knows, with further blocks, if any."""
        data = told.scheduled_cached_reqs
        data.req_ids.append(name)
        data.new_block_ids.append(blocks)
        data.num_computed_tokens.append(computed)
        data.num_output_tokens.append(outputs)

    def follow(self) -> None:
        """Free what the world has freed since: requests that finished or were retracted."""
        if not self.held:
            return
        running = self.world.running().keys()
        for serial in [serial for serial in self.held if serial not in running]:
            request = self.held.pop(serial)
            self.manager.free(request)
            if serial in self.world.retracted():
                request.num_computed_tokens = 0
                self.parked[serial] = request
                self.preempted.add(request.request_id)
            else:
                self.finished.add(request.request_id)

    def blocks_of(self, serial: int, kind: Kind) -> list[int]:
        """Return the blocks that the manager has given a request in a group, 0 for one freed."""
        found: list[int] = self.manager.get_block_ids(name_of(serial))[GROUPS.index(kind)]
        return found

    def slots_of(self, serial: int, kind: Kind, begin: int, end: int) -> list[int]:
        """Return the engine's slots of tokens begin .. end-1 of a request."""
        blocks = self.blocks_of(serial, kind)
        return [blocks[token // BLOCK] * BLOCK + token % BLOCK for token in range(begin, end)]

    def _check_windows(self, asked: Sequence[tuple[int, int, int]]) -> None:
        """Raise RuntimeError if the manager freed a block that a window of a batch reaches."""
        window = self.world.pools.layout.configs[Role.TARGET].window
        for serial, begin, end in asked:
            first = max(begin - window + 1, 0) // BLOCK
            reached = self.blocks_of(serial, Kind.SWA)[first : -(-end // BLOCK)]
            if not all(reached):
                raise RuntimeError(
                    f"the engine freed a block of request {serial}, whose window reaches back to"
                    f" token {max(begin - window + 1, 0)}"
                )

    def _pair(self, owners: Sequence[Owner]) -> None:
        """Pair the world's pages of a kind with the engine's blocks: by request and place.

        A page that has lost its slots on either side has no counterpart on the other.
        """
        pages = {kind: self.world.pools.sizes.slots(kind) // BLOCK for kind in GROUPS}
        self._places, self._ours = dict[Kind, Tensor](), dict[Kind, tuple[int, ...]]()
        for kind in GROUPS:
            ours, theirs, apart = list[int](), list[int](), list[int]()
            for owner in owners:
                if owner.serial not in self.held:
                    continue
                given = owner.full_pages if kind is Kind.FULL else owner.swa_pages
                for page, block in zip(given, self.blocks_of(owner.serial, kind), strict=False):
                    if not block:
                        continue
                    if page is None:
                        apart.append(block)
                    else:
                        ours.append(page)
                        theirs.append(block)
            total = self.plan.num_blocks
            paired = pair_slots(pages[kind], 1, ours, theirs, apart, total)
            self._places[kind], self._ours[kind] = torch.tensor(paired), inverse(paired)

    def ours(self, kind: Kind, slots: Collection[int]) -> list[int]:
        """Return the world's slots of some of the engine's, -1 for what is no slot."""
        known, found = self._ours[kind], []
        for slot in slots:
            block = slot // BLOCK
            page = known[block] if 0 <= block < len(known) else -1
            found.append(-1 if page < 0 else page * BLOCK + slot % BLOCK)
        return found

    def write_kv(self) -> None:
        """Give every block of the engine the bytes of its counterpart in the world's storage."""
        for plane, buffer, places in self._planes():
            buffer[places] = plane

    def read_kv(self) -> None:
        """Give every page of the world's storage the bytes of its counterpart in the engine."""
        for plane, buffer, places in self._planes():
            plane.copy_(buffer[places])

    def _planes(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield K or V of each layer: the world's pages, the engine's blocks, their bijection."""
        pool = self.world.pools[Role.TARGET]
        for layer, kind in enumerate(pool.config.layers):
            for plane, buffer in zip(pool.cache(layer), self.caches[layer], strict=True):
                yield plane.unflatten(0, (-1, BLOCK)), buffer, self._places[kind]


def name_of(serial: int) -> str:
    """Return what the engine calls a request."""
    return f"request-{serial}"
