"""The record of a run: what it did and found. Reports are made from this alone.

Plain data, without torch. A record names no host, no user and no absolute path.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from paritybit.harness.errors import headline
from paritybit.harness.explain.facts import LATER, Explanation, Reach, TimelineEntry

FORMAT = "paritybit-run"
VERSION = 4

Verdict = Literal["green", "red", "interrupted"]

CleanStatus = Literal[
    "green", "red", "undeclared state", "vacuous", "warned at capture", "device lost", "failed"
]
"""How a clean trial ended."""

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
"""How a hunt of a bug ended."""


STALLED = "gate that opened by itself"
"""An event, and no state to reach: a race may have been missed then; see `subjects/streams.py`."""


@dataclass(frozen=True)
class RunAgain:
    """A task that was run again: what it is called, and how its first run ended."""

    task: str
    error: str


@dataclass(frozen=True)
class Environment:
    """What the figures of a record depend on: device, versions, commit; None where unknown.

    `dirty` says whether the tree differed from the commit. `repository` is the address at which
    people find the commit. `processes` counts the worker processes, 0 if the command's own process
    did the work; they took `gpus` GPUs in turn. `mps` says whether they shared GPUs by NVIDIA's
    MPS, `ray` whether they belonged to a Ray cluster. These four are None for work that is never
    spread. `again` lists the tasks that were run a second time: that their process ended may have
    been the fault of another one under MPS, or of a node of the cluster.
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
    ray: bool | None = field(default=None, metadata=LATER)
    repository: str | None = field(default=None, metadata=LATER)
    again: tuple[RunAgain, ...] = field(default=(), metadata=LATER)


@dataclass(frozen=True)
class TrialSettings:
    """What was on trial. Sizes are in slots, `buckets` in requests, `token_buckets` in tokens.

    With `overlap` the graph world planned a step while the forward before it was in flight.
    `shape` says how large the model is. `max_context` is the longest request in tokens, 0 for
    the model's own, and slot numbers begin behind `skipped_slots`. `features` are those of the
    engine beyond the basics.
    """

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
    features: tuple[str, ...] = field(default=(), metadata=LATER)


@dataclass(frozen=True)
class Violation:
    """One property that did not hold: at which step, in which words, and exactly where.

    `where` holds JSON values, as each property has them: layer, tensor, slot, owner, bits.
    """

    property: str
    step: int
    message: str
    where: dict[str, Any]


@dataclass(frozen=True)
class Schedule:
    """A schedule as a case file has it: the name of each step, under `step`, and its values."""

    seed: int
    steps: tuple[dict[str, str | int | tuple[int, ...]], ...]


@dataclass(frozen=True)
class CaseHead:
    """What a case file holds beside its trial, its schedule and its violations."""

    format: str
    version: int
    target: str | None
    seed: int


@dataclass(frozen=True)
class Finding:
    """One counterexample. `violations` is empty if playing it again showed nothing.

    `error` is the traceback of an error of the explainer, which then explained nothing.
    `history` are schedules without which a fresh process does not show it.
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
        """What the explainer raised, in one line, '' if it did not fail."""
        return headline(self.error) if self.error else ""


@dataclass(frozen=True)
class TrialRow:
    """What was done on one trial: where schedules came from, how it ended, and the counts.

    `error` is the traceback of what kept it from a verdict, None if nothing did. `seconds` is its
    time; `events` counts how often each state was reached.
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

    @property
    def raised(self) -> str:
        """What kept it from ending as it should, in one line, '' if nothing did."""
        return headline(self.error) if self.error else ""


@dataclass(frozen=True)
class CleanRow(TrialRow):
    """One trial of the clean subject, and the properties it was checked for."""

    status: CleanStatus
    properties: tuple[str, ...]


@dataclass(frozen=True)
class BugRow(TrialRow):
    """One hunt of one bug on one runner.

    `detected_by` is the property that must detect it; None where it cannot affect the runner,
    and `unaffected` says why. `schedules_to_detection` were drawn until it was found, None
    if it was not. `seen` are the properties that the finding violates. `reach` says how far the
    bug got in the schedule found, or in all schedules drawn where none was; None if not asked.
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
        if self.schedules_to_detection is not None and self.schedules_to_detection < 1:
            raise ValueError(
                f"schedule {self.schedules_to_detection} cannot detect a bug: schedules count "
                "from 1"
            )


@dataclass(frozen=True)
class BugOnRunner:
    """Whether a bug of the build can affect a runner of it, tried in this run or not.

    `unaffected` says why not. It cannot be switched on in a runner that lacks what it is about.
    """

    bug: str
    runner: str
    unaffected: str | None
    can_be_switched_on: bool


@dataclass(frozen=True)
class ContractRow:
    """One static input of a contract: one element per what, of which dtype, padded how."""

    name: str
    axis: str
    dtype: str
    padding: str


@dataclass(frozen=True)
class Contract:
    """The static inputs of a runner under one location scheme."""

    runner: str
    scheme: str
    rows: tuple[ContractRow, ...]


WholeVerdict = Literal["as expected", "unexpected", "undecided"]


@dataclass(frozen=True)
class WholeEngine:
    """A whole engine that the sanitizer watched beside the replica, and what it said.

    `found` says of each bug that the engine is known to have whether its check found it. `page` is
    relative to the record.
    """

    engine: str
    setting: str
    verdict: WholeVerdict
    message: str
    found: dict[str, bool]
    page: str | None


@dataclass(frozen=True)
class Scope:
    """What the clean trials of a run tried, and what they did not, each in one line.

    `unreached` are the states that a run of everything must reach and that this run did not.
    """

    tried: str
    untried: str
    unreached: tuple[str, ...]


@dataclass(frozen=True)
class Record:
    """A whole run. `started` is in UTC, as ISO 8601 has it.

    `engine_runners` names, for each runner, those of the engine that it is tried in;
    `uncompiled_runners` those whose function is run as it stands, where an engine would
    compile it. `properties` has the statement of each property by its id, `required_events`
    the states that the clean trials, taken together, must reach. `scope` is None in a record
    that is older than it. `whole_engines` are those that were at hand, if they were asked for.
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
    whole_engines: tuple[WholeEngine, ...] = field(default=(), metadata=LATER)
