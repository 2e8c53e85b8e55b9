"""The record of `paritybit watch`: what was watched and what was found.

The page is made from this record only. The record is plain data, without torch. It contains no host
name, no user name and no absolute path.
"""

from dataclasses import dataclass, field
from typing import Literal

FORMAT = "paritybit-watch"
VERSION = 1

IN_BASELINE = "in the baseline"
"""The value of `Finding.known` for a finding in the baseline."""

Verdict = Literal["finding", "no finding", "undecided"]


@dataclass(frozen=True)
class Who:
    """A request at a position in a forward, or a line of the engine. Unknown fields are None.

    `via` tells which lines called this line.
    """

    request: str | None = None
    position: int | None = None
    forward: int | None = None
    source: str | None = None
    via: str | None = None


@dataclass(frozen=True)
class Cause:
    """The cause of a finding: a description, and the static input with its line, if any.

    - `shown`: an experiment showed it: without this cause, the finding disappears.
    - `via`: what the line calls, and which lines call it, as text.
    """

    what: str
    input: str | None = None
    source: str | None = None
    shown: bool = False
    via: str | None = None


@dataclass(frozen=True)
class SourceLine:
    """A line of the engine's source."""

    number: int
    text: str


@dataclass(frozen=True)
class Finding:
    """The first finding of its key, and how many there were.

    - `number`: the number of findings with this key.
    - `leg`: the leg in which it was found.
    - `group_of`: equal for findings with the same cause.
    - `after`: the `group_of` of an earlier finding about the same request, slot or forward.
    - `slots`: the first few of the `count` slots.
    - `writer`, `reader`: the last writer of the slot, and its reader.
    - `freed`: when the slot was freed last, and by which line.
    - `origin`: how the reader got the slot.
    - `cause`: None if it is unknown.
    - `case`: the file name of its case.
    - `known`: the public thread about a known finding.
    - `excerpt`: the engine's source around the line of the cause, or else the line that freed the
      slot.
    """

    check: str
    text: str
    key: str
    number: int
    leg: str
    group_of: str
    forward: int | None = None
    kind: str | None = None
    group: str | None = None
    replay: str | None = None
    layer: str | None = None
    slots: tuple[int, ...] = ()
    count: int = 1
    writer: Who | None = None
    reader: Who | None = None
    freed: Who | None = None
    cause: Cause | None = None
    case: str | None = None
    known: str | None = None
    excerpt: tuple[SourceLine, ...] = ()
    origin: str | None = None
    after: str | None = None


@dataclass(frozen=True)
class Process:
    """A watched process. `ended` is True if it closed its journal."""

    engine: str | None
    release: str | None
    device: str | None
    torch: str | None
    python: str | None
    ended: bool


@dataclass(frozen=True)
class Leg:
    """A watched command, or one leg of a plan: an engine with some settings.

    - `ending`, `code`: how it ended, and its exit code, which is negative for a signal.
    - `settings`: all values that were in use, by the name of the setting.
    - `stand_ins`: the replaced parts of the engine, with the reasons.
    """

    name: str
    arguments: tuple[str, ...]
    ending: str
    code: int | None
    seconds: float
    counts: dict[str, int]
    settings: dict[str, tuple[str, ...]]
    stand_ins: dict[str, str]
    processes: tuple[Process, ...]


ROW, ROWS = "row ", " rows of settings"
"""What an entry of `NotTried` about a row begins with, and what one about many rows ends with."""


@dataclass(frozen=True)
class NotTried:
    """Something that the verdict does not cover, and why."""

    what: str
    why: str


@dataclass(frozen=True)
class Environment:
    """The version of paritybit, its commit, and whether its tree was modified, if known."""

    paritybit: str
    python: str
    commit: str | None
    dirty: bool | None
    repository: str | None


@dataclass(frozen=True)
class Point:
    """An earlier run in a trend: its number of findings per cause, and its legs.

    `started` is the time of the run, and `revision` the commit of the engine's source tree. They
    are None if they are unknown.
    """

    started: str | None
    revision: str | None
    engine: str | None
    verdict: Verdict
    causes: dict[str, int]
    legs: tuple[str, ...]


@dataclass(frozen=True)
class Watched:
    """The record of a run.

    - `engine`: None for a user's command.
    - `checks`: None for all checks.
    - `absent`: the known findings that did not occur although their check compared something.
    - `revision`: the commit of the engine's source tree. None for any other engine.
    - `trend`: the runs up to the baseline, in order. Empty without a baseline.
    - `changes`: the change of each cause since the baseline.
    """

    environment: Environment
    command: str
    verdict: Verdict
    message: str
    interrupted: str | None
    engine: str | None
    model: str | None
    device: str | None
    seed: int | None
    every: int
    checks: tuple[str, ...] | None
    seconds: float
    counts: dict[str, int]
    findings: tuple[Finding, ...]
    undecided: tuple[str, ...]
    legs: tuple[Leg, ...]
    not_tried: tuple[NotTried, ...]
    absent: tuple[str, ...] = ()
    started: str | None = None
    revision: str | None = None
    trend: tuple[Point, ...] = ()
    changes: dict[str, str] = field(default_factory=dict)
