"""Scenes in which any two boundary conditions of a forward meet, of which no two need luck.

A scene admits requests, fills a bucket with them, lets something happen and replays again. It is
one value of each of `FACTORS`. `rows` are scenes in which every two values that fit together
occur, and the first of them have the most.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain, combinations, product
from typing import NamedTuple

from paritybit.harness.schedules.schedule import (
    Admit,
    Decode,
    Draft,
    DraftExtend,
    Evict,
    Extend,
    Finish,
    Idle,
    Prefill,
    Recapture,
    Refill,
    Repeat,
    Resume,
    Retract,
    Share,
    Step,
    Verify,
    idle_modes,
    modes_of,
)
from paritybit.reference.batch import Mode
from paritybit.reference.config import SPECULATION, Feature, ModelConfig

Steps = tuple[Step, ...]

SHORT: Mapping[Mode, int] = {
    Mode.DECODE: 3,
    Mode.TARGET_VERIFY: 1,
    Mode.DRAFT: 2,
    Mode.FROZEN_DRAFT: 4,
    Mode.DRAFT_EXTEND: SPECULATION.extend_tokens,
}
"""Tokens of the other prompts of a scene: with these the largest batch fits into the pools."""

AHEAD: Mapping[Mode, int] = {
    Mode.DECODE: 2,
    Mode.TARGET_VERIFY: SPECULATION.draft_tokens + 1,
}
"""Tokens that the longest prompt is short of the longest context, where that is not one.

Of a draft they are its slots.
"""

MANY = 256
"""Replays of one runner after which a counter of a byte begins again."""

EVERYONE_LEAVES: Steps = (Finish(0), Repeat(15))
"""As many requests as run in any trial."""

LAST = 839
"""A pick of the last of up to eight requests: each such number divides one more."""

FACTORS: Mapping[str, tuple[str, ...]] = {
    "length": ("short", "below", "beyond", "one", "longest"),
    "event": (
        *("shared", "refilled", "recaptured"),
        *("evicted", "again", "replaced", "resumed", "others"),
    ),
    "prompts": ("whole", "together", "chunks"),
    "filled": ("full", "short", "least", "one"),
}
"""What differs between scenes besides the bucket.

That is how long the last request is, what happens after its first replays, how the prompts come,
and how the bucket is filled at the end.
"""


NEEDED: Mapping[str, Feature] = {
    "shared": Feature.SHARING,
    "refilled": Feature.SHARING,
    "recaptured": Feature.RECAPTURE,
}
"""The feature that an engine must have for an event."""


class Row(NamedTuple):
    """One scene: a captured size, and a value of each of FACTORS; `event` may be "many" too."""

    bucket: int
    length: str
    event: str = "replaced"
    prompts: str = "whole"
    filled: str = "full"


@dataclass(frozen=True)
class Ground:
    """What scenes stand on: a model, the captured sizes, and the mode of the runner on trial.

    `modes` are what the engine has runners for.
    """

    config: ModelConfig
    buckets: tuple[int, ...]
    token_buckets: tuple[int, ...]
    modes: frozenset[Mode]
    mode: Mode

    @property
    def sizes(self) -> tuple[int, ...]:
        """The captured sizes of the runner on trial."""
        return self.token_buckets if self.mode is Mode.EXTEND else self.buckets

    def length(self, row: Row) -> int:
        """Return the tokens of the last request's prompt."""
        window, context = self.config.window, self.config.max_context
        ahead = {**AHEAD, Mode.DRAFT: self.config.speculation.slots}
        return {
            "one": 1,
            "short": SHORT.get(self.mode, window + 2),
            "below": window - 1,
            "beyond": window + 1,
            "longest": context - ahead.get(self.mode, 1),
        }[row.length]

    def fits(self, row: Row) -> bool:
        """Whether the engine can do what happens in a scene, and the pools have room for it."""
        needed = NEEDED.get(row.event)
        if needed is not None and needed not in self.config.features:
            return False
        large = row.bucket > max(self.sizes) // 2
        return not large or (row.length != "longest" and row.event != "again")


@cache
def rows(ground: Ground) -> tuple[Row, ...]:
    """Return scenes in which every two values that fit together occur, those with most first."""
    every = map(Row._make, product(ground.sizes[::-1], *FACTORS.values()))
    pairs = {
        row: {*combinations(enumerate(row), 1), *combinations(enumerate(row), 2)}
        for row in every
        if ground.fits(row)
    }
    missing, found = set(chain(*pairs.values())), list[Row]()
    while missing:
        found.append(max(pairs, key=lambda row: len(pairs[row] & missing)))
        missing -= pairs[found[-1]]
    return tuple(found)


def scenes(ground: Ground, played: Iterable[Row]) -> Steps:
    """Return the steps of some scenes in a row."""
    return tuple(chain(*(scene(ground, row) for row in played)))


