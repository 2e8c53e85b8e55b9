"""Hunting mutants: schedules are drawn until one violates a property that the clean build keeps."""

from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from zlib import crc32

from paritybit.harness.campaigns.executor import Campaign
from paritybit.harness.campaigns.hunt import EnoughDrawn, draw, time_limit, whole
from paritybit.harness.campaigns.mutants.survivors import CHECKS, survivor
from paritybit.harness.checks.of_schedules.declared_state import DECLARED_STATE
from paritybit.harness.checks.play import DeviceLostError, Lockstep, Outcome
from paritybit.harness.checks.table import STEP_PROPERTIES
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.scale.shapes import TINY
from paritybit.harness.schedules.schedule import Schedule
from paritybit.reference.config import PRESETS
from paritybit.subjects.engine import Subject
from paritybit.subjects.mutants.mutant import Mutant, mutated_subject

from paritybit.compat import StrEnum

JUDGED = STEP_PROPERTIES - {DECLARED_STATE.id}
"""The properties that must see a mutant. Its own memory is not declared, and is no fault of it."""

CAPTURE = "capture"
"""Stands for a property where the mutant could not even be captured."""

KEPT = 12
"""Clean trials that a process keeps: those of the mutants of one runner and location scheme."""


@dataclass(frozen=True)
class MutatedTrial(TrialConfig):
    """A trial of a mutant; without one, of the right subject."""

    mutant: Mutant | None = None

    def subject(self) -> Subject:
        """Return what is on trial."""
        return super().subject() if self.mutant is None else mutated_subject(self.mutant)

    @property
    def clean(self) -> TrialConfig:
        """The same trial of the right subject."""
        fields = {name: getattr(self, name) for name in TrialConfig.__dataclass_fields__}
        return TrialConfig(**fields)


def trial_of(mutant: Mutant, device: str) -> MutatedTrial:
    """Return the trial of a mutant: models, page sizes and dtypes take turns, by its name."""
    turn = crc32(mutant.name.encode())
    page_size, dtype = TINY.turns[turn % len(TINY.turns)]
    preset = list(PRESETS)[turn % len(PRESETS)]
    return MutatedTrial(
        mutant.runner, preset, dtype, device, mutant.scheme, page_size, mutant=mutant
    )


@dataclass(frozen=True)
class MutantHunt:
    """A piece of work: a mutant hunted once by each seed, in so many schedules at most."""

    mutant: Mutant
    seeds: tuple[int, ...]
    examples: int
    device: str = "cpu"


class End(StrEnum):
    """How one hunt of a mutant ended. The first two are as they should be."""

    SEEN = "seen"
    CANNOT_MATTER = "cannot matter"
    SURVIVED = "survived"
    CLEAN_IS_RED = "fails without the bug too"


@dataclass(frozen=True)
class Sighting:
    """How one seed fared: which properties saw the mutant first, after so many schedules."""

    seed: int
    end: End
    schedules: int
    properties: tuple[str, ...] = ()


@dataclass(frozen=True)
class Hunted:
    """What the seeds of a mutant gave."""

    sightings: tuple[Sighting, ...]
    device_lost: bool = False

    @property
    def spoiled(self) -> bool:
        """Whether its process can use its device no more."""
        return self.device_lost


class Watch:
    """Plays schedules until one violates a property.

    `known` holds what schedules played before have violated, so that none is played twice: all
    seeds draw the simplest schedule first.
    """

    def __init__(self, lockstep: Lockstep, known: dict[Schedule, frozenset[str]]) -> None:
        self.lockstep = lockstep
        self.known = known
        self.schedules = 0
        self.latest = Schedule(())
        self.seen: frozenset[str] = frozenset()

    def play(self, schedule: Schedule) -> None:
        """Play one schedule, as far as its first violation. Raises PlayingFailedError."""
        self.latest = schedule
        if schedule not in self.known:
            outcome: Outcome = whole(self.lockstep.play(schedule, until=JUDGED))
            self.known[schedule] = outcome.violated
        self.schedules += 1
        self.seen = self.known[schedule]
        if self.seen:
            raise EnoughDrawn


@lru_cache(maxsize=KEPT)
def clean_lockstep(trial: TrialConfig) -> Lockstep:
    """Return the lockstep of a clean trial, built once in a process for as long as it is used."""
    return Lockstep(trial, JUDGED)


@lru_cache(maxsize=KEPT)
def violated_when_clean(trial: TrialConfig, schedule: Schedule) -> frozenset[str]:
    """Return what a schedule violates on a clean trial. Raises PlayingFailedError."""
    return whole(clean_lockstep(trial).play(schedule, until=JUDGED)).violated


def hunt_mutant(hunt: MutantHunt) -> Hunted:
    """Hunt a mutant by each seed, on one trial. Raises PlayingFailedError for an error of ours."""
    trial = trial_of(hunt.mutant, hunt.device)
    try:
        lockstep = Lockstep(trial, JUDGED)
    except (IndexError, RuntimeError, TypeError, ValueError):
        clean_lockstep(trial.clean)
        return Hunted(tuple(Sighting(seed, End.SEEN, 0, (CAPTURE,)) for seed in hunt.seeds))
    sightings: list[Sighting] = []
    known: dict[Schedule, frozenset[str]] = {}
    for seed in hunt.seeds:
        try:
            sightings.append(sighting(hunt, Watch(lockstep, known), seed))
        except DeviceLostError as lost:
            seen = tuple(sorted(lost.outcome.violated))
            sightings.append(Sighting(seed, End.SEEN if seen else End.SURVIVED, 1, seen))
            return Hunted(tuple(sightings), device_lost=True)
    return Hunted(tuple(sightings))


def sighting(hunt: MutantHunt, watch: Watch, seed: int) -> Sighting:
    """Hunt a mutant by one seed. What it violates, the clean build must keep."""
    lockstep = watch.lockstep
    with suppress(EnoughDrawn):
        draw(lockstep.trial, watch.play, seed, hunt.examples)
    end = End.SURVIVED
    if watch.seen:
        clean = violated_when_clean(lockstep.trial.clean, watch.latest)
        end = End.CLEAN_IS_RED if clean else End.SEEN
    else:
        why = survivor(hunt.mutant)
        if why is not None and CHECKS[why.reason](lockstep):
            end = End.CANNOT_MATTER
    return Sighting(seed, end, watch.schedules, tuple(sorted(watch.seen)))


MUTANTS = Campaign(
    hunt_mutant,
    shared=lambda hunt: (hunt.mutant.runner, hunt.mutant.scheme),
    seconds=lambda hunt: time_limit(hunt.examples * len(hunt.seeds)),
    label=lambda hunt: hunt.mutant.name,
)
"""How mutants are hunted."""
