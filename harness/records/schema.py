"""The schema of a run record. Reports are made from records only.

Records are plain data. This module imports no torch. A record has no host, user or absolute path.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from paritybit.harness.errors import headline
from paritybit.harness.explain.facts import Explanation, Reach, TimelineEntry

FORMAT = "paritybit-run"
VERSION = 5

LATER: Mapping[str, bool] = {"later": True}
"""The metadata of a field that older records lack. They get its default."""

Verdict = Literal["green", "red", "interrupted"]

CleanStatus = Literal[
    "green", "red", "undeclared state", "vacuous", "warned at capture", "device lost", "failed"
]
"""The status of a clean trial."""

HuntStatus = Literal[
    "caught",
    "missed",
    "wrong property",
    "unaffected",
    "affected after all",
    "fails without the bug too",
    "vacuous",
    "not reproduced",
    "undeclared state",
    "device lost",
    "failed",
]
"""The status of a hunt."""


STALLED = "gate that opened by itself"
"""An event after which a race may have been missed. It is not a state to reach.

See `subjects/streams.py`.
"""


@dataclass(frozen=True)
class RunAgain:
    """A task that was run again: its name, and the end of its first run."""

    task: str
    error: str


@dataclass(frozen=True)
class Environment:
    """The environment of a run: device, versions, commit. None for unknown values.

    - `dirty`: whether the tree differed from the commit.
    - `repository`: the public address of the commit.
    - `processes`: the number of worker processes; 0 if the command itself did the work.
    - `gpus`: the number of GPUs that they used in turn.
    - `mps`: whether they shared GPUs by NVIDIA's MPS.
    - `again`: tasks that ran a second time, because another process under MPS may have
      ended their first process.

    `processes`, `gpus` and `mps` are None for commands that never use workers.
    """

    device: str
    device_name: str
    python: str
    torch: str | None
    triton: str | None
    numpy: str | None
    hypothesis: str | None
    paritybit: str
    commit: str | None
    dirty: bool | None
    processes: int | None = field(default=None, metadata=LATER)
    gpus: int | None = field(default=None, metadata=LATER)
    mps: bool | None = field(default=None, metadata=LATER)
    repository: str | None = field(default=None, metadata=LATER)
    again: tuple[RunAgain, ...] = field(default=(), metadata=LATER)


@dataclass(frozen=True)
class TrialSettings:
    """The settings of a trial. `harness/lockstep/config.py` describes them."""

    runner: str
    preset: str
    dtype: str
    device: str
    scheme: str
    page_size: int
    full_slots: int
    swa_slots: int
    rows: int
    buckets: tuple[int, ...]
    token_buckets: tuple[int, ...]
    bugs: tuple[str, ...]
    overlap: bool
    shape: str = field(default="tiny", metadata=LATER)
    max_context: int = field(default=0, metadata=LATER)
    skipped_slots: int = field(default=0, metadata=LATER)
    topk: int = field(default=2, metadata=LATER)
    features: tuple[str, ...] = field(default=(), metadata=LATER)
    """Only records made before 0.5.0 have features."""


@dataclass(frozen=True)
class Violation:
    """A property that did not hold: its id, the place of the step, a message, and the location.

    `where` has JSON values that depend on the property: layer, tensor, slot, owner, bits.
    """

    property: str
    step: int
    message: str
    where: dict[str, Any]


@dataclass(frozen=True)
class Schedule:
    """A schedule as in a case file. Each step has its name under `step`, and its values."""

    seed: int
    steps: tuple[dict[str, str | int | tuple[int, ...]], ...]


@dataclass(frozen=True)
class CaseHead:
    """The fields of a case file other than trial, schedule and violations."""

    format: str
    version: int
    target: str | None
    seed: int


@dataclass(frozen=True)
class Finding:
    """One counterexample.

    - `violations`: empty if a second play did not violate any property.
    - `error`: the traceback of the explainer, if it failed.
    - `history`: schedules without which a fresh process does not reproduce the finding.
    """

    violations: tuple[Violation, ...]
    case_file: str
    reproduce: str
    schedule: Schedule
    timeline: tuple[TimelineEntry, ...]
    explanation: Explanation | None
    error: str | None
    case: CaseHead
    history: tuple[Schedule, ...] = field(default=(), metadata=LATER)

    @property
    def raised(self) -> str:
        """The explainer's error in one line, or '' if it did not fail."""
        return headline(self.error) if self.error else ""


