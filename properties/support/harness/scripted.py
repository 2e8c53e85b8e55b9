"""A player whose playings follow a script: no engine is built, nothing is captured."""

from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any

import pytest
from paritybit.harness.campaigns import task as tasks
from paritybit.harness.campaigns.search import SearchResult, search
from paritybit.harness.checks.play import DeviceLostError, Outcome
from paritybit.harness.checks.property import Violation
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.schedules.schedule import Schedule

ERROR = (
    'Traceback:\n  File "properties/support/harness/scripted.py", line 1, in check\n'
    "ZeroDivisionError: of ours\n"
)
"""The traceback of an error of ours, as an outcome, a result and a record hold it."""

Script = Callable[["Scripted", Schedule], Outcome]


class Scripted:
    """Plays what its script says, in the place of a SchedulePlayer."""

    def __init__(self, trial: TrialConfig, script: Script) -> None:
        self.trial = trial
        self.script = script
        self.capture_warnings: tuple[str, ...] = ()
        self.properties: frozenset[str] = frozenset()
        self.pair = SimpleNamespace(modes=trial.modes)
        self.played = 0

    def set_properties(self, properties: Collection[str]) -> None:
        """Take note of what is checked from now on."""
        self.properties = frozenset(properties)

    def play(
        self, schedule: Schedule, observer: Any = None, until: Any = (), recorder: Any = None
    ) -> Outcome:
        """Return what the script says of a schedule."""
        self.played += 1
        return self.script(self, schedule)


def searched(monkeypatch: pytest.MonkeyPatch) -> list[SearchResult]:
    """Return the results of all searches of tasks from now on."""
    found = list[SearchResult]()

    def kept(*given: Any) -> SearchResult:
        found.append(search(*given))
        return found[-1]

    monkeypatch.setattr(tasks, "search", kept)
    return found


def violating(*properties: str, error: str | None = None) -> Outcome:
    """Return the outcome of a playing that violated some properties, or failed."""
    violations = tuple(Violation(name, 0, f"{name} does not hold") for name in properties)
    return Outcome(violations, steps=1, replays=1, padded_replays=1, error=error)


def losing(_: Scripted, schedule: Schedule) -> Outcome:
    """Play a schedule that loses the device after it violated a property."""
    raise DeviceLostError(schedule, violating("captured_path"))


def clean() -> Outcome:
    """Return the outcome of a playing that violated nothing and held something to the oracle."""
    outcome = violating()
    outcome.compared = 1
    return outcome
