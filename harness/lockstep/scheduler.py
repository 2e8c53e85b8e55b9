"""A world: a pool, its allocator, its requests and something that runs forwards.

Both worlds of a trial are one class with different forward functions. A world has
no globals, so many can live in one process. It plans a step on the host, hands a
batch to its forward function and samples greedily on the device.
"""

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from harness.lockstep import speculation
from harness.schedules.schedule import (
    Admit,
    Decode,
    Draft,
    DraftExtend,
    Evict,
    Extend,
    Finish,
    Idle,
    Resume,
    Retract,
    Step,
    Verify,
    idle_modes,
)
from reference.allocator import Allocator, PageAllocation
from reference.batch import (
    ENCODER_ROWS,
    TRACK_ROWS,
    DraftState,
    ForwardBatch,
    Mode,
    Span,
    prepare,
)
from reference.config import ModelConfig, Role
from reference.model import Output
from reference.pool import KVPools
from reference.speculative import Tree


@dataclass
class Request:
    """One request. `known` tokens have a value, the first `length` of them are in the pool.

    The draft model has KV of the first `drafted`. `state` is what it makes of them all, and
    `tree` what it proposed last, until the request moves on.
    """

    serial: int
    prompt: int
    known: int
    token_row: int
    allocation: PageAllocation | None = None
    length: int = 0
    prefilling: bool = True
    drafted: int = 0
    state: DraftState | None = None
    tree: Tree = ()

    @property
    def mrope_delta(self) -> int:
        """How far each mrope section runs ahead of the one before it, in positions."""
        return self.serial % 5

    @property
    def track_index(self) -> int:
        """The state-tracking row of this request."""
        return self.serial % TRACK_ROWS

    @property
    def tracked(self) -> bool:
        """Whether this request's state is tracked."""
        return self.serial % 4 != 3

    @property
    def encoder_len(self) -> int:
        """The cross-attention length of this request."""
        return self.serial % ENCODER_ROWS


@dataclass(frozen=True)
class Work:
    """One planned forward of a mode: a batch, or None for an idle replay."""

    mode: Mode
    batch: ForwardBatch | None


