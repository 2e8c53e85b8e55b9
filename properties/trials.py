"""The trials of the suite: every runner, preset, page size and dtype together, eras in turn."""

from itertools import product

from harness.checks.expectations import affected_runners
from harness.lockstep.config import DTYPES, TrialConfig
from reference.config import PRESETS
from subjects.bugs.catalogue import BUGS
from subjects.bugs.switching import missing_inputs
from subjects.runners import RUNNERS
from subjects.toggles import LocationScheme

PAGE_SIZES = (1, 4)

ENGINES = ("decode", "breakable", "cpu_graph")
"""A runner of each line-up: all runners of the line-up replay in its trials."""


def clean_trials(
    device: str, runner: str | None, preset: str | None, bug: str | None
) -> list[TrialConfig]:
    """Return the trials that a clean build must pass, or the same ones broken by `bug`.

    A bug takes the runner asked for, or each that it can harm.
    """
    runners = [runner] if runner else list(affected_runners(BUGS[bug])) if bug else list(ENGINES)
    presets = [preset] if preset else list(PRESETS)
    shapes = list(product(DTYPES, PAGE_SIZES))
    trials = []
    for place, (each_runner, each_preset, shape) in enumerate(product(runners, presets, shapes)):
        # Four shapes and three eras: over the runners each shape meets each era.
        scheme = BUGS[bug].scheme if bug else list(LocationScheme)[(place + place // 12) % 3]
        dtype, page_size = shape
        bugs = (bug,) if bug else ()
        trials.append(
            TrialConfig(each_runner, each_preset, dtype, device, scheme, page_size, bugs=bugs)
        )
    return trials


def bug_trial(bug: str, runner: str, device: str, preset: str | None) -> TrialConfig:
    """Return a trial of a bug on a runner, each pair on another preset, page size and dtype."""
    place = every_pair().index((bug, runner))
    dtype, page_size = list(product(DTYPES, PAGE_SIZES))[place % 4]
    chosen = preset or list(PRESETS)[place % len(PRESETS)]
    trial = TrialConfig(runner, chosen, dtype, device, page_size=page_size)
    return trial.with_bug(bug)


def every_pair() -> list[tuple[str, str]]:
    """Return every (bug, runner) that can be switched on."""
    return [
        (name, runner)
        for name, bug in BUGS.items()
        for runner in RUNNERS
        if not missing_inputs(bug, runner)
    ]


def name(trial: TrialConfig) -> str:
    """Return a trial in a test id."""
    parts = [trial.preset, str(trial.scheme), trial.dtype, f"page{trial.page_size}"]
    return "-".join([trial.runner, *parts, *([trial.bug] if trial.bug else [])])
