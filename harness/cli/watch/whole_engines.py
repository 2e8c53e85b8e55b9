"""Watches downloaded releases in addition to the built-in engine (`regress --whole-engines`).

A release with a known bug must have the finding of its check. A release without known bugs must
have no finding.
"""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from paritybit.harness.cli.exit_codes import FINDING
from paritybit.harness.cli.watch.releases import LOG, run_aside
from paritybit.harness.cli.watch.run import last_line
from paritybit.harness.records.case import read_json
from paritybit.harness.records.schema import WholeEngine, WholeVerdict
from rich.table import Table

from paritybit.drive.engines import driven
from paritybit.engines import fetch
from paritybit.launch.follow import Stops
from paritybit.launch.reading import record_of
from paritybit.launch.schema import Watched

SECONDS, AT_ONCE = 30, 2
"""Seconds per engine, with its start, and the number of engines watched at the same time."""


@dataclass(frozen=True)
class KnownEngine:
    """A release, its setting, and the check that must find each of its bugs."""

    engine: str
    setting: str
    bugs: Mapping[str, str] = field(default_factory=dict)


ENGINES = (
    KnownEngine(
        "sglang==0.5.11",
        "decode graphs",
        {
            "swa_pad": "stray write",
            "swa_int64": "changed dtype",
            "req_pool_pad": "wrong list",
        },
    ),
    KnownEngine("sglang==0.5.12.post1", "decode graphs", {"req_pool_pad": "wrong list"}),
    KnownEngine("sglang==0.5.23", "decode graphs"),
    KnownEngine("vllm==0.33.0", "decode graphs"),
    KnownEngine("transformers==5.24.0", "sliding window"),
)


def downloaded(bugs: Iterable[str]) -> list[KnownEngine]:
    """Return the downloaded engines. With bugs, NAME or NAME@RUNNER, only those that have one."""
    wanted = {bug.partition("@")[0] for bug in bugs}
    return [
        one
        for one in ENGINES
        if one.engine.partition("==")[2] in fetch.fetched(driven(one.engine).package)
        and (not wanted or wanted & set(one.bugs))
    ]


def watched(engines: Sequence[KnownEngine], folder: Path, stops: Stops) -> tuple[WholeEngine, ...]:
    """Watch engines, each in its own process and with its own folder in `folder`."""

    def one(engine: KnownEngine) -> WholeEngine:
        home = folder / engine.engine.replace("==", "-")
        home.mkdir(parents=True, exist_ok=True)
        words = ("--engine", engine.engine, "--settings", engine.setting, "--keep-going")
        limits = ("--seconds", str(SECONDS), "--device", "cpu")
        code = None
        if stops.received is None:
            code = run_aside(("watch", *words, *limits, "--out", str(home)), home / LOG, stops)
        return judged(engine, home, folder.parent, code)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return tuple(pool.map(one, engines))


def judged(engine: KnownEngine, home: Path, top: Path, code: int | None = None) -> WholeEngine:
    """Return the result of a run, compared with the known bugs of its engine.

    `code` is its exit code, which counts if it could not write its record.
    """
    record = home / "latest" / "watch.json"
    if not record.exists():
        said = (
            last_line(home / LOG).removeprefix("paritybit: ")
            if (home / LOG).exists()
            else "it was not started"
        )
        found = dict.fromkeys(engine.bugs, False)
        unexpected = code == FINDING and not engine.bugs
        verdict: WholeVerdict = "unexpected" if unexpected else "undecided"
        return WholeEngine(engine.engine, engine.setting, verdict, said, found, None)
    run: Watched = record_of(read_json(record), record.name)
    checks = {finding.check for finding in run.findings if finding.known is None}
    found = {bug: check in checks for bug, check in engine.bugs.items()}
    verdict = "as expected"
    if run.verdict == "undecided":
        verdict = "undecided"
    elif not all(found.values()) or (checks and not engine.bugs):
        verdict = "unexpected"
    page = record.resolve().with_name("index.html").relative_to(top.resolve())
    return WholeEngine(engine.engine, engine.setting, verdict, run.message, found, page.as_posix())


def table(engines: Sequence[WholeEngine]) -> Table:
    """Return the results of whole engines as a table for the terminal."""
    shown = Table(title="whole engines")
    for head in ("engine", "setting", "bugs that it has", "verdict"):
        shown.add_column(head)
    for one in engines:
        shown.add_row(one.engine, one.setting, bugs_of(one), one.verdict)
    return shown


def bugs_of(engine: WholeEngine) -> str:
    """Return the known bugs of an engine, and which of them were not found."""
    names = (name if seen else f"{name} (not found)" for name, seen in engine.found.items())
    return ", ".join(names) or "none known"
