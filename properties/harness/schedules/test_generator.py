"""The same seed draws the same schedules. That they reach what they must is in each verdict."""

from paritybit.harness.campaigns.search import draw_schedules
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.schedules.schedule import Schedule


def drawn(seed: int) -> list[Schedule]:
    """Return what a seed draws."""
    found: list[Schedule] = []
    draw_schedules(TrialConfig("decode"), found.append, seed, 15)
    return found


def test_the_same_seed_draws_the_same_schedules() -> None:
    assert drawn(3) == drawn(3) != drawn(4)
