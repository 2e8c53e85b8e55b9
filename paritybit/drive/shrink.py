"""Shrinks waves of requests while they still show what they showed. Knows no engine.

Each pass proposes simpler waves, the simplest first. A proposal that still fails takes the place of
what was there. When no pass simplifies anything any more, no single step of theirs can.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations, islice

from paritybit.drive.script import Planned, Wave

Waves = tuple[Wave, ...]

Fails = Callable[[Waves], bool]


def shrunk(waves: Waves, fails: Fails, done: Callable[[], bool]) -> Waves:
    """Return waves that are as simple as can be and fail, until `done` says that time is over.

    `fails` says whether waves show the finding. The waves that are given do.
    """
    while not done():
        before = waves
        for proposals in PASSES:
            waves = simplified(waves, proposals, fails, done)
        if waves == before:
            break
    return waves


def simplified(
    waves: Waves,
    proposals: Callable[[Waves], Iterator[Waves]],
    fails: Fails,
    done: Callable[[], bool],
) -> Waves:
    """Return waves of which no proposal fails, or those at which time was over.

    Where a proposal fails, those after it are tried next, of the waves that it proposed.
    """
    position = 0
    while True:
        proposal = next(islice(proposals(waves), position, None), None)
        if proposal is None or done():
            return waves
        if proposal != waves and fails(proposal):
            waves = proposal
        else:
            position += 1


def fewer_waves(waves: Waves) -> Iterator[Waves]:
    """Propose the last waves alone, then to leave out one, or what is done to the engine in it."""
    length = 1
    while length < len(waves):
        yield waves[-length:]
        length *= 2
    for number in range(len(waves)):
        if len(waves) > 1:
            yield waves[:number] + waves[number + 1 :]
    for number, wave in enumerate(waves):
        if wave.flush:
            yield changed(waves, number, replace(wave, flush=False))
        for index, action in enumerate(wave.actions):
            rest = wave.actions[:index], wave.actions[index + 1 :]
            yield changed(waves, number, replace(wave, actions=(*rest[0], *rest[1])))
            for less in (replace(action, lasts=0), replace(action, at=0)):
                simpler = (*rest[0], less, *rest[1])
                yield changed(waves, number, replace(wave, actions=simpler))


def fewer_requests(waves: Waves) -> Iterator[Waves]:
    """Propose to leave out requests of a wave: half of them, a quarter, and so on, then each."""
    for number in reversed(range(len(waves))):
        requests = waves[number].requests
        size = len(requests) // 2
        while size:
            for start in range(0, len(requests), size):
                kept = requests[:start] + requests[start + size :]
                yield changed(waves, number, replace(waves[number], requests=possible(kept)))
            size //= 2


def merged_requests(waves: Waves) -> Iterator[Waves]:
    """Propose to leave out requests and to give their tokens to the one before or after them.

    What they occupied stays occupied, so a pool becomes as full as before. The heir gets a longer
    prompt, or more tokens to make.
    """
    for number in reversed(range(len(waves))):
        requests = waves[number].requests
        size = len(requests) // 2
        while size:
            for start in range(0, len(requests), size):
                gone = requests[start : start + size]
                for place in (start - 1, start + size):
                    if 0 <= place < len(requests):
                        kept = inherited(requests, place, gone)
                        for one in kept:
                            yield changed(waves, number, replace(waves[number], requests=one))
            size //= 2


def inherited(
    requests: tuple[Planned, ...], place: int, gone: tuple[Planned, ...]
) -> Iterator[tuple[Planned, ...]]:
    """Yield the requests without some, whose tokens the one at a place has in their stead."""
    tokens, heir = sum(one.length + one.tokens for one in gone), requests[place]
    *before, last = heir.prompt
    longer = replace(heir, prompt=(*before, replace(last, length=last.length + tokens)))
    for changed_heir in (longer, replace(heir, tokens=heir.tokens + tokens)):
        kept = [changed_heir if one is heir else one for one in requests if one not in gone]
        yield possible(tuple(kept))


MOST_IN_PAIRS = 24
"""Requests of a wave up to which each two of them are tried to be left out at once."""


def fewer_pairs(waves: Waves) -> Iterator[Waves]:
    """Propose to leave out any two requests of a wave, neighbours or not."""
    for number in reversed(range(len(waves))):
        requests = waves[number].requests
        if len(requests) <= MOST_IN_PAIRS:
            for pair in combinations(requests, 2):
                kept = possible(tuple(one for one in requests if one not in pair))
                yield changed(waves, number, replace(waves[number], requests=kept))


def possible(requests: tuple[Planned, ...]) -> tuple[Planned, ...]:
    """Return the requests that follow none which is not there any more."""
    kept: dict[str, Planned] = {}
    for one in requests:
        if one.follows is None or one.follows in kept:
            kept[one.name] = one
    return tuple(kept.values())


def simpler_requests(waves: Waves) -> Iterator[Waves]:
    """Propose a simpler form of each request, then of all requests of a wave at once."""
    for number in reversed(range(len(waves))):
        wave = waves[number]
        for index, one in enumerate(wave.requests):
            for simpler in simpler_forms(one):
                requests = (*wave.requests[:index], simpler, *wave.requests[index + 1 :])
                yield changed(waves, number, replace(wave, requests=requests))


def simpler_forms(one: Planned) -> Iterator[Planned]:
    """Propose a request without what is special of it, then with shorter lengths."""
    if one.aborted is not None:
        yield replace(one, aborted=None)
    if one.adapter is not None:
        yield replace(one, adapter=None)
    if one.temperature:
        yield replace(one, temperature=0.0)
    if one.arrives:
        yield replace(one, arrives=0)
        yield replace(one, arrives=one.arrives // 2)
    for tokens in shorter(one.tokens):
        yield replace(one, tokens=tokens)
    for index, part in enumerate(one.prompt):
        before, after = one.prompt[:index], one.prompt[index + 1 :]
        if before or after:
            yield replace(one, prompt=before + after)
        for length in shorter(part.length):
            yield replace(one, prompt=(*before, replace(part, length=length), *after))


def shorter(length: int) -> Iterator[int]:
    """Propose shorter lengths: 1, then a half, three quarters, and so on, up to one less."""
    less = length - 1
    while less > 0:
        yield length - less
        less //= 2


PASSES = (fewer_waves, fewer_requests, merged_requests, simpler_requests, fewer_pairs)
"""What is proposed, in this order. Pairs come last: there are many of them."""


def changed(waves: Waves, number: int, wave: Wave) -> Waves:
    """Return waves with another one in the place of one; without it, if nothing is left of it."""
    kept = (wave,) if wave.requests or wave.actions else ()
    return waves[:number] + kept + waves[number + 1 :]
