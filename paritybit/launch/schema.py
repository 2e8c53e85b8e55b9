"""The record of `paritybit watch`: what was watched, and what was found. The page reads this alone.

Plain data, without torch. A record names no host, no user and no absolute path.
"""

from dataclasses import dataclass
from typing import Literal

FORMAT = "paritybit-watch"
VERSION = 1

IN_BASELINE = "in the baseline"
"""Where a finding is known from that the baseline has."""

Verdict = Literal["finding", "no finding", "undecided"]


@dataclass(frozen=True)
class Who:
    """A request at a position, in a forward; each None where it is not known."""

    request: str | None = None
    position: int | None = None
    forward: int | None = None
    source: str | None = None


@dataclass(frozen=True)
class Cause:
    """What explains a finding: in a sentence; the static input, and its file and line, if any."""

    what: str
    input: str | None = None
    source: str | None = None


@dataclass(frozen=True)
class SourceLine:
    """A line of the engine's source."""

    number: int
    text: str


@dataclass(frozen=True)
class Finding:
    """The first finding of its key, and how many there were.

    `leg` is where it was found. `slots` are the first few of `count`. `writer` wrote the slot last,
    `reader` reads it, and `freed` says when it was
    freed last, and by which line. `cause` is None where it is not known.
    `group_of` is what findings of one cause share. `case` is the file name of its case. `known` is
    where a known finding is discussed. `excerpt` are the engine's lines around the one that the
    cause names, or else the one that freed the slot.
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


@dataclass(frozen=True)
class Process:
    """A process that watched an engine. `ended` says whether it closed its journal."""

    engine: str | None
    release: str | None
    device: str | None
    torch: str | None
    python: str | None
    ended: bool


@dataclass(frozen=True)
class Leg:
    """A command that was watched, or one leg of a plan: an engine with some settings.

    `ending` says how it ended, `code` its exit code, negative for a signal. `settings` has all
    values that were in use, by name. `stand_ins` says why something of the engine was replaced.
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


@dataclass(frozen=True)
class NotTried:
    """Something that the verdict does not cover, and why."""

    what: str
    why: str


@dataclass(frozen=True)
class Environment:
    """What watched: paritybit, its commit, and whether its tree differed; None where unknown."""

    paritybit: str
    python: str
    commit: str | None
    dirty: bool | None
    repository: str | None


@dataclass(frozen=True)
class Point:
    """An earlier run in a trend: how many findings each cause had, and which legs were tried.

    `started` is when it was, `revision` the commit of the engine's source tree; each None where it
    is not known.
    """

    started: str | None
    revision: str | None
    engine: str | None
    verdict: Verdict
    causes: dict[str, int]
    legs: tuple[str, ...]


@dataclass(frozen=True)
class Watched:
    """The record of a run. `checks` is None for all checks; `engine` is None for a command.

    `absent` are the known findings that did not occur. `revision` is the commit of the engine's
    source tree, None for any other engine. `trend` are the runs up to the baseline, the last one
    last; it is empty without a baseline.
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
