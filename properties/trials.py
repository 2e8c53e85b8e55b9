"""The trials of the suite: every runner, preset, page size and dtype; location schemes in turn."""

from itertools import product

from harness.checks.expectations import affected_runners
from harness.lockstep.config import DTYPES, TrialConfig
from reference.config import PRESETS
from subjects.bugs.catalogue import BUGS
from subjects.bugs.switching import missing_inputs
from subjects.runners import ONE_PER_ENGINE, RUNNERS
from subjects.toggles import LocationScheme

PAGE_SIZES = (1, 4)


def clean_trials(
    device: str, runner: str | None, preset: str | None, bug: str | None
) -> list[TrialConfig]:
    """Return the trials that a clean build must pass, or the same ones broken by `bug`.

    A bug takes the runner asked for, or all that it affects.
    """
    runners = (
        [runner] if runner else list(affected_runners(BUGS[bug])) if bug else list(ONE_PER_ENGINE)
    )
    presets = [preset] if preset else list(PRESETS)
    shapes, schemes = list(product(DTYPES, PAGE_SIZES)), list(LocationScheme)
    a_round = len(PRESETS) * len(shapes)
    trials = []
    for place, (of_runner, of_preset, shape) in enumerate(product(runners, presets, shapes)):
        # A round is a multiple of the schemes: one more is skipped after each round, or else a
        # shape would meet the same schemes on every runner.
        turn = place + place // a_round
        scheme = BUGS[bug].scheme if bug else schemes[turn % len(schemes)]
        dtype, page_size = shape
        bugs = (bug,) if bug else ()
        trials.append(
            TrialConfig(of_runner, of_preset, dtype, device, scheme, page_size, bugs=bugs)
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
