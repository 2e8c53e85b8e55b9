"""The trials of the suite: every runner, preset, page size and dtype together, eras in turn."""

from itertools import product

from harness.trial import DTYPES, Trial
from reference.config import PRESETS
from subjects.behaviour import Era
from subjects.bugs import BUGS, missing_inputs, runners_of
from subjects.runners import RUNNERS

PAGE_SIZES = (1, 4)

ENGINES = ("decode", "breakable", "cpu_graph")
"""A runner of each line-up: all runners of the line-up replay in its trials."""


def clean_trials(
    device: str, runner: str | None, preset: str | None, bug: str | None
) -> list[Trial]:
    """Return the trials that a clean build must pass, or the same ones broken by `bug`.

    A bug takes the runner asked for, or each that it can harm.
    """
    runners = [runner] if runner else list(runners_of(BUGS[bug])) if bug else list(ENGINES)
    presets = [preset] if preset else list(PRESETS)
    shapes = list(product(DTYPES, PAGE_SIZES))
    trials = []
    for place, (each_runner, each_preset, shape) in enumerate(product(runners, presets, shapes)):
        # Four shapes and three eras: over the runners each shape meets each era.
        era = BUGS[bug].era if bug else list(Era)[(place + place // 12) % 3]
        dtype, page_size = shape
        bugs = (bug,) if bug else ()
        trials.append(Trial(each_runner, each_preset, dtype, device, era, page_size, bugs=bugs))
    return trials


def bug_trial(bug: str, runner: str, device: str, preset: str | None) -> Trial:
    """Return a trial of a bug on a runner, each pair on another preset, page size and dtype."""
    place = every_pair().index((bug, runner))
    dtype, page_size = list(product(DTYPES, PAGE_SIZES))[place % 4]
    chosen = preset or list(PRESETS)[place % len(PRESETS)]
    trial = Trial(runner, chosen, dtype, device, page_size=page_size)
    return trial.with_bug(bug)


def every_pair() -> list[tuple[str, str]]:
    """Return every (bug, runner) that can be switched on."""
    return [
        (name, runner)
        for name, bug in BUGS.items()
        for runner in RUNNERS
        if not missing_inputs(bug, runner)
    ]


def name(trial: Trial) -> str:
    """Return a trial in a test id."""
    parts = [trial.preset, str(trial.era), trial.dtype, f"page{trial.page_size}"]
    return "-".join([trial.runner, *parts, *([trial.bug] if trial.bug else [])])
