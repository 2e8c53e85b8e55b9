"""The command `shrink`: tries simpler settings, then fewer and shorter requests."""

import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import structs
from paritybit.harness.cli.exit_codes import CANNOT_RUN, FINDING, STOPPED
from paritybit.harness.cli.watch.display import Display
from paritybit.harness.cli.watch.replay import require_here, show_log
from paritybit.harness.errors import CannotRunError
from paritybit.harness.machine.stopping import heard_by
from paritybit.harness.records.codec import load

from paritybit.drive.adapters import Adapter, Environment, adapter_of
from paritybit.drive.job import Job, command
from paritybit.drive.script import Script, read
from paritybit.drive.warm import Warm, warm
from paritybit.inject import environment_with, prepare
from paritybit.launch.case import WatchCase
from paritybit.launch.command import Running
from paritybit.launch.follow import Stops
from paritybit.launch.record import write as write_case
from paritybit.launch.words import plural
from paritybit.watch.settings import Settings

START = 120.0
"""Additional seconds for an engine to start and to play a script."""

PAUSE = 0.2

LOG = "engine.log"


@dataclass
class Shrinking:
    """Shrinks cases of one engine. `say` is called with the smallest script so far."""

    adapter: Adapter
    engine: Environment
    scratch: Path
    stops: Stops
    say: Callable[[Script], object]
    warm: Warm | None
    played: int = 0

    def smallest(self, case: WatchCase, seconds: float) -> WatchCase | None:
        """Return the smallest case found in time, or None if the finding does not appear.

        A signal ends the search, and what was found until then is returned.
        """
        deadline = time.monotonic() + seconds
        for mine in case.with_few_checks():
            found = self.simplest(mine, deadline)
            ended = self.stops.received is not None
            if found is None:
                continue
            # `replay` runs all checks of the case again.
            if ended or mine is case or self.shows(case, found, 0.0) is not None:
                return structs.replace(case, script=found, forward=None, again=True)
        return None

    def simplest(self, case: WatchCase, deadline: float) -> Script | None:
        """Return the smallest script found in time with the checks of a case, or None."""
        script = case.script
        for name, value in self.adapter.simple.items():
            if time.monotonic() > deadline or self.stops.received is not None:
                break
            if script.settings.get(name, value) != value:
                simpler = replace(script, settings={**script.settings, name: value})
                script = self.shows(case, simpler, 0.0) or script
        found = self.shows(case, script, max(0.0, deadline - time.monotonic()))
        return script if found is None and script is not case.script else found

    def shows(self, case: WatchCase, script: Script, seconds: float) -> Script | None:
        """Return the smallest script found in time that shows a case's finding, or None."""
        self.played += 1
        folder = self.scratch / str(self.played)
        folder.mkdir()
        best = folder / "best.json"
        job = Job(script.settings, script.waves, shrink=case.key, best=str(best), seconds=seconds)
        words, variables = command(self.adapter, self.engine, job, folder)
        settings = Settings(str(folder), case.checks, case.every).text()
        variables = environment_with(variables, self.scratch, settings)
        with (folder / LOG).open("wb") as log:
            running = Running(words, variables, log, folder, self.warm)
            self.follow(running, best, seconds + START)
        return read(best) if best.exists() else None

    def follow(self, running: Running, best: Path, seconds: float) -> None:
        """Wait until a search has ended, was stopped, or exceeded its time."""
        deadline, seen = time.monotonic() + seconds, 0
        while not running.wait(PAUSE):
            changed = best.stat().st_mtime_ns if best.exists() else 0
            if changed != seen:
                seen = changed
                self.say(read(best))
            if self.stops.received is not None or time.monotonic() > deadline:
                running.send(signal.SIGKILL)
        running.clear()


def run_shrink(path: Path, spec: str, seconds: int) -> int:
    """Write the smallest case found in time next to a case, and return the exit code."""
    case = load(path, WatchCase)
    served = require_here(case, path.name, spec)
    if served.device != "cpu":
        raise CannotRunError("a case of a GPU cannot be shrunk: the search forks the engine")
    adapter = adapter_of(spec)
    if served.ranks > 1:
        raise CannotRunError("a case of several ranks cannot be shrunk: it forks the engine")
    engine = adapter.prepare(spec)
    display, stops = Display(), Stops()
    begun, sizes = time.monotonic(), [""]

    def say(script: Script) -> None:
        if size_of(script) != sizes[-1]:
            sizes.append(size_of(script))
            display.put(f"{time.monotonic() - begun:.0f} s: {sizes[-1]}")

    display.put(f"shrink {path.name}: {size_of(case.script)}")
    with tempfile.TemporaryDirectory(prefix="paritybit-") as scratch, heard_by(stops.hear):
        prepare(Path(scratch))
        with warm(Path(scratch), "cpu") as importers:
            search = Shrinking(adapter, engine, Path(scratch), stops, say, importers)
            found = search.smallest(case, float(seconds))
            if found is None:
                log = Path(scratch, str(search.played), LOG).read_text("utf-8", "replace")
    if found is None:
        if stops.received is not None:
            return STOPPED[stops.received]
        display.put(f"{path.name}: the finding did not appear on {engine.name}", style="bold")
        show_log(log, display)
        return CANNOT_RUN
    target = path.with_name(f"{path.stem}-small.json")
    write_case(found, target)
    display.put(f"{size_of(found.script)}: {target}", style="bold")
    return FINDING


def size_of(script: Script) -> str:
    """Describe the size of a script."""
    tokens = sum(one.length + one.tokens for wave in script.waves for one in wave.requests)
    return f"{plural(script.requests, 'request')} with {plural(tokens, 'token')}"
