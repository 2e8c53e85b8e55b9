"""The command `report --issue`: a report in Markdown for each new cause of a run of `watch`.

A report of a user's command has no words of it, no names of requests, and no values but those of
settings and slots. Texts from records and sources are escaped.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from msgspec.structs import replace
from paritybit.harness.cli.exit_codes import OK
from paritybit.harness.cli.report import latest, load_run, require_watch
from paritybit.harness.errors import MalformedError
from paritybit.harness.records.codec import load
from paritybit.harness.records.files import write_whole
from paritybit.reports.markdown import table, text

from paritybit.drive import ENGINES
from paritybit.drive.adapters import adapter
from paritybit.drive.script import Planned, Script
from paritybit.launch.case import WatchCase
from paritybit.launch.schema import Cause, ConfigRecord, RecordedFinding, WatchRecord, Who
from paritybit.launch.words import CauseGroup, causes_of, lines_of, plural, source_of
from paritybit.watch.checks import CHECKS

MOST_REQUESTS = 12
"""The number of requests that a report lists."""

OURS = frozenset(one.name for name in ENGINES for one in fields(adapter(name).settings))
"""The names that paritybit has for settings of an engine that it starts."""

PRIVATE = re.compile(r"path|model|url|key|name", re.IGNORECASE)
"""Settings of a user's command that a report leaves out."""


def run_issue(path: Path, later: Path | None, *, markdown: bool) -> int:
    """Write a report for the authors of the engine for each new cause of a run of `watch`."""
    if later is not None or markdown:
        raise MalformedError("report writes one thing at a time: --issue has no other option")
    path = latest(path)
    record = require_watch(load_run(path), path)
    folder = path if path.is_dir() else path.parent
    names = {one.case for one in record.findings if one.case} if record.engine else set()
    cases = {name: case for name in names if (case := smallest(folder / "cases", name))}
    written = list(issues(record, cases))
    if not written:
        raise MalformedError(f"{path} has no finding that is not known")
    for name, content in written:
        write_whole(folder / name, content)
        print((folder / name).resolve())
    return OK


def smallest(folder: Path, name: str) -> tuple[str, WatchCase] | None:
    """Return the case that `shrink` wrote, or else the one of the run, with its name."""
    for file in (folder / f"{Path(name).stem}-small.json", folder / Path(name).name):
        if file.is_file():
            return file.name, load(file, WatchCase)
    return None


def issues(
    record: WatchRecord, cases: Mapping[str, tuple[str, WatchCase]]
) -> Iterator[tuple[str, str]]:
    """Yield a name and a report for each cause that is not known.

    `cases` has for the name of a case in the record the one to report, with its own name.
    """
    new = [group for group in causes_of(record.findings) if group.known is None]
    for number, group in enumerate(new, 1):
        lines = issue_lines(record, group, cases.get(group.findings[0].case or ""))
        yield f"issue-{number}.md", "\n".join(lines) + "\n"


def issue_lines(
    record: WatchRecord, group: CauseGroup, case: tuple[str, WatchCase] | None
) -> Iterator[str]:
    """Yield the lines of the report of a cause."""
    first = group.findings[0] if record.engine else without_values(group.findings[0])
    configs = [one for one in record.configs if one.name == first.config]
    processes = [one for config in configs for one in config.processes]
    engines = {f"{one.engine} {one.release}" for one in processes if one.engine}
    engine = ", ".join(sorted(engines)) or record.engine or "the engine"
    yield f"# {text(engine)}: {text(first.text)}"
    yield ""
    yield from table(("", ""), facts(record, configs, engine))
    yield from ("", "## What happens", "")
    yield f"{text(first.check)}: {text(first.text)}"
    yield ""
    yield from (f"- {text(name)}: {text(value)}" for name, value in lines_of(first))
    also = {one.check for one in group.findings} - {first.check}
    if also:
        yield f"- the same cause also has: {text(', '.join(sorted(also)))}"
    yield from ("", "## What should happen", "")
    invariant = CHECKS[first.check].invariant if first.check in CHECKS else "not known"
    yield f"{text(invariant[0].upper() + invariant[1:])}."
    yield from source_lines(first)
    yield from ("", "## Reproduce", "")
    yield from reproduction(record, case)
    yield from ("", "## Not known", "")
    cause = first.cause
    if cause is None:
        yield "- The cause."
    elif not cause.shown:
        yield "- Whether the finding disappears without this cause: no experiment has shown it."
    yield "- Whether other releases and settings are affected."
    yield "- Whether a public thread exists."