def scene(ground: Ground, row: Row) -> Steps:
    """Return the steps of a scene. Everyone leaves before it begins."""
    mode, length, extends = ground.mode, ground.length(row), ground.mode is Mode.EXTEND
    beside = min(length, ground.length(row._replace(length="short")))
    count = 2 if extends else row.bucket
    last, everyone = count - 1, tuple(range(count))
    caught_up = (DraftExtend(everyone),) if mode.drafts else ()
    least = max((size + 1 for size in ground.sizes if size < row.bucket), default=1)
    filled = {"full": row.bucket, "short": row.bucket - 1, "least": least, "one": 1}[row.filled]

    def forward(size: int, accepted: int = 0) -> Steps:
        """Return a forward of the runner on trial, of so many of the requests or tokens."""
        size = max(size, 1)
        picks = everyone[-size:]
        if mode is Mode.DECODE:
            return (Decode(picks),)
        if mode is Mode.TARGET_VERIFY:
            return (Verify(picks, accepted),)
        if mode is Mode.DRAFT_EXTEND:
            return (DraftExtend(picks),)
        if mode.drafts:
            return (Draft(picks),)
        most = {"whole": 1, "chunks": 2, "together": max(ground.buckets)}[row.prompts]
        parts = min(most, size)
        prompts = tuple((size + place) // parts for place in range(parts))
        return (Prefill(prompts, size), *([Finish(count)] * parts))

    caught = mode is Mode.DRAFT_EXTEND and length > beside
    prompts = (*[beside] * last, length - beside * caught)
    admitted = came(row, prompts, row.bucket if extends else SHORT[mode])
    if caught:  # It has a graph for the last tokens of a request alone.
        admitted += DraftExtend((last,)), Verify((last,), SPECULATION.steps)
    lags = (Decode(everyone),) if mode is Mode.DRAFT_EXTEND else ()
    full, short = forward(row.bucket), forward(row.bucket - 1)
    happens = happening(ground, row, everyone, (*full, *short))
    before = (*EVERYONE_LEAVES, *admitted, *caught_up, *full, *lags, *short)
    return (*before, *happens, *caught_up, *lags, *forward(filled, SPECULATION.steps))


def came(row: Row, prompts: tuple[int, ...], tokens: int) -> Steps:
    """Return how prompts come. Where they have chunks, the last one's last is of `tokens`."""
    *others, last = prompts
    if row.prompts == "together":
        chunk, evicted = max(1, max(prompts) // 2), tuple(map(Evict, range(len(prompts))))
        # The last one begins while the others continue.
        begun = (Prefill((*others,), max(1, min(others) // 2)), *evicted) if others else ()
        return (*begun, Prefill((last,), chunk), *evicted, *(Prefill((), chunk), *evicted) * 2)
    if row.prompts == "whole":
        return tuple(Admit(prompt, prompt) for prompt in prompts)
    return (Prefill((*others,), max(prompts)), Admit(last, max(1, last - tokens)), Extend(0, last))


def happening(ground: Ground, row: Row, everyone: tuple[int, ...], replays: Steps) -> Steps:
    """Return what happens in a scene between replays of `everyone`, of whom the last is special."""
    mode, window, length = ground.mode, ground.config.window, ground.length(row)
    evicted, last, idle = tuple(map(Evict, everyone)), everyone[-1], idle_modes(ground.modes)
    own = Idle(idle.index(mode) if mode in idle else 0)
    again: Steps = (Decode(everyone[:2]),) * (window // 2)  # Takes the slots of who left.
    if mode is not Mode.EXTEND:  # There who was prefilled has left already.
        again = (Finish(last), *again, Admit(length, length))
    rounds = Decode(everyone), DraftExtend(everyone), Draft(everyone), Verify(everyone, 1)
    share, on = Share(LAST, 2 * window, 2), (Decode((*everyone, last + 1)), *evicted)
    one, two, three = last + 1, last + 2, last + 3  # Those that come in and share.
    whole = Extend(LAST, 2 * window)
    everything: Mapping[str, Steps] = {
        "evicted": (*evicted, own) if mode is Mode.EXTEND else (*evicted, own, *on),
        "again": again,
        "replaced": (Finish(last), Admit(2 * window, 2 * window)),
        "resumed": (Retract(last), Resume(0)),
        "others": tuple(step for step in rounds if modes_of([step], ground.modes)),
        "shared": (
            *(Finish(last), Admit(2 * window, 2 * window), Evict(last), share, *on, *on),
            *(share, *on, Finish(last), share, *on),
        ),
        "refilled": (
            *(Finish(last), Admit(2 * window, 2 * window), Evict(last)),
            *(Share(LAST, window - 2, 3), whole, Evict(one), Refill(LAST)),
            *(Share(LAST - 1, window + window // 2, 2), whole, Evict(two), Refill(LAST)),
            *(Share(LAST, 2 * window, 1), whole),
            *(Decode((three, two, one, last)), *evicted, Evict(one), Decode((three, two))),
        ),
        "recaptured": (Recapture(),),
        "many": (
            *replays,
            *chain(*((own, Repeat(2**n - 3), *replays) for n in range(2, MANY.bit_length() - 1))),
        ),
    }
    return everything[row.event]
