"""Which static inputs' leftovers make a step violate a property.

A counterfactual: the schedule is played again up to that step, and before it some static
inputs are given back what they held when the runner was just captured. Where the property is
then no longer violated, what earlier replays left in these inputs is the cause.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import torch
from paritybit.harness.campaigns.bisect import ddmin
from paritybit.harness.campaigns.hunt import whole
from paritybit.harness.checks.play import Lockstep
from paritybit.harness.lockstep.pair import Pair
from paritybit.harness.lockstep.requests import PlannedStep
from paritybit.harness.schedules.schedule import Schedule
from paritybit.subjects.engines.shared.tensors import bring_back

RUN = "leftovers"
"""What the further run is called in an observation. It leaves a trace: what it gives back."""

InputSet = tuple[str, ...]
"""Names of static inputs, in the order in which the runner has them."""


@dataclass(frozen=True)
class Leftovers:
    """What was tried to explain one violated property, and what explains it.

    `left` are the inputs that held anything else than just captured. `tries` are the sets that
    were given back, first none, then all of those, each with what was violated then. `smallest`
    mends the property; None where not even all of them do.
    """

    target: str
    left: InputSet
    tries: tuple[tuple[InputSet, frozenset[str]], ...]
    smallest: InputSet | None

    @property
    def reproduced(self) -> bool:
        """Whether the property was violated with nothing given back."""
        return self.target in dict(self.tries)[()]

    @property
    def cause(self) -> str | None:
        """What was proved to be the cause, in one sentence; None if no leftover is."""
        if self.smallest is None:
            return None
        *others, last = self.smallest
        what = f"inputs {', '.join(others)} and {last}" if others else f"input {last}"
        return (
            f"the cause is stale data in static {what}: with the values of a freshly captured"
            f" runner, {self.target} is not violated"
        )

    @property
    def no_cause(self) -> str:
        """Why no leftover is the cause, in one sentence."""
        if not self.left:
            said = "earlier replays changed no static input"
        else:
            said = (
                f"restoring static inputs does not fix it, not even all {len(self.left)} that "
                "changed"
            )
        return f"{said}, so their values do not cause the violation of {self.target}"


@dataclass
class GivingBack:
    """Plays a schedule whose last step violates something, static inputs given back before it.

    No set of inputs is played twice. `left` are those that hold anything else, before that
    step, than when the runner was just captured; it is known once the schedule was played.
    """

    lockstep: Lockstep
    schedule: Schedule
    watched: Collection[str]
    left: InputSet = ()
    tried: dict[InputSet, frozenset[str]] = field(default_factory=dict)

    def violated(self, names: InputSet) -> frozenset[str]:
        """Return what is violated with these inputs given back.

        Raises PlayingFailedError for an error that is not the engine's own.
        """
        if names not in self.tried:
            self.lockstep.watch(self.watched)
            last = len(self.schedule.steps) - 1

            def give_back(pair: Pair, planned: PlannedStep) -> None:
                if planned.place == last:
                    self._give_back(pair, planned, names)

            outcome = whole(self.lockstep.play(self.schedule, extra_runs={RUN: give_back}))
            self.tried[names] = outcome.violated
        return self.tried[names]

    def explain(self, target: str) -> Leftovers:
        """Return the smallest set of inputs that mends a property, and what was tried.

        One input if any mends it alone; of a larger set none can be left out. None mends a
        property that the schedule does not violate.
        """
        smallest = None
        if target in self.violated(()) and target not in self.violated(self.left):
            smallest = smallest_set(self.left, lambda names: target not in self.violated(names))
        order = dict.fromkeys([(), self.left, *self.tried])
        return Leftovers(
            target, self.left, tuple((names, self.tried[names]) for names in order), smallest
        )

    def _give_back(self, pair: Pair, planned: PlannedStep, names: InputSet) -> None:
        fresh, held = pair.fresh_engine, pair.subject.static_buffers(planned.mode)
        fresh.recapture()
        captured = fresh.static_buffers(planned.mode)
        if not names:
            self.left = tuple(
                name
                for name in captured
                if name in held and not torch.equal(held[name], captured[name])
            )
        bring_back(held, {name: captured[name] for name in names})


def smallest_set(names: InputSet, mends: Callable[[InputSet], bool]) -> InputSet:
    """Return a smallest set that mends, of `names`, which do.

    It is one that mends alone, if there is one; else one of which none can be left out.
    """
    found = ddmin(names, mends)
    if len(found) == 1:
        return found
    return next(((name,) for name in names if mends((name,))), found)
