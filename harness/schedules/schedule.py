"""Schedules: what both worlds are asked to do, as data.

A schedule is a list of small frozen steps. Picks are taken modulo what is live when
the step is played, so that every list of steps is a valid schedule and a shorter
one is still valid. A step that finds nothing to act on, or no room, does nothing.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from itertools import islice
from typing import Any, ClassVar

from paritybit.harness.errors import MalformedError, cut, quoted
from paritybit.reference.batch import Mode


@dataclass(frozen=True)
class Step:
    """One step; `name` is what it is called in a case file."""

    name: ClassVar[str]


@dataclass(frozen=True)
class Admit(Step):
    """Admit a request of `prompt` tokens and prefill its first `chunk` tokens."""

    name = "admit"
    prompt: int
    chunk: int


@dataclass(frozen=True)
class Extend(Step):
    """Prefill the next `tokens` tokens of a request whose prompt is not all in."""

    name = "extend"
    pick: int
    tokens: int


@dataclass(frozen=True)
class Prefill(Step):
    """Admit a request of each of `prompts`, and prefill together all whose prompt is not all in.

    Each gets its next `tokens` tokens, all of them in one forward.
    """

    name = "prefill"
    prompts: tuple[int, ...]
    tokens: int


@dataclass(frozen=True)
class Decode(Step):
    """Decode one token of each request picked; the others stay parked with live KV."""

    name = "decode"
    picks: tuple[int, ...]


@dataclass(frozen=True)
class Draft(Step):
    """Let a draft model propose a tree of tokens for each request picked that it has caught up on.

    The slots it drafts in are free again after the step.
    """

    name = "draft"
    picks: tuple[int, ...]


@dataclass(frozen=True)
class Verify(Step):
    """Verify each picked request's tree and accept a path of it; the rest of its slots are freed.

    A request that nothing was proposed for gets a tree of the harness's. At least
    `accept` drafts are accepted, whatever the target says, where the tree is that deep.
    """

    name = "verify"
    picks: tuple[int, ...]
    accept: int


@dataclass(frozen=True)
class DraftExtend(Step):
    """Let the draft model catch up with the target on each request picked."""

    name = "draft_extend"
    picks: tuple[int, ...]


@dataclass(frozen=True)
class Finish(Step):
    """Finish a request: its row and slots are free to be issued again."""

    name = "finish"
    pick: int


@dataclass(frozen=True)
class Evict(Step):
    """Free the SWA slots of a request that its next query cannot see."""

    name = "evict"
    pick: int


@dataclass(frozen=True)
class Retract(Step):
    """Take a request's slots away; it keeps its tokens and may be resumed."""

    name = "retract"
    pick: int


@dataclass(frozen=True)
class Resume(Step):
    """Prefill a retracted request again, generated tokens included."""

    name = "resume"
    pick: int


@dataclass(frozen=True)
class Idle(Step):
    """A dummy replay of one of the engine's runners: every row of a bucket is padding."""

    name = "idle"
    pick: int


@dataclass(frozen=True)
class Share(Step):
    """Admit a request that shares the first tokens of a running one's prompt, and their KV.

    It asks for `tokens` of them, has `own` ones behind them, and prefills these. It can share with
    those whose recurrent state does not enter their input.
    """

    name = "share"
    pick: int
    tokens: int
    own: int


@dataclass(frozen=True)
class Refill(Step):
    """Let a request's SWA slots replace those that left the window of whom it shares tokens with.

    The two have the same first tokens, and the request has computed these again. Both share the
    other's full slots from now on, and a request to come can share them too.
    """

    name = "refill"
    pick: int


@dataclass(frozen=True)
class Recapture(Step):
    """Capture the graphs of the runner on trial again, while requests hold KV."""

    name = "recapture"


def idle_modes(modes: Collection[Mode]) -> list[Mode]:
    """Return the modes that an Idle step picks from, in order: all of an engine's but prefill.

    `modes` are those that the engine has runners for.
    """
    return [mode for mode in Mode if mode in modes and mode is not Mode.EXTEND]


def modes_of(steps: Iterable[Step], modes: Collection[Mode]) -> frozenset[Mode]:
    """Return every mode of which steps may ask a forward, of those an engine has runners for."""
    idle = idle_modes(modes)
    asked: set[Mode] = set()
    for step in steps:
        if isinstance(step, Idle):
            asked.update([idle[step.pick % len(idle)]] if idle else [])
        elif isinstance(step, Draft):
            asked.update(mode for mode in Mode if mode.drafts)
        else:
            asked.update(ASKED.get(type(step), ()))
    return frozenset(asked.intersection(modes))


