"""Passes that propose simpler waves of requests, independent of the engine."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from paritybit.drive.script import Planned, Wave

Waves = tuple[Wave, ...]


def fewer_waves(waves: Waves) -> Iterator[Waves]:
    """Propose the last waves alone, then to remove a wave, or an action of a wave."""
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
        if wave.left is not None:
            yield changed(waves, number, replace(wave, left=None))
        for index, action in enumerate(wave.actions):
            rest = wave.actions[:index], wave.actions[index + 1 :]
            yield changed(waves, number, replace(wave, actions=(*rest[0], *rest[1])))
            for less in (replace(action, lasts=0), replace(action, at=0)):
                simpler = (*rest[0], less, *rest[1])
                yield changed(waves, number, replace(wave, actions=simpler))


def fewer_requests(waves: Waves) -> Iterator[Waves]:
    """Propose to remove requests of a wave: half of them, a quarter, and so on, then each one."""
    for number, start, end in parts(waves):
        requests = waves[number].requests
        kept = possible(requests[:start] + requests[end:])
        yield changed(waves, number, replace(waves[number], requests=kept))


def parts(waves: Waves) -> Iterator[tuple[int, int, int]]:
    """Yield the bounds of the halves of each wave, of its quarters, and so on, and its number."""
    for number in reversed(range(len(waves))):
        count = len(waves[number].requests)
        size = count // 2
        while size:
            yield from ((number, start, start + size) for start in range(0, count, size))
            size //= 2


def possible(requests: tuple[Planned, ...]) -> tuple[Planned, ...]:
    """Return the requests without those that follow a removed request."""
    kept: dict[str, Planned] = {}
    for one in requests:
        if one.follows is None or one.follows in kept:
            kept[one.name] = one
    return tuple(kept.values())


def simpler_requests(waves: Waves) -> Iterator[Waves]:
    """Propose simpler forms of each request."""
    for number in reversed(range(len(waves))):
        wave = waves[number]
        for index, one in enumerate(wave.requests):
            for simpler in simpler_forms(one):
                requests = (*wave.requests[:index], simpler, *wave.requests[index + 1 :])
                yield changed(waves, number, replace(wave, requests=requests))


def simpler_forms(one: Planned) -> Iterator[Planned]:
    """Propose a request without its special features, then with shorter lengths."""
    nothing: Any = None
    for feature in ("aborted", "adapter", "space", "session", "sampling"):
        if getattr(one, feature) is not None:
            yield replace(one, **{feature: nothing})
    if one.sampling is not None:
        for name in one.sampling.given():
            yield replace(one, sampling=replace(one.sampling, **{name: None}))
    if one.while_moving:
        yield replace(one, while_moving=False)
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
    """Propose shorter lengths: 1, then a half, three quarters, and so on, up to length - 1."""
    less = length - 1
    while less > 0:
        yield length - less
        less //= 2


PASSES = (fewer_waves, fewer_requests, simpler_requests)


def changed(waves: Waves, number: int, wave: Wave) -> Waves:
    """Return waves with one wave replaced. If the new wave is empty, the wave is removed."""
    kept = (wave,) if wave.requests or wave.actions else ()
    return waves[:number] + kept + waves[number + 1 :]
