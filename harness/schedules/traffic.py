"""Schedules cut from production traffic: order and burstiness kept, sizes scaled down.

The trace is a slice of the Azure LLM inference trace 2023 (see its first lines).
A small simulation on the host turns arrivals and lengths into steps: what arrived is
admitted, all that run decode or speculate, what has generated its tokens finishes, a gap
with nothing to run is an idle replay.
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
"""Traffic time of one decode step: the trace's mean gap then keeps about half a batch running."""

CONTEXT_TOKENS = 1000
"""Context tokens that become one attention window: about the trace's median."""

GENERATED_TOKENS = 60
"""Generated tokens of the trace that become one decode step."""

REQUESTS = 16
"""Consecutive requests of the trace in one schedule."""

IDLE_STEPS = 2
"""Idle replays that stand for a gap of any length."""

PAGE_ROUNDING = 3
"""Slots that a request may leave unused at the end of its last page."""

EVICT_EVERY = 8
"""Ticks between evictions of what has left the windows."""


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
    # The trace has 100 ns steps, one digit more than a datetime holds.
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
    """Return `count` schedules, of REQUESTS consecutive requests of the trace each.

    They start at places of the trace taken from `seed`. At most `max_bs` requests run at once,
    and their final lengths together never exceed `room` slots. Where `under_test` is a mode of
    speculation, requests draft and verify instead of decoding. `idle` is the pick of idle
    replays.
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
    # The first arrival falls between two ticks: an engine that has just started idles.
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
    """Yield the steps of one tick in which requests run; remove those that finish."""
    # The request with most left to generate goes first, so that rows change places.
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
