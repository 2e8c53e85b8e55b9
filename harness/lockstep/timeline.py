"""What a schedule did, step by step, as data for a drawing."""

from dataclasses import asdict, dataclass
from typing import Any

from harness.lockstep.observation import Observation
from harness.lockstep.play import Lockstep, Outcome
from harness.lockstep.scheduler import Scheduler
from harness.schedules.schedule import Schedule, Step


@dataclass(frozen=True)
class TimelineEntry:
    """One step played: which requests were live rows, how many rows were padding, who was parked.

    `mode` is None for a step that ran no forward, `runner` and `bucket` are None where no
    graph was replayed. `padded` counts what the bucket counts, requests or tokens.
    """

    place: int
    step: str
    mode: str | None
    runner: str | None
    bucket: int | None
    live: tuple[int, ...]
    padded: int
    parked: tuple[int, ...]
    tokens: int
    violated: tuple[str, ...] = ()


def observe(lockstep: Lockstep, schedule: Schedule) -> tuple[Outcome, list[dict[str, Any]]]:
    """Play a schedule; return its outcome and its moments as JSON data."""
    entries: list[TimelineEntry] = []
    world = lockstep.pair.graph

    def see(
        place: int, step: Step, observation: Observation | None, violated: frozenset[str]
    ) -> None:
        entries.append(timeline_entry(world, place, step, observation, violated))

    outcome = lockstep.play(schedule, see)
    return outcome, [asdict(each) for each in entries]


def timeline_entry(
    world: Scheduler,
    place: int,
    step: Step,
    observation: Observation | None,
    violated: frozenset[str],
) -> TimelineEntry:
    """Return the moment of one step, as the world stands right after its forward."""
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
        tokens=batch.live_tokens if batch is not None else 0,
        violated=tuple(sorted(violated)),
    )
