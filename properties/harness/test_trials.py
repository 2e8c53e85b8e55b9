"""The trials of a clean build: few, and every two values of different axes meet in one of them."""

from itertools import combinations, product

import pytest
from paritybit.harness.checks.expectations import affected_runners
from paritybit.harness.lockstep.config import DTYPES, TrialConfig
from paritybit.reference.config import PRESETS
from paritybit.subjects.bugs.catalogue import BUGS

from properties.support.trials import (
    PAGE_SIZES,
    axes_of,
    clean_trials,
)

OPTIONS = [(None, None), ("breakable", "gpt_oss")]


@pytest.mark.parametrize(("runner", "preset"), OPTIONS)
def test_every_two_values_of_different_axes_meet_in_a_trial(
    runner: str | None, preset: str | None
) -> None:
    """Runner, preset, scheme, dtype, page size, width of drafts, as far as options leave open."""
    trials = clean_trials("cpu", runner, preset, None)
    axes = axes_of(runner, preset)
    for (one, values), (other, others) in combinations(axes.items(), 2):
        met = {(getattr(trial, one), getattr(trial, other)) for trial in trials}
        assert met == set(product(values, others))


def test_a_bug_is_tried_in_every_shape_on_all_runners_that_it_affects() -> None:
    """Under its own location scheme: nothing is left out where red is expected."""
    trials = clean_trials("cpu", None, None, "swa_pad")
    shapes = {(t.runner, t.preset, t.dtype, t.page_size) for t in trials}
    runners = set(affected_runners(BUGS["swa_pad"]))
    assert {"decode", "target_verify"} <= runners
    assert shapes == set(product(runners, PRESETS, DTYPES, PAGE_SIZES))
    assert len(trials) == len(shapes)
    assert {(trial.bugs, trial.scheme) for trial in trials} == {(("swa_pad",), "preset")}


def test_a_runner_or_a_preset_that_is_asked_for_is_tried_alone() -> None:
    for bug in (None, "swa_pad"):
        trials = clean_trials("cpu", "decode", "mimo", bug)
        assert {(trial.runner, trial.preset) for trial in trials} == {("decode", "mimo")}
        assert all(isinstance(trial, TrialConfig) for trial in trials)
