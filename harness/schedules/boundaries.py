"""Scenes, which combine the boundary conditions of a forward.

A scene admits requests, fills a bucket with them, lets an event happen and replays again. It has
one value of each of `FACTORS`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
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
    Resume,
    Retract,
    Step,
    Verify,
    idle_modes,
)
from paritybit.reference.batch import Mode
from paritybit.reference.config import DRAFT_STEPS, DRAFT_TOKENS, ModelConfig

Steps = tuple[Step, ...]

SHORT: Mapping[Mode, int] = {
    Mode.DECODE: 3,
    Mode.TARGET_VERIFY: 1,
    Mode.DRAFT: 2,
    Mode.FROZEN_DRAFT: 4,
    Mode.DRAFT_EXTEND: DRAFT_TOKENS,
}
"""Prompt length of the other requests of a scene. The largest batch of these fits the pools."""

AHEAD: Mapping[Mode, int] = {
    Mode.DECODE: 2,
    Mode.TARGET_VERIFY: DRAFT_TOKENS + 1,
    Mode.DRAFT: DRAFT_STEPS,
}
"""By how many tokens the longest prompt is below the longest context. The default is 1."""

EVERYONE_LEAVES: Steps = (Finish(0),) * 16
"""Finishes as many requests as any trial runs."""

FACTORS: Mapping[str, tuple[str, ...]] = {
    "length": ("short", "below", "beyond", "one", "longest"),
    "event": ("evicted", "again", "replaced", "resumed", "others"),
    "prompts": ("whole", "together", "chunks"),
    "filled": ("full", "short", "least", "one"),
}
"""What differs between scenes, apart from the bucket.

