"""Generates requests and their arrival times. The same seed gives the same requests.

Requests come in waves. A wave ends when all of its requests have ended, so the engine is idle
between two waves.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from paritybit.drive.limits import BLOCKS, PROMPT, SHARED, Limits, edges
from paritybit.drive.models import VOCABULARY
from paritybit.drive.script import FIRST_TOKEN, PRIORITIES, Part, Planned, Sampling, Wave

LONG = tuple(tuple(block + step for step in (80, 0, -1, 1, 8)) for block in BLOCKS)
"""Lengths of long prompts, around and beyond each of BLOCKS, in the order of their use."""

OTHER = {2: 0, 4: 20}
"""The index of the token that a request has for itself, by its place among five of a wave.

The second one lies in the second block of most page sizes, so that a block follows an equal one.
"""


AT_LEAST = 2
"""The number of waves that any row has time for."""

COMPARED, CROWD = 3, 5
"""The numbers of requests of `sample`: those that are compared, and those beside them."""


def waves(seed: int, limits: Limits) -> Iterator[Wave]:
    """Yield waves without end. The kinds of waves for the limits take turns.

    The next seed begins with the kinds after the first AT_LEAST ones. Rows with consecutive seeds
    thus serve all kinds, even if each has only time for a few.
    """
    draw, number = Draw(seed, limits), 0
    kinds = kinds_of(limits)
    while True:
        kind = kinds[(AT_LEAST * seed + number) % len(kinds)]
        yield kind(draw, f"{seed}.{number}.", number // len(kinds))
        number += 1


def kinds_of(limits: Limits) -> Sequence["Kind"]:
    """Return the kinds of waves for these limits, in order."""
    if limits.pool < limits.context:
        return TIGHT
    whole = limits.windows is not None and limits.windows <= limits.chunk
    return (*KINDS[:2], _resumed, *KINDS[2:]) if whole else KINDS


class Draw:
    """Draws random lengths. Lengths at edges come in random order and with equal frequency."""

    def __init__(self, seed: int, limits: Limits) -> None:
        self.chance, self.limits = random.Random(seed), limits
        self._decks: dict[str, list[int]] = {}

    def length(self, what: str) -> int:
        """Return a random length for a purpose. Half of the lengths are at an edge."""
        if self.chance.random() >= 0.5:
            return self.chance.randint(1, 3 * self.limits.window)
        deck = self._decks.setdefault(what, [])
        if not deck:
            deck.extend(edges(self.limits))
            self.chance.shuffle(deck)
        return deck.pop()


def other_prefixes(given: Iterable[Wave]) -> Iterator[Wave]:
    """Give two of five requests of a wave another token: their first one, or one in the middle.

    The tokens that they share with others then follow another prefix, so their KV differs.
    """
    for wave in given:
        requests = list(wave.requests)
        for place, one in enumerate(requests):
            first, *rest = one.prompt
            at = OTHER.get(place % 5, first.length)
            if at < first.length:
                parts = (
                    replace(first, length=at),
                    Part("another beginning", 1),
                    replace(first, length=first.length - at - 1, start=first.start + at + 1),
                )
                prompt = (*(part for part in parts if part.length > 0), *rest)
                requests[place] = replace(one, prompt=prompt)
        yield replace(wave, requests=tuple(requests))


def with_priorities(seed: int, given: Iterable[Wave]) -> Iterator[Wave]:
    """Give each request a random priority. One that continues another has that one's."""
    chance = random.Random(f"priorities {seed}")
    for wave in given:
        drawn: dict[str, int] = {}
        for one in wave.requests:
            drawn[one.name] = drawn.get(one.follows or "", chance.choice(PRIORITIES))
        yield replace(
            wave, requests=tuple(replace(one, priority=drawn[one.name]) for one in wave.requests)
        )


def with_sampling(seed: int, given: Iterable[Wave]) -> Iterator[Wave]:
    """Give half of the requests parameters of sampling, so that most batches mix them."""
    chance = random.Random(f"sampling {seed}")
    for wave in given:
        yield replace(wave, requests=tuple(sampled(chance, one) for one in wave.requests))


