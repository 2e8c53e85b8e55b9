"""The protocol of a property, and the check of one step.

A property of steps has a `flag` and a `describe`. The flag is cheap and stays on the device if
possible. The host reads all flags of a step in one synchronisation. `describe` is called only if
the flag is set. A property of whole schedules has `at_end` instead.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from paritybit.harness.checks.device.flags import Flag, read_flags
from paritybit.harness.lockstep.observation import Observation, Sample, StepEnd
from paritybit.harness.lockstep.pair import ExtraRun
from paritybit.harness.lockstep.tracebacks import SubjectFailedError
from paritybit.reference.config import Role
from paritybit.reference.model import Model
from torch import Tensor

Seen = TypeVar("Seen", Observation, StepEnd)

Description = tuple[str, dict[str, Any]]
"""A message, and the exact place as JSON values: layer, tensor, slot, owner, row, bits, …"""


@dataclass(frozen=True)
class Violation:
    """A property that did not hold: its id, the place of the step, a message, and the location."""

    property: str
    step: int
    message: str
    where: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Playback:
    """The bits that one playing of a schedule left: each step's live outputs, and both storages."""

    outputs: tuple[Tensor, ...]
    eager: Tensor
    graph: Tensor


@dataclass(frozen=True)
class Playing:
    """The input of properties that judge a schedule as a whole.

    - `place`: the place of the last step played.
    - `eager_tokens`, `graph_tokens`: int64 [token rows, max_context].
    - `samples`: the logits of each request, from the target and the draft model.
    - `first`, `again`: two playings of the same steps. None unless a property has `plays_again`.
    """

    place: int
    eager_tokens: Tensor
    graph_tokens: Tensor
    samples: tuple[Sample, ...]
    models: Mapping[Role, Model]
    compared: Tensor
    first: Playback | None = None
    again: Playback | None = None


@dataclass(frozen=True)
class EndOfStep:
    """Flag and description for the state after a step that ran no forward."""

    flag: Callable[[StepEnd], Flag]
    describe: Callable[[StepEnd], Description]


@dataclass(frozen=True)
class Property:
    """One property: a statement, and the checks for it.

    | field | meaning |
    |---|---|
    | `flag`, `describe` | check a step that ran a forward |
    | `end_of_step` | check the state after a step without a forward, as `flag` does after others |
    | `at_end` | check a whole schedule |
    | `raised` | describe a step or a capture that raised an error; each one is a violation |
    | `every_step` | cheap enough for each step of each schedule |
    | `worlds_diverge` | a violation leaves the worlds different, so the play stops |
    | `extra_run` | an extra run of each step; its result is in `Observation.extra` |
    | `samples` | needs the samples of requests |
    | `plays_again` | needs a second playing of the schedule |

    Raises ValueError if only one of `flag` and `describe` is given, or if `flag`, `at_end` and
    `raised` are all missing.
    """

    id: str
    statement: str
    flag: Callable[[Observation], Flag] | None = None
    describe: Callable[[Observation], Description] | None = None
    at_end: Callable[[Playing], list[Violation]] | None = None
    raised: Callable[[SubjectFailedError], Description] | None = None
    end_of_step: EndOfStep | None = None
    every_step: bool = True
    worlds_diverge: bool = False
    extra_run: ExtraRun | None = None
    samples: bool = False
    plays_again: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for an incomplete property."""
        judges = self.flag or self.at_end or self.raised
        if (self.flag is None) != (self.describe is None) or not judges:
            raise ValueError(
                f"{self.id} must have a flag with its description, or judge the end or an error"
            )


def do_nothing() -> None:
    """Do nothing."""


def judge(
    properties: Iterable[Property],
    observation: Observation,
    before_describing: Callable[[], None] = do_nothing,
) -> tuple[Violation, ...]:
    """Return the violations of one step.

    If there are none, the device is read once. Else `before_describing` is called first.
    """
    checks = {
        rule.id: (rule.flag, rule.describe)
        for rule in properties
        if rule.flag is not None and rule.describe is not None
    }
    return _judged(checks, observation, before_describing)


def judge_end(
    properties: Iterable[Property],
    end: StepEnd,
    before_describing: Callable[[], None],
) -> tuple[Violation, ...]:
    """Return the violations of a step that ran no forward. Arguments are as in `judge`."""
    checks = {
        rule.id: (rule.end_of_step.flag, rule.end_of_step.describe)
        for rule in properties
        if rule.end_of_step is not None
    }
    return _judged(checks, end, before_describing)


def judge_error(
    properties: Iterable[Property], error: SubjectFailedError, place: int
) -> tuple[Violation, ...]:
    """Return the violations of the step at `place`, which raised an error."""
    return tuple(
        Violation(rule.id, place, *rule.raised(error))
        for rule in properties
        if rule.raised is not None
    )


def _judged(
    checks: Mapping[str, tuple[Callable[[Seen], Flag], Callable[[Seen], Description]]],
    seen: Seen,
    before_describing: Callable[[], None],
) -> tuple[Violation, ...]:
    """Return the violations in `seen` by checks, each a flag and a description."""
    raised = read_flags({name: flag(seen) for name, (flag, _) in checks.items()})
    if any(raised.values()):
        before_describing()
    return tuple(
        Violation(name, seen.place, *describe(seen))
        for name, (_, describe) in checks.items()
        if raised[name]
    )
