"""Generates waves of requests, by a seed alone. Between two waves, the engine is idle."""

import functools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paritybit.drive.models import VOCABULARY
from paritybit.drive.script import (
    FIRST_TOKEN,
    MOST_EXTRAS,
    MOST_SPACES,
    PRIORITIES,
    Part,
    Planned,
    Sampling,
    Wave,
)

BLOCKS = (512, 1024)
"""Numbers of keys after which index kernels start another block."""

LONG = tuple(tuple(block + step for step in (80, 0, -1, 1, 8)) for block in BLOCKS)
"""Lengths of long prompts around each of BLOCKS, in the order of their use."""

OTHER = {2: 0, 4: 20}
"""The index of the token that a request has for itself, by its place among five of a wave.

With most page sizes, the second one has an equal block before its own.
"""

ORDINARY = range(FIRST_TOKEN, VOCABULARY)

AT_LEAST = 3
"""The number of waves that any row has time for."""

REPEATED, ABORTED, MOVING, FLUSHED = 1 / 6, 1 / 12, 3 / 8, 2 / 5
"""The parts of the requests that repeat an earlier one, that are aborted, and that are aborted
while their KV moves, and the part of the waves that empty the cache at their end."""

MORE, FEW, RETURNS, STOPPED = 1.15, 1 / 4, 3, 1 / 4
"""The tokens of texts that come back from elsewhere, per slot of the pool, or from files at first,
how often, and the part of those in haste that are aborted."""

SESSIONS, TURNS, SETTLED = 1 / 2, 3, 2
"""The part of the conversations that are sessions, how often one goes on at most, and in how many
polls an engine has forgotten a turn that it aborts."""

EXTRA = 1 / 3
"""The part of the requests of a wave that have an extra parameter. Half of it is the part of the
waves that have one out of turn."""

UNMASKED = {"top_k", "top_p", "min_p", "seed", "ignore_eos", "likelihoods"}
"""Parameters of sampling with which the likeliest token stays the likeliest."""

CHECKED, BRIEF = 3, 128
"""How many greedy requests of a wave are checked, and the most tokens of one."""

COMPARED, CROWD = 3, 5
"""The numbers of requests of `sample`: those that are compared, and those beside them."""


