"""Every runner of this build: a line in the table, a file in this folder."""

from subjects.runner import GraphRunner
from subjects.runners.breakable import BreakableRunner
from subjects.runners.cpu_graph import CpuGraphRunner
from subjects.runners.decode import DecodeRunner
from subjects.runners.eagle_draft import EagleDraftRunner
from subjects.runners.eagle_draft_extend import EagleDraftExtendRunner
from subjects.runners.frozen_kv_mtp import FrozenKvMtpRunner
from subjects.runners.piecewise import PiecewiseRunner
from subjects.runners.target_verify import TargetVerifyRunner

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
"""Each runner, and the line-ups it plays in: the runners of one engine, one for a mode."""

RUNNERS: dict[str, type[GraphRunner]] = {runner.name: runner for runner, _ in TABLE}
"""Every runner by name."""


def engine_runners(runner: str) -> tuple[type[GraphRunner], ...]:
    """Return the runners of the engine that `runner` is tried in: those of its first line-up."""
    chosen = next(engine_runners[0] for each, engine_runners in TABLE if each.name == runner)
    return tuple(each for each, engine_runners in TABLE if chosen in engine_runners)


ONE_PER_ENGINE = ("decode", "breakable", "cpu_graph")
"""One runner of each engine: all runners of the engine replay in its trials."""
