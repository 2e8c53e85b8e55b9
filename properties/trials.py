"""The trials of the suite: every preset, era, page size and dtype, each pair of them somewhere."""

from itertools import product

from harness.trial import DTYPES, Trial
from reference.config import PRESETS
from subjects.behaviour import Era
from subjects.bugs import BUGS
from subjects.engine import RUNNERS

PAGE_SIZES = (1, 4)


def clean_trials(
    device: str, runner: str | None, preset: str | None, bug: str | None
) -> list[Trial]:
    """Return the trials that a clean build must pass, or the same ones broken by `bug`."""
    runners = [runner] if runner else list(RUNNERS)
    presets = [preset] if preset else list(PRESETS)
    eras = [BUGS[bug].era] if bug else list(Era)
    shapes = list(product(DTYPES, PAGE_SIZES))
    trials = []
    for place, (each_runner, each_preset, era) in enumerate(product(runners, presets, eras)):
        dtype, page_size = shapes[place % len(shapes)]
        trials.append(Trial(each_runner, each_preset, dtype, device, era, page_size, bug=bug))
    return trials


def bug_trial(bug: str, device: str, preset: str | None) -> Trial:
    """Return a trial with a bug switched on, each bug on another preset, page size and dtype."""
    place = list(BUGS).index(bug)
    dtype, page_size = list(product(DTYPES, PAGE_SIZES))[place % 4]
    chosen = preset or list(PRESETS)[place % len(PRESETS)]
    trial = Trial(preset=chosen, dtype=dtype, device=device, page_size=page_size)
    return trial.with_bug(bug)


def name(trial: Trial) -> str:
    """Return a trial in a test id."""
    parts = [trial.preset, str(trial.era), trial.dtype, f"page{trial.page_size}"]
    return "-".join([trial.runner, *parts, *([trial.bug] if trial.bug else [])])
