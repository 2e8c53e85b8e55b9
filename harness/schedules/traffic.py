"""Schedules from production traffic. They keep its order and burstiness, and scale sizes down.

The trace is a slice of the Azure LLM inference trace 2023: see its first lines. A simulation on the
host turns arrivals and lengths into steps. Requests are admitted when they arrive, all running
requests decode or speculate, and a request finishes once it has generated its tokens. A gap without
running requests becomes idle replays.
"""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files

from paritybit.harness.schedules.schedule import (
    Admit,
    Decode,
    Draft,
    DraftExtend,
    Evict,
    Extend,
    Finish,
    Idle,
    Schedule,
    Step,
    Verify,
)
from paritybit.reference.batch import Mode
from paritybit.reference.config import SPECULATION, ModelConfig

TICK_SECONDS = 0.17
"""Traffic time per decode step, chosen so that about half a batch runs on average."""

CONTEXT_TOKENS = 1000
"""Context tokens of the trace per attention window: about the trace's median."""

GENERATED_TOKENS = 60
"""Generated tokens of the trace per decode step."""

REQUESTS = 16
"""Consecutive requests of the trace in one schedule."""

IDLE_STEPS = 2
"""Number of idle replays for a gap of any length."""

PAGE_ROUNDING = 3
"""Largest number of slots that a request leaves unused at the end of its last page."""

EVICT_EVERY = 8
"""Ticks between evictions."""


@dataclass(frozen=True)
class Arrival:
    """One request of the trace: seconds since the first one, and its token counts."""

    second: float
    context: int
    generated: int


@dataclass
class _Live:
    serial: int
    waiting: int
    remaining: int
    tokens: int


def load_trace() -> tuple[Arrival, ...]:
    """Return the committed slice of the trace, in order of arrival."""
    text = files("paritybit.harness.schedules").joinpath("data/azure_conv_2000.csv").read_text()
    rows = list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))
    # Times have 7 decimal digits, one more than a datetime holds.
    times = [datetime.fromisoformat(row["TIMESTAMP"][:26]) for row in rows]
    return tuple(
        Arrival(
            (time - times[0]).total_seconds(),
            int(row["ContextTokens"]),
            int(row["GeneratedTokens"]),
        )
        for time, row in zip(times, rows, strict=True)
    )


def traffic_schedules(
    config: ModelConfig,
    max_bs: int,
    room: int,
    count: int,
    seed: int,
    under_test: Mode = Mode.DECODE,
    idle: int = 0,
) -> list[Schedule]:
    """Return `count` schedules, each of REQUESTS consecutive requests of the trace.

    `seed` selects the pieces of the trace. At most `max_bs` requests run at once, and the sum of
    their final lengths never exceeds `room` slots. If `under_test` is a mode of speculation,
    requests draft and verify instead of decoding. `idle` is the pick of idle replays.
    """
    speculates = under_test not in {Mode.DECODE, Mode.EXTEND}
    trace = load_trace()
    pieces = len(trace) // REQUESTS
    chosen = [(seed + 7 * index) % pieces for index in range(count)]
    return [
        Schedule(
            tuple(
                _simulate(
                    trace[REQUESTS * i : REQUESTS * (i + 1)],
                    config,
                    max_bs,
                    room,
                    speculates=speculates,
                    idle_pick=idle,
                )
            ),
            i,
        )
        for i in chosen
    ]


def _simulate(
    arrivals: Sequence[Arrival],
    config: ModelConfig,
    max_bs: int,
    room: int,
    *,
    speculates: bool,
    idle_pick: int,
) -> Iterator[Step]:
    """Yield the steps of a piece of the trace."""
    queue = list(arrivals)
    live: list[_Live] = []
    # The engine idles at first, so the first request arrives between two ticks.
    start = arrivals[0].second - (IDLE_STEPS - 0.5) * TICK_SECONDS
    tick, idle, serial = 0, 0, 0
    while queue or live:
        while queue and len(live) < max_bs and queue[0].second - start <= tick * TICK_SECONDS:
            prompt = 1 + min(queue[0].context * config.window // CONTEXT_TOKENS, 3 * config.window)
            generated = 1 + queue[0].generated // GENERATED_TOKENS
            tokens = prompt + generated + PAGE_ROUNDING + speculates * SPECULATION.slots
            if tokens + sum(request.tokens for request in live) > room:
                break
            queue.pop(0)
            chunk = config.window + 1
            yield Admit(prompt, chunk)
            live.append(_Live(serial, max(0, prompt - chunk), generated, tokens))
            serial += 1
        for request in [request for request in live if request.waiting]:
            yield Extend(0, 3 * config.window)
            request.waiting = 0
        if live:
            idle = 0
            yield from _advance(live, tick, speculates=speculates)
        elif idle < IDLE_STEPS:
            idle += 1
            yield Idle(idle_pick)
        if tick % EVICT_EVERY == 0:
            yield from (Evict(place) for place in range(len(live)))
        tick += 1


def _advance(live: list[_Live], tick: int, *, speculates: bool) -> Iterator[Step]:
    """Yield the steps of one tick in which requests run. Removes those that finish."""
    # The request with the most tokens left goes first, so that rows change places.
    order = sorted(range(len(live)), key=lambda place: (-live[place].remaining, live[place].serial))
    accepted = tick % SPECULATION.draft_tokens if speculates else 0
    if speculates:
        yield DraftExtend(tuple(order))
        yield Draft(tuple(order))
        yield Verify(tuple(order), accepted)
    else:
        yield Decode(tuple(order))
    for request in live:
        request.remaining -= 1 + accepted
    finished = [place for place, request in enumerate(live) if request.remaining <= 0]
    for place in reversed(finished):
        yield Finish(place)
        del live[place]
