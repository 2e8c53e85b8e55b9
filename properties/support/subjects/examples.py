"""How many examples Hypothesis draws."""

from hypothesis import settings


def examples(times: int) -> settings:
    """Return settings of `times` as many examples as the profile asks for: for cheap tests."""
    return settings(max_examples=times * settings().max_examples)
