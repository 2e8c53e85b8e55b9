"""The record of `paritybit watch`, of which the page is made.

It is plain data, without torch, host names, user names and absolute paths.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from paritybit.harness.records.codec import File
from paritybit.harness.records.environment import RunEnvironment

Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]

IN_BASELINE = "in the baseline"
"""The value of `RecordedFinding.known` for a finding in the baseline."""

NOT_KNOWN = "not known"

Verdict = Literal["finding", "no finding", "undecided"]


class Who(msgspec.Struct, frozen=True):
    """A request at a position in a forward, or a line of the engine, called `via` other lines."""

    request: str | int | None = None
    position: int | None = None
    forward: int | None = None
    source: str | None = None
    via: str | None = None


class Cause(msgspec.Struct, frozen=True):
    """The cause of a finding: a description, and the static input with its line, if any.

    - `shown`: an experiment showed it: without this cause, the finding disappears.
    - `via`: what the line calls, and which lines call it, as text.
    """

    what: str
    input: str | None = None
    source: str | None = None
    shown: bool = False
    via: str | None = None


class EngineChange(msgspec.Struct, frozen=True):
    """A change of the engine's source since the engine `base`: its line, and its function or ''."""

    source: str
    function: str
    base: str


class ExcerptLine(msgspec.Struct, frozen=True, array_like=True):
    """A line of the engine's source."""

    number: int
    text: str


class RecordedFinding(msgspec.Struct, frozen=True):
    """The first finding of its key, and how many there were.

    The fields up to `excerpt` are those of a line in a journal; see `paritybit.watch.journal`.

    - `excerpt`: the engine's source around the line of the cause, or else of the free.
    - `number`: the number of findings with this key.
    - `rank`: the rank of the first one, such as "tp 1", or '' for an engine with one rank.
    - `ranks`: all ranks that have it.
    - `after`: the cause of an earlier finding about the same request, slot or forward.
    - `changes`: the changes of the engine's source without which it does not appear.
    - `case`: the file name of its case.
    - `again`: whether a replay of the case showed the finding again, or None without one.
    - `known`: the public thread about a known finding.
    """

    check: str
    text: str
    key: str
    forward: int | None = None
    forward_kind: str = ""
    group: str | None = None
    replay: str | None = None
    layer: str | None = None
    slots: tuple[int, ...] = ()
    count: int = 1
    writer: Who | None = None
    reader: Who | None = None
    freed: Who | None = None
    cause: Cause | None = None
    origin: str | None = None
    excerpt: tuple[ExcerptLine, ...] = ()
    number: Count = 1
    config: str = ""
    after: str | None = None
    changes: tuple[EngineChange, ...] = ()
    case: str | None = None
    again: bool | None = None
    known: str | None = None
    rank: str = ""
    ranks: tuple[str, ...] = ()

    @property
    def cause_name(self) -> str:
        """The name of the cause. An unknown one is named by the check and the group."""
        if self.cause is not None:
            return self.cause.input or self.cause.what or NOT_KNOWN
        return f"{NOT_KNOWN} ({self.check}, {self.group or 'no group'})"

    @property
    def source(self) -> str | None:
        """The line of the cause, or None."""
        return self.cause.source if self.cause is not None else None


def finding_of(entry: Mapping[str, Any]) -> RecordedFinding:
    """Return the finding in a line of a journal. With a value of a wrong type, it is only texts."""
    try:
        return msgspec.convert(entry, RecordedFinding, strict=False)
    except msgspec.ValidationError:
        check, text, key = (str(entry.get(name)) for name in ("check", "text", "key"))
        return RecordedFinding(check, text, key)


class ProcessRecord(msgspec.Struct, frozen=True):
    """A watched process. `ended` is True if it closed its journal.

    If the engine has several ranks, `rank` is its name, such as "tp 1", and `counts` are its own.
    """

    engine: str | None
    release: str | None
    device: str | None
    torch: str | None
    python: str | None
    ended: bool
    rank: str = ""
    counts: dict[str, Count] = {}


class ConfigRecord(msgspec.Struct, frozen=True):
    """A watched command, or one configuration of a plan: an engine with some settings.

    - `code`: its exit code, which is negative for a signal.
    - `settings`: all values that were in use, by the name of the setting.
    - `stand_ins`: the replaced parts of the engine, with the reasons.
    """

    name: str
    arguments: tuple[str, ...]
    ending: str
    code: int | None
    seconds: float
    counts: dict[str, Count]
    settings: dict[str, tuple[str, ...]]
    stand_ins: dict[str, str]
    processes: tuple[ProcessRecord, ...]


class Untried(msgspec.Struct, frozen=True):
    """Something that the verdict does not cover, why, and in which configurations."""

    what: str
    why: str
    configs: tuple[str, ...] = ()


STAYS = "still there"
"""The change of a cause that two runs have."""


class CauseChange(msgspec.Struct, frozen=True):
    """The change of a cause between two runs, and how often each check found it in them."""

    cause: str
    kind: str
    before: str
    after: str


class WatchRecord(File, frozen=True, tag="paritybit-watch"):
    """The record of a run.

    - `engine`: None for a user's command.
    - `checks`: None for all checks.
    - `revision`: the commit of the engine's source tree, if it is one.
    - `baseline`, `changes`: the name of an earlier run, and the change of each cause since then.
    - `overhead`: the percentage of the time that checks were allowed to take, or 0 for no limit.
    """

    environment: RunEnvironment
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
    counts: dict[str, Count]
    findings: tuple[RecordedFinding, ...]
    undecided: tuple[str, ...]
    configs: tuple[ConfigRecord, ...]
    not_tried: tuple[Untried, ...]
    started: str | None = None
    revision: str | None = None
    baseline: str | None = None
    changes: tuple[CauseChange, ...] = ()
    overhead: float = 0.0
    version: Literal[6] = 6
