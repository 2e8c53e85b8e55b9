"""Sweeps: the buckets of one runner, each replayed full, then one short of it, in any order.

Random steps hardly ever fill a bucket: requests run out of room before there are enough of
them. So a sweep starts where nothing runs, and its prompts are short.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain

from hypothesis import strategies as st
from paritybit.harness.schedules.schedule import (
    Admit,
    Decode,
    Draft,
    DraftExtend,
    Extend,
    Finish,
    Retract,
    Step,
    Verify,
)
from paritybit.reference.batch import Mode
from paritybit.reference.config import SPECULATION

Steps = tuple[Step, ...]

LONGEST_PROMPTS: Mapping[Mode, int] = {
    Mode.DECODE: 3,
    Mode.TARGET_VERIFY: 2,
    Mode.DRAFT: 2,
    Mode.FROZEN_DRAFT: 4,
}
"""The longest prompts with which the largest batch and what it allocates fit into the pools."""

ACCEPTED = (0, 0, 0, 1, SPECULATION.steps)
"""Drafts that a verify of a sweep accepts at least. It mostly takes none: there is little room."""


LEAVING: st.SearchStrategy[Step] = st.sampled_from((Finish(0), Retract(0)))
"""Ways for a request to go."""


def sweeps(mode: Mode, buckets: Sequence[int]) -> st.SearchStrategy[Steps]:
    """Return a strategy of sweeps over the captured sizes of the runner of `mode`.

    The simplest has every bucket. Nothing may run where a sweep begins.
    """
    dropped = st.sampled_from((0, 0, *range(len(buckets))))
    orders = st.tuples(st.permutations(sorted(buckets)), dropped)
    kept = orders.map(lambda drawn: drawn[0][drawn[1] :])
    sweep = {Mode.EXTEND: _of_prompts, Mode.DRAFT_EXTEND: _of_catching_up}.get(mode)
    if sweep is not None:
        return kept.flatmap(lambda order: sweep(order, buckets))
    return kept.flatmap(lambda order: _of_rows(mode, order, buckets))


def apart(parts: Iterable[Steps], leave: Step) -> Steps:
    """Return the steps of some parts in a row. What one admits leaves before the next begins."""
    steps: list[Step] = []
    running = 0
    for part in parts:
        steps += [leave] * running
        steps += part
        running = sum(isinstance(step, Admit) for step in part)
    return tuple(steps)


def _sizes(bucket: int, buckets: Sequence[int]) -> st.SearchStrategy[tuple[int, ...]]:
    """Return a strategy of batch sizes that one bucket holds: full, one short of it, half full."""
    smaller = max((other for other in buckets if other < bucket), default=0)
    half = max(bucket // 2, smaller + 1)
    whole = bucket, bucket - 1
    return st.sampled_from((whole, whole, (*whole, half), (bucket, half, bucket - 1)))


def _visits(
    order: Sequence[int],
    buckets: Sequence[int],
    visit: Callable[[tuple[int, ...]], st.SearchStrategy[Steps]],
) -> st.SearchStrategy[tuple[Steps, ...]]:
    """Return a strategy of visits, each of the sizes of one bucket."""
    return st.tuples(*[_sizes(bucket, buckets).flatmap(visit) for bucket in order])


def _some(count: int, least: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Return a strategy of `count` of the first `least` requests or more, in any order."""
    return st.permutations(range(max(count, least))).map(lambda order: tuple(order[:count]))


def _of_rows(mode: Mode, order: Sequence[int], buckets: Sequence[int]) -> st.SearchStrategy[Steps]:
    """Return a strategy of sweeps of a runner whose batches may be of any requests."""
    most = max(order)
    longest = LONGEST_PROMPTS[mode]
    # The simplest is the longest: what a row of one token leaves looks like padding.
    prompt = st.integers(0, longest - 1).map(lambda fewer: longest - fewer)
    admitted = st.tuples(*[st.builds(Admit, prompt, st.just(longest))] * most)
    ready: Steps = (DraftExtend(tuple(range(most))),) if mode.drafts else ()

    def step(count: int) -> st.SearchStrategy[Step]:
        picks = _some(count, most)
        if mode is Mode.DECODE:
            return st.builds(Decode, picks)
        if mode is Mode.TARGET_VERIFY:
            return st.builds(Verify, picks, st.sampled_from(ACCEPTED))
        return st.builds(Draft, picks)

    replayed = _visits(order, buckets, lambda sizes: st.tuples(*map(step, sizes)))
    parts = st.tuples(admitted, st.just(ready), replayed.map(lambda visits: (*chain(*visits),)))
    return parts.map(lambda found: (*chain(*found),))


def _of_catching_up(order: Sequence[int], buckets: Sequence[int]) -> st.SearchStrategy[Steps]:
    """Return a strategy of sweeps of a draft-extend runner.

    Its bucket is full where every request lags by all the tokens that it takes, which new
    requests do. Before another batch they are decoded or verified, and lag again: the next is
    mostly as large, since a request that lags by all tokens leaves what padding has.
    """
    lag = SPECULATION.extend_tokens

    def visit(sizes: tuple[int, ...]) -> st.SearchStrategy[Steps]:
        bucket, *fewer = sizes
        everyone = tuple(range(bucket))
        full: Steps = (*[Admit(lag, lag)] * bucket, DraftExtend(everyone))
        ahead = st.sampled_from((Decode(everyone), *(Verify(everyone, n) for n in (0, lag))))

        def catch_up(counts: tuple[int, ...]) -> st.SearchStrategy[Steps]:
            rest = [st.tuples(ahead, st.builds(DraftExtend, _some(n, bucket))) for n in counts]
            return st.tuples(*rest).map(lambda pairs: (*full, *chain(*pairs)))

        again = st.sampled_from(((bucket,), (bucket,), ()))
        return again.flatmap(lambda first: catch_up((*first, *fewer)))

    return _apart(_visits(order, buckets, visit))


def _of_prompts(order: Sequence[int], buckets: Sequence[int]) -> st.SearchStrategy[Steps]:
    """Return a strategy of sweeps of a prefill runner, whose buckets are in tokens."""

    def visit(sizes: tuple[int, ...]) -> st.SearchStrategy[Steps]:
        whole: Steps = tuple(Admit(size, size) for size in sizes)
        first, second = sizes[:2]
        in_chunks: Steps = (Admit(first + second, first), Extend(0, second))
        return st.sampled_from((whole, in_chunks))

    return _apart(_visits(order, buckets, visit))


def _apart(visits: st.SearchStrategy[tuple[Steps, ...]]) -> st.SearchStrategy[Steps]:
    return st.builds(apart, visits, LEAVING)
