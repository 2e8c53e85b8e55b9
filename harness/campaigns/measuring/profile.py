"""Where the CPU time of one hunt and of one clean trial goes, by samples of the stack.

Whatever runs outside of this project, such as an operator of torch, counts for the line that calls
it. A sample costs microseconds, so that nothing is slower than it is without a profile.
"""

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeVar

from paritybit.harness.campaigns.locksteps import Locksteps, explained_small
from paritybit.harness.campaigns.measuring.captures import EXAMPLES, Engines
from paritybit.harness.campaigns.regress import RunConfig, plan
from paritybit.harness.campaigns.task import GOOD, Source, Task, run_task
from paritybit.harness.checks.schedule_properties import dense_agreement
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.fresh_run import FreshRun
from paritybit.harness.lockstep.pair import Pair
from paritybit.subjects.captured import CapturedEngine

from paritybit.places import SOURCES

T = TypeVar("T")

BUG, RUNNER = "swa_pad", "decode"

INTERVAL = 0.001
"""CPU seconds between two samples; a kernel with a slower clock takes fewer."""

LARGEST = 3
"""Costs of each kind that are named."""

PARTS: Mapping[CodeType, str] = {
    CapturedEngine._capture_by.__code__: "captures",
    Pair._run_eager.__code__: "eager forwards",
    Pair._run_graph.__code__: "replays",
    FreshRun.__call__.__code__: "replays of the just-captured engine",
    explained_small.__code__: "explanation",
    dense_agreement.at_end.__code__: "dense oracle",
}
"""Functions whose time is told apart. Where one calls another, the inner one has the time."""

REST = "the rest"

FOLDERS = tuple(f"{SOURCES / name}/" for name in ("harness", "reference", "subjects"))
"""The folders whose files are told apart."""


@dataclass
class Samples:
    """How many samples of the stack fell into each part, and into each file of this project."""

    parts: Counter[str] = field(default_factory=Counter)
    files: Counter[str] = field(default_factory=Counter)

    def take(self, _: int, frame: FrameType | None) -> None:
        """Count one sample of the stack; a handler of a signal."""
        part = file = REST
        while frame is not None:
            code = frame.f_code
            if file is REST and code.co_filename.startswith(FOLDERS):
                file = Path(code.co_filename).relative_to(SOURCES).as_posix()
            if code in PARTS:
                part = PARTS[code]
                break
            frame = frame.f_back
        self.parts[part] += 1
        self.files[file] += 1


@contextmanager
def sampled() -> Iterator[Samples]:
    """Sample the stack of this process's main thread until the end."""
    samples = Samples()
    before = signal.signal(signal.SIGPROF, samples.take)
    signal.setitimer(signal.ITIMER_PROF, INTERVAL, INTERVAL)
    try:
        yield samples
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def profiled(run: Callable[[], T]) -> tuple[T, dict[str, Any]]:
    """Return what a call gives, and its CPU seconds with the largest shares of them."""
    started = time.process_time()
    with sampled() as samples:
        result = run()
    seconds = time.process_time() - started
    return result, {
        "cpu_seconds": round(seconds, 2),
        "parts": largest(samples.parts),
        "files": largest(samples.files),
    }


def largest(counts: Counter[str]) -> dict[str, float]:
    """Return the shares of what was sampled most, the rest apart."""
    told = Counter({name: count for name, count in counts.items() if name != REST})
    return {name: round(n / counts.total(), 3) for name, n in told.most_common(LARGEST)}


def tasks(device: str) -> Sequence[Task]:
    """Return the hunt and the clean trial that are profiled."""
    trial = TrialConfig(RUNNER, device=device).with_bug(BUG)
    clean = plan(RunConfig(device, hunts=((BUG, RUNNER),)))[0]
    return Task(trial, Source.GENERATED, 0, EXAMPLES), clean


def profiles(device: str) -> Iterator[dict[str, Any]]:
    """Yield the largest costs of one hunt and of one clean trial, as JSON data.

    Engines are built anew. Raises RuntimeError for a task that does not end as it must.
    """
    for task in tasks(device):
        engines = Engines()
        run = partial(run_task, task, Locksteps(engines.build), engines.play_fresh)
        result, costs = profiled(run)
        if result.status not in GOOD:
            raise RuntimeError(f"{task.label} ended with: {result.status}")
        yield {"task": task.label, **costs}
