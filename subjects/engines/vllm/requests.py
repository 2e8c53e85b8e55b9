"""The engine's side of a world's requests: its KV cache manager, its requests, what it schedules.

The world's scheduler says who runs; the engine's manager then gives and takes blocks. Between
the world's pages and the engine's blocks of a group lies a bijection, through which all KV is
read in the world's layout and slot numbers, and written. A page is as large as a block.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from reference.allocator import Owner
from reference.batch import ForwardBatch, Mode
from reference.config import Kind, Role
from reference.pool import KVPools
from reference.state_pool import HiddenStates
from subjects.engines.shared.loading import Engine, named
from subjects.engines.shared.paged import PairedPages
from subjects.engines.vllm.model import keys_and_values
from subjects.engines.vllm.settings import BLOCK, GROUPS


@dataclass(frozen=True)
class Known:
    """What a world knows of a running request: its tokens, and how many have their KV.

    Blocks that a query at `kept` reaches stay, whatever runs, unless it is None.
    """

    owner: Owner
    tokens: tuple[int, ...]
    kept: int | None = None


@dataclass(frozen=True)
class World:
    """What an engine asks of the graph world: its running requests, by serial, and the parked.

    `retracted` are the serials of those that may come again; `hidden_states` [token rows,
    max_context, H] is what the target made of all tokens.
    """

    pools: KVPools
    running: Callable[[], dict[int, Known]]
    retracted: Callable[[], Collection[int]]
    hidden_states: Callable[[], HiddenStates]


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

    `reached` is up to which token each of them has run, rejected drafts included. `pages` is the
    bijection of the world's pages and the engine's blocks.
    """

    def __init__(
        self,
        engine: Engine,
        world: World,
        plan: Any,
        layers: Sequence[Any],
        roles: Sequence[Role] = (Role.TARGET,),
    ) -> None:
        self.engine = engine
        self.world = world
        self.plan = plan
        caches = [keys_and_values(layer) for layer in layers]
        pools = [world.pools[role] for role in roles]
        self.pages = PairedPages(pools, caches, plan.num_blocks)
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
        self.reached: dict[int, int] = {}
        self.parked: dict[int, Any] = {}
        self.finished: set[str] = set()
        self.preempted: set[str] = set()
        self.ran: Settling | None = None
        self._placed: tuple[Mode, tuple[tuple[int, int, int], ...]] | None = None
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
        if self._placed == (batch.mode, asked):
            self._run_again(told, asked)
            return told
        if self.ran is not None:
            settle(self.ran)
        self.ran, self._placed = None, (batch.mode, asked)
        told.finished_req_ids, self.finished = self.finished, set()
        told.preempted_req_ids, self.preempted = self.preempted, set()
        for serial, begin, end in asked:
            self._schedule(told, serial, begin, end, known[serial])
        self._check_windows(asked)
        self._pair(tuple(one.owner for one in known.values()))
        self.pages.write_kv()
        return told

    def _schedule(self, told: Any, serial: int, begin: int, end: int, known: Known) -> None:
        """Give one request blocks for its tokens begin .. end-1, and tell the engine of it."""
        tokens = known.tokens
        new = serial not in self.held
        if new:
            self.held[serial] = self.parked.pop(serial, None) or self._request(serial, tokens)
        request = self.held[serial]
        more = list(tokens[request.num_tokens :])
        if more:
            request.append_output_token_ids(more)
        first = begin if known.kept is None else min(begin, known.kept)
        request.num_computed_tokens = first
        try:
            given = self.manager.allocate_slots(request, end - first)
        except AssertionError as error:  # Its own, of its own lists.
            raise RuntimeError(
                "the engine's manager finds its own lists of blocks wrong"
            ) from error
        if given is None:
            raise RuntimeError("the engine's manager has no room where ours has")
        self.reached[serial] = max(self.reached.get(serial, 0), end)
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
            self.reached.pop(serial)
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
        """Pair the world's pages with the blocks of requests that the engine knows."""
        held = [owner for owner in owners if owner.serial in self.held]
        for kind in GROUPS:
            given = [owner.full_pages if kind is Kind.FULL else owner.swa_pages for owner in held]
            blocks = [self.blocks_of(owner.serial, kind) for owner in held]
            self.pages.pair(kind, given, blocks)


def name_of(serial: int) -> str:
    """Return what the engine calls a request."""
    return f"request-{serial}"