- length: the prompt length of the last request
- event: what happens after the first replays
- prompts: how the prompts arrive
- filled: how full the bucket is at the end
"""


class BoundaryScene(NamedTuple):
    """One scene: a captured size, and a value of each of FACTORS."""

    bucket: int
    length: str
    event: str = "replaced"
    prompts: str = "whole"
    filled: str = "full"


@dataclass(frozen=True)
class Ground:
    """What scenes depend on: a model, the captured sizes, and the mode of the runner under test.

    `modes` are the modes for which the engine has runners.
    """

    config: ModelConfig
    buckets: tuple[int, ...]
    token_buckets: tuple[int, ...]
    modes: frozenset[Mode]
    mode: Mode

    @property
    def sizes(self) -> tuple[int, ...]:
        """The captured sizes of the runner under test."""
        return self.token_buckets if self.mode is Mode.EXTEND else self.buckets

    def length(self, scene: BoundaryScene) -> int:
        """Return the prompt length of the last request, in tokens."""
        window, context = self.config.window, self.config.max_context
        return {
            "one": 1,
            "short": SHORT.get(self.mode, window + 2),
            "below": window - 1,
            "beyond": window + 1,
            "longest": context - AHEAD.get(self.mode, 1),
        }[scene.length]

    def fits(self, scene: BoundaryScene) -> bool:
        """Whether the pools have room for a scene."""
        large = scene.bucket > max(self.sizes) // 2
        return not large or (scene.length != "longest" and scene.event != "again")


def scenes(ground: Ground, played: Iterable[BoundaryScene]) -> Steps:
    """Return the steps of some scenes, one after another."""
    return tuple(chain(*(steps_of(ground, scene) for scene in played)))


def steps_of(ground: Ground, scene: BoundaryScene) -> Steps:
    """Return the steps of a scene. All earlier requests finish before it."""
    mode, length, extends = ground.mode, ground.length(scene), ground.mode is Mode.EXTEND
    beside = min(length, ground.length(scene._replace(length="short")))
    count = 2 if extends else scene.bucket
    last, everyone = count - 1, tuple(range(count))
    caught_up = (DraftExtend(everyone),) if mode.drafts else ()
    least = max((size + 1 for size in ground.sizes if size < scene.bucket), default=1)
    filled = {"full": scene.bucket, "short": scene.bucket - 1, "least": least, "one": 1}[
        scene.filled
    ]

    def forward(size: int, accepted: int = 0) -> Steps:
        """Return a forward of the runner under test, with `size` requests or tokens."""
        size = max(size, 1)
        picks = everyone[-size:]
        if not extends:
            return (step_of(mode, picks, accepted),)
        most = {"whole": 1, "chunks": 2, "together": max(ground.buckets)}[scene.prompts]
        parts = min(most, size)
        prompts = tuple((size + place) // parts for place in range(parts))
        return (Prefill(prompts, size), *([Finish(count)] * parts))

    caught = mode is Mode.DRAFT_EXTEND and length > beside
    prompts = (*[beside] * last, length - beside * caught)
    admitted = admissions(scene, prompts, scene.bucket if extends else SHORT[mode])
    if caught:  # Its graph takes only the last tokens of a request.
        admitted += DraftExtend((last,)), Verify((last,), DRAFT_STEPS)
    lags = (Decode(everyone),) if mode is Mode.DRAFT_EXTEND else ()
    full, short = forward(scene.bucket), forward(scene.bucket - 1)
    happens = happening(ground, scene, everyone)
    before = (*EVERYONE_LEAVES, *admitted, *caught_up, *full, *lags, *short)
    return (*before, *happens, *caught_up, *lags, *forward(filled, DRAFT_STEPS))


ROUND = (Mode.DECODE, Mode.DRAFT_EXTEND, Mode.DRAFT, Mode.FROZEN_DRAFT, Mode.TARGET_VERIFY)
"""The modes of forwards over requests that are admitted, in the order of an engine."""


def step_of(mode: Mode, picks: tuple[int, ...], accepted: int) -> Step:
    """Return the step that runs a mode of ROUND. A verify accepts at least `accepted` drafts."""
    if mode is Mode.DECODE:
        return Decode(picks)
    if mode is Mode.TARGET_VERIFY:
        return Verify(picks, accepted)
    return Draft(picks) if mode.drafts else DraftExtend(picks)


def admissions(scene: BoundaryScene, prompts: tuple[int, ...], tokens: int) -> Steps:
    """Return the steps that admit prompts.

    If prompts arrive in chunks, the last chunk of the last prompt has `tokens` tokens.
    """
    *others, last = prompts
    if scene.prompts == "together":
        chunk, evicted = max(1, max(prompts) // 2), tuple(map(Evict, range(len(prompts))))
        # The last one begins while the others continue.
        begun: Steps = ()
        if others:
            begun = (Prefill((*others,), max(1, min(others) // 2)), *evicted)
        rest: Steps = (Prefill((), chunk), *evicted)
        return (*begun, Prefill((last,), chunk), *evicted, *rest * 2)
    if scene.prompts == "whole":
        return tuple(Admit(prompt, prompt) for prompt in prompts)
    return (Prefill((*others,), max(prompts)), Admit(last, max(1, last - tokens)), Extend(0, last))


def happening(ground: Ground, scene: BoundaryScene, everyone: tuple[int, ...]) -> Steps:
    """Return the steps of a scene's event. They happen between replays of the requests `everyone`.

    The last request is the one whose length varies.
    """
    mode, window, length = ground.mode, ground.config.window, ground.length(scene)
    evicted, last, idle = tuple(map(Evict, everyone)), everyone[-1], idle_modes(ground.modes)
    own = Idle(idle.index(mode) if mode in idle else 0)
    again: Steps = (Decode(everyone[:2]),) * (window // 2)  # Takes freed slots.
    if mode is not Mode.EXTEND:  # A prefill's requests have finished already.
        again = (Finish(last), *again, Admit(length, length))
    on: Steps = Decode((*everyone, last + 1)), *evicted
    everything: Mapping[str, Steps] = {
        "evicted": (*evicted, own) if mode is Mode.EXTEND else (*evicted, own, *on),
        "again": again,
        "replaced": (Finish(last), Admit(2 * window, 2 * window)),
        "resumed": (Retract(last), Resume(0)),
        "others": tuple(step_of(other, everyone, 1) for other in ROUND if other in ground.modes),
    }
    return everything[scene.event]
