"""Each scene reaches the boundary condition that it names."""

from collections import Counter, defaultdict
from itertools import cycle, product

import pytest
from paritybit.harness.campaigns.hunt import ground_of
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.schedules.boundaries import FACTORS, Row, scenes
from paritybit.harness.schedules.buckets import FILLINGS, filling
from paritybit.harness.schedules.schedule import Schedule
from paritybit.subjects.runners import RUNNERS

from properties.support.harness.planned import Planned

REACHED = {
    "one": "prompt of one token",
    "below": "length window - 1",
    "beyond": "length window + 1",
    "evicted": "evicted",
    "again": "slot issued again",
    "replaced": "finished",
    "resumed": "resumed",
    "chunks": "prompt in chunks",
}
"""What some scene of each value reaches; the longest context has a test of its own."""


@pytest.mark.parametrize("runner", RUNNERS)
def test_each_scene_reaches_what_it_names(runner: str) -> None:
    trial = TrialConfig(runner, page_size=4)
    ground, world = ground_of(trial), Planned(trial)
    events: dict[object, Counter[str]] = defaultdict(Counter)
    kinds = product(FACTORS["length"], FACTORS["event"])
    others = product(FACTORS["prompts"], FACTORS["filled"])
    for size, (kind, other) in product(ground.sizes, zip(kinds, cycle(others), strict=False)):
        row = Row(size, *kind, *other)
        if ground.fits(row):
            reached = world.play(Schedule(scenes(ground, [row])))
            for value in row:
                events[value] += reached
    assert [value for value in REACHED if not events[value][REACHED[value]]] == []
    wanted = [(size, filling(runner, size, how)) for size in ground.sizes for how in FILLINGS]
    assert [event for size, event in wanted if not events[size][event]] == []
