"""A world: a pool, its allocator, its requests and something that runs forwards.

Both worlds of a trial are one class with different forward functions. A world has
no globals, so many can live in one process. It plans a step on the host, hands a
batch to its forward function and samples greedily on the device.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.schedule import Admit, Decode, Evict, Extend, Finish, Idle, Resume, Retract, Step
from reference.allocator import Allocator, Holding
from reference.batch import ENCODER_ROWS, TRACK_ROWS, ForwardBatch, Mode, Span, Tables, prepare
from reference.config import ModelConfig
from reference.pool import HybridKVPool


@dataclass
class Request:
    """One request. `known` tokens have a value, the first `length` of them are in the pool."""

    serial: int
    prompt: int
    known: int
    token_row: int
    holding: Holding | None = None
    length: int = 0
    prefilling: bool = True

    @property
    def mrope_delta(self) -> int:
        """How far each mrope section runs ahead of the one before it, in positions."""
        return self.serial % 5

    @property
    def track_index(self) -> int:
        """The state-tracking row of this request."""
        return self.serial % TRACK_ROWS

    @property
    def encoder_len(self) -> int:
        """The cross-attention length of this request."""
        return self.serial % ENCODER_ROWS


@dataclass(frozen=True)
class Work:
    """One planned forward: a batch, or None for an idle replay."""

    batch: ForwardBatch | None


class World:
    """State and scheduling of one arm of a trial; `max_bs` rows decode at most."""

    def __init__(
        self,
        config: ModelConfig,
        pool: HybridKVPool,
        max_bs: int,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.config = config
        self.pool = pool
        self.max_bs = max_bs
        self.allocator = Allocator(pool, on_change)
        self.tables = Tables(pool.req_to_token, pool.full_to_swa_index_mapping)
        self.token_rows = 2 * pool.sizes.rows
        self.tokens = torch.zeros(
            (self.token_rows, config.max_context), dtype=torch.int64, device=pool.device
        )
        self.reset(seed=0)

    def reset(self, seed: int) -> None:
        """Start again from the bytes and the slot order of `seed`."""
        self.seed = seed
        self.pool.reset(seed)
        self.allocator.clear(seed)
        self.tokens.zero_()
        self.running: list[Request] = []
        self.retracted: list[Request] = []
        self.free_token_rows = list(range(self.token_rows))
        self.admitted = 0
        self.events: Counter[str] = Counter()
        self.freed_slots: set[int] = set()

    def plan(self, step: Step) -> Work | None:
        """Carry out the host part of a step; return the forward it asks for, if any."""
        match step:
            case Admit():
                return self._admit(step)
            case Extend():
                waiting = [each for each in self.running if each.prefilling]
                return (
                    self._extend(waiting[step.pick % len(waiting)], step.tokens)
                    if waiting
                    else None
                )
            case Decode():
                return self._decode(step.picks)
            case Resume():
                return self._resume(step.pick)
            case Idle():
                return Work(None)
            case Finish():
                self._leave(step.pick, finished=True)
            case Retract():
                self._leave(step.pick, finished=False)
            case Evict() if self.running:
                self._evict(self.running[step.pick % len(self.running)])
        return None

    def sample(self, batch: ForwardBatch, logits: Tensor) -> None:
        """Append each request's most likely next token, where its known tokens are all in."""
        if not self._settle(batch):
            return
        last = slice(-1, None) if batch.mode is Mode.EXTEND else slice(None)
        rows, positions = batch.token_rows[last], batch.positions[last] + 1
        self.tokens[rows, positions] = logits.argmax(-1)

    def owned(self, request: Request) -> tuple[list[int], list[int]]:
        """Return the full and SWA slots that hold a token of `request`."""
        if request.holding is None:
            return [], []
        size = self.pool.sizes.page_size
        kept = [i for i, page in enumerate(request.holding.swa_pages) if page is not None]
        swa = [
            slot
            for page in kept
            for slot in self.allocator.swa_slots(
                request.holding, page * size, min((page + 1) * size, request.length)
            )
        ]
        return self.allocator.full_slots(request.holding, 0, request.length), swa

    def request_of(self, row: int) -> Request:
        """Return the running request at `row` of req_to_token."""
        return next(each for each in self.running if each.holding and each.holding.row == row)

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
        self.tokens[request.token_row, :prompt] = torch.tensor(tokens, device=self.pool.device)
        self.events["prompt of one token"] += prompt == 1
        self.events["prompt beyond the window"] += prompt > self.config.window
        self.events["prompt in chunks"] += step.chunk < prompt
        return self._extend(request, step.chunk)

    def _resume(self, pick: int) -> Work | None:
        if not self.retracted:
            return None
        request = self.retracted[pick % len(self.retracted)]
        if not self._enter(request, request.known):
            return None
        self.retracted.remove(request)
        self.events["resumed"] += 1
        return self._extend(request, request.known)

    def _enter(self, request: Request, tokens: int) -> bool:
        """Give `request` a row, if there is one and room for its first tokens."""
        holding = self.allocator.alloc_row()
        if holding is None:
            return False
        first = min(max(tokens, 1), request.known)
        if not self._make_room(holding, 0, first):
            self.allocator.free(holding)
            return False
        request.holding = holding
        request.length = 0
        request.prefilling = True
        self.running.append(request)
        return True

    def _make_room(self, holding: Holding, length: int, count: int) -> bool:
        """Give `holding` slots for `count` more tokens, evicting what left windows if need be."""
        slots = self.allocator.extend(holding, length, count)
        if slots is None:
            self.events["pool full"] += 1
            for each in self.running:
                self._evict(each)
            slots = self.allocator.extend(holding, length, count)
        if slots is None:
            return False
        self.events["slot issued again"] += not self.freed_slots.isdisjoint(slots)
        sizes, free = self.pool.sizes, self.allocator
        nearly = {
            "SWA sub-pool nearly full": len(free.free_swa) * sizes.page_size * 8 <= sizes.swa_slots,
            "full sub-pool nearly full": len(free.free_full) * sizes.page_size * 8
            <= sizes.full_slots,
        }
        self.events.update(event for event, reached in nearly.items() if reached)
        return True

    def _extend(self, request: Request, tokens: int) -> Work | None:
        count = min(max(tokens, 1), request.known - request.length)
        span = self._span(request, count)
        if span is None:
            return None
        return Work(prepare(Mode.EXTEND, [span], self.tokens, self.tables))

    def _decode(self, picks: Sequence[int]) -> Work | None:
        ready = [
            each
            for each in self.running
            if not each.prefilling and each.known < self.config.max_context
        ]
        if not ready:
            return None
        chosen = list(dict.fromkeys(pick % len(ready) for pick in picks))[: self.max_bs]
        spans = [span for i in chosen if (span := self._span(ready[i], 1)) is not None]
        self.events["requests parked"] += len(self.running) > len(spans)
        return Work(prepare(Mode.DECODE, spans, self.tokens, self.tables)) if spans else None

    def _span(self, request: Request, count: int) -> Span | None:
        """Return the next `count` tokens of `request` as a span, if there are slots for them."""
        holding = request.holding
        begin, end = request.length, request.length + count
        if holding is None or not self._make_room(holding, begin, count):
            return None
        return Span(
            row=holding.row,
            token_row=request.token_row,
            begin=begin,
            end=end,
            full_slots=self.allocator.full_slots(holding, begin, end),
            swa_slots=self.allocator.swa_slots(holding, begin, end),
            mrope_delta=request.mrope_delta,
            track_index=request.track_index,
            encoder_len=request.encoder_len,
        )

    def _settle(self, batch: ForwardBatch) -> bool:
        """Count the batch's tokens as in the pool; return whether its rows sample a token."""
        sampled = True
        for span in batch.spans:
            request = self.request_of(span.row)
            request.length = span.end
            whole = request.length == request.known
            if whole:
                request.prefilling = False
            sampled = whole and request.known < self.config.max_context
            request.known += sampled
            window = self.config.window
            self.events["length window - 1"] += span.end == window - 1
            self.events["length window"] += span.end == window
            self.events["length window + 1"] += span.end == window + 1
        return sampled

    def _evict(self, request: Request) -> None:
        """Free the SWA pages that the query at position `length` cannot see."""
        if request.holding is not None:
            unseen = max(0, request.length - self.config.window + 1)
            self.events["evicted"] += self.allocator.evict(request.holding, unseen) > 0

    def _leave(self, pick: int, *, finished: bool) -> None:
        """Take the slots of a running request; forget it if it has finished."""
        if not self.running:
            return
        request = self.running.pop(pick % len(self.running))
        if request.holding is not None:
            full, _ = self.owned(request)
            self.freed_slots.update(full)
            self.allocator.free(request.holding)
        request.holding = None
        if finished:
            self.free_token_rows.append(request.token_row)
        else:
            self.retracted.append(request)
        self.events["finished" if finished else "retracted"] += 1
