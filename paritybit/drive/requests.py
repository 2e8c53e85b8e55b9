"""Generated requests: what arrives when, as data. The same seed gives the same requests.

Time is counted in polls: how often the scheduler has asked for requests. Traffic comes in waves.
A wave ends when every request of it has ended, so that the engine is idle between two waves.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

FIRST_TOKEN = 3
"""Tokens below are special ones."""

LONG = (520, 600, 1040, 1100)
"""Lengths of long prompts: beyond 512 and 1,024 keys, where index kernels start another block."""


@dataclass(frozen=True)
class Planned:
    """A request: its prompt, how many tokens it gets, and when it arrives and is aborted.

    `arrives` and `aborted` count polls since its wave began. With `follows`, the prompt is the
    whole conversation of that request of the wave, then `prompt`; it arrives `arrives` polls
    after that one ended. No name of a request that is aborted begins another name: an engine aborts
    every request whose name begins alike.
    """

    name: str
    prompt: tuple[int, ...]
    tokens: int
    arrives: int = 0
    aborted: int | None = None
    follows: str | None = None
    temperature: float = 0.0


@dataclass(frozen=True)
class Limits:
    """What requests must keep to: sizes in tokens, as the engine is set up."""

    window: int
    page: int
    chunk: int
    context: int
    pool: int
    vocabulary: int
    rows: int


@dataclass(frozen=True)
class Wave:
    """Requests that are served before the engine becomes idle.

    With `flush` its cache is emptied then.
    """

    requests: tuple[Planned, ...] = field(default=())
    flush: bool = False


def waves(seed: int, limits: Limits) -> Iterator[Wave]:
    """Yield waves without end. The first are small: a full batch that shrinks and grows again."""
    chance = random.Random(seed)
    number = 0
    while True:
        kind = KINDS[number % len(KINDS)]
        yield kind(chance, limits, f"{number}.")
        number += 1


def _tokens(chance: random.Random, limits: Limits, count: int) -> tuple[int, ...]:
    return tuple(chance.randrange(FIRST_TOKEN, limits.vocabulary) for _ in range(count))


def _edges(limits: Limits) -> Sequence[int]:
    """Return lengths at which something begins or ends: windows, pages, chunks."""
    marks = {limits.window, 2 * limits.window, limits.chunk, max(limits.page, 2), 2 * limits.page}
    near = {mark + step for mark in marks for step in (-1, 0, 1)}
    return sorted(length for length in near if 1 <= length <= limits.chunk + 1)


def _length(chance: random.Random, limits: Limits) -> int:
    """Return the length of a prompt, half of the time one at an edge."""
    if chance.random() < 0.5:
        return chance.choice(_edges(limits))
    return chance.randint(1, 3 * limits.window)


def _churn(chance: random.Random, limits: Limits, prefix: str) -> Wave:
    """Make short requests that come and go: batches shrink and grow within a bucket."""
    count = chance.randint(2 * limits.rows, 4 * limits.rows)
    arrival, planned = 0, []
    for index in range(count):
        arrival += chance.choice((0, 0, 1, 2, 3, 5))
        tokens = chance.choice((2, 3, 5, 8, limits.window + 2, 2 * limits.window + 3))
        aborted = arrival + chance.randint(1, tokens) if chance.random() < 0.1 else None
        prompt = _tokens(chance, limits, _length(chance, limits))
        planned.append(
            Planned(
                f"{prefix}{index:03}",
                prompt,
                tokens,
                arrival,
                aborted,
                temperature=chance.choice((0.0, 0.0, 1.0)),
            )
        )
    return Wave(tuple(planned))


def _sharing(chance: random.Random, limits: Limits, prefix: str) -> Wave:
    """Make requests that share a part of a prompt, and come back with a second turn.

    The first two arrive at once and share several chunks: both compute the last one.
    """
    common = _tokens(chance, limits, 2 * limits.chunk + limits.window)
    planned = [Planned(f"{prefix}000", common, 4)]
    for index in range(1, chance.randint(limits.rows, 3 * limits.rows)):
        shared = min(len(common), chance.choice((_length(chance, limits), len(common))))
        own = _tokens(chance, limits, chance.randint(1, limits.window))
        name = f"{prefix}{index:03}"
        arrival = chance.randint(0, 12) + (4 if index > limits.rows else 0)
        if index == 1:
            shared, own, arrival = len(common), _tokens(chance, limits, limits.chunk), 0
        planned.append(
            Planned(name, common[:shared] + own, chance.randint(2, 2 * limits.window), arrival)
        )
        if chance.random() < 0.4:
            more = _tokens(chance, limits, chance.randint(1, limits.window))
            tokens = chance.randint(2, limits.window)
            planned.append(Planned(f"{name}+", more, tokens, chance.randint(0, 6), follows=name))
    return Wave(tuple(planned))


def _turnover(chance: random.Random, limits: Limits, prefix: str) -> Wave:
    """Let a few requests decode for long while many with long prompts come and go.

    What the former hold in the prefix cache grows old there, and the latter evict what is old.
    """
    common = _tokens(chance, limits, limits.chunk + limits.window)
    planned = []
    for index in range(3):
        own = _tokens(chance, limits, chance.randint(1, limits.window - 1))
        prompt = common[: chance.choice((limits.chunk, len(common)))] + own
        planned.append(Planned(f"{prefix}{index:03}", prompt, 3 * limits.window, 2 * index))
    for index in range(3, 6 * limits.rows):
        shared = chance.choice((0, 0, 0, limits.window, limits.chunk))
        length = chance.randint(limits.window, limits.chunk)
        prompt = common[:shared] + _tokens(chance, limits, length)
        planned.append(Planned(f"{prefix}{index:03}", prompt, chance.randint(1, 3), index // 2))
    return Wave(tuple(planned), flush=True)


def _pressure(chance: random.Random, limits: Limits, prefix: str) -> Wave:
    """Ask for more than the pool holds, at once: queues, eviction, retraction, aborts.

    Most prompts share a prefix, so that what is given back is in use elsewhere.
    """
    common = _tokens(chance, limits, limits.pool // 8)
    planned, asked = [], 0
    index = 0
    while asked < 2.4 * limits.pool and index < 8 * limits.rows:
        length = min(chance.randint(limits.window, limits.pool // 8), limits.context // 2)
        tokens = min(chance.randint(limits.pool // 8, limits.pool // 4), limits.context // 4)
        aborted = chance.randint(1, 80) if chance.random() < 0.15 else None
        shared = chance.choice((0, length // 2, length - 1))
        prompt = common[:shared] + _tokens(chance, limits, length - shared)
        planned.append(Planned(f"{prefix}{index:03}", prompt, max(1, tokens), index // 4, aborted))
        asked += length + tokens
        index += 1
    return Wave(tuple(planned), flush=chance.random() < 0.5)


def _long(chance: random.Random, limits: Limits, prefix: str) -> Wave:
    """Make two long contexts among short requests, as far as the engine takes them.

    Each comes back with a second turn, so that a long prefix is reused.
    """
    most = min(limits.context, limits.pool) - 4 * limits.window
    planned = []
    for index, lengths in enumerate((LONG[2:], LONG[:2])):
        length = min(chance.choice(lengths), most)
        name = f"{prefix}{index:03}"
        planned.append(Planned(name, _tokens(chance, limits, length), limits.window, index))
        more = _tokens(chance, limits, chance.randint(1, limits.window))
        planned.append(Planned(f"{name}+", more, limits.window, chance.randint(0, 4), follows=name))
    for index in range(2, limits.rows):
        prompt = _tokens(chance, limits, _length(chance, limits))
        planned.append(Planned(f"{prefix}{index:03}", prompt, chance.randint(2, 12), 2 * index))
    return Wave(tuple(planned), flush=chance.random() < 0.3)


KINDS = (_churn, _sharing, _long, _turnover, _pressure)
"""The kinds of waves, in the order in which they come again and again."""
