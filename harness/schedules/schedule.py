"""Schedules: what both runs do, as data.

A schedule is a list of small frozen steps. Picks are taken modulo the number of live requests when
the step is played, so any list of steps is valid, and so is any part of it. A step without a
request to act on, or without room, does nothing.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from itertools import islice
from typing import Any, ClassVar

from paritybit.harness.errors import MalformedError, cut, quoted
from paritybit.reference.batch import Mode


@dataclass(frozen=True)
class Step:
    """One step. `name` is its name in a case file."""

    name: ClassVar[str]


@dataclass(frozen=True)
class Admit(Step):
    """Admit a request of `prompt` tokens and prefill its first `chunk` tokens."""

    name = "admit"
    prompt: int
    chunk: int


@dataclass(frozen=True)
class Extend(Step):
    """Prefill the next `tokens` tokens of a request whose prompt is not complete."""

    name = "extend"
    pick: int
    tokens: int


@dataclass(frozen=True)
class Prefill(Step):
    """Admit a request per prompt, and prefill all requests whose prompt is not complete.

    One forward prefills the next `tokens` tokens of each.
    """

    name = "prefill"
    prompts: tuple[int, ...]
    tokens: int


@dataclass(frozen=True)
class Decode(Step):
    """Decode one token of each picked request. The others keep their KV."""

    name = "decode"
    picks: tuple[int, ...]


@dataclass(frozen=True)
class Draft(Step):
    """Propose a tree of tokens for each picked request, if the draft model has caught up on it.

    The slots of the draft are free again after the step.
    """

    name = "draft"
    picks: tuple[int, ...]


@dataclass(frozen=True)
class Verify(Step):
    """Verify each picked request's tree and accept one path. The other slots of the tree are freed.

    A request without a proposal gets a tree from the harness. At least `accept` drafts are accepted
    whatever the target's tokens are, if the tree is that deep.
    """

    name = "verify"
    picks: tuple[int, ...]
    accept: int


@dataclass(frozen=True)
class DraftExtend(Step):
    """Run the draft model on the tokens of each picked request that it has not seen."""

    name = "draft_extend"
    picks: tuple[int, ...]


@dataclass(frozen=True)
class Finish(Step):
    """Finish a request: free its row and slots."""

    name = "finish"
    pick: int


@dataclass(frozen=True)
class Evict(Step):
    """Free the SWA slots of a request that its next query cannot see."""

    name = "evict"
    pick: int


@dataclass(frozen=True)
class Retract(Step):
    """Free a request's slots. It keeps its tokens and may be resumed."""

    name = "retract"
    pick: int


@dataclass(frozen=True)
class Resume(Step):
    """Prefill a retracted request again, including its generated tokens."""

    name = "resume"
    pick: int


@dataclass(frozen=True)
class Idle(Step):
    """Replay one of the engine's runners without requests: every row is padding."""

    name = "idle"
    pick: int


def idle_modes(modes: Collection[Mode]) -> list[Mode]:
    """Return the modes that an Idle step picks from, in order: all modes except prefill.

    `modes` are the modes for which the engine has runners.
    """
    return [mode for mode in Mode if mode in modes and mode is not Mode.EXTEND]


def modes_of(steps: Iterable[Step], modes: Collection[Mode]) -> frozenset[Mode]:
    """Return each mode of `modes` in which the steps may run a forward."""
    idle = idle_modes(modes)
    asked: set[Mode] = set()
    for step in steps:
        if isinstance(step, Idle):
            asked.update([idle[step.pick % len(idle)]] if idle else [])
        elif isinstance(step, Draft):
            asked.update(mode for mode in Mode if mode.drafts)
        else:
            asked.update(FORWARD_MODES.get(type(step), ()))
    return frozenset(asked.intersection(modes))


FORWARD_MODES: dict[type[Step], tuple[Mode, ...]] = {
    Admit: (Mode.EXTEND,),
    Extend: (Mode.EXTEND,),
    Prefill: (Mode.EXTEND,),
    Resume: (Mode.EXTEND,),
    Decode: (Mode.DECODE,),
    Verify: (Mode.TARGET_VERIFY,),
    DraftExtend: (Mode.DRAFT_EXTEND,),
}
"""The mode of the forward that a step of each kind runs, if it is always the same."""

REPEAT_LIMIT = 256
"""Largest number of times that a Repeat plays a step. No context or pool lasts longer."""


@dataclass(frozen=True)
class Repeat(Step):
    """Play the last step that is not a Repeat `count` more times, at most REPEAT_LIMIT."""

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
                last = step
                yield place, step
            elif last is not None:
                for _ in range(min(step.count, REPEAT_LIMIT)):
                    yield place, last

    def up_to(self, place: int) -> "Schedule":
        """Return the schedule up to and including its step at `place`."""
        return Schedule(self.steps[: place + 1], self.seed)

    def ahead(self, last: int | None = None) -> Iterator[tuple[int, Step, Iterator[Step]]]:
        """Yield each item of `flat` together with an iterator over the later steps.

        With `last`, stop after the step at that place.
        """
        steps = list(self.flat())
        for number, (place, step) in enumerate(steps):
            if last is not None and place > last:
                return
            yield place, step, (step for _, step in islice(steps, number + 1, None))

    def to_data(self) -> dict[str, Any]:
        """Return the schedule as JSON data."""
        steps = [{"step": step.name, **asdict(step)} for step in self.steps]
        return {"seed": self.seed, "steps": steps}

    @staticmethod
    def from_data(data: Any) -> "Schedule":
        """Return the schedule in JSON data. Raises MalformedError if the data is not valid."""
        if not isinstance(data, dict) or data.keys() != {"seed", "steps"}:
            raise MalformedError("a schedule must have exactly the keys seed and steps")
        if not is_count(data["seed"]) or not isinstance(data["steps"], list):
            raise MalformedError(
                "the seed of a schedule must be a whole number and its steps must be a list"
            )
        return Schedule(tuple(_step(step) for step in data["steps"]), data["seed"])


def is_count(value: Any) -> bool:
    """Whether `value` is an integer from 0 to 2**31 - 1, and not a bool."""
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
