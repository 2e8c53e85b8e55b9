"""Hunting mutants: schedules are drawn until one violates a property."""

from dataclasses import dataclass, field

from harness.campaigns.executor import Campaign
from harness.campaigns.hunt import draw, time_limit, whole
from harness.campaigns.regress import SHAPES
from harness.checks.of_schedules.declared_state import DECLARED_STATE
from harness.checks.play import DeviceLostError, Lockstep, Outcome
from harness.checks.table import STEP_PROPERTIES
from harness.lockstep.config import TrialConfig
from harness.schedules.schedule import Schedule
from reference.config import PRESETS
from subjects.engine import Subject
from subjects.mutants.mutant import Mutant, mutated_subject

JUDGED = STEP_PROPERTIES - {DECLARED_STATE.id}
"""The properties that must see a mutant. A mutant's own memory is not declared, nor at fault."""

NOT_BUILT = "capture"
"""Stands for a property where the mutant could not even be captured."""


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


def trial_of(mutant: Mutant, seed: int, device: str) -> MutatedTrial:
    """Return the trial of a mutant by a seed: models, page sizes and dtypes take turns."""
    page_size, dtype = SHAPES[seed % len(SHAPES)]
    preset = list(PRESETS)[seed % len(PRESETS)]
    return MutatedTrial(
        mutant.runner, preset, dtype, device, mutant.scheme, page_size, mutant=mutant
    )


@dataclass(frozen=True)
class MutantHunt:
    """A piece of work: a mutant hunted once by each seed, in so many schedules at most."""

    mutant: Mutant
    seeds: tuple[int, ...]
    examples: int
    device: str


@dataclass(frozen=True)
class Sighting:
    """How one seed fared: the properties violated first, after so many schedules.

    No properties: it was not seen.
    """

    seed: int
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


class _SeenError(Exception):
    """Raised inside a hunt so that no further schedule is drawn."""


@dataclass
class Watch:
    """Plays schedules until one violates a property."""

    lockstep: Lockstep
    schedules: int = 0
    seen: frozenset[str] = field(default_factory=frozenset)

    def play(self, schedule: Schedule) -> None:
        """Play one schedule, as far as its first violation. Raises PlayingFailedError."""
        if not self.seen:  # Hypothesis plays the last one again.
            outcome: Outcome = whole(self.lockstep.play(schedule, until=JUDGED))
            self.schedules += 1
            self.seen = outcome.violated
        if self.seen:
            raise _SeenError


def hunt_mutant(hunt: MutantHunt) -> Hunted:
    """Hunt a mutant by each seed. Raises PlayingFailedError for an error of ours."""
    sightings: list[Sighting] = []
    for seed in hunt.seeds:
        try:
            sightings.append(sighting(hunt, seed))
        except DeviceLostError as lost:
            seen = tuple(sorted(lost.outcome.violated)) or (NOT_BUILT,)
            return Hunted((*sightings, Sighting(seed, 1, seen)), device_lost=True)
    return Hunted(tuple(sightings))


def sighting(hunt: MutantHunt, seed: int) -> Sighting:
    """Hunt a mutant by one seed."""
    try:
        lockstep = Lockstep(trial_of(hunt.mutant, seed, hunt.device), JUDGED)
    except (IndexError, RuntimeError, TypeError, ValueError):
        return Sighting(seed, 0, (NOT_BUILT,))
    watch = Watch(lockstep)
    try:
        draw(lockstep, watch.play, seed, hunt.examples)
    except _SeenError:
        pass
    return Sighting(seed, watch.schedules, tuple(sorted(watch.seen)))


MUTANTS = Campaign(
    hunt_mutant,
    shared=lambda hunt: (hunt.mutant.runner, hunt.mutant.scheme),
    seconds=lambda hunt: time_limit(hunt.examples * len(hunt.seeds)),
)
"""How mutants are hunted."""
