"""The limits of requests, and the boundaries that requests should reach."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paritybit.drive.script import Wave
from paritybit.watch import journal

BLOCKS = (512, 1024)
"""Numbers of keys after which index kernels start another block."""

BOUNDARY = "boundary: "
"""The prefix of the counts of boundaries."""

PROMPT, SHARED = "a prompt", "a shared prefix"


@dataclass(frozen=True)
class Limits:
    """The limits of requests: sizes of the engine in tokens.

    - `window`: the size of a sliding window.
    - `chunk`: the largest prefill.
    - `context`, `pool`: the longest context, and the size of the pool.
    - `rows`: the most running requests.
    - `windows`: the number of slots of a separate pool for sliding windows, if there is one.
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
        """Tokens of the longest request that fits into the context and the pool."""
        return min(self.context, self.pool)

    @property
    def stretch(self) -> int:
        """Tokens of a chunk, or of a share of the context that several requests can have."""
        return min(self.chunk, self.longest // 8)


def marks(limits: Limits) -> Mapping[str, int]:
    """Return lengths at which the engine's behaviour may change, by name."""
    found = {
        "window": limits.window,
        "two windows": 2 * limits.window,
        "chunk": limits.chunk,
        **({"page": limits.page, "two pages": 2 * limits.page} if limits.page > 1 else {}),
        **{f"block of {block} keys": block for block in BLOCKS},
    }
    return {name: mark for name, mark in found.items() if mark <= limits.longest - limits.window}


def edges(limits: Limits) -> Sequence[int]:
    """Return the lengths around the marks that two chunks hold."""
    near = {mark + step for mark in (2, *marks(limits).values()) for step in (-1, 0, 1)}
    return sorted(length for length in near if 1 <= length <= 2 * limits.chunk + 1)


def boundaries(limits: Limits) -> Sequence[str]:
    """Return the names of all boundaries that requests should reach."""
    ends = [
        f"{what} {how} {name}"
        for name, mark in marks(limits).items()
        for what in (PROMPT, SHARED)
        for how in ("ends before", "ends at", "ends after")
        if what == PROMPT or mark <= 2 * limits.chunk
    ]
    crossed = [f"decoding crosses {name}" for name in marks(limits)]
    return [*ends, *crossed, "a wave asks for more than the pool holds"]


def reached(wave: Wave, limits: Limits) -> set[str]:
    """Return the names of the boundaries that the requests of a wave reach."""
    found = set()
    how = {-1: "ends before", 0: "ends at", 1: "ends after"}
    for one in wave.requests:
        lengths = {PROMPT: one.length if one.follows is None else 0}
        lengths[SHARED] = one.prompt[0].length if len(one.prompt) > 1 else 0
        for name, mark in marks(limits).items():
            found |= {
                f"{what} {how[length - mark]} {name}"
                for what, length in lengths.items()
                if length - mark in how
            }
            if one.follows is None and one.length <= mark < one.length + one.tokens:
                found.add(f"decoding crosses {name}")
    if sum(one.length + one.tokens for one in wave.requests) > limits.pool:
        found.add("a wave asks for more than the pool holds")
    return found


def reach(boundary: str, number: int) -> None:
    """Count how often requests reached a boundary."""
    journal.count(**{f"{BOUNDARY}{boundary}": number})


def count_retractions(scheduler: Any, name: str, page: int, number: Callable[[Any], int]) -> None:
    """Count the requests that calls of a method of a scheduler retract, as `number` states.

    Pages larger than 1 are a boundary of their own: a retracted request gives back a part of one.
    """
    method = getattr(scheduler, name)
    boundary = "a request is retracted" + (" with pages larger than 1" if page > 1 else "")
    reach(boundary, 0)

    @functools.wraps(method)
    def retract(*arguments: Any, **named: Any) -> Any:
        made = method(*arguments, **named)
        reach(boundary, number(made))
        return made

    setattr(scheduler, name, retract)
