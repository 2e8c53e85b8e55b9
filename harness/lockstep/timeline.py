"""What a schedule did, step by step, as data for a drawing."""

from harness.explain.facts import TimelineEntry
from harness.lockstep.observation import Observation
from harness.lockstep.play import Lockstep, Outcome
from harness.lockstep.scheduler import Scheduler
from harness.schedules.schedule import Schedule, Step


def observe(lockstep: Lockstep, schedule: Schedule) -> tuple[Outcome, list[TimelineEntry]]:
    """Play a schedule; return its outcome and an entry for each step."""
    entries: list[TimelineEntry] = []
    world = lockstep.pair.graph

    def see(
        place: int, step: Step, observation: Observation | None, violated: frozenset[str]
    ) -> None:
        entries.append(timeline_entry(world, place, step, observation, violated))

    outcome = lockstep.play(schedule, see)
    return outcome, entries


def timeline_entry(
    world: Scheduler,
    place: int,
    step: Step,
    observation: Observation | None,
    violated: frozenset[str],
) -> TimelineEntry:
    """Return the entry of one step, as the world stands right after its forward."""
    batch = observation.batch if observation is not None else None
    spans = batch.spans if batch is not None else ()
    live = tuple(world.request_of(span.row).serial for span in spans)
    replay = observation.replay if observation is not None else None
    mode = (
        None
        if observation is None
        else f"idle {observation.mode}"
        if batch is None
        else str(observation.mode)
    )
    return TimelineEntry(
        place=place,
        step=step.name,
        mode=mode,
        runner=replay.runner if replay is not None else None,
        bucket=replay.bucket if replay is not None else None,
        live=live,
        padded=replay.bucket - replay.live_size if replay is not None else 0,
        parked=tuple(each.serial for each in world.running if each.serial not in live),
        tokens=batch.raw_num_token if batch is not None else 0,
        violated=tuple(sorted(violated)),
    )