def sampled(chance: random.Random, one: Planned) -> Planned:
    """Return a request, with random parameters of sampling in one of two cases."""
    if chance.random() < 0.5:
        return one
    drawn: dict[str, Any] = {
        "top_k": chance.choice((2, 5, 40)),
        "top_p": chance.choice((0.3, 0.8, 0.95)),
        "min_p": chance.choice((0.02, 0.2)),
        "repetition_penalty": chance.choice((0.8, 1.2, 1.7)),
        "frequency_penalty": chance.choice((-0.5, 0.5, 1.5)),
        "presence_penalty": chance.choice((-0.5, 0.5, 1.5)),
        "min_tokens": chance.randint(1, one.tokens),
        "logit_bias": {str(chance.randrange(FIRST_TOKEN, VOCABULARY)): chance.choice((-3.0, 3.0))},
        "seed": chance.randrange(1000),
    }
    kept = {name: value for name, value in drawn.items() if chance.random() < 0.5}
    return replace(one, sampling=Sampling(**kept), temperature=chance.choice((0.0, 0.5, 0.9, 1.4)))


def sample(limits: Limits) -> Wave:
    """Return a small wave, so that each run compares some requests.

    Two requests share a prefix. Requests with parameters of sampling come and go beside those that
    are compared, which therefore change their rows.
    """
    chance = random.Random("company")
    common, own = Part("company", limits.chunk + limits.window), limits.window // 2
    compared = [
        Planned(f"compared {number}", (common, Part(f"company {number}", own)), own, number)
        for number in range(COMPARED)
    ]
    crowd = [
        Planned(f"beside {number}", (Part(f"beside {number}", 3 * number + 1),), number + 2)
        for number in range(CROWD)
    ]
    crowd = [
        replace(sampled(chance, one), temperature=1.0, arrives=place)
        for place, one in enumerate(crowd)
    ]
    return Wave((*crowd[:2], *compared, *crowd[2:]))


def shares(common: Part, shared: int, own: Part) -> tuple[Part, ...]:
    """Return a prompt: `shared` tokens of a common part, then its own part."""
    return (Part(common.text, shared), own) if shared else (own,)


def second_turn(draw: Draw, name: str, tokens: int, latest: int) -> Planned:
    """Return the request that continues a conversation."""
    more = (Part(f"{name}+", draw.chance.randint(1, draw.limits.window)),)
    return Planned(f"{name}+", more, tokens, draw.chance.randint(0, latest), follows=name)


def _churn(draw: Draw, prefix: str, _: int) -> Wave:
    """Make short requests that come and go: batches shrink and grow within a bucket."""
    chance, limits = draw.chance, draw.limits
    count = chance.randint(2 * limits.rows, 4 * limits.rows)
    arrival, planned = 0, []
    for index in range(count):
        arrival += chance.choice((0, 0, 1, 2, 3, 5))
        tokens = chance.choice((2, 3, 5, 8, limits.window + 2, 2 * limits.window + 3))
        aborted = arrival + chance.randint(1, tokens) if chance.random() < 0.1 else None
        name = f"{prefix}{index:03}"
        prompt = (Part(name, draw.length(PROMPT)),)
        planned.append(
            Planned(
                name,
                prompt,
                tokens,
                arrival,
                aborted,
                temperature=chance.choice((0.0, 0.0, 1.0)),
            )
        )
    return Wave(tuple(planned))


