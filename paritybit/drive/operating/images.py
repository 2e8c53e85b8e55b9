"""The images of requests.

An image of n tokens has a grid of one or two rows. Its tokens have three positions: in time, the
row and the column, all from that of the first token on. What follows begins after the largest.
"""

import random
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from paritybit.drive.script import Part, Planned, Wave

MERGED = 2
"""The patches of an image that become one token, along each side."""

LENGTHS = (2, 3, 8, 16, 20)
"""The lengths of images. The image `n` has the length at n."""

PICTURED, MOST_IMAGES, AGAIN = 1 / 2, 2, 1 / 4
"""The part of the requests that have images, how many one has at most, and the part of these
requests that come again with other images."""


def with_images(seed: int, given: Iterable[Wave]) -> Iterator[Wave]:
    """Add images to some requests of single turns, before or after the first text.

    Some come again soon, with other images of the same lengths.
    """
    chance = random.Random(f"images {seed}")
    for wave in given:
        goes_on, requests = {one.follows for one in wave.requests}, list[Planned]()
        for one in wave.requests:
            count = chance.choice((1, 1, MOST_IMAGES)) * (chance.random() < PICTURED)
            numbers = chance.choices(range(2 * len(LENGTHS)), k=count)
            others = [(n + len(LENGTHS)) % (2 * len(LENGTHS)) for n in numbers]
            at, alone = chance.randint(0, 1), one.follows is None and one.name not in goes_on
            requests.append(_pictured(one, seed, numbers, at) if alone else one)
            if alone and numbers and chance.random() < AGAIN:
                again = _pictured(one, seed, others, at)
                late = one.arrives + chance.choice((2, 8))
                requests.append(
                    replace(again, name=f"other {one.name}", arrives=late, aborted=None)
                )
        yield replace(wave, requests=tuple(requests))


def _pictured(one: Planned, seed: int, numbers: Sequence[int], at: int) -> Planned:
    """Return a request with the images of these numbers before its part `at`."""
    images = [image(f"image {seed} {n}", LENGTHS[n % len(LENGTHS)]) for n in numbers]
    return replace(one, prompt=(*one.prompt[:at], *images, *one.prompt[at:]))


def image(name: str, length: int) -> Part:
    """Return an image with the hash of its content."""
    return Part(name, length, image=name)


def images_of(prompt: Sequence[Part]) -> Iterator[tuple[int, Part]]:
    """Yield the images of a prompt, each with its first position."""
    at = 0
    for part in prompt:
        if part.image is not None:
            yield at, part
        at += part.length


def grid(part: Part) -> list[int]:
    """Return the numbers of patches of an image: in time, in a column and in a row."""
    rows = 2 - part.length % 2
    return [1, MERGED * rows, MERGED * part.length // rows]


def hash_of(part: Part) -> int | None:
    """Return the hash of an image, or None if it is that of its content."""
    assert part.image is not None
    return None if part.image == part.text else zlib.crc32(part.image.encode())
