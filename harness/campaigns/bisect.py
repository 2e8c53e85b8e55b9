"""Which of several bugs explain a failing schedule: delta debugging over the set of them.

A bug here is a toggle, on or off; another set of them is another build of the same trial. An
error of ours raises PlayingFailedError, for then no set can be judged.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations, pairwise

from paritybit.harness.campaigns.hunt import hunt, whole, without_error
from paritybit.harness.checks.expectations import unaffected_reason
from paritybit.harness.checks.play import Lockstep, Outcome
from paritybit.harness.checks.table import STEP_PROPERTIES
from paritybit.harness.lockstep.config import TrialConfig, catalogued
from paritybit.harness.records.case import Case
from paritybit.subjects.bugs.catalogue import BUGS
from paritybit.subjects.bugs.switching import lacking
from paritybit.subjects.runners import RUNNERS

BugSet = tuple[str, ...]
Fails = Callable[[BugSet], bool]
OnPlayed = Callable[[BugSet, Outcome], None]


class Bisection:
    """Plays a case's schedule with whatever set of its trial's bugs is asked for.

    A set fails if it violates the case's target. `on_played` is called once for each set,
    when it has been played.
    """

    def __init__(self, case: Case, on_played: OnPlayed) -> None:
        assert case.target is not None
        self.case = case
        self.target = case.target
        self.on_played = on_played
        self.outcomes: dict[BugSet, Outcome] = {}

    def fails(self, bug_set: BugSet) -> bool:
        """Whether the schedule violates the target with these bugs on and no other."""
        wanted = catalogued(bug_set)
        if wanted not in self.outcomes:
            trial = replace(self.case.trial, bugs=wanted)
            lockstep = Lockstep(trial, STEP_PROPERTIES | {self.target})
            for schedule in self.case.history:
                whole(lockstep.play(schedule))
            outcome = whole(lockstep.play(self.case.schedule, until=(self.target,)))
            self.outcomes[wanted] = outcome
            self.on_played(wanted, outcome)
        return self.target in self.outcomes[wanted].violated

    def explain(self) -> Case | None:
        """Return the case with a smallest set of its bugs; None if all together do not fail."""
        all_bugs = self.case.trial.bugs
        if not self.fails(all_bugs):
            return None
        kept = smallest(all_bugs, self.fails)
        violations = tuple(violation.to_json() for violation in self.outcomes[kept].violations)
        trial = replace(self.case.trial, bugs=kept)
        return replace(self.case, trial=trial, violations=violations)


def hunted_case(trial: TrialConfig, target: str | None, seed: int, examples: int) -> Case | None:
    """Return a case of what a hunt finds on a trial, None if it finds nothing."""
    schedule = without_error(hunt(Lockstep(trial), target, seed, examples)).schedule
    return Case(trial, schedule, target, seed, ()) if schedule is not None else None


def with_goal(case: Case | None) -> Case | None:
    """Return a case that has a target: the first property violated if it had none.

    None if there is no case, or nothing is violated.
    """
    if case is None or case.target is not None:
        return case
    seen = whole(Lockstep(case.trial).play(case.schedule)).violations
    return replace(case, target=seen[0].property) if seen else None


def likeliest_runner(bugs: Sequence[str]) -> str:
    """Return the first runner that most of the bugs affect, of those that can have them all."""

    def promise(runner: str) -> tuple[bool, int]:
        able = not any(lacking(BUGS[bug], runner) for bug in bugs)
        return able, sum(unaffected_reason(BUGS[bug], runner) is None for bug in bugs)

    return max(RUNNERS, key=promise)


def smallest(bug_set: BugSet, fails: Fails) -> BugSet:
    """Return a smallest set that fails, of `bug_set`, which fails: no smaller set does.

    ddmin alone gives a set of which no bug can be left out; a smaller one may lie elsewhere.
    """
    if fails(()):
        return ()
    found = ddmin(bug_set, fails)
    smaller = (subset for size in range(1, len(found)) for subset in combinations(bug_set, size))
    return next(filter(fails, smaller), found)


def ddmin(bug_set: BugSet, fails: Fails) -> BugSet:
    """Return a set that fails and of which no bug can be left out. `bug_set` fails."""
    kept, parts = bug_set, 2
    while len(kept) > 1:
        chunks = split(kept, parts)
        rests = [tuple(bug for bug in kept if bug not in chunk) for chunk in chunks]
        chunk = next(filter(fails, chunks), None)
        rest = None if chunk else next(filter(fails, rests), None)
        if chunk:
            kept, parts = chunk, 2
        elif rest:
            kept, parts = rest, max(parts - 1, 2)
        elif parts < len(kept):
            parts = min(2 * parts, len(kept))
        else:
            break
    return kept


def split(bug_set: Sequence[str], parts: int) -> list[BugSet]:
    """Return `bug_set` in `parts` chunks of nearly one length, none empty."""
    ends = [len(bug_set) * place // parts for place in range(parts + 1)]
    return [tuple(bug_set[begin:end]) for begin, end in pairwise(ends)]