class Scheduler:
    """State and scheduling of one arm of a trial; `max_bs` requests run in a batch at most.

    Speculation is in the modes that `modes` names, an idle replay in one of `idle_modes`.
    """

    def __init__(
        self,
        config: ModelConfig,
        pools: KVPools,
        max_bs: int,
        modes: Collection[Mode] = frozenset(Mode),
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.config = config
        self.pools = pools
        self.max_bs = max_bs
        self.modes = frozenset(modes)
        self.draft_mode = next((each for each in Mode if each.drafts and each in modes), None)
        self.idle_modes = idle_modes(modes)
        self.allocator = Allocator(pools[Role.TARGET], on_change)
        device, dtype = pools.storage.device, pools.storage.dtype
        self.token_rows = 2 * pools.sizes.rows
        shape = self.token_rows, config.max_context
        self.tokens = torch.zeros(shape, dtype=torch.int64, device=device)
        self.hidden_states = torch.zeros((*shape, config.hidden), dtype=dtype, device=device)
        self.reset(seed=0)

    def reset(self, seed: int) -> None:
        """Start again from the bytes and the slot order of `seed`."""
        self.seed = seed
        self.pools.reset(seed)
        self.allocator.clear(seed)
        self.tokens.zero_()
        self.hidden_states.zero_()
        self.running: list[Request] = []
        self.retracted: list[Request] = []
        self.free_token_rows = list(range(self.token_rows))
        self.admitted = 0
        self.events: Counter[str] = Counter()
        self.freed_slots: set[int] = set()

    def plan(self, step: Step) -> Work | None:
        """Carry out the host part of a step; return the forward it asks for, if any."""
        plans: dict[type[Step], Callable[[Any], Work | None]] = {
            Admit: self._admit,
            Extend: self._extend_next,
            Decode: self._decode,
            Draft: lambda step: speculation.draft(self, step.picks),
            Verify: lambda step: speculation.verify(self, step.picks, step.accept),
            DraftExtend: lambda step: speculation.draft_extend(self, step.picks),
            Resume: self._resume,
            Idle: self._idle,
            Finish: lambda step: self._leave(step.pick, finished=True),
            Retract: lambda step: self._leave(step.pick, finished=False),
            Evict: self._evict_one,
        }
        return plans[type(step)](step)

    def commit(self, batch: ForwardBatch, output: Output) -> list[int]:
        """Follow a forward: its tokens are in the pool, what it says of the next ones is known.

        Returns the row of the logits that say each request's next token; none if no one's
        is said.
        """
        follow = {
            Mode.TARGET_VERIFY: speculation.accept,
            Mode.DRAFT: speculation.propose,
            Mode.FROZEN_DRAFT: speculation.propose,
            Mode.DRAFT_EXTEND: speculation.catch_up,
        }.get(batch.mode, Scheduler._sample)
        return follow(self, batch, output)

    def batch_of(self, mode: Mode, spans: Sequence[Span]) -> ForwardBatch:
        """Return the batch of some spans, their slots written to the tables."""
        return prepare(mode, spans, self.tokens, self.hidden_states, self.pools.tables)

    def owned(self, request: Request) -> tuple[list[int], list[int]]:
        """Return the full and SWA slots that hold a token of `request`."""
        if request.allocation is None:
            return [], []
        size = self.pools.sizes.page_size
        kept = [i for i, page in enumerate(request.allocation.swa_pages) if page is not None]
        swa = [
            slot
            for page in kept
            for slot in self.allocator.swa_slots(
                request.allocation, page * size, min((page + 1) * size, request.length)
            )
        ]
        return self.allocator.full_slots(request.allocation, 0, request.length), swa

    def request_of(self, row: int) -> Request:
        """Return the running request at `row` of req_to_token."""
        return next(each for each in self.running if each.allocation and each.allocation.row == row)

    def _admit(self, step: Admit) -> Work | None:
        if not self.free_token_rows:
            return None
        prompt = min(max(step.prompt, 1), self.config.max_context - 1)
        request = Request(self.admitted, prompt, prompt, self.free_token_rows[-1])
        if not self._enter(request, step.chunk):
            return None
        self.free_token_rows.pop()
        self.admitted += 1
        draw = random.Random(self.seed * 100_003 + request.serial)
        tokens = [draw.randrange(self.config.vocab) for _ in range(prompt)]
        self.tokens[request.token_row, :prompt] = torch.tensor(tokens, device=self.tokens.device)
        self.events["prompt of one token"] += prompt == 1
        self.events["prompt beyond the window"] += prompt > self.config.window
        self.events["prompt in chunks"] += step.chunk < prompt
        return self._extend(request, step.chunk)

    def _resume(self, step: Resume) -> Work | None:
        if not self.retracted:
            return None
        request = self.retracted[step.pick % len(self.retracted)]
        if not self._enter(request, request.known):
            return None
        self.retracted.remove(request)
        self.events["resumed"] += 1
        return self._extend(request, request.known)

    def _enter(self, request: Request, tokens: int) -> bool:
        """Give `request` a row, if there is one and room for its first tokens."""
        allocation = self.allocator.alloc_row()
        if allocation is None:
            return False
        first = min(max(tokens, 1), request.known)
        if not self._make_room(allocation, 0, first):
            self.allocator.free(allocation)
            return False
        request.allocation = allocation
        request.length = 0
        request.prefilling = True
        self.running.append(request)
        return True

    def _make_room(self, allocation: PageAllocation, length: int, count: int) -> bool:
        """Give `holding` slots for `count` more tokens, evicting what left windows if need be."""
        slots = self.allocator.extend(allocation, length, count)
        if slots is None:
            self.events["pool full"] += 1
            for each in self.running:
                self._evict(each)
            slots = self.allocator.extend(allocation, length, count)
        if slots is None:
            return False
        self.events["slot issued again"] += not self.freed_slots.isdisjoint(slots)
        sizes, free = self.pools.sizes, self.allocator
        nearly = {
            "SWA sub-pool nearly full": len(free.free_swa) * sizes.page_size * 8 <= sizes.swa_slots,
            "full sub-pool nearly full": len(free.free_full) * sizes.page_size * 8
            <= sizes.full_slots,
        }
        self.events.update(event for event, reached in nearly.items() if reached)
        return True

    def _extend(self, request: Request, tokens: int) -> Work | None:
        count = min(max(tokens, 1), request.known - request.length)
        return self.work(Mode.EXTEND, [self.span(request, count)])

    def _extend_next(self, step: Extend) -> Work | None:
        waiting = [each for each in self.running if each.prefilling]
        return self._extend(waiting[step.pick % len(waiting)], step.tokens) if waiting else None

    def _decode(self, step: Decode) -> Work | None:
        ready = self.ready(lambda each: each.known < self.config.max_context)
        chosen = self.some(ready, step.picks)
        return self.work(Mode.DECODE, [self.span(each, 1) for each in chosen])

    def _idle(self, step: Idle) -> Work | None:
        modes = self.idle_modes
        return Work(modes[step.pick % len(modes)], None) if modes else None

    def ready(self, able: Callable[[Request], bool]) -> list[Request]:
        """Return the requests that are `able`, of those whose known tokens once were all in."""
        return [each for each in self.running if not each.prefilling and able(each)]

    def some(self, ready: Sequence[Request], picks: Sequence[int]) -> list[Request]:
        """Return the requests picked, each once, as many as a batch holds."""
        chosen = dict.fromkeys(pick % len(ready) for pick in picks) if ready else {}
        return [ready[i] for i in chosen][: self.max_bs]

    def work(self, mode: Mode, spans: Iterable[Span | None]) -> Work | None:
        """Return the forward over the spans there are."""
        found = [span for span in spans if span is not None]
        if not found:
            return None
        if mode is not Mode.EXTEND:
            self.events["requests parked"] += len(self.running) > len(found)
        return Work(mode, self.batch_of(mode, found))

    def span(self, request: Request, count: int) -> Span | None:
        """Return the next `count` tokens of `request` as a span, if there are slots for them."""
        begin, end = request.length, request.length + count
        if request.allocation is None or not self._make_room(request.allocation, begin, count):
            return None
        return self.held_span(request, begin, end)

    def held_span(self, request: Request, begin: int, end: int) -> Span:
        """Return tokens of `request` that have their slots as a span."""
        allocation = request.allocation
        assert allocation is not None
        return Span(
            row=allocation.row,
            token_row=request.token_row,
            begin=begin,
            end=end,
            full_slots=self.allocator.full_slots(allocation, begin, end),
            swa_slots=self.allocator.swa_slots(allocation, begin, end),
            mrope_delta=request.mrope_delta,
            track_index=request.track_index,
            tracked=request.tracked,
            encoder_len=request.encoder_len,
        )

    def _sample(self, batch: ForwardBatch, output: Output) -> list[int]:
        """Append each request's most likely next token, where its known tokens are all in."""
        self.hidden_states[batch.token_rows, batch.positions] = output["hidden"]
        sampled = True
        for span in batch.spans:
            request = self.request_of(span.row)
            self.advance(request, span.end)
            whole = request.length == request.known
            if whole:
                request.prefilling = False
            sampled = whole and request.known < self.config.max_context
            request.known += sampled
        if not sampled:
            return []
        last = slice(-1, None) if batch.mode is Mode.EXTEND else slice(None)
        rows, positions = batch.token_rows[last], batch.positions[last] + 1
        self.tokens[rows, positions] = output["logits"].argmax(-1)
        return list(range(batch.raw_bs))

    def advance(self, request: Request, length: int) -> None:
        """Count `length` tokens of `request` as in the pool; what was drafted for less is void."""
        window = self.config.window
        for reached in range(request.length + 1, length + 1):
            self.events["length window - 1"] += reached == window - 1
            self.events["length window"] += reached == window
            self.events["length window + 1"] += reached == window + 1
        request.length = length
        request.state, request.tree = None, ()

    def free_unused(self, request: Request) -> None:
        """Free the pages of `request` that hold none of its tokens."""
        if request.allocation is not None:
            held = len(request.allocation.full_pages) * self.pools.sizes.page_size
            slots = self.allocator.full_slots(request.allocation, 0, held)
            self.allocator.truncate(request.allocation, request.length)
            kept = len(request.allocation.full_pages) * self.pools.sizes.page_size
            self.freed_slots.update(slots[kept:])

    def _evict(self, request: Request) -> None:
        """Free the SWA pages that no query to come can see, the draft model's neither."""
        if request.allocation is not None:
            needed = min(request.length, request.drafted or request.length)
            # A frozen-KV draft stands where the target wrote last, one short of the next query.
            needed -= Mode.FROZEN_DRAFT in self.modes
            unseen = max(0, needed - self.config.window + 1)
            self.events["evicted"] += self.allocator.evict(request.allocation, unseen) > 0

    def _evict_one(self, step: Evict) -> None:
        if self.running:
            self._evict(self.running[step.pick % len(self.running)])

    def _leave(self, pick: int, *, finished: bool) -> None:
        """Take the slots of a running request; forget it if it has finished."""
        if not self.running:
            return
        request = self.running.pop(pick % len(self.running))
        if request.allocation is not None:
            full, _ = self.owned(request)
            self.freed_slots.update(full)
            self.allocator.free(request.allocation)
        request.allocation = None
        request.drafted, request.state, request.tree = 0, None, ()
        if finished:
            self.free_token_rows.append(request.token_row)
        else:
            self.retracted.append(request)
        self.events["finished" if finished else "retracted"] += 1