def _sizes(draw: Draw, prefix: str, _: int) -> Wave:
    """Let batches be large, then small, then of a size in between, for prefills and for decoding.

    What was reset for the small batch alone shows in the middle one. A request of the large batch
    survives: the last one, which then moves to another row, or the first one.
    """
    chance, limits = draw.chance, draw.limits
    planned, near = [], limits.window // 2
    for turn in range(3):
        begins = turn * 4 * limits.window
        survivors = [limits.rows - 1, 0, chance.randrange(limits.rows)][turn]
        large = chance.choice((limits.rows, limits.rows - 1))
        for index in range(large):
            name = f"{prefix}{turn}.large.{index:03}"
            prompt = (Part(name, max(1, limits.stretch // limits.rows) + index % 2),)
            tokens = 3 * limits.window if index == min(survivors, large - 1) else 3
            planned.append(Planned(name, prompt, tokens, begins))
        small = f"{prefix}{turn}.small"
        planned.append(Planned(small, (Part(small, 1),), 2, begins + limits.window))
        for index in range(chance.choice((2, limits.rows // 2))):
            name = f"{prefix}{turn}.middle.{index:03}"
            prompt = (Part(name, chance.randint(2, near)),)
            planned.append(Planned(name, prompt, near, begins + 2 * limits.window))
    return Wave(tuple(planned))


def _sharing(draw: Draw, prefix: str, _: int) -> Wave:
    """Make requests that share a part of a prompt, and come back with a second turn.

    The first two arrive at once and share several chunks: both compute the last one.
    """
    chance, limits = draw.chance, draw.limits
    common = Part(f"{prefix}common", 2 * limits.stretch + limits.window)
    planned = [Planned(f"{prefix}000", (common,), 4)]
    for index in range(1, chance.randint(limits.rows, 3 * limits.rows)):
        shared = min(common.length, chance.choice((draw.length(SHARED), common.length)))
        own = chance.randint(1, limits.window)
        name = f"{prefix}{index:03}"
        arrival = chance.randint(0, 12) + (4 if index > limits.rows else 0)
        if index == 1:
            shared, own, arrival = common.length, limits.stretch, 0
        prompt = shares(common, shared, Part(name, own))
        planned.append(Planned(name, prompt, chance.randint(2, 2 * limits.window), arrival))
        if chance.random() < 0.4:
            planned.append(second_turn(draw, name, chance.randint(2, limits.window), 6))
    return Wave(tuple(planned))


def _turnover(draw: Draw, prefix: str, _: int) -> Wave:
    """Let a few requests decode for long while many requests with long prompts come and go.

    The entries of the former become old in the prefix cache, and the latter evict old entries.
    """
    chance, limits = draw.chance, draw.limits
    common = Part(f"{prefix}common", limits.stretch + limits.window)
    planned = []
    for index in range(3):
        name = f"{prefix}{index:03}"
        own = Part(name, chance.randint(1, limits.window - 1))
        prompt = shares(common, chance.choice((limits.stretch, common.length)), own)
        planned.append(Planned(name, prompt, 3 * limits.window, 2 * index))
    for index in range(3, 6 * limits.rows):
        name = f"{prefix}{index:03}"
        shared = chance.choice((0, 0, 0, limits.window, limits.stretch))
        own = Part(name, chance.randint(limits.window, limits.stretch))
        prompt = shares(common, shared, own)
        planned.append(Planned(name, prompt, chance.randint(1, 3), index // 2))
    return Wave(tuple(planned), flush=True)


def _relay(draw: Draw, prefix: str, _: int) -> Wave:
    """Let a request share the prompt of a request that ends after decoding for two windows.

    The second request reads the window that the first one has left, and becomes its only holder.
    Other requests with long prompts arrive just then, and evict everything that nobody holds.
    """
    chance, limits = draw.chance, draw.limits
    tokens, near = 2 * limits.window + 2, limits.window // 4
    planned = []
    for turn in range(2):
        name, begins = f"{prefix}{turn}", turn * 2 * tokens
        prompt = Part(name, chance.randint(limits.window, 3 * limits.window))
        own, arrival = Part(f"{name}.", chance.randint(1, 2 * near)), chance.randint(1, near)
        planned.append(Planned(name, (prompt,), tokens, begins))
        heir = Planned(f"{name}.", (prompt, own), limits.window, begins + tokens - arrival)
        planned.append(heir)
        for index in range(limits.rows):
            other = f"{name}.{index:02}"
            stranger = Part(other, chance.randint(limits.stretch, 2 * limits.stretch))
            arrival = begins + tokens + chance.randint(near, 2 * near)
            planned.append(Planned(other, (stranger,), chance.randint(1, 2), arrival))
    return Wave(tuple(planned))


def _brim(draw: Draw, prefix: str, _: int) -> Wave:
    """Fill the pool with rows that end together, while short requests share two rows.

    When the last slots are allocated, the engine retracts a request whose last token is pending.
    """
    chance, limits = draw.chance, draw.limits
    planned, tokens, rows = [], 2 * limits.window, limits.rows - 2
    for turn in range(2):
        begins = turn * 6 * limits.window
        for index in range(rows):
            name = f"{prefix}{turn}.{index:03}"
            length = limits.pool // rows - tokens + chance.choice((-1, 0, 0, 1))
            planned.append(Planned(name, (Part(name, length),), tokens, begins))
        for index in range(3 * limits.window):
            name = f"{prefix}{turn}.short.{index:03}"
            arrival = begins + limits.window + chance.randint(0, 3 * limits.window)
            planned.append(Planned(name, (Part(name, 1),), 2, arrival))
    return Wave(tuple(planned))


def _pressure(draw: Draw, prefix: str, _: int) -> Wave:
    """Request more than the pool holds at once: queues, eviction, retraction, aborts.

    Most prompts share a prefix, so freed slots may be in use elsewhere.
    """
    chance, limits = draw.chance, draw.limits
    common = Part(f"{prefix}common", limits.pool // 8)
    planned, asked = [], 0
    index = 0
    while asked < 2.4 * limits.pool and index < 8 * limits.rows:
        length = min(chance.randint(limits.window, limits.pool // 4), limits.longest // 2)
        tokens = min(chance.randint(limits.pool // 16, limits.pool // 8), limits.longest // 4)
        aborted = chance.randint(1, 80) if chance.random() < 0.15 else None
        shared = chance.choice((0, length // 2, length - 1))
        name = f"{prefix}{index:03}"
        prompt = shares(common, shared, Part(name, length - shared))
        planned.append(Planned(name, prompt, max(1, tokens), index // 4, aborted))
        asked += length + tokens
        index += 1
    return Wave(tuple(planned), flush=chance.random() < 0.5)


def _crowd(draw: Draw, prefix: str, _: int) -> Wave:
    """Fill all rows at once, and let them outgrow the pool together.

    A retracted request has then decoded for several windows. Some requests share a prefix, and end
    together.
    """
    chance, limits = draw.chance, draw.limits
    tokens = min(3 * limits.pool // (4 * limits.rows), limits.longest // 2)
    planned, common = [], Part(f"{prefix}common", draw.length(SHARED))
    for index in range(limits.rows):
        name = f"{prefix}{index:03}"
        own = Part(name, tokens + chance.randint(1, limits.window))
        prompt = (common, own) if index % 2 else (own,)
        planned.append(Planned(name, prompt, tokens - chance.choice((0, 0, limits.window))))
    return Wave(tuple(planned))


def _ladder(draw: Draw, prefix: str, _: int) -> Wave:
    """Make families of prompts: beginnings of one text whose lengths differ by less than a window.

    Their paths in a prefix cache are split into nodes. Some nodes lose the slots of their windows
    and are computed again. Members of a family are computed together, possibly in one chunk, and
    may end together.
    """
    chance, limits = draw.chance, draw.limits
    step = max(limits.page, limits.window // 2)
    long = min(4 * limits.stretch, limits.longest // 2)
    shorts = (3 * limits.window, max(limits.window, limits.stretch // 2))
    planned: list[Planned] = []
    arrival = 0
    for index in range(4 * limits.rows):
        arrival += chance.choice((0, 1, 2, limits.window))
        name = f"{prefix}{index:03}"
        tokens = chance.choice((1, 2, 3, limits.window + 2, 2 * limits.window + 3))
        if chance.random() < 0.25:
            stranger = Part(name, chance.randint(limits.stretch, 2 * limits.stretch))
            planned.append(Planned(name, (stranger,), tokens, arrival))
            continue
        text, most = chance.choice(((f"{prefix}common", long), *((name, most) for most in shorts)))
        length = step * chance.randint(1, max(1, most // step))
        for member in range(chance.choice((2, 2, 3))):
            mine = max(1, length - chance.choice((0, 0, 1, -1, step // 2, step)))
            late = min(tokens - 1, chance.choice((0, 0, 0, 1, step)))
            own = chance.choice((0, 0, 0, 1, step))
            prompt = Part(text, mine), *((Part(f"{name}.{member}", own),) if own else ())
            planned.append(Planned(f"{name}.{member}", prompt, tokens - late, arrival + late))
    return Wave(tuple(planned))


def _filling(draw: Draw, name: str, arrives: int) -> Planned:
    """Return a request that fills the pool, or requests more if the context is larger."""
    chance, limits = draw.chance, draw.limits
    tokens = 2 * limits.window + 1
    length = limits.longest - tokens - chance.choice((1, 2, limits.page + 1))
    more = limits.pool if limits.context > limits.pool and chance.random() < 0.5 else 0
    return Planned(name, (Part(name, length),), tokens + more, arrives)


def _squeeze(draw: Draw, prefix: str, _: int) -> Wave:
    """Let all rows but one decode, while prompts of several chunks arrive one after another.

    The windows of the rows occupy slots that the next chunk needs, so chunks wait or shrink. Short
    prompts arrive in between, and the last request fills the pool alone.
    """
    chance, limits = draw.chance, draw.limits
    planned, last = [], 2 * limits.rows
    for index in range(limits.rows - 1):
        name = f"{prefix}{index:03}"
        prompt = (Part(name, chance.randint(1, limits.window)),)
        tokens = chance.randint(3, 6) * limits.window
        planned.append(Planned(name, prompt, tokens, chance.choice((0, 0, 1, 2))))
    for index in range(limits.rows - 1, last):
        name = f"{prefix}{index:03}"
        own = chance.choice((limits.stretch, 3 * limits.stretch, 3 * limits.stretch, 1))
        prompt = (Part(name, own + chance.randint(0, limits.window)),)
        arrival = chance.randint(limits.window, 3 * limits.window)
        tokens = chance.choice((1, 2, limits.window // 2, limits.window, 2 * limits.window))
        planned.append(Planned(name, prompt, tokens, arrival))
    planned.append(_filling(draw, f"{prefix}{last:03}", 6 * limits.window))
    return Wave(tuple(planned))


def _resumed(draw: Draw, prefix: str, turn: int) -> Wave:
    """Compute a prompt that takes all of the window pool except one page, and reuse most of it.

    A cache locks a reused prefix as a whole, and the few new tokens still fit. In every second
    turn, the last request needs more slots than are left, so its chunks must shrink.
    """
    chance, limits = draw.chance, draw.limits
    assert limits.windows is not None
    left = limits.window // 4
    name, length = f"{prefix}000", limits.windows - limits.page - 1
    planned = [Planned(name, (Part(name, length),), 1)]
    for index in range(1, 4):
        shared = length - chance.randint(2 * left, 3 * left)
        own = limits.window * chance.randint(1, 3) if turn % 2 and index == 3 else left // 2
        prompt = shares(planned[0].prompt[0], shared, Part(f"{prefix}{index:03}", own))
        tokens = chance.randint(1, left // 2)
        planned.append(Planned(f"{prefix}{index:03}", prompt, tokens, 8 * index))
    return Wave(tuple(planned), flush=True)


def _long(draw: Draw, prefix: str, turn: int) -> Wave:
    """Make two long contexts among short requests, up to the limit of the engine.

    Each has a second turn, which reuses a long prefix. The last request fills the pool.
    """
    chance, limits = draw.chance, draw.limits
    most = limits.longest - 4 * limits.window
    planned = []
    for index, lengths in enumerate(reversed(LONG)):
        length = min(lengths[turn % len(lengths)], most)
        name = f"{prefix}{index:03}"
        planned.append(Planned(name, (Part(name, length),), limits.window, index))
        planned.append(second_turn(draw, name, limits.window, 4))
    for index in range(2, limits.rows):
        name = f"{prefix}{index:03}"
        prompt = (Part(name, draw.length(PROMPT)),)
        planned.append(Planned(name, prompt, chance.randint(2, 12), 2 * index))
    planned.append(_filling(draw, f"{prefix}{limits.rows:03}", 4 * limits.rows))
    return Wave(tuple(planned), flush=chance.random() < 0.3)


Kind = Callable[[Draw, str, int], Wave]
"""A function that makes a wave. It gets a prefix for names, and the number of its turn."""

KINDS: Sequence[Kind] = (
    _churn,
    _sharing,
    _sizes,
    _ladder,
    _crowd,
    _long,
    _turnover,
    _pressure,
    _relay,
    _brim,
)
"""The kinds of waves. They take turns in this order."""

TIGHT: Sequence[Kind] = (
    *(_squeeze, _sharing, _sizes, _crowd, _squeeze, _ladder),
    *(_turnover, _long, _pressure, _relay, _brim),
)
"""The kinds of waves if a single request can need more than the pool holds."""
