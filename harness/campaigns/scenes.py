"""The scenes that clean trials play, so that any two boundary conditions meet."""

from collections.abc import Sequence
from operator import attrgetter

from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.schedules.boundaries import Ground, Row, rows, scenes
from paritybit.harness.schedules.generate import SCENES
from paritybit.harness.schedules.schedule import Schedule, Step
from paritybit.reference.batch import Mode
from paritybit.subjects.runners import RUNNERS
from paritybit.subjects.toggles import LocationScheme


def ground_of(trial: TrialConfig, mode: Mode | None = None) -> Ground:
    """Return the sizes and modes from which a trial's scenes are built.

    `mode` defaults to that of the runner under test.
    """
    own = RUNNERS[trial.runner].mode if mode is None else mode
    return Ground(trial.model, trial.buckets, trial.token_buckets, trial.modes, own)


def share_of_scenes(trial: TrialConfig, schemes: Sequence[LocationScheme]) -> Schedule:
    """Return this trial's share of its runner's scenes.

    The trials of all `schemes` together play all scenes, and each gets scenes of every size. The
    first also gets a scene with a padded replay of each other runner of the engine.
    """
    ground = ground_of(trial)
    place, by_size = schemes.index(trial.scheme), sorted(rows(ground), key=attrgetter("bucket"))
    steps = scenes(ground, by_size[place :: len(schemes)])
    others = sorted(trial.modes - {ground.mode}) if place == 0 else ()
    for other in (ground_of(trial, mode) for mode in others):
        steps += scenes(other, [Row(min(other.sizes), "short", filled="short")])
    return Schedule(steps, place)


def handed_over(trial: TrialConfig) -> Schedule:
    """Return a scene in which a request finishes in a decode, and a longer one takes its row."""
    row = Row(min(trial.buckets), "short", "replaced")
    return Schedule(scenes(ground_of(trial, Mode.DECODE), [row]))


def with_prompts(trial: TrialConfig) -> Schedule:
    """Return the runner's first scenes, then prompts prefilled together or too long for a graph."""
    ground, smallest = ground_of(trial), min(trial.buckets)
    others = Row(smallest, "longest", "evicted"), Row(smallest, "short", "resumed", "together")
    prompts = scenes(ground_of(trial, Mode.DECODE), others)
    return Schedule((*scenes(ground, rows(ground)[:SCENES]), *prompts))


def longest(trial: TrialConfig) -> Schedule:
    """Return scenes in which forwards of every kind reach as far as a request can grow."""
    steps: list[Step] = []
    for mode in sorted(trial.modes | {Mode.EXTEND}):
        ground, event = ground_of(trial, mode), "resumed" if mode is Mode.DECODE else "evicted"
        steps += scenes(ground, [Row(max(ground.sizes), "longest", event, "chunks", "one")])
    return Schedule(tuple(steps))
