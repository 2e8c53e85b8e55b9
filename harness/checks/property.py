"""The protocol of a property, and the check of one step.

A property judges what was observed. It returns None, or a description of the violation.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paritybit.harness.lockstep.observation import Observation, Sample, StepEnd
from paritybit.harness.lockstep.pair import ExtraRun
from paritybit.reference.config import Role
from paritybit.reference.model import Decoder

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
class Property:
    """One property: a statement, and the checks for it.

    | field | meaning |
    |---|---|
    | `judge` | checks a step that ran a forward |
    | `judge_end` | checks the state after a step, with or without a forward |
    | `judge_schedule` | checks the models and the samples of all requests of a schedule |
    | `every_step` | cheap enough for each step of each schedule |
    | `diverges` | a violation leaves the eager and the graph run different, so the play stops |
    | `extra_run` | an extra run of each step; its result is in `Observation.extra` |
    """

    id: str
    statement: str
    judge: Callable[[Observation], Description | None] | None = None
    judge_end: Callable[[StepEnd], Description | None] | None = None
    judge_schedule: Callable[[Mapping[Role, Decoder], Sequence[Sample]], list[Violation]] | None = (
        None
    )
    every_step: bool = True
    diverges: bool = False
    extra_run: ExtraRun | None = None


def judge(properties: Iterable[Property], observation: Observation) -> list[Violation]:
    """Return the violations of one step with a forward, in the order of the properties."""
    found = []
    for rule in properties:
        description = rule.judge(observation) if rule.judge is not None else None
        if description is None and rule.judge_end is not None:
            description = rule.judge_end(observation.end)
        if description is not None:
            found.append(Violation(rule.id, observation.place, *description))
    return found


def judge_end(properties: Iterable[Property], end: StepEnd) -> list[Violation]:
    """Return the violations of a step that ran no forward."""
    judged = ((rule.id, rule.judge_end(end)) for rule in properties if rule.judge_end is not None)
    return [Violation(name, end.place, *found) for name, found in judged if found is not None]
