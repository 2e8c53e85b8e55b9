"""What a property is, and how the properties of one step are checked.

A property is a statement about the eager and the graph run. Its judges get what was observed, and
return None if the statement holds, or else a description of the violation.
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
    """A property that did not hold: its id, the index of the step, a message, and the location."""

    property: str
    step: int
    message: str
    where: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Property:
    """One property: a statement, and up to three judges, each for another moment.

    | field | meaning |
    |---|---|
    | `judge` | judges a step that ran a forward, by what was observed in both runs |
    | `judge_end` | judges who owns which slots after a step, with or without a forward |
    | `judge_schedule` | judges a whole schedule, by samples of the logits of all its requests |
    | `extra_run` | runs each step once more beforehand; `judge` gets its result in `extra[id]` |
    | `cheap` | checked by default. A hunt checks only its target and those with `diverges` |
    | `diverges` | a violation leaves the eager and the graph run different, so playing stops |
    """

    id: str
    statement: str
    judge: Callable[[Observation], Description | None] | None = None
    judge_end: Callable[[StepEnd], Description | None] | None = None
    judge_schedule: Callable[[Mapping[Role, Decoder], Sequence[Sample]], list[Violation]] | None = (
        None
    )
    extra_run: ExtraRun | None = None
    cheap: bool = True
    diverges: bool = False


def judge_step(properties: Iterable[Property], observation: Observation) -> list[Violation]:
    """Return the violations of one step with a forward, in the order of the properties."""
    found = []
    for one in properties:
        description = one.judge(observation) if one.judge is not None else None
        if description is None and one.judge_end is not None:
            description = one.judge_end(observation.end)
        if description is not None:
            found.append(Violation(one.id, observation.index, *description))
    return found


def judge_end(properties: Iterable[Property], end: StepEnd) -> list[Violation]:
    """Return the violations of a step that ran no forward."""
    judged = ((one.id, one.judge_end(end)) for one in properties if one.judge_end is not None)
    return [Violation(name, end.index, *found) for name, found in judged if found is not None]