@dataclass(frozen=True)
class Limits:
    """The limits of requests: sizes of the engine in tokens, and the most running requests, `rows`.

    `chunk` is the largest prefill, and `windows` the size of a separate pool for sliding windows.
    """

    window: int
    page: int
    chunk: int
    context: int
    pool: int
    rows: int
    windows: int | None = None

    @property
    def longest(self) -> int:
        """Tokens of the longest request. An engine may set a page aside for each request."""
        return min(self.context, self.pool - 2 * self.page)

    @property
    def stretch(self) -> int:
        """Tokens of a chunk, or of what several requests can have."""
        return min(self.chunk, self.longest // 8)


def edges(limits: Limits) -> Sequence[int]:
    """Return lengths of up to two chunks around those at which the behaviour may change."""
    # Requests that decode take tokens of a chunk, so what is left of a prompt may be one token.
    beside = [limits.chunk - 3 * number for number in range(1, limits.rows // 3 + 1)]
    marks = [limits.window, 2 * limits.window, *beside, limits.chunk, *BLOCKS]
    if limits.page > 1:
        marks += [limits.page, 2 * limits.page]
    marks = [mark for mark in marks if mark <= limits.longest - limits.window]
    near = {mark + step for mark in (2, *marks) for step in (-1, 0, 1)}
    return sorted(length for length in near if 1 <= length <= 2 * limits.chunk + 1)


class Draw:
    """Draws lengths, and makes requests. Edges come with equal frequency."""

    def __init__(self, seed: int | str, limits: Limits) -> None:
        self.chance, self.limits, self.prefix = random.Random(seed), limits, ""
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

    def name(self, place: int | str) -> str:
        """Return the name of a request or a text of this wave."""
        return f"{self.prefix}{place:03}" if isinstance(place, int) else f"{self.prefix}{place}"

    def part(self, place: int | str, length: int) -> Part:
        """Return the beginning of a text of this wave."""
        return Part(self.name(place), length)

    def alone(self, place: int | str, length: int, tokens: int, arrives: int = 0) -> Planned:
        """Return a request whose prompt has a text of its own."""
        return self.made(place, (self.part(place, length),), tokens, arrives)

    def shared(
        self, place: int, common: Part, shared: int, own: int, tokens: int, arrives: int = 0
    ) -> Planned:
        """Return a request that shares the beginning of a text, if it is not empty."""
        mine = self.part(place, own)
        prompt = (Part(common.text, shared), mine) if shared else (mine,)
        return self.made(place, prompt, tokens, arrives)

    def made(
        self, place: int | str, prompt: tuple[Part, ...], tokens: int, arrives: int = 0
    ) -> Planned:
        """Return a request of this wave."""
        return Planned(self.name(place), prompt, tokens, arrives)

    def ending(self, one: Planned) -> Planned:
        """Return a request, and half of the time fill its last page with more tokens."""
        more = -(one.length + one.tokens) % self.limits.page
        more *= more <= self.limits.window and self.chance.random() < 0.5
        return replace(one, tokens=one.tokens + more)

    def second_turn(self, first: Planned, tokens: int, latest: int) -> Planned:
        """Return the request that continues a conversation."""
        name = f"then {first.name}"  # Its beginning is no name: see `Planned`.
        more = (Part(name, self.chance.randint(1, self.limits.window)),)
        return Planned(name, more, tokens, self.chance.randint(0, latest), follows=first.name)


Kind = Callable[[Draw, int], Iterator[Planned]]
"""A function that yields the requests of a wave. It gets the number of its turn."""


def waves(seed: int, limits: Limits) -> Iterator[Wave]:
    """Yield waves without end. The kinds of waves for the limits take turns.

    The next seed begins AT_LEAST kinds later, so short rows with consecutive seeds serve all kinds.
    """
    draw, number = Draw(seed, limits), 0
    kinds = kinds_of(limits)
    while True:
        kind, draw.prefix = kinds[(AT_LEAST * seed + number) % len(kinds)], f"{seed}.{number}."
        requests = tuple(kind(draw, number // len(kinds)))
        yield Wave(requests, flush=draw.chance.random() < FLUSHED)
        number += 1


def kinds_of(limits: Limits) -> Sequence[Kind]:
    """Return the kinds of waves for these limits, in order."""
    if limits.pool < limits.context:
        return TIGHT
    whole = limits.windows is not None and limits.windows <= limits.chunk
    return (*KINDS[:2], _resumed, *KINDS[2:]) if whole else KINDS


def other_prefixes(given: Iterable[Wave]) -> Iterator[Wave]:
    """Give two of five requests another token, so that KV of the shared tokens after it differs."""
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


def with_spaces(seed: int, given: Iterable[Wave]) -> Iterator[Wave]:
    """Give half of the requests of half of the waves one of two namespaces of the prefix cache."""
    chance = random.Random(f"spaces {seed}")
    for wave in given:
        spaces = (None, None, *chance.sample(range(1, MOST_SPACES + 1), 2))
        asked = [replace(one, space=chance.choice(spaces)) for one in wave.requests]
        yield replace(wave, requests=tuple(asked)) if chance.random() < 0.5 else wave


def with_sessions(
    seed: int, given: Iterable[Wave], limits: Limits, *, crowded: bool
) -> Iterator[Wave]:
    """Make sessions of some conversations, so few that a part of the pool has room for them.

    In every second one of a wave, which an engine may keep in its slots, each turn comes after the
    one before, unless they are `crowded`: then the engine refuses some turns.

    A wave with a request that needs most of the pool has none: sglang keeps the order of arrival,
    so the next turn of a session that keeps its slots would wait behind that request forever.
    """
    draw = Draw(f"sessions {seed}", limits)
    for wave in given:
        largest = max(one.length + one.tokens for one in wave.requests)
        room = limits.pool // 4 if largest <= limits.pool // 2 else 0
        firsts, lasts, requests = dict[str, Planned](), dict[int | None, str](), list[Planned]()
        for one in wave.requests:
            turns, first = [one], firsts.get(one.follows or "")
            needed = one.length + one.tokens + 2 * TURNS * limits.window
            if first is not None:
                turns = [_like(first, one)]
            elif one.follows is None and needed <= room and draw.chance.random() < SESSIONS:
                number = 2 + len({each.session for each in firsts.values()})
                first, room = replace(one, session=number), room - needed
                turns = _turns(draw, first)
            for turn in turns:
                if first is not None:
                    firsts[turn.name], last = first, lasts.get(first.session)
                    lasts[first.session] = turn.name
                    late = turn.arrives + SETTLED
                    if last is not None and (first.session or 0) % 2 and not crowded:
                        requests.append(replace(turn, follows=last, arrives=late))
                        continue
                requests.append(turn)
        yield replace(wave, requests=tuple(requests))


def with_returns(
    seed: int, given: Iterable[Wave], limits: Limits, *, flush: bool
) -> Iterator[Wave]:
    """Before each wave, request more texts than the pool holds, and then let them come back.

    They come back RETURNS times, at first only once. The cache is emptied at last. With `flush`, it
    is emptied in between, too, so that few texts do at first, and come back as often.
    """
    draw = Draw(seed, limits)
    for number, wave in enumerate(given):
        draw.prefix = f"{seed}.evicted {number}."
        texts = _texts(draw, int(limits.pool * (MORE if number or not flush else FEW)))
        yield Wave(tuple(_twice(draw, texts)), flush)
        for turn in range(turns := RETURNS if number or flush else 1):
            yield Wave(tuple(_back(draw, texts, turn)), flush or turn == turns - 1)
        yield wave


def with_growth(seed: int, given: Iterable[Wave], limits: Limits, large: int = 0) -> Iterator[Wave]:
    """Before each wave, let requests outgrow the pool, so KV of some is kept elsewhere.

    The last ones are `large`: see `_large`.
    """
    draw = Draw(seed, limits)
    for number, wave in enumerate(given):
        draw.prefix = f"{seed}.growing {number}."
        yield Wave((*_growing(draw), *_large(draw, large)))
        yield wave


def with_moves(seed: int, given: Iterable[Wave], limits: Limits) -> Iterator[Wave]:
    """Before each wave, let texts come and come back while their KV is copied: see `_moving`."""
    draw = Draw(f"moves {seed}", limits)
    for number, wave in enumerate(given):
        draw.prefix = f"{seed}.moving {number}."
        texts = _texts(draw, int(MORE * limits.pool))
        yield Wave(tuple(_moving(draw, texts, RETURNS if number else 1)))
        yield wave


def with_priorities(seed: int, given: Iterable[Wave], limits: Limits) -> Iterator[Wave]:
    """Give each conversation a random priority. Before each wave comes one of `_rising`."""
    draw, drawn = Draw(f"priorities {seed}", limits), dict[str, int]()
    for number, wave in enumerate(given):
        draw.prefix = f"{seed}.rising {number}."
        yield Wave(tuple(_rising(draw, number)))
        for one in wave.requests:
            drawn[one.name] = drawn.get(one.follows or "", draw.chance.choice(PRIORITIES))
        asked = [replace(one, priority=drawn[one.name]) for one in wave.requests]
        yield replace(wave, requests=tuple(asked))


def with_sampling(seed: int, given: Iterable[Wave]) -> Iterator[Wave]:
    """Give half of the requests parameters of sampling, so that most batches mix them."""
    return with_each(given, functools.partial(sampled, random.Random(f"sampling {seed}")))


def with_extras(seed: int, given: Iterable[Wave], extras: Sequence[str]) -> Iterator[Wave]:
    """Give some requests of some waves what not all engines have, such as a grammar.

    Most waves have none, because batches with grammars do not overlap, and log-likelihoods of
    prompts limit what is reused. Each kind has its turn in the first AT_LEAST waves. Those of
    outputs alone are in all waves. Most grammars of a wave are the same, because an engine keeps
    what it compiles.
    """
    chance = random.Random(f"extras {seed}")
    for number, wave in enumerate(given):
        turns = enumerate(extras, seed + number)
        kinds = [one for at, one in turns if at % AT_LEAST == 0 or chance.random() < EXTRA / 2]
        requests = list(wave.requests)
        sure = {kind: chance.randrange(len(requests) or 1) for kind in kinds}
        shared = chance.randint(1, MOST_EXTRAS)
        for place, one in enumerate(requests):
            drawn = {
                "grammar": chance.choice((shared, shared, chance.randint(1, MOST_EXTRAS))),
                "processor": chance.randint(1, MOST_EXTRAS),
                "likelihoods": chance.choice((-1, 0, chance.randrange(one.length))),
                "hidden_states": True,
                "ignore_eos": True,
            }
            kept: dict[str, Any] = {
                kind: drawn[kind]
                for kind in kinds
                if sure[kind] == place or chance.random() < EXTRA
            }
            if "likelihoods" in extras and chance.random() < EXTRA / 2:
                kept.setdefault("likelihoods", -1)
            if kept:
                asked = replace(one.sampling or Sampling(), **kept)
                requests[place] = replace(one, sampling=asked)
        yield replace(wave, requests=tuple(requests))


def with_repeats(seed: int, given: Iterable[Wave]) -> Iterator[Wave]:
    """Let some requests repeat an earlier one of their wave or of the wave before."""
    chance, before = random.Random(f"repeats {seed}"), list[Planned]()
    for wave in given:
        requests = list(wave.requests)
        for place, one in enumerate(requests):
            earlier = [other for other in (*before, *requests[:place]) if other.follows is None]
            if earlier and one.follows is None and chance.random() < REPEATED:
                like = chance.choice(earlier)
                requests[place] = replace(
                    one,
                    prompt=like.prompt,
                    tokens=like.tokens,
                    temperature=like.temperature,
                    sampling=like.sampling,
                )
        yield replace(wave, requests=tuple(requests))
        before = requests


def with_aborts(seed: int, given: Iterable[Wave]) -> Iterator[Wave]:
    """Abort some requests: while they wait, prefill or decode, or after their end."""
    chance = random.Random(f"aborts {seed}")

    def ended(one: Planned) -> Planned:
        if one.follows is not None or one.aborted is not None or chance.random() >= ABORTED:
            return one
        return replace(one, aborted=one.arrives + chance.randint(0, one.tokens + 8))

    return with_each(given, ended)


def with_aborts_of_moving(seed: int, given: Iterable[Wave]) -> Iterator[Wave]:
    """Abort some of the other requests while their KV is copied from or to elsewhere."""
    chance = random.Random(f"moving {seed}")

    def ended(one: Planned) -> Planned:
        if one.follows is not None or one.aborted is not None or chance.random() >= MOVING:
            return one
        return replace(one, aborted=one.arrives, while_moving=True)

    return with_each(given, ended)


def without_aborts(given: Iterable[Wave]) -> Iterator[Wave]:
    """Abort no request."""
    return with_each(given, lambda one: replace(one, aborted=None))


def with_checks(seed: int, given: Iterable[Wave], limits: Limits) -> Iterator[Wave]:
    """Let some greedy requests go on with a turn that asks how likely their tokens are.

    An engine then computes all of these tokens again, as a prompt.
    """
    draw = Draw(f"checks {seed}", limits)
    for wave in given:
        plain = [
            one
            for one in wave.requests
            if (one.follows, one.session, one.aborted, one.temperature) == (None, None, None, 0)
            and {*(one.sampling or Sampling()).given()} <= UNMASKED
            and one.length + one.tokens <= min(BRIEF, limits.longest // 2)
            and all(part.image is None for part in one.prompt)
        ]
        turns = list[Planned]()
        for one in draw.chance.sample(plain, min(CHECKED, len(plain))):
            first = one.length - (one.length % 4 == 0)  # Engines list some likeliest tokens then.
            turns.append(
                replace(
                    draw.second_turn(one, 1, 2),
                    name=f"check of {one.name}",
                    sampling=Sampling(likelihoods=first),
                    adapter=one.adapter,
                    space=one.space,
                )
            )
        yield replace(wave, requests=(*wave.requests, *turns))


def with_each(given: Iterable[Wave], change: Callable[[Planned], Planned]) -> Iterator[Wave]:
    """Change each request of waves."""
    for wave in given:
        yield replace(wave, requests=tuple(map(change, wave.requests)))


def sampled(chance: random.Random, one: Planned) -> Planned:
    """Return a request, half of the time with random parameters of sampling."""
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
        "logit_bias": {str(chance.choice(ORDINARY)): chance.choice((-3.0, 3.0))},
        "stop_token_ids": tuple(chance.sample(ORDINARY, 4)),
        "allowed_token_ids": tuple(chance.sample(ORDINARY, VOCABULARY // 2)),
        "bad_words": tuple(tuple(chance.sample(ORDINARY, number % 2 + 1)) for number in range(12)),
        "seed": chance.randrange(1000),
    }
    kept = {name: value for name, value in drawn.items() if chance.random() < 0.5}
    return replace(one, sampling=Sampling(**kept), temperature=chance.choice((0.0, 0.5, 0.9, 1.4)))


def sample(limits: Limits) -> Wave:
    """Return a small wave to compare, whose requests share a prefix.

    Others with parameters of sampling come and go, so the compared requests change their rows.
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


def _churn(draw: Draw, _: int) -> Iterator[Planned]:
    """Make short requests that come and go: batches shrink and grow within a bucket."""
    chance, limits, arrival = draw.chance, draw.limits, 0
    for index in range(chance.randint(limits.rows, 2 * limits.rows)):
        arrival += chance.choice((0, 0, 1, 2, 3, 5))
        tokens = chance.choice((2, 3, 5, 8, limits.window + 2, 2 * limits.window + 3))
        aborted = arrival + chance.randint(1, tokens) if chance.random() < 0.1 else None
        one = draw.alone(index, draw.length("a prompt"), tokens, arrival)
        yield replace(one, aborted=aborted, temperature=chance.choice((0.0, 0.0, 1.0)))


def _sizes(draw: Draw, _: int) -> Iterator[Planned]:
    """Let batches be large, then small, then of a size in between, for prefills and for decoding.

    What was reset for the small batch alone shows in the middle one. A request of the large batch
    survives, and may move to another row.
    """
    chance, limits = draw.chance, draw.limits
    near = limits.window // 2
    large = chance.choice((limits.rows, limits.rows - 1))
    survivor = chance.choice((large - 1, 0, chance.randrange(large)))
    for index in range(large):
        length = max(1, limits.stretch // limits.rows) + index % 2
        tokens = 3 * limits.window if index == survivor else 3
        yield draw.alone(f"large.{index:03}", length, tokens)
    yield draw.alone("small", 1, 2, limits.window)
    for index in range(chance.choice((2, limits.rows // 2))):
        length = chance.randint(2, near)
        yield draw.alone(f"middle.{index:03}", length, near, 2 * limits.window)


def _sharing(draw: Draw, _: int) -> Iterator[Planned]:
    """Make requests that share a part of a prompt, and come back with a second turn.

    The first two arrive at once and share several chunks: both compute the last one.
    """
    chance, limits = draw.chance, draw.limits
    common = draw.part("common", 2 * limits.stretch + limits.window)
    yield draw.made(0, (common,), 4)
    for index in range(1, chance.randint(limits.rows, 3 * limits.rows)):
        shared = min(common.length, chance.choice((draw.length("a shared prefix"), common.length)))
        own = chance.randint(1, limits.window)
        arrival = chance.randint(0, 12) + (4 if index > limits.rows else 0)
        if index == 1:
            shared, own, arrival = common.length, limits.stretch, 0
        tokens = chance.randint(2, 2 * limits.window)
        one = draw.ending(draw.shared(index, common, shared, own, tokens, arrival))
        yield one
        if chance.random() < 0.4:
            yield draw.second_turn(one, chance.randint(2, limits.window), 6)


def _turnover(draw: Draw, _: int) -> Iterator[Planned]:
    """Let requests with long prompts evict the entries of a few requests that decode for long."""
    chance, limits = draw.chance, draw.limits
    common = draw.part("common", limits.stretch + limits.window)
    for index in range(3):
        own = chance.randint(1, limits.window - 1)
        shared = chance.choice((limits.stretch, common.length))
        yield draw.shared(index, common, shared, own, 3 * limits.window, 2 * index)
    for index in range(3, 4 * limits.rows):
        shared = chance.choice((0, 0, 0, limits.window, limits.stretch))
        own = chance.randint(limits.window, limits.stretch)
        yield draw.shared(index, common, shared, own, chance.randint(1, 3), index // 2)


def _relay(draw: Draw, _: int) -> Iterator[Planned]:
    """Let a request share the prompt of a request that ends after decoding for two windows.

    It becomes the only holder of the window that the first one has left. Other requests with long
    prompts arrive just then, and evict everything that nobody holds. Before that, short ones come
    and go.
    """
    chance, limits = draw.chance, draw.limits
    tokens, near = 2 * limits.window + 2, limits.window // 4
    first = draw.alone("first", chance.randint(limits.window, 3 * limits.window), tokens)
    yield first
    for index in range(limits.rows // 2):
        length, more = chance.randint(1, limits.window), chance.randint(near, limits.window)
        yield draw.alone(f"beside.{index:03}", length, more, near * index + 1)
    own, arrival = draw.part("heir", chance.randint(1, 2 * near)), tokens - chance.randint(1, near)
    yield draw.made("heir", (*first.prompt, own), limits.window, arrival)
    for index in range(limits.rows):
        length = chance.randint(limits.stretch, 2 * limits.stretch)
        arrival = tokens + chance.randint(near, 2 * near)
        yield draw.alone(index, length, chance.randint(1, 2), arrival)


def _again(draw: Draw, _: int) -> Iterator[Planned]:
    """Request more texts than the pool holds, then the same ones again, a few at a time.

    A cache has evicted most of them by then, and copies several back from the host at once. Some
    come back with more or fewer tokens.
    """
    chance, limits = draw.chance, draw.limits
    texts, asked = list[Part](), 0
    while asked < 1.25 * limits.pool:
        texts.append(draw.part(len(texts), chance.randint(limits.stretch, 2 * limits.stretch)))
        asked += texts[-1].length
    for index, text in enumerate(texts):
        yield draw.made(index, (text,), chance.randint(1, 3), index // 2)
    for index, text in enumerate(texts):
        place, arrival = f"again.{index:03}", 2 * len(texts) + 4 * (index // 4)
        own = (draw.part(place, limits.window // 2),) * chance.randint(0, 1)
        shared = replace(text, length=text.length - chance.choice((0, 0, 1, limits.stretch // 2)))
        yield draw.made(place, (shared, *own), chance.randint(1, 3), arrival)


def _texts(draw: Draw, tokens: int) -> list[Part]:
    """Return texts with so many tokens together."""
    texts, pool = list[Part](), draw.limits.pool
    while tokens > 0:
        length = min(tokens, draw.chance.randint(pool // 16, pool // 6))
        texts.append(draw.part(len(texts), length))
        tokens -= length
    return texts


def _twice(draw: Draw, texts: Sequence[Part]) -> Iterator[Planned]:
    """Request each text twice, because a cache may keep only what is used again."""
    for index, text in enumerate(texts):
        yield draw.made(f"first.{index:03}", (text,), 1, 2 * index)
        place = f"second.{index:03}"
        yield draw.made(place, (text, draw.part(place, 1)), 2, 2 * index + 1)


def _back(draw: Draw, texts: Sequence[Part], turn: int) -> Iterator[Planned]:
    """Request texts in another order, whole or in part, and most twice.

    The second request may come once a part of it is back, and go on with the whole or with another
    text, which has other KV there than at the beginning. Some end like their second request, of
    which a cache may have evicted the end alone. Some go on for long, so that others are retracted,
    and some are aborted soon.
    """
    chance, limits, arrival = draw.chance, draw.limits, 0
    for index in chance.sample(range(len(texts)), len(texts)):
        arrival += chance.choice((0, 1, 2, 4))
        text = texts[index]
        ended, some = text.length % limits.page, chance.randrange(text.length)
        less = chance.choice((0, ended, 1, limits.page, some))
        parts = chance.choice(((less,), (less, some), (text.length // 2, less), (less, less)))
        for twin, part in enumerate(parts):
            place = f"back {turn}.{index:03}.{twin}"
            shared = replace(text, length=max(1, text.length - part))
            new = draw.part(place, chance.randint(1, limits.window))
            ends = (new,), (texts[index - 1],), (draw.part(f"second.{index:03}", 1),)
            own = chance.choice(((), (), *ends))
            if twin and part == parts[0]:
                own = ends[1]
            tokens = chance.choice((1, 2, 2, 3, 3, 3, limits.window, 4 * limits.window))
            late = arrival + twin * chance.choice((0, 8, 16, 32))
            aborted = late + chance.randint(0, 8) if chance.random() < ABORTED else None
            yield replace(draw.made(place, (shared, *own), tokens, late), aborted=aborted)


def _turns(draw: Draw, first: Planned) -> list[Planned]:
    """Return a session: its first turn, and others, some of which begin at any earlier one.

    A third turn begins at the first one, as the second does. Some are aborted: while they wait,
    while they run, or as soon as they arrive.
    """
    chance, turns, most = draw.chance, [first], draw.limits.window
    for number in range(chance.randint(1, TURNS)):
        after = first if number == 1 else chance.choice((turns[-1], chance.choice(turns)))
        one = draw.second_turn(after, chance.randint(1, most), 6)
        last = one.arrives + one.tokens + SETTLED
        aborted = chance.randint(0, last) if chance.random() < 4 * ABORTED else None
        name = f"turn {number} of {first.name}"
        turns.append(_like(first, replace(one, name=name, aborted=aborted)))
    return turns


def _like(first: Planned, one: Planned) -> Planned:
    """Return a turn of a session, with the adapter and the namespace of the first one."""
    return replace(one, session=first.session, adapter=first.adapter, space=first.space)


def _rising(draw: Draw, turn: int) -> Iterator[Planned]:
    """Let two more urgent requests join others, and fill the last row.

    The others end just then, the last of them first, and their next turns, which are the most
    urgent, arrive at once. They outgrow the pool: when one of them needs a page, the two are
    already a part of the step, and are retracted.
    """
    limits, priorities = draw.limits, PRIORITIES[:: 1 - turn % 2 * 2]
    length = min(limits.pool // limits.rows - 2 * limits.window, limits.longest // 2)
    for index in range(limits.rows):
        # The others have been admitted when the two come.
        late = (index >= limits.rows - 2) * (index + limits.rows // 2)
        tokens = 3 * limits.window if late else 3 * limits.rows - index
        one = replace(draw.alone(index, length, tokens, late), priority=priorities[late > 0])
        yield one
        if not late:
            yield replace(draw.second_turn(one, 3 * limits.window, 0), priority=priorities[2])


def _growing(draw: Draw) -> Iterator[Planned]:
    """Fill the pool, and let the answers outgrow it. The first prompts leave little room for them.

    Some prompts have several chunks, and may be interrupted anywhere in a page. Some of these
    repeat one token, so what is left of them is a prefix of another one. Some requests go on as
    soon as they end, with what is cached of them.
    """
    chance, limits = draw.chance, draw.limits
    for index in range(2 * limits.rows):
        lengths = (limits.stretch, 3 * limits.stretch) if index % 4 == 3 else (1, limits.stretch)
        if index < limits.rows // 2 and index % 4 != 3:
            lengths = limits.pool // limits.rows, 3 * limits.pool // (2 * limits.rows)
        tokens = chance.randint(limits.pool // 16, limits.pool // 4)
        length = chance.randint(*lengths)
        one = draw.alone(index, length, tokens, index // 4)
        same = (draw.part("one token", 1),) * length
        yield replace(one, prompt=same) if index % 8 == 7 else one
        if index % 4 == 1:
            yield draw.second_turn(one, limits.window, 2)


def _large(draw: Draw, count: int) -> Iterator[Planned]:
    """Make prompts that fill the pool beside the first part of the next one.

    An engine then interrupts the next one, which still has several chunks to compute.
    """
    chance, limits = draw.chance, draw.limits
    most = limits.longest - limits.chunk - limits.window
    for index in range(count):
        length = most - most % limits.chunk + chance.randint(1, limits.chunk // 2)
        yield draw.alone(f"large.{index}", length, limits.longest - length, limits.rows)


def _moving(draw: Draw, texts: Sequence[Part], turns: int) -> Iterator[Planned]:
    """Request texts in some turns, in part and then whole, faster than the engine serves them.

    The pool is full, so what ends is evicted at once, and comes back from elsewhere, the whole
    behind the part, which may be next to be evicted. Some part from their text where a page ends.
    Many end with their last page, and some of these go on. Many are aborted: while they wait, while
    their KV comes, or while the last of it is stored.
    """
    chance, limits, arrival = draw.chance, draw.limits, 0
    for turn in range(turns):
        for index in chance.sample(range(len(texts)), len(texts)):
            arrival += chance.choice((0, 0, 1, 2))
            text = texts[index]
            less = chance.choice((0, 1, text.length % limits.page, limits.page))
            parts = chance.choice(((less,), (text.length // 2, less)))
            for twin, part in enumerate(parts):
                place = f"{turn}.{index:03}.{twin}"
                late = arrival + twin * chance.choice((1, 2, 4, 8, 12, 16))
                shared = replace(text, length=max(1, text.length - part))
                own = (draw.part(place, chance.randint(1, limits.window)),) * chance.randint(0, 1)
                most = 3 if len(parts) > twin + 1 else 5
                tokens = chance.choice((1, 2, 3, limits.page, 4 * limits.window)[:most])
                one = draw.ending(draw.made(place, (shared, *own), tokens, late))
                if chance.random() < STOPPED:
                    one = replace(one, aborted=late + chance.randint(0, 6))
                yield one
                if one.aborted is None and chance.random() < 1 / 3:
                    yield draw.second_turn(one, chance.choice((1, 2, limits.window)), 6)


def _brim(draw: Draw, _: int) -> Iterator[Planned]:
    """Fill the pool with rows that end together, while short requests share two rows.

    When the last slots are allocated, the engine retracts a request whose last token is pending.
    """
    chance, limits = draw.chance, draw.limits
    tokens, rows = 2 * limits.window, limits.rows - 2
    for index in range(rows):
        length = limits.pool // rows - tokens + chance.choice((-1, 0, 0, 1))
        yield draw.alone(index, length, tokens)
    for index in range(3 * limits.window):
        arrival = limits.window + chance.randint(0, 3 * limits.window)
        yield draw.alone(f"short.{index:03}", 1, 2, arrival)


def _pressure(draw: Draw, _: int) -> Iterator[Planned]:
    """Request more than the pool holds at once: queues, eviction, retraction, aborts.

    Most prompts share a prefix, so freed slots may be in use elsewhere.
    """
    chance, limits = draw.chance, draw.limits
    common = draw.part("common", limits.pool // 8)
    asked = index = 0
    while asked < 1.8 * limits.pool and index < 6 * limits.rows:
        length = min(chance.randint(limits.window, limits.pool // 4), limits.longest // 2)
        tokens = min(chance.randint(limits.pool // 16, limits.pool // 8), limits.longest // 4)
        aborted = chance.randint(1, 80) if chance.random() < 0.15 else None
        shared = chance.choice((0, length // 2, length - 1))
        one = draw.shared(index, common, shared, length - shared, max(1, tokens), index // 4)
        yield replace(one, aborted=aborted)
        asked += length + tokens
        index += 1


def _crowd(draw: Draw, _: int) -> Iterator[Planned]:
    """Fill all rows at once, and let them outgrow the pool together.

    A retracted request has then decoded for several windows. Some requests share a prefix, and end
    together. In every second wave, rows have about the same length, so they need pages together.
    """
    chance, limits = draw.chance, draw.limits
    tokens = min(3 * limits.pool // (4 * limits.rows), limits.longest // 2)
    common, spread = (
        draw.part("common", draw.length("a shared prefix")),
        chance.choice((1, limits.window)),
    )
    for index in range(limits.rows):
        own, shared = tokens + chance.randint(1, spread), common.length * (index % 2)
        less = chance.choice((0, 0, limits.window))
        yield draw.shared(index, common, shared, own, tokens - less)


def _ladder(draw: Draw, _: int) -> Iterator[Planned]:
    """Make families of prompts: beginnings of one text whose lengths differ by less than a window.

    Their paths in a prefix cache are split into nodes, some of which lose their windows and are
    computed again. Members of a family may be computed in one chunk, and end together.
    """
    chance, limits = draw.chance, draw.limits
    step = max(limits.page, limits.window // 2)
    long = min(4 * limits.stretch, limits.longest // 2)
    shorts = (3 * limits.window, max(limits.window, limits.stretch // 2))
    arrival = 0
    for index in range(2 * limits.rows):
        arrival += chance.choice((0, 1, 2, limits.window))
        tokens = chance.choice((1, 2, 3, limits.window + 2, 2 * limits.window + 3))
        if chance.random() < 0.25:
            length = chance.randint(limits.stretch, 2 * limits.stretch)
            yield draw.alone(index, length, tokens, arrival)
            continue
        texts: list[tuple[int | str, int]] = [("common", long)]
        text, most = chance.choice([*texts, *((index, most) for most in shorts)])
        length = step * chance.randint(1, max(1, most // step))
        for member in range(chance.choice((2, 2, 3))):
            place = f"{index:03}.{member}"
            mine = max(1, length - chance.choice((0, 0, 1, -1, step // 2, step)))
            late = min(tokens - 1, chance.choice((0, 0, 0, 1, step)))
            own = chance.choice((0, 0, 0, 1, step))
            prompt = draw.part(text, mine), *((draw.part(place, own),) if own else ())
            yield draw.made(place, prompt, tokens - late, arrival + late)


def _filling(draw: Draw, place: int, arrives: int) -> Planned:
    """Return a request that fills the pool, or needs more if the context is larger."""
    chance, limits = draw.chance, draw.limits
    tokens = 2 * limits.window + 1
    length = limits.longest - tokens - chance.choice((1, 2, limits.page + 1))
    more = limits.pool if limits.context > limits.pool and chance.random() < 0.5 else 0
    return draw.alone(place, length, tokens + more, arrives)


def _squeeze(draw: Draw, _: int) -> Iterator[Planned]:
    """Let all rows but one decode, while prompts of several chunks arrive one after another.

    The windows of the rows occupy slots that the next chunk needs, so chunks wait or shrink. The
    last request fills the pool alone.
    """
    chance, limits = draw.chance, draw.limits
    last = 2 * limits.rows
    for index in range(limits.rows - 1):
        length, tokens = chance.randint(1, limits.window), chance.randint(3, 6) * limits.window
        yield draw.alone(index, length, tokens, chance.choice((0, 0, 1, 2)))
    for index in range(limits.rows - 1, last):
        own = chance.choice((limits.stretch, 3 * limits.stretch, 3 * limits.stretch, 1))
        own += chance.randint(0, limits.window)
        arrival = chance.randint(limits.window, 3 * limits.window)
        tokens = chance.choice((1, 2, limits.window // 2, limits.window, 2 * limits.window))
        yield draw.alone(index, own, tokens, arrival)
    yield _filling(draw, last, 6 * limits.window)


def _resumed(draw: Draw, turn: int) -> Iterator[Planned]:
    """Compute a prompt that takes all of the window pool except one page, and reuse most of it.

    A cache locks a reused prefix as a whole, and the few new tokens still fit. In every second
    turn, the last request does not fit, so its chunks must shrink.
    """
    chance, limits = draw.chance, draw.limits
    assert limits.windows is not None
    left, length = limits.window // 4, limits.windows - limits.page - 1
    first = draw.alone(0, length, 1)
    yield first
    for index in range(1, 4):
        shared = length - chance.randint(2 * left, 3 * left)
        own = limits.window * chance.randint(1, 3) if turn % 2 and index == 3 else left // 2
        tokens = chance.randint(1, left // 2)
        yield draw.shared(index, first.prompt[0], shared, own, tokens, 8 * index)


def _long(draw: Draw, turn: int) -> Iterator[Planned]:
    """Make two long contexts with a second turn among short requests, then fill the pool."""
    chance, limits = draw.chance, draw.limits
    most = limits.longest - 4 * limits.window
    for index, lengths in enumerate(reversed(LONG)):
        length = min(lengths[turn % len(lengths)], most)
        one = draw.ending(draw.alone(index, length, limits.window, index))
        yield one
        yield draw.second_turn(one, limits.window, 4)
    for index in range(2, limits.rows):
        length = draw.length("a prompt")
        yield draw.alone(index, length, chance.randint(2, 12), 2 * index)
    yield _filling(draw, limits.rows, 4 * limits.rows)


KINDS: Sequence[Kind] = (
    *(_churn, _sharing, _again, _sizes, _ladder, _crowd),
    *(_turnover, _long, _pressure, _relay, _brim),
)


TIGHT: Sequence[Kind] = (_squeeze, *KINDS[1:])
"""The kinds of waves if a single request can need more than the pool."""