ASKED: dict[type[Step], tuple[Mode, ...]] = {
    Admit: (Mode.EXTEND,),
    Extend: (Mode.EXTEND,),
    Prefill: (Mode.EXTEND,),
    Resume: (Mode.EXTEND,),
    Share: (Mode.EXTEND,),
    Decode: (Mode.DECODE,),
    Verify: (Mode.TARGET_VERIFY,),
    DraftExtend: (Mode.DRAFT_EXTEND,),
}
"""The mode of the forward that a step of each kind asks for, if it is always the same one."""

REPEAT_LIMIT = 256
"""Most times that one Repeat plays a step: more than any context or pool lasts, and soon over."""


@dataclass(frozen=True)
class Repeat(Step):
    """Play the last step `count` more times, at most REPEAT_LIMIT; no Repeat, nor a Recapture."""

    name = "repeat"
    count: int


STEPS: dict[str, type[Step]] = {
    kind.name: kind
    for kind in (
        Admit,
        Extend,
        Prefill,
        Decode,
        Draft,
        Verify,
        DraftExtend,
        Finish,
        Evict,
        Retract,
        Resume,
        Idle,
        Share,
        Refill,
        Recapture,
        Repeat,
    )
}


LISTED = frozenset({"picks", "prompts"})
"""The fields of steps that hold several numbers."""


@dataclass(frozen=True)
class Schedule:
    """Steps, and the seed of prompts, payloads, slot order and initial pool bytes."""

    steps: tuple[Step, ...]
    seed: int = 0

    def flat(self) -> Iterator[tuple[int, Step]]:
        """Yield (place in `steps`, step) with each Repeat unrolled."""
        last: Step | None = None
        for place, step in enumerate(self.steps):
            if not isinstance(step, Repeat):
                last = last if isinstance(step, Recapture) else step
                yield place, step
            elif last is not None:
                for _ in range(min(step.count, REPEAT_LIMIT)):
                    yield place, last

    def up_to(self, place: int) -> "Schedule":
        """Return the schedule up to its step at `place`, that one too."""
        return Schedule(self.steps[: place + 1], self.seed)

    def ahead(self, last: int | None = None) -> Iterator[tuple[int, Step, Iterator[Step]]]:
        """Yield what `flat` does, and with each step those that come after it.

        With `last`, the steps of that place are the last ones.
        """
        steps = list(self.flat())
        for number, (place, step) in enumerate(steps):
            if last is not None and place > last:
                return
            yield place, step, (step for _, step in islice(steps, number + 1, None))


def to_json(schedule: Schedule) -> dict[str, Any]:
    """Return the schedule as JSON data."""
    steps = [{"step": step.name, **asdict(step)} for step in schedule.steps]
    return {"seed": schedule.seed, "steps": steps}


def from_json(data: Any) -> Schedule:
    """Return the schedule of JSON data. Raises ValueError, saying what is wrong, for any other."""
    if not isinstance(data, dict) or data.keys() != {"seed", "steps"}:
        raise MalformedError("a schedule must have exactly the keys seed and steps")
    if not is_count(data["seed"]) or not isinstance(data["steps"], list):
        raise MalformedError(
            "the seed of a schedule must be a whole number and its steps must be a list"
        )
    return Schedule(tuple(_step(step) for step in data["steps"]), data["seed"])


def is_count(value: Any) -> bool:
    """Whether `value` is a whole number from 0 to 2**31 - 1, and no bool."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _step(data: Any) -> Step:
    name = data.get("step") if isinstance(data, dict) else None
    kind = STEPS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise MalformedError(f"{quoted(data)} is not a step; valid steps: {', '.join(STEPS)}")
    values = {key: value for key, value in data.items() if key != "step"}
    if values.keys() != {entry.name for entry in fields(kind)}:
        names = ", ".join(entry.name for entry in fields(kind)) or "no other key"
        raise MalformedError(
            f"step {kind.name} needs {names}; got {cut(', '.join(values)) or 'nothing'}"
        )
    for key, value in values.items():
        numbers = value if key in LISTED and isinstance(value, list) else [value]
        if not all(map(is_count, numbers)) or (key in LISTED) != isinstance(value, list):
            raise MalformedError(
                f"{quoted(value)} is not a valid value for {key} of step {kind.name}"
            )
    return kind(**{key: tuple(value) if key in LISTED else value for key, value in values.items()})
