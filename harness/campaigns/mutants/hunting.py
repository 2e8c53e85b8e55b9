"""Hunts mutants. A schedule must violate a property that holds for the clean subject."""

from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from zlib import crc32

from paritybit.harness.campaigns.executor import Campaign
from paritybit.harness.campaigns.hunt import EnoughDrawn, draw, time_limit, without_error
from paritybit.harness.campaigns.mutants.survivors import CHECKS, survivor
from paritybit.harness.checks.play import DeviceLostError, Lockstep, Outcome
from paritybit.harness.checks.table import STEP_PROPERTIES
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.scale.shapes import TINY
from paritybit.harness.schedules.schedule import Schedule
from paritybit.reference.config import PRESETS
from paritybit.subjects.engine import Subject
from paritybit.subjects.mutants.mutant import Mutant, mutated_subject

from paritybit.compat import StrEnum

CAPTURE = "capture"
"""The name used in place of a property if the mutant could not be captured."""

KEPT = 12
"""The number of clean trials that a process keeps: those for one runner and location scheme."""


@dataclass(frozen=True)
class MutatedTrial(TrialConfig):
    """A trial of a mutant."""

    mutant: Mutant = field(kw_only=True)

    def subject(self) -> Subject:
        """Return the subject."""
        return mutated_subject(self.mutant)

    @property
    def clean(self) -> TrialConfig:
        """The same trial with the clean subject."""
        fields = {name: getattr(self, name) for name in TrialConfig.__dataclass_fields__}
        return TrialConfig(**fields)


def trial_of(mutant: Mutant, device: str) -> MutatedTrial:
    """Return the trial of a mutant. Its name selects model, page size and dtype."""
    turn = crc32(mutant.name.encode())
    page_size, dtype = TINY.turns[turn % len(TINY.turns)]
    preset = list(PRESETS)[turn % len(PRESETS)]
    return MutatedTrial(
        mutant.runner, preset, dtype, device, mutant.scheme, page_size, mutant=mutant
    )


@dataclass(frozen=True)
class MutantHunt:
    """A task: hunt a mutant once with each seed, with at most `examples` schedules."""

    mutant: Mutant
    seeds: tuple[int, ...]
    examples: int
    device: str = "cpu"


class End(StrEnum):
    """How one hunt of a mutant ended. The first two are expected."""

    SEEN = "seen"
    CANNOT_MATTER = "cannot matter"
    SURVIVED = "survived"
    CLEAN_IS_RED = "fails without the bug too"


@dataclass(frozen=True)
class Sighting:
    """The result of one seed: the properties violated first, and after how many schedules."""

    seed: int
    end: End
    schedules: int
    properties: tuple[str, ...] = ()


@dataclass(frozen=True)
class Hunted:
    """The results of all seeds of a mutant."""

    sightings: tuple[Sighting, ...]
    device_lost: bool = False

    @property
    def spoiled(self) -> bool:
        """Whether the process can no longer use its device."""
        return self.device_lost


class Watch:
    """Plays schedules until one violates a property.

    `known` caches the violations of each schedule, because all seeds draw the simplest one first.
    """

    def __init__(self, lockstep: Lockstep, known: dict[Schedule, frozenset[str]]) -> None:
        self.lockstep = lockstep
        self.known = known
        self.schedules = 0
        self.latest = Schedule(())
        self.seen: frozenset[str] = frozenset()

    def play(self, schedule: Schedule) -> None:
        """Play one schedule up to its first violation. Raises PlayingFailedError."""
        self.latest = schedule
        if schedule not in self.known:
            outcome: Outcome = without_error(self.lockstep.play(schedule, until=STEP_PROPERTIES))
            self.known[schedule] = outcome.violated
        self.schedules += 1
        self.seen = self.known[schedule]
        if self.seen:
            raise EnoughDrawn


@lru_cache(maxsize=KEPT)
def clean_lockstep(trial: TrialConfig) -> Lockstep:
    """Return the lockstep of a clean trial. The process keeps it."""
    return Lockstep(trial, STEP_PROPERTIES)


@lru_cache(maxsize=KEPT)
def violated_when_clean(trial: TrialConfig, schedule: Schedule) -> frozenset[str]:
    """Return what a schedule violates on a clean trial. Raises PlayingFailedError."""
    return without_error(clean_lockstep(trial).play(schedule, until=STEP_PROPERTIES)).violated


def hunt_mutant(hunt: MutantHunt) -> Hunted:
    """Hunt a mutant with each seed. Raises PlayingFailedError for an internal error."""
    trial = trial_of(hunt.mutant, hunt.device)
    try:
        lockstep = Lockstep(trial, STEP_PROPERTIES)
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
    """Hunt a mutant with one seed. The violated properties must hold for the clean subject."""
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
"""Runs the hunts of mutants."""
