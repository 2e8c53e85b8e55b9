"""The scheduler's part of speculation: drafting, verifying, accepting and freeing.

Both runs use it, each with the outputs of its own forwards.
"""

import random
from collections.abc import Sequence

import torch
from paritybit.harness.lockstep.request_book import RequestBook
from paritybit.harness.lockstep.requests import PlannedForward, Request
from paritybit.harness.schedules.coverage import ALL_ACCEPTED
from paritybit.reference.batch import DraftState, ForwardBatch, Mode, RequestSpan
from paritybit.reference.config import SPECULATION, Kind, Role
from paritybit.reference.model import Output
from paritybit.reference.speculative import Tree, accepted_path, tree_of


def draft(book: RequestBook, picks: Sequence[int]) -> PlannedForward | None:
    """Plan a draft for the picked requests that the draft model has caught up on."""
    if book.draft_mode is None:
        return None
    topk = book.config.speculation.topk
    count = topk * SPECULATION.steps if book.draft_mode is Mode.DRAFT else 0
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
    """Plan to verify the trees of the picked requests. At least `accept` drafts will pass."""
    if Mode.TARGET_VERIFY not in book.modes:
        return None
    count = SPECULATION.draft_tokens
    ready = book.ready(lambda request: request.known + count <= book.config.max_context)
    spans = []
    for request in book.choose(ready, picks):
        span = book.span(request, count)
        if span is not None:
            book.events["tree of the harness"] += not request.tree
            book.events["tree of a draft model"] += bool(request.tree)
            tree = request.tree or _tree_of_the_harness(book, request, accept)
            spans.append(span._replace(tree=tree, accept=accept))
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
    """Keep each request's accepted path: tokens, KV and state. Free the other slots.

    Returns, per request, the row of the logits that give its next token.
    """
    rows = []
    drafts = SPECULATION.draft_tokens
    greedy = output["logits"].argmax(-1).tolist()
    for place, span in enumerate(batch.spans):
        request, first = book.request_of(span.row), place * drafts
        path = accepted_path(span.tree, greedy[first : first + drafts], span.accept)
        _move_kv(book, span, path)
        if span.track_index:  # Slot 0 is reserved and has no owner.
            book.pools.accept(span.track_index, path[-1])
        known = [span.tree[node][0] for node in path] + [greedy[first + path[-1]]]
        end = span.begin + len(path)
        row = book.tokens[request.token_row]
        row[span.begin : end + 1] = torch.tensor(known, device=row.device)
        nodes = [first + node for node in path]
        book.hidden_states[request.token_row, span.begin : end] = output["hidden"][nodes]
        book.advance(request, end)
        request.known = end + 1
        book.free_unused(request)
        book.events["draft accepted"] += len(path) > 1
        book.events["draft rejected"] += len(path) < drafts
        book.events[ALL_ACCEPTED] += len(path) == drafts
        book.events["accepted beside the first branch"] += path != list(range(len(path)))
        rows.append(first + path[-1])
    return rows


def propose(book: RequestBook, batch: ForwardBatch, output: Output) -> list[int]:
    """Keep each request's tree, and free the slots of the draft. Returns no rows."""
    lists = [output[name].tolist() for name in ("scores", "tokens", "chosen")]
    for span, scores, tokens, chosen in zip(batch.spans, *lists, strict=True):
        request = book.request_of(span.row)
        root = int(book.tokens[request.token_row, request.length])
        request.tree = tree_of(root, scores, tokens, chosen)
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
    states, like, topk = [], book.hidden_states, book.config.speculation.topk
    for place, span in enumerate(spans):
        request = book.request_of(span.row)
        book.events["draft caught up in several steps"] += request.drafted > 0
        request.drafted = span.end
        if span.end == request.length:
            request.state = DraftState(
                like.new_empty(topk, dtype=torch.float32),
                like.new_empty(topk, dtype=torch.int64),
                like.new_empty(like.shape[-1]),
            )
            states.append((place, request.state))
    return states


def keep_caught_up(states: Sequence[tuple[int, DraftState]], output: Output) -> None:
    """Do the device's part of `catch_up`: fill the states from which drafting starts."""
    for place, state in states:
        state.topk_p.copy_(output["topk_p"][place, : len(state.topk_p)])
        state.topk_index.copy_(output["topk_index"][place, : len(state.topk_index)])
        state.hidden.copy_(output["hidden"][place])


def _move_kv(book: RequestBook, span: RequestSpan, path: Sequence[int]) -> None:
    """Move the KV of an accepted path to the new columns of its tokens."""
    moved = [(node, column) for column, node in enumerate(path) if node != column]
    pool = book.pools[Role.TARGET]
    for kind, slots in ((Kind.FULL, span.full_slots), (Kind.SWA, span.swa_slots)):
        if moved:
            pool.move(kind, [slots[node] for node, _ in moved], [slots[to] for _, to in moved])


def _may_catch_up(book: RequestBook, request: Request) -> bool:
    """Whether the draft model lags and all tokens in its windows still have SWA slots."""
    end, size = min(request.length, request.known - 1), book.pools.sizes.page_size
    needed = max(0, request.drafted - book.config.window + 1)
    assert request.allocation is not None
    pages = request.allocation.swa_pages[needed // size : -(-end // size)]
    return request.drafted < end and None not in pages


def _tree_of_the_harness(book: RequestBook, request: Request, accept: int) -> Tree:
    """Return a tree of random drafts with two branches, of which the second is longer."""
    draw = random.Random(book.seed * 100_003 + request.serial * 1009 + request.length)
    root = int(book.tokens[request.token_row, request.length])
    topk = book.config.speculation.topk
    wide = topk if accept <= SPECULATION.draft_tokens - topk else 1
    parents = [0 if i <= wide else i - 1 for i in range(SPECULATION.draft_tokens)]
    drafts = [(draw.randrange(book.config.vocab), parent) for parent in parents[1:]]
    return ((root, -1), *drafts)
