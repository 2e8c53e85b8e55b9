"""hermetic_replay: detects results that depend on earlier replays, even in padded rows only."""

from paritybit.harness.checks.differences import first_output_difference
from paritybit.harness.checks.property import Description, Property
from paritybit.harness.lockstep.bits import clone_output
from paritybit.harness.lockstep.fresh_run import Collect, FreshRun, just_captured
from paritybit.harness.lockstep.observation import Observation
from paritybit.harness.lockstep.pair import Pair
from paritybit.harness.lockstep.requests import PlannedStep


def prepare(pair: Pair, planned: PlannedStep) -> Collect:
    """Reset the fresh engine to its state after capture. The result is its defined output."""
    just_captured(pair, planned)
    return lambda forward: forward.replay and clone_output(forward.replay.defined)


def judge(observation: Observation) -> Description | None:
    """Name the first row that depends on earlier replays.

    It is also a violation if only the subject replayed. A step that the subject did not replay is
    reported by captured_path.
    """
    replay = observation.replay
    if "hermetic_replay" not in observation.extra or replay is None:
        return None
    fresh = observation.extra["hermetic_replay"]
    if fresh is None:
        return f"{replay.runner} replays this batch; a freshly captured runner replays nothing", {}
    where = first_output_difference(fresh, replay.defined)
    if where is None:
        return None
    if "eager" in where:  # The shapes or dtypes differ, so rows cannot be compared.
        forms = f"freshly captured {where['eager']}, after earlier replays {where['graph']}"
        return f"the outputs have different shapes or dtypes: {forms}", where
    where["live"] = where["row"] < replay.live_rows
    row = f"{'live' if where['live'] else 'padded'} row {where['row']}"
    rows = len(replay.defined[where["tensor"]])
    return (
        f"{replay.runner}, {row} of {rows}, {where['tensor']} {where['element']}: freshly "
        f"captured {where['eager_bits']}, after earlier replays {where['graph_bits']}",
        where,
    )


HERMETIC_REPLAY = Property(
    id="hermetic_replay",
    statement="a runner gives the same bits after earlier replays as it does when freshly captured",
    judge=judge,
    extra_run=FreshRun(prepare, at_fault=False),
)
