"""The command `releases`: watches releases of an engine, and shows which have which finding.

Each release has its own folder. A release with a complete record there is skipped, so an
interrupted run can continue. The matrix also has the releases that were watched before.
"""

import re
import signal
from collections.abc import Sequence
from pathlib import Path

from paritybit.harness.cli.exit_codes import CANNOT_RUN, OK, STOPPED
from paritybit.harness.cli.folders import command_of
from paritybit.harness.cli.watch.display import Display
from paritybit.harness.cli.watch.run import last_line, run_watch
from paritybit.harness.errors import CannotRunError, MalformedError
from paritybit.harness.records.codec import load
from paritybit.harness.records.files import write_whole
from paritybit.reports.releases import Release, causes_in, matrix

from paritybit import __version__
from paritybit.engines import fetch
from paritybit.engines.packages import PACKAGES
from paritybit.launch.record import WatchOptions
from paritybit.launch.schema import WatchRecord
from paritybit.launch.words import plural

NEWEST = "newest"

MATRIX = "releases.md"


def run_releases(engine: str, names: Sequence[str], seconds: int, seed: int, folder: Path) -> int:
    """Watch releases of an engine, write the matrix of findings, and return the exit code."""
    versions = versions_of(engine, names)
    before = earlier(folder, versions)
    display, releases = Display(), list[Release]()
    display.put(f"watch {plural(len(versions), 'release')} of {engine}")
    stopped: str | None = None
    for version in versions:
        release, stopped = result_of(engine, version, seconds, seed, folder / version)
        releases.append(release)
        if stopped is not None:
            break
    write_whole(folder / MATRIX, matrix(engine, [*before, *releases]))
    display.put(f"matrix: {folder / MATRIX}")
    tried = [release for release in releases if release.tried]
    display.put(
        f"{len(tried)} of {plural(len(versions), 'release')} tried, "
        f"{plural(len(causes_in(releases)), 'cause')} of findings",
        style="bold",
    )
    if stopped is not None:
        return STOPPED[signal.Signals[stopped]]
    return OK if tried else CANNOT_RUN


def result_of(
    engine: str, version: str, seconds: int, seed: int, home: Path
) -> tuple[Release, str | None]:
    """Return the result of a release, and the signal that interrupted its run now, or None.

    It is watched unless its record is complete. Findings of an interrupted run are kept.
    """
    spec, latest = f"{engine}=={version}", home / "latest"
    found = record_in(latest)
    same = found and (found.seed, found.environment.paritybit) == (seed, __version__)
    if found is None or not same or found.interrupted is not None:
        before = latest.resolve()
        numbers = ("--seconds", str(seconds), "--seed", str(seed))
        words = ("watch", "--engine", spec, "--keep-going", *numbers)
        options = WatchOptions(
            command=command_of(words),
            engine=spec,
            seed=seed,
            seconds=seconds,
            keep_going=True,
            out=home,
        )
        try:
            run_watch(options)
        except (CannotRunError, MalformedError) as error:
            return Release(version, None, str(error)), None
        found = None if latest.resolve() == before else record_in(latest)
    if found is None:
        return Release(version, None, "no record was written"), None
    stopped = found.interrupted
    if found.verdict == "undecided" and not found.counts.get("forwards"):
        # The last line of the first output says why no engine served requests.
        logs = sorted(latest.glob("configs/*/engine.log"), key=lambda log: log.stat().st_mtime)
        why = last_line(logs[0]) if logs else "no engine was started"
        return Release(version, None, why), stopped
    return Release(version, found), stopped


def earlier(folder: Path, versions: Sequence[str]) -> list[Release]:
    """Return the results that the folder has for other releases, oldest first.

    Raises MalformedError for a record of any release that cannot be read.
    """
    names = (path.parent.name for path in folder.glob("*/latest"))
    releases = sorted(filter(re.compile(fetch.VERSION).fullmatch, names), key=fetch.in_order)
    found = {one: record_in(folder / one / "latest") for one in releases}
    return [Release(one, found[one]) for one in releases if found[one] and one not in versions]


def record_in(folder: Path) -> WatchRecord | None:
    """Return the record of a run, or None without one."""
    path = folder / "watch.json"
    return load(path, WatchRecord) if path.exists() else None


def versions_of(engine: str, names: Sequence[str]) -> Sequence[str]:
    """Return the releases with these names, or all with pinned hashes if there is none.

    Raises MalformedError for a malformed name.
    """
    package = PACKAGES[engine]
    if not names:
        pinned = re.findall(rf"^{package.name}==(\S+)", fetch.RELEASES.read_text(), re.MULTILINE)
        known = [one for one in pinned if fetch.in_order(one) >= fetch.in_order(package.oldest)]
        return sorted(known, key=fetch.in_order)
    for name in names:
        if name != NEWEST:
            fetch.require_release(name, package)
    return list(dict.fromkeys(fetch.newest(package) if one == NEWEST else one for one in names))
