"""The table of runners. Each runner has a file in this folder and a line in the table."""

from paritybit.subjects.runners.base import GraphRunner
from paritybit.subjects.runners.breakable import BreakableRunner
from paritybit.subjects.runners.cpu_graph import CpuGraphRunner
from paritybit.subjects.runners.decode import DecodeRunner
from paritybit.subjects.runners.eagle_draft import EagleDraftRunner
from paritybit.subjects.runners.eagle_draft_extend import EagleDraftExtendRunner
from paritybit.subjects.runners.frozen_kv_mtp import FrozenKvMtpRunner
from paritybit.subjects.runners.piecewise import PiecewiseRunner
from paritybit.subjects.runners.target_verify import TargetVerifyRunner

TABLE: tuple[tuple[type[GraphRunner], tuple[str, ...]], ...] = (
    (DecodeRunner, ("eagle", "frozen")),
    (TargetVerifyRunner, ("eagle", "frozen")),
    (CpuGraphRunner, ("cpu",)),
    (EagleDraftRunner, ("eagle",)),
    (EagleDraftExtendRunner, ("eagle", "frozen")),
    (FrozenKvMtpRunner, ("frozen",)),
    (PiecewiseRunner, ("eagle",)),
    (BreakableRunner, ("frozen",)),
)
"""All runners, each with the engines that have it. It is tested in the first of them.

An engine has one runner per mode.
"""

RUNNERS: dict[str, type[GraphRunner]] = {runner.name: runner for runner, _ in TABLE}


def engine_runners(runner: str) -> tuple[type[GraphRunner], ...]:
    """Return the runners of the engine in which `runner` is tested."""
    chosen = next(engines[0] for candidate, engines in TABLE if candidate.name == runner)
    return tuple(candidate for candidate, engines in TABLE if chosen in engines)
