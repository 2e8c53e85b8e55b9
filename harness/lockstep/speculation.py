"""The scheduler's part of speculation: drafting, verifying, accepting and freeing."""

import random
from collections.abc import Sequence

import torch
from paritybit.harness.lockstep.request_book import RequestBook
from paritybit.harness.lockstep.requests import PlannedForward, ScheduledRequest
from paritybit.reference.batch import DraftState, ForwardBatch, Mode, RequestSpan
from paritybit.reference.config import DRAFT_STEPS, DRAFT_TOKENS
from paritybit.reference.model import Output
from paritybit.reference.speculative import count_accepted


def draft(book: RequestBook, picks: Sequence[int]) -> PlannedForward | None:
    """Plan a draft for the picked requests that the draft model has caught up on."""
    if book.draft_mode is None:
        return None
    count = DRAFT_STEPS if book.draft_mode is Mode.DRAFT else 0
    ready = book.ready(
        lambda request: (
            request.state is not None and request.length + count <= book.config.max_context
        )
    )
    spans = [
        span._replace(state=request.state)
        for request in book.choose(ready, picks)
        if (span := book.span(request, count)) is not None
    ]
    return book.planned(book.draft_mode, spans)


def verify(book: RequestBook, picks: Sequence[int], accept: int) -> PlannedForward | None:
    """Plan to verify drafts of the picked requests. At least `accept` of each will pass."""
    if Mode.TARGET_VERIFY not in book.modes:
        return None
    ready = book.ready(lambda request: request.known + DRAFT_TOKENS <= book.config.max_context)
    spans = []
    for request in book.choose(ready, picks):
        span = book.span(request, DRAFT_TOKENS)
        if span is not None:
            last = int(book.tokens[request.token_row, request.length])
            drafts = request.drafts or _random_drafts(book, request)
            spans.append(span._replace(verified=(last, *drafts), accept=accept))
    return book.planned(Mode.TARGET_VERIFY, spans)


def draft_extend(book: RequestBook, picks: Sequence[int]) -> PlannedForward | None:
    """Plan a draft extend, in which the draft model catches up on the picked requests."""
    if Mode.DRAFT_EXTEND not in book.modes:
        return None
    ready = book.ready(lambda request: _may_catch_up(book, request))
    spans = [
        book.allocated_span(request, request.drafted, min(request.length, request.known - 1))
        for request in book.choose(ready, picks)
    ]
    return book.planned(Mode.DRAFT_EXTEND, spans)


def accept(book: RequestBook, batch: ForwardBatch, output: Output) -> list[int]:
    """Keep each request's accepted tokens, and their KV and state. Free the other slots."""
    rows = []
    greedy = output["logits"].argmax(-1).tolist()
    for place, span in enumerate(batch.spans):
        request, first = book.request_of(span.row), place * DRAFT_TOKENS
        accepted = count_accepted(list(span.verified[1:]), greedy[first:], span.accept)
        last = first + accepted
        if span.track_index:  # Slot 0 is reserved and has no owner.
            book.pools.accept(span.track_index, accepted)
        end = span.begin + 1 + accepted
        row = book.tokens[request.token_row]
        known = [*span.verified[: 1 + accepted], greedy[last]]
        row[span.begin : end + 1] = torch.tensor(known, device=row.device)
        hidden = output["hidden"][first : last + 1]
        book.hidden_states[request.token_row, span.begin : end] = hidden
        book.advance(request, end)
        request.known = end + 1
        book.free_unused(request)
        rows.append(last)
    return rows


def propose(book: RequestBook, batch: ForwardBatch, output: Output) -> list[int]:
    """Keep each request's drafts, and free the slots of the draft. Returns no rows."""
    for span, drafts in zip(batch.spans, output["tokens"].tolist(), strict=True):
        request = book.request_of(span.row)
        request.drafts = tuple(drafts)
        book.free_unused(request)
    return []


def catch_up(book: RequestBook, batch: ForwardBatch, output: Output) -> list[int]:
    """Keep the draft model's state of each request that it caught up on. Returns no rows."""
    keep_caught_up(count_caught_up(book, batch.spans), output)
    return []


def count_caught_up(
    book: RequestBook, spans: Sequence[RequestSpan]
) -> list[tuple[int, DraftState]]:
    """Do the host's part of `catch_up`. It needs nothing from the device.

    Returns pairs of a request's index in the batch and its new state, which is still empty.
    """
    states, like = [], book.hidden_states
    for place, span in enumerate(spans):
        request = book.request_of(span.row)
        request.drafted = span.end
        if span.end == request.length:
            request.state = DraftState(
                like.new_empty(1, dtype=torch.float32),
                like.new_empty(1, dtype=torch.int64),
                like.new_empty(like.shape[-1]),
            )
            states.append((place, request.state))
    return states


def keep_caught_up(states: Sequence[tuple[int, DraftState]], output: Output) -> None:
    """Do the device's part of `catch_up`: fill the states from which drafting starts."""
    for place, state in states:
        state.topk_p.copy_(output["topk_p"][place])
        state.topk_index.copy_(output["topk_index"][place])
        state.hidden.copy_(output["hidden"][place])


def _may_catch_up(book: RequestBook, request: ScheduledRequest) -> bool:
    """Whether the draft model lags and all tokens in its windows still have SWA slots."""
    end, size = min(request.length, request.known - 1), book.pools.sizes.page_size
    needed = max(0, request.drafted - book.config.window + 1)
    assert request.allocation is not None
    pages = request.allocation.swa_pages[needed // size : -(-end // size)]
    return request.drafted < end and None not in pages


def _random_drafts(book: RequestBook, request: ScheduledRequest) -> tuple[int, ...]:
    draw = random.Random(book.seed * 100_003 + request.serial * 1009 + request.length)
    return tuple(draw.randrange(book.config.vocab) for _ in range(DRAFT_STEPS))
