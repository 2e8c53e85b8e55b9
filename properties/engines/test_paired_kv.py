"""KV of an engine that has more places than the world: what is written there is told."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from paritybit.harness.checks.of_steps.write_frame import describe, flag
from paritybit.subjects.engines.shared.engine import OthersEngine
from paritybit.subjects.engines.shared.paired import PairedKV, Plane, unpaired_of
from paritybit.subjects.protocol import ReplayFacts
from torch import Tensor

from properties.support.harness.observations import observation

PAIRED, TOTAL, SCRATCH = (0, 4, 2), 7, (5,)


class SevenPlaces(PairedKV):
    """Two layers of an engine with seven places, beside a world with three."""

    def __init__(self) -> None:
        self.world = [torch.arange(6.0).view(3, 2) + layer for layer in (1, 2)]
        self.engine = [torch.full((TOTAL, 2), 9.0) for _ in self.world]

    def _planes(self) -> Iterator[Plane]:
        for one, other in zip(self.world, self.engine, strict=True):
            yield Plane(one, other, torch.tensor(PAIRED), unpaired_of(PAIRED, TOTAL, SCRATCH))


def test_all_places_are_unpaired_but_counterparts_and_scratch() -> None:
    assert unpaired_of(PAIRED, TOTAL, SCRATCH).tolist() == [1, 3, 6]


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("place", range(TOTAL))
def test_a_place_that_no_token_has_is_told_when_it_is_written(layer: int, place: int) -> None:
    kv = SevenPlaces()
    kv.write_kv()
    kv.engine[layer][place, 1] = -5.0
    kv.read_kv()
    told = f"the forward wrote the engine's slot {place}, which holds no token's KV"
    assert kv.strayed == (told if place in {1, 3, 6} else None)
    kv.write_kv()
    kv.read_kv()
    assert kv.strayed is None


def test_all_of_the_world_s_kv_is_there_after_it_was_written_and_read() -> None:
    kv = SevenPlaces()
    right = [values.clone() for values in kv.world]
    kv.write_kv()
    for values in kv.world:
        values.zero_()
    kv.read_kv()
    assert all(map(torch.equal, kv.world, right))


class NoRunner(OthersEngine):
    """An engine of which nothing but its KV is asked."""


def test_what_an_engine_wrote_where_the_world_has_no_slot_violates_write_frame() -> None:
    right = observation()
    assert right.replay is not None
    kv = SevenPlaces()
    kv.write_kv()
    engine = NoRunner("decode", right.mode, dict[str, Tensor], kv, {})
    for wrong in (False, True):
        kv.engine[0][3] = float(wrong)
        kv.read_kv()
        seen = replace(right, facts=engine.facts(right.replay))
        assert bool(flag(seen)) is wrong
    assert describe(seen) == (kv.strayed, {"world": "graph"})
    assert kv.strayed is not None
    assert not flag(replace(right, facts=ReplayFacts()))