@dataclass(frozen=True)
class TrialRow:
    """The result of one trial.

    - `source`: the source of its schedules.
    - `error`: the traceback of an internal error, or None.
    - `events`: how often each state was reached.
    """

    trial: TrialSettings
    source: str
    status: str
    error: str | None
    schedules: int
    steps: int
    replays: int
    padded_replays: int
    seconds: float
    events: dict[str, int]
    capture_warnings: int
    finding: Finding | None

    def __post_init__(self) -> None:
        """Raise ValueError for a state that was reached a negative number of times."""
        if any(times < 0 for times in self.events.values()):
            raise ValueError("a state was reached a negative number of times")

    @property
    def raised(self) -> str:
        """The internal error in one line, or '' without one."""
        return headline(self.error) if self.error else ""


@dataclass(frozen=True)
class CleanRow(TrialRow):
    """One clean trial, and the properties that were checked."""

    status: CleanStatus
    properties: tuple[str, ...]


@dataclass(frozen=True)
class BugRow(TrialRow):
    """One hunt of one bug on one runner.

    - `detected_by`: the property that must detect the bug, or None.
    - `unaffected`: why the bug cannot affect the runner, or None.
    - `schedules_to_detection`: schedules drawn until detection, or None.
    - `seen`: the properties that the finding violates.
    - `reach`: how far the bug got in the finding, or in all schedules without one. None if it was
      not recorded.
    """

    status: HuntStatus
    bug: str
    runner: str
    thread: str
    mechanism: str
    detected_by: str | None
    unaffected: str | None
    schedules_to_detection: int | None
    seen: tuple[str, ...]
    reach: Reach | None

    def __post_init__(self) -> None:
        """Raise ValueError for a bug found before any schedule was drawn."""
        super().__post_init__()
        if self.schedules_to_detection is not None and self.schedules_to_detection < 1:
            raise ValueError(
                f"schedule {self.schedules_to_detection} cannot detect a bug: schedules count "
                "from 1"
            )


@dataclass(frozen=True)
class BugOnRunner:
    """Whether a bug can affect a runner, tested in this run or not.

    - `unaffected`: why it cannot, or None.
    - `can_be_switched_on`: whether the runner has everything that the bug needs.
    """

    bug: str
    runner: str
    unaffected: str | None
    can_be_switched_on: bool


@dataclass(frozen=True)
class ContractRow:
    """One static input of a contract: its axis, dtype and padding."""

    name: str
    axis: str
    dtype: str
    padding: str


@dataclass(frozen=True)
class Contract:
    """The static inputs of a runner in one location scheme."""

    runner: str
    scheme: str
    rows: tuple[ContractRow, ...]


@dataclass(frozen=True)
class Scope:
    """What the clean trials of a run tried, and what they did not, each in one line.

    `unreached` has the states that a full run must reach and that this run did not.
    """

    tried: str
    untried: str
    unreached: tuple[str, ...]


@dataclass(frozen=True)
class Record:
    """A whole run.

    - `started`: UTC in ISO 8601.
    - `engine_runners`: for each runner, the runners of the engine in which it was tested.
    - `uncompiled_runners`: runners whose function an engine would compile, and this build does not.
    - `properties`: the statement of each property, by id.
    - `required_events`: the states that the clean trials together must reach.
    - `scope`: None in records that are older than this field.
    """

    command: str
    seed: int
    examples: int
    started: str
    seconds: float
    verdict: Verdict
    message: str
    environment: Environment
    clean: tuple[CleanRow, ...]
    bugs: tuple[BugRow, ...]
    pairs: tuple[BugOnRunner, ...]
    engine_runners: dict[str, tuple[str, ...]]
    uncompiled_runners: tuple[str, ...]
    contracts: tuple[Contract, ...]
    properties: dict[str, str]
    required_events: tuple[str, ...]
    scope: Scope | None = field(default=None, metadata=LATER)
