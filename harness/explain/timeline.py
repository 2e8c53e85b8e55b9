"""What a schedule did, step by step, as data for a drawing."""

from paritybit.harness.explain.facts import TimelineEntry
from paritybit.harness.lockstep.observation import Observation
from paritybit.harness.lockstep.pair import Pair
from paritybit.harness.schedules.schedule import Step


def timeline_entry(
    pair: Pair,
    place: int,
    step: Step,
    observation: Observation | None,
    violated: frozenset[str],
) -> TimelineEntry:
    """Return what one step did. Requests are those that run after it."""
    spans = observation.graph.spans if observation is not None else ()
    live = tuple(observation.graph.serial_at(span.row) for span in spans) if observation else ()
    replay = observation.replay if observation is not None else None
    return TimelineEntry(
        place=place,
        step=step.name,
        mode=mode_of(observation),
        runner=replay.runner if replay is not None else None,
        bucket=replay.bucket if replay is not None else None,
        live=live,
        padded=replay.bucket - replay.live_size if replay is not None else 0,
        parked=tuple(
            request.serial for request in pair.eager.running if request.serial not in live
        ),
        tokens=sum_tokens(observation),
        violated=tuple(sorted(violated)),
    )


def mode_of(observation: Observation | None) -> str | None:
    """Return the name of the step's forward mode, or None without a forward."""
    if observation is None:
        return None
    idle = observation.graph.batch is None
    return f"idle {observation.mode}" if idle else str(observation.mode)


def sum_tokens(observation: Observation | None) -> int:
    """Return the number of live tokens of the step's forward."""
    batch = observation.graph.batch if observation is not None else None
    return batch.live_tokens if batch is not None else 0
