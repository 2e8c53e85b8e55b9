"""Finds the smallest set of bugs that makes a schedule fail, by delta debugging.

Each set of bugs is a variant of the same trial. An internal error raises PlayingFailedError,
because no set can be judged then.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations, pairwise

from paritybit.harness.campaigns.hunt import hunt, without_error
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
    """Plays a case's schedule with subsets of its trial's bugs.

    A set fails if the schedule violates the case's target with it. `on_played` is called once for
    each set, after it was played.
    """

    def __init__(self, case: Case, on_played: OnPlayed) -> None:
        assert case.target is not None
        self.case = case
        self.target = case.target
        self.on_played = on_played
        self.outcomes: dict[BugSet, Outcome] = {}

    def fails(self, bug_set: BugSet) -> bool:
        """Whether the schedule violates the target with exactly these bugs."""
        wanted = catalogued(bug_set)
        if wanted not in self.outcomes:
            trial = replace(self.case.trial, bugs=wanted)
            lockstep = Lockstep(trial, STEP_PROPERTIES | {self.target})
            for schedule in self.case.history:
                without_error(lockstep.play(schedule))
            outcome = without_error(lockstep.play(self.case.schedule, until=(self.target,)))
            self.outcomes[wanted] = outcome
            self.on_played(wanted, outcome)
        return self.target in self.outcomes[wanted].violated

    def explain(self) -> Case | None:
        """Return the case with a smallest set of its bugs, or None if all bugs do not fail."""
        all_bugs = self.case.trial.bugs
        if not self.fails(all_bugs):
            return None
        kept = smallest(all_bugs, self.fails)
        violations = tuple(violation.to_json() for violation in self.outcomes[kept].violations)
        trial = replace(self.case.trial, bugs=kept)
        return replace(self.case, trial=trial, violations=violations)


def hunted_case(trial: TrialConfig, target: str | None, seed: int, examples: int) -> Case | None:
    """Return the case that a hunt finds on a trial, or None."""
    schedule = without_error(hunt(Lockstep(trial), target, seed, examples)).schedule
    return Case(trial, schedule, target, seed, ()) if schedule is not None else None


def with_goal(case: Case | None) -> Case | None:
    """Return a case with a target. The default target is the first property violated.

    Returns None without a case, or if nothing is violated.
    """
    if case is None or case.target is not None:
        return case
    seen = without_error(Lockstep(case.trial).play(case.schedule)).violations
    return replace(case, target=seen[0].property) if seen else None


def likeliest_runner(bugs: Sequence[str]) -> str:
    """Return the runner that most of the bugs affect, among those that can have all of them."""

    def promise(runner: str) -> tuple[bool, int]:
        able = not any(lacking(BUGS[bug], runner) for bug in bugs)
        return able, sum(unaffected_reason(BUGS[bug], runner) is None for bug in bugs)

    return max(RUNNERS, key=promise)


def smallest(bug_set: BugSet, fails: Fails) -> BugSet:
    """Return a smallest failing subset of `bug_set`, which must fail.

    ddmin alone only gives a set from which no single bug can be removed.
    """
    if fails(()):
        return ()
    found = ddmin(bug_set, fails)
    smaller = (subset for size in range(1, len(found)) for subset in combinations(bug_set, size))
    return next(filter(fails, smaller), found)


def ddmin(bug_set: BugSet, fails: Fails) -> BugSet:
    """Return a failing subset from which no bug can be removed. `bug_set` must fail."""
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
    """Split `bug_set` into `parts` chunks of nearly equal length. No chunk is empty."""
    ends = [len(bug_set) * place // parts for place in range(parts + 1)]
    return [tuple(bug_set[begin:end]) for begin, end in pairwise(ends)]
