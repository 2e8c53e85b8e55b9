"""The scheduler of one run. It plans steps on the host and processes the outputs of forwards.

Both runs use the same class, each with the outputs of its own forwards. A scheduler has no
globals, so a process can have many. It samples greedily on the device.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

from paritybit.harness.lockstep import speculation
from paritybit.harness.lockstep.observation import Sample
from paritybit.harness.lockstep.request_book import RequestBook
from paritybit.harness.lockstep.requests import PlannedForward, ScheduledRequest
from paritybit.harness.schedules.schedule import (
    Admit,
    Decode,
    Draft,
    DraftExtend,
    Evict,
    Extend,
    Finish,
    Idle,
    Prefill,
    Resume,
    Retract,
    Step,
    Verify,
    idle_modes,
)
from paritybit.reference.batch import ForwardBatch, Mode, RequestSpan
from paritybit.reference.model import Output
from paritybit.reference.order import Arrived

COMMITS: dict[Mode, Callable[[RequestBook, ForwardBatch, Output], list[int]]] = {
    Mode.TARGET_VERIFY: speculation.accept,
    Mode.DRAFT: speculation.propose,
    Mode.FROZEN_DRAFT: speculation.propose,
    Mode.DRAFT_EXTEND: speculation.catch_up,
}
"""What `LockstepScheduler.commit` calls, by speculative mode. Other modes sample."""


class LockstepScheduler(RequestBook):
    """State and scheduling of one run. Arguments are as in `RequestBook`."""

    def plan(self, step: Step) -> PlannedForward | None:
        """Run the host part of a step. Returns the forward that it needs, or None."""
        plans: dict[type[Step], Callable[[Any], PlannedForward | None]] = {
            Admit: self._admit,
            Extend: self._extend_next,
            Prefill: self._prefill,
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
        """Process the output of a forward, whose tokens are now in the pool.

        Returns, per request, the row of the logits that give its next token. Empty if the forward
        gives no next token.
        """
        return COMMITS.get(batch.mode, sample)(self, batch, output)

    def _admit(self, step: Admit) -> PlannedForward | None:
        request = self._add(step.prompt, step.chunk)
        return self._extend(request, step.chunk) if request is not None else None

    def _add(self, length: int, chunk: int) -> ScheduledRequest | None:
        """Admit a request with slots for its first `chunk` tokens. None if there are too few."""
        if not self.free_token_rows:
            return None
        prompt = min(max(length, 1), self.config.max_context - 1)
        request = ScheduledRequest(self.admitted, prompt, self.free_token_rows[-1])
        if not self._enter(request, chunk):
            return None
        self.free_token_rows.pop()
        self.admitted += 1
        draw = random.Random(self.seed * 100_003 + request.serial)
        tokens = [draw.randrange(self.config.vocab) for _ in range(prompt)]
        row = self.tokens[request.token_row, :prompt]

        def write(arrived: Arrived) -> None:
            row.copy_(arrived["token"])

        self.order.write({"token": tokens}, write)
        return request

    def _resume(self, step: Resume) -> PlannedForward | None:
        if not self.retracted:
            return None
        request = self.retracted[step.pick % len(self.retracted)]
        if not self._enter(request, request.known):
            return None
        self.retracted.remove(request)
        return self._extend(request, request.known)

    def _enter(self, request: ScheduledRequest, tokens: int) -> bool:
        """Give `request` a row and slots for `tokens` tokens."""
        allocation = self.allocator.alloc_row()
        if allocation is None:
            return False
        if not self.make_room(allocation, 0, min(max(tokens, 1), request.known)):
            self.allocator.free(allocation)
            return False
        request.allocation = allocation
        request.length = 0
        request.prefilling = True
        self.running.append(request)
        return True

    def _extend(self, request: ScheduledRequest, tokens: int) -> PlannedForward | None:
        return self.planned(Mode.EXTEND, [self._next(request, tokens)])

    def _next(self, request: ScheduledRequest, tokens: int) -> RequestSpan | None:
        """Return the next `tokens` known tokens of a request, or fewer. None without free slots."""
        return self.span(request, min(max(tokens, 1), request.known - request.length))

    def _extend_next(self, step: Extend) -> PlannedForward | None:
        waiting = [request for request in self.running if request.prefilling]
        return self._extend(waiting[step.pick % len(waiting)], step.tokens) if waiting else None

    def _prefill(self, step: Prefill) -> PlannedForward | None:
        """Plan the prefill of waiting requests, and admit more if the batch has room."""
        waiting = [request for request in self.running if request.prefilling][: self.max_bs]
        for prompt in step.prompts[: self.max_bs - len(waiting)]:
            request = self._add(prompt, step.tokens)
            waiting += [request] if request is not None else []
        return self.planned(Mode.EXTEND, [self._next(request, step.tokens) for request in waiting])

    def _decode(self, step: Decode) -> PlannedForward | None:
        ready = self.ready(lambda request: request.known < self.config.max_context)
        chosen = self.choose(ready, step.picks)
        return self.planned(Mode.DECODE, [self.span(request, 1) for request in chosen])

    def _idle(self, step: Idle) -> PlannedForward | None:
        modes = idle_modes(self.modes)
        return PlannedForward(modes[step.pick % len(modes)]) if modes else None

    def _evict_one(self, step: Evict) -> None:
        if self.running:
            self.evict(self.running[step.pick % len(self.running)])

    def _leave(self, pick: int, *, finished: bool) -> None:
        """Free the slots of a running request. If it has not finished, it is retracted."""
        if not self.running:
            return
        request = self.running.pop(pick % len(self.running))
        if finished:
            self.free_token_rows.append(request.token_row)
        else:
            self.retracted.append(request)
        if request.allocation is not None:
            self.allocator.free(request.allocation)
        request.allocation = None
        request.drafted, request.state, request.drafts = 0, None, ()


def sample(book: RequestBook, batch: ForwardBatch, output: Output) -> list[int]:
    """Append the most likely next token of each request whose known tokens are all in the pool."""
    rows = count_sampled(book, batch.spans)
    keep_sampled(book, batch, output, rows)
    return rows


def count_sampled(book: RequestBook, spans: Sequence[RequestSpan]) -> list[int]:
    """Do the host's part of `sample`. It needs nothing from the device."""
    rows = []
    for row, span in enumerate(spans):
        request = book.request_of(span.row)
        book.advance(request, span.end)
        whole = request.length == request.known
        if whole:
            request.prefilling = False
        if whole and request.known < book.config.max_context:
            request.known += 1
            rows.append(row)
    return rows


