"""What a property is, and how a step is judged.

Each has a flag, cheap and on the device where it can be, and a description, asked for only
if the flag is raised. Flags on the device are read by the host together, once a step.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from paritybit.harness.checks.device.flags import Flag, read_flags
from paritybit.harness.explain.cause import CauseFinder
from paritybit.harness.explain.explanation import PlayCauseFinder
from paritybit.harness.lockstep.observation import Observation, Sample, StepEnd
from paritybit.harness.lockstep.pair import ExtraRun
from paritybit.harness.lockstep.python_state import Change
from paritybit.reference.config import Role
from paritybit.reference.model import Model
from paritybit.subjects.protocol import Offer
from torch import Tensor

Description = tuple[str, dict[str, Any]]
"""A violation in words, and exactly where: layer, tensor, slot, owner, row, bits … as they apply.

The places are JSON values.
"""


@dataclass(frozen=True)
class Violation:
    """One property that did not hold: at which step, in which words, and exactly where."""

    property: str
    step: int
    message: str
    where: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the violation as JSON data."""
        return asdict(self)


@dataclass(frozen=True)
class Playback:
    """The bits one playing of a schedule left: every step's live outputs, and both storages.

    Of storages too large to be copied they are digests.
    """

    outputs: tuple[Tensor, ...]
    eager: Tensor
    graph: Tensor


@dataclass(frozen=True)
class Playing:
    """What the steps of a schedule left, for the properties that judge it as a whole.

    `place` is that of the last step played. Tokens are int64 [token rows, max_context] of each
    world. `samples` are all logits of the requests' own, the target's and the draft model's.
    `first` and `again` are two playings of the same steps, None unless a property asks for them.
    `undeclared` is what the engines hold after a reset and did not when just captured.
    """

    place: int
    eager_tokens: Tensor
    graph_tokens: Tensor
    samples: tuple[Sample, ...]
    models: Mapping[Role, Model]
    compared: Tensor
    first: Playback | None = None
    again: Playback | None = None
    undeclared: Sequence[Change] = ()


@dataclass(frozen=True)
class EndOfStep:
    """How a property judges what a step left, even if the step ran no forward."""

    flag: Callable[[StepEnd], Flag]
    describe: Callable[[StepEnd], Description]


@dataclass(frozen=True)
class Property:
    """One property: its statement, what it needs observed, and how it is judged and explained.

    A property of a step has `flag` and `describe`, a property of a whole schedule `at_end`; one
    that also judges steps without a forward has `end_of_step`.
    `every_step` says that it is cheap enough for every step of every schedule; `worlds_diverge`
    that once it is violated both worlds differ, so that nothing later is credited.
    `extra_run` is a further run of each step that it judges. `samples` asks for what requests
    sampled, `plays_again` for a second playing of the schedule, `after_reset` for what the engines
    hold once they are reset. `needs` is what an engine must offer for it to be asked. `cause` finds
    why it was violated where one forward tells, `cause_in_play` where the schedule must be played.
    """

    id: str
    statement: str
    needs: frozenset[Offer]
    flag: Callable[[Observation], Flag] | None = None
    describe: Callable[[Observation], Description] | None = None
    at_end: Callable[[Playing], list[Violation]] | None = None
    end_of_step: EndOfStep | None = None
    every_step: bool = True
    worlds_diverge: bool = False
    extra_run: ExtraRun | None = None
    samples: bool = False
    plays_again: bool = False
    after_reset: bool = False
    cause: CauseFinder | None = None
    cause_in_play: PlayCauseFinder | None = None

    def __post_init__(self) -> None:
        """Refuse a property that judges nothing."""
        if (self.flag is None) != (self.describe is None) or not (self.flag or self.at_end):
            raise ValueError(f"{self.id} has a flag with its description, or judges at the end")

    def not_asked(self, missing: Mapping[Offer, str]) -> str | None:
        """Return why an engine that lacks `missing` cannot be asked this; None if it can."""
        return next((missing[offer] for offer in sorted(self.needs) if offer in missing), None)


def do_nothing() -> None:
    """Do nothing before a violation is described."""


def judge(
    properties: Iterable[Property],
    observation: Observation,
    before_describing: Callable[[], None] = do_nothing,
) -> tuple[Violation, ...]:
    """Return the violations of one step, reading the device once unless there are any."""
    rules = {rule.id: rule for rule in properties if rule.flag is not None}
    raised = read_flags({name: rule.flag(observation) for name, rule in rules.items() if rule.flag})
    if any(raised.values()):
        before_describing()
    found = []
    for name, rule in rules.items():
        if raised[name] and rule.describe is not None:
            found.append(Violation(name, observation.place, *rule.describe(observation)))
    return tuple(found)


def judge_end(
    properties: Iterable[Property],
    end: StepEnd,
    before_describing: Callable[[], None],
) -> tuple[Violation, ...]:
    """Return the violations of a step that ran no forward, as `judge` does."""
    rules = {rule.id: rule.end_of_step for rule in properties if rule.end_of_step is not None}
    raised = read_flags({name: rule.flag(end) for name, rule in rules.items()})
    if any(raised.values()):
        before_describing()
    return tuple(
        Violation(name, end.place, *rule.describe(end))
        for name, rule in rules.items()
        if raised[name]
    )
