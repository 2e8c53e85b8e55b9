"""Clean trials, and a hunt for each bug on one runner. `paritybit regress` runs all."""

from paritybit.harness.campaigns.test_trials import test_clean_trial, test_hunt

__all__ = ["test_clean_trial", "test_hunt"]