def keep_sampled(
    book: RequestBook, batch: ForwardBatch, output: Output, rows: Sequence[int]
) -> None:
    """Do the device's part of `sample`: store hidden states and the next tokens at `rows`."""
    book.hidden_states[batch.token_rows, batch.positions] = output["hidden"]
    if not rows:
        return
    cells, tokens = batch.token_cells, output["logits"].argmax(-1)
    if batch.mode is Mode.EXTEND:
        cells = cells.take(batch.last_rows)
    whole = len(rows) == len(batch.spans)
    # A list of rows would cross to the device, and a copy from the host may wait for it.
    for row in [slice(None)] if whole else [slice(row, row + 1) for row in rows]:
        book.tokens.view(-1).index_copy_(0, cells[row] + 1, tokens[row])


def samples_of(
    scheduler: LockstepScheduler,
    index: int,
    batch: ForwardBatch,
    output: Output,
    rows: Sequence[int],
) -> tuple[Sample, ...]:
    """Return the samples in `output` for the requests of the batch of step number `index`.

    There is a sample for the last token of each request and, after a verify, for each accepted
    token. `rows` has the last one. A draft gives no samples.
    """
    draft, found = batch.mode is Mode.DRAFT_EXTEND, list[Sample]()
    for number, span in enumerate(() if batch.mode.drafts else batch.spans):
        request = scheduler.request_of(span.row)
        tokens = scheduler.tokens[request.token_row]
        hidden = scheduler.hidden_states[request.token_row]
        logits = {span.end: number}
        if span.verified:
            first = number * len(span.verified)
            logits = {span.begin + row + 1 - first: row for row in range(first, rows[number] + 1)}
        found += [
            Sample(
                serial=request.serial,
                tokens=tokens[draft : length + draft].clone(),
                logits=output["logits"][row].clone(),
                hidden_states=hidden[:length].clone() if draft else None,
                index=index,
            )
            for length, row in logits.items()
        ]
    return tuple(found)
