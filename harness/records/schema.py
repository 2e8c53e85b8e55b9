"""The record of a run of `regress`. Pages and other reports are made from records only.

A record has no host, user or absolute path.
"""

from typing import Annotated, Literal

import msgspec
from paritybit.harness.checks.property import Violation
from paritybit.harness.errors import headline
from paritybit.harness.explain.facts import Explanation, TimelineEntry
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.records.case import Case, trial_name
from paritybit.harness.records.codec import File
from paritybit.harness.records.environment import RunEnvironment
from paritybit.harness.schedules.schedule import Count

from paritybit.compat import StrEnum

Positive = Annotated[int, msgspec.Meta(ge=1, lt=2**31)]

RunVerdict = Literal["green", "red", "interrupted"]


class Status(StrEnum):
    """How a clean trial or a hunt ended. GREEN, UNAFFECTED and CAUGHT are expected.

    UNDECLARED_STATE is a finding that no fresh process reproduces. After DEVICE_LOST the process
    can no longer use its device. FAILED is an internal error, without a verdict on the trial.
    """

    GREEN = "green"
    RED = "red"
    CAUGHT = "caught"
    MISSED = "missed"
    WRONG_PROPERTY = "wrong property"
    UNAFFECTED = "unaffected"
    AFFECTED_AFTER_ALL = "affected after all"
    CLEAN_IS_RED = "fails without the bug too"
    VACUOUS = "vacuous"
    NOT_REPRODUCED = "not reproduced"
    UNDECLARED_STATE = "undeclared state"
    CAPTURE_WARNED = "warned at capture"
    DEVICE_LOST = "device lost"
    FAILED = "failed"

    @property
    def expected(self) -> bool:
        """Whether a trial or hunt that ended so proves what it must prove."""
        return self in {Status.GREEN, Status.CAUGHT, Status.UNAFFECTED}


class Counterexample(msgspec.Struct, frozen=True):
    """One counterexample: its case, and what is known about the first violation.

    - `timeline`: the steps that were played.
    - `error`: the traceback of the explainer, if it failed.
    """

    case: Case
    timeline: tuple[TimelineEntry, ...] = ()
    explanation: Explanation | None = None
    error: str | None = None

    @property
    def violations(self) -> tuple[Violation, ...]:
        """The violations. Empty if a second play did not violate any property."""
        return self.case.violations


class TrialRow(msgspec.Struct, frozen=True):
    """The result of one trial.

    `error` is the traceback of an internal error, or None.
    """

    trial: TrialConfig
    status: Status
    error: str | None
    schedules: Count
    steps: Count
    replays: Count
    padded_replays: Count
    seconds: float
    finding: Counterexample | None

    @property
    def name(self) -> str:
        """The name of its task."""
        return trial_name(self.trial)

    @property
    def raised(self) -> str:
        """The internal error in one line, or '' without one."""
        return headline(self.error) if self.error else ""

    @property
    def spoiled(self) -> bool:
        """Whether its process must not run another task."""
        lost = self.status in {Status.DEVICE_LOST, Status.FAILED}
        return lost or (self.finding is not None and self.finding.error is not None)

    @property
    def sentence(self) -> str:
        """The status, with the error or the first violation if there is one."""
        if self.error is not None:
            return f"{self.status}: {self.raised}"
        if self.finding is None or not self.finding.violations:
            return str(self.status)
        first = self.finding.violations[0]
        return f"{self.status}: {first.property} at step {first.step}: {first.message}"


class BugRow(TrialRow, frozen=True):
    """One hunt of one bug on one runner.

    - `detected_by`: the property that must detect the bug, or None.
    - `unaffected`: why the bug cannot affect the runner, or None.
    - `drawn`: schedules drawn until detection, or None. 0 means that the capture failed.
    """

    bug: str
    thread: str
    mechanism: str
    detected_by: str | None
    unaffected: str | None
    drawn: Count | None


class Record(File, frozen=True, tag="paritybit-run"):
    """A whole run. `started` is UTC in ISO 8601."""

    command: str
    seed: int
    examples: Positive
    started: str
    seconds: float
    verdict: RunVerdict
    message: str
    environment: RunEnvironment
    clean: tuple[TrialRow, ...]
    bugs: tuple[BugRow, ...]
    version: Literal[11] = 11
