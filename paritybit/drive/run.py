"""Does a job with an engine in this process: plays waves, or shrinks a script."""

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import NoReturn

from paritybit.drive.company import CHECK, LONGEST_PLAY, Comparison
from paritybit.drive.configs import LACKING, LackingError
from paritybit.drive.engine import Engine, EngineFailedError, PlayedError, judge_failure
from paritybit.drive.forks import ForkFailedError, in_fork
from paritybit.drive.job import Job, comparisons
from paritybit.drive.operating.actions import COUNT, WHOLE
from paritybit.drive.requests import AT_LEAST
from paritybit.drive.script import Script, Wave, write
from paritybit.drive.served import Common
from paritybit.drive.shrink import PASSES, Waves
from paritybit.harness.schedules.passes import shrunk
from paritybit.watch import journal

SLACK = 8
"""A proposal may take twice the forwards of the smallest script, and this many more."""


def run(engine: Engine, served: Common, job: Job) -> int:
    """Start an engine, do a job, and return the exit code."""
    lines = journal.of_process()
    if lines is not None:
        lines.scope(**served.scope())
        lines.write("script", settings=served.scope())
    codes, signals = list[int](), list[int]()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *arguments: signals.append(arguments[0]))

    started = math.inf

    def stop() -> bool:
        late = job.until is not None and time.time() >= job.until
        over = job.most is not None and time.time() >= started + job.most
        return bool(signals) or late or over

    def direct(ready: Engine) -> None:
        nonlocal started
        started = time.time()
        if job.shrink is not None:
            codes.append(0 if shrink(ready, served, job) else 1)
            return
        if job.waves is None:
            journal.count(**{comparisons(served.model): 0})
        if job.compare and not served.alone:
            compare(ready, served, stop)
        journal.count(**{f"{COUNT}{one}": 0 for one in served.ACTIONS if served.actions})
        serve(ready, served, waves_of(job, served, engine, started), stop)
        sys.stderr.write(f"{engine.forwards} forwards in {time.time() - started:.1f} s\n")

    try:
        engine.start(direct)
    except LackingError as error:
        sys.stderr.write(f"{error}\n")
        return LACKING
    except EngineFailedError as error:
        judge_failure(error)
        sys.stderr.write(f"{error}\n")
        return 1
    return max(codes, default=0)


def leave(code: int) -> NoReturn:
    """End this process immediately, because threads of the engine may still run."""
    if (lines := journal.of_process()) is not None:
        lines.end()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def waves_of(job: Job, served: Common, engine: Engine, started: float) -> Iterator[Wave]:
    """Return the waves of a job, for an engine that started at a time."""
    if job.waves is not None:
        return iter(job.waves)
    if (forwards := job.least) is None:
        return served.traffic()
    journal.count(**{WHOLE: 0})
    return least(
        served.traffic(),
        lambda: engine.forwards >= forwards and time.time() >= started + job.after,
    )


def least(waves: Iterator[Wave], enough: Callable[[], bool]) -> Iterator[Wave]:
    """Yield AT_LEAST waves, and more until `enough` returns True. Counts WHOLE at the end."""
    served = 0
    for wave in waves:
        if served >= AT_LEAST and enough():
            journal.count(**{WHOLE: 1})
            return
        yield wave
        served += not wave.brief


def compare(engine: Engine, served: Common, stop: Callable[[], bool]) -> None:
    """Compare some requests with themselves alone, if the settings allow it."""
    if (wave := served.company()) is not None:
        serve(engine, replace(served, alone=True), iter((wave,)), stop)


def serve(engine: Engine, served: Common, waves: Iterator[Wave], stop: Callable[[], bool]) -> None:
    """Serve waves until all are served or `stop` returns True.

    Each wave is written to the journal first. An error of the engine is judged and raised again.
    """
    lines = journal.of_process()

    def noted(given: Iterator[Wave]) -> Iterator[Wave]:
        if lines is not None:
            lines.write("script", settings=served.scope())
        for wave in given:
            if lines is not None:
                lines.write("wave", wave=asdict(wave))
            yield wave

    try:
        if not served.alone:
            engine.play(noted(waves), stop)
            return
        comparison = Comparison(engine, noted, comparisons(served.model))
        for wave in noted(waves):
            comparison.judge(wave, stop)
            if stop():
                return
    except (Exception, EngineFailedError) as error:
        judge_failure(error)
        raise


def shrink(engine: Engine, served: Common, job: Job) -> bool:
    """Write the smallest script that shows the finding of a job, and was found in time.

    Returns False, and writes nothing, if the script itself does not show the finding.

    Each proposal is played in a fork of the freshly started engine, for at most twice as many
    forwards as the smallest script so far took. Requests are served alone only for a finding of
    this comparison, because its own forks have its findings.
    """
    deadline, key = time.monotonic() + job.seconds, str(job.shrink)
    most = math.inf
    served = replace(served, alone=served.alone and key.startswith(CHECK))

    def play(waves: Waves) -> int | None:
        """Return the number of forwards until the finding, or None without it."""
        lines = journal.of_process()  # One of this fork.
        assert lines is not None, "a search reads the findings of the journal"

        def stop() -> bool:
            lines.settle()
            if key in lines.findings or lines.counts.get("forwards", 0) > most:
                raise PlayedError
            return False

        with suppress(PlayedError, EngineFailedError, Exception):
            serve(engine, served, iter(waves), stop)
        lines.settle()
        return lines.counts.get("forwards", 0) if key in lines.findings else None

    def fails(waves: Waves) -> bool:
        nonlocal most
        journal.count(proposals=1)
        took = None
        with suppress(ForkFailedError):
            took = in_fork(lambda: play(waves), LONGEST_PLAY)
        if not isinstance(took, int):
            return False
        most = 2 * took + SLACK
        write(Script(job.settings, waves), Path(job.best))
        return True

    waves = job.waves or ()
    if not fails(waves):
        return False
    shrunk(waves, PASSES, fails, lambda: time.monotonic() > deadline)
    return True