def facts(
    record: WatchRecord, configs: Sequence[ConfigRecord], engine: str
) -> Iterator[tuple[str, str]]:
    """Yield what is affected: the release, the engine's options and the environment."""
    yield "engine", engine if record.revision is None else f"{engine}, commit {record.revision}"
    settings = {
        name: ", ".join(values)
        for config in configs
        for name, values in config.settings.items()
        if name not in OURS and (record.engine or not PRIVATE.search(name))
    }
    options = (f"{name}={value}" for name, value in settings.items() if value != "None")
    yield "options", "; ".join(options) or "not known"
    if record.engine:
        models = {one for config in configs for one in config.settings.get("model", ())}
        yield "model", f"{', '.join(sorted(models)) or 'not known'}, small, with random weights"
    processes = [one for config in configs for one in config.processes]
    devices = {f"{one.device}, torch {one.torch}, Python {one.python}" for one in processes}
    yield "environment", "; ".join(sorted(devices)) or "not known"
    yield "ranks", ", ".join(sorted({one.rank for one in processes if one.rank})) or "one"
    if replaced := {what.partition(":")[0] for config in configs for what in config.stand_ins}:
        yield "replaced on this device", ", ".join(sorted(replaced))
    yield "found by", f"paritybit {record.environment.paritybit}"


def source_lines(finding: RecordedFinding) -> Iterator[str]:
    """Yield the lines of the engine around the line of a finding, if they are known."""
    source = source_of(finding)
    if source is None and not finding.excerpt:
        return
    yield from ("", "## Where", "")
    if source is not None:
        yield f"{text(f'{source[0]}:{source[1]}')}"
        yield ""
    yield from fenced(
        f"{'>' if source and one.number == source[1] else ' '} {one.number:5} {one.text}"
        for one in finding.excerpt
    )


def reproduction(record: WatchRecord, case: tuple[str, WatchCase] | None) -> Iterator[str]:
    """Yield the smallest case that is known, and the commands that play it."""
    if record.engine is None:
        counts = (f"{record.counts.get(name, 0):,} {name}" for name in ("forwards", "replays"))
        yield f"A user's command had the finding, in {' and '.join(counts)}."
        yield "Its requests are not recorded."
        yield ""
        yield from fenced(["paritybit watch -- COMMAND"])
        return
    commands = [record.command]
    if case is not None:
        file, played = case
        yield from request_lines(played.script)
        yield ""
        commands.insert(0, f"paritybit replay cases/{file} --engine {record.engine}")
    yield from fenced(commands)


def request_lines(script: Script) -> Iterator[str]:
    """Yield the table of a script's requests: their lengths, and what they share."""
    total = script.requests
    waves = plural(len(script.waves), "wave")
    yield f"The requests are generated: {plural(total, 'request')} in {waves}."
    yield "Parts of the same text have the same tokens."
    yield ""
    head = ("wave", "request", "arrives", "prompt", "new tokens", "sampling")
    rows = [
        (str(number), one.name, str(one.arrives), prompt(one), str(one.tokens), sampling(one))
        for number, wave in enumerate(script.waves)
        for one in wave.requests
    ]
    yield from table(head, rows[:MOST_REQUESTS])
    if total > MOST_REQUESTS:
        yield f"\nand {total - MOST_REQUESTS:,} more, which the case has."
    acts = [f"{act.what} at {act.at}" for wave in script.waves for act in wave.actions]
    if acts:
        yield f"\nActions, by poll of the scheduler: {text(', '.join(acts))}"


def prompt(one: Planned) -> str:
    """Return the lengths of the parts of a prompt. Parts of the same text are equal tokens."""
    parts = " + ".join(
        f"{part.length} of text {part.text}{f' from {part.start} on' if part.start else ''}"
        for part in one.prompt
    )
    follows = "" if one.follows is None else f"after the conversation of {one.follows}: "
    when = "while its KV moves" if one.while_moving else f"at {one.aborted}"
    ended = "" if one.aborted is None else f", aborted {when}"
    return f"{follows}{parts}{ended}"


def sampling(one: Planned) -> str:
    """Return how a request is sampled, without token ids."""
    given = {} if one.sampling is None else one.sampling.given()
    shown = {
        name: f"{len(value)} entries" if isinstance(value, tuple | dict) else value
        for name, value in given.items()
    }
    return ", ".join(
        f"{name} {value}" for name, value in {"temperature": one.temperature, **shown}.items()
    )


def without_values(finding: RecordedFinding) -> RecordedFinding:
    """Return a finding without the names of requests and without values, which may be tokens."""
    cause = finding.cause
    return replace(
        finding,
        text=masked(finding.text),
        writer=unnamed(finding.writer),
        reader=unnamed(finding.reader),
        freed=unnamed(finding.freed),
        origin=None if finding.origin is None else masked(finding.origin),
        cause=None
        if cause is None
        else Cause(masked(cause.what), cause.input, cause.source, cause.shown, cause.via),
    )


def unnamed(who: Who | None) -> Who | None:
    """Return who wrote or read a slot, without the name of the request."""
    return None if who is None else replace(who, request=None)


def masked(words: str) -> str:
    """Return a text with N for each number, and R for each name of a request."""
    return re.sub(r"-?\d[\d.,]*\d|-?\d", "N", re.sub(r"\brequest \S+", "request R", words))


def fenced(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines as a block of code, with a fence that is longer than any in them."""
    kept = [" ".join(line.splitlines()) for line in lines]
    longest = max((len(run) for line in kept for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    yield from (fence, *kept, fence)
