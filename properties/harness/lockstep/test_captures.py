"""What is captured before the first step, and that nothing keeps it alive."""

import gc
import weakref

import torch
from paritybit.harness.checks.play import SchedulePlayer
from paritybit.harness.checks.step_properties.index_contract import contract_breaches
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.reference.batch import Mode

from properties.support.harness.planting import SCHEDULE, captured

SMALL = TrialConfig(buckets=(2, 4), token_buckets=(4, 12))


def test_a_buffer_that_is_replaced_after_a_capture_is_not_the_one_that_a_graph_reads() -> None:
    engine = SchedulePlayer(SMALL, (), alone=True).pair.engine
    buffers = engine.runners[Mode.DECODE].inputs.buffers
    buffers["positions"] = buffers["positions"].clone()
    with torch.inference_mode():
        replay = engine.forward(None, Mode.DECODE).replay
    assert replay is not None
    assert [line.split(";")[0] for line in contract_breaches(engine.facts(replay))] == [
        "static buffer positions is not the tensor that was captured"
    ]


def test_a_lockstep_is_freed_without_the_collector() -> None:
    """The collector runs rarely, and a pair and its captured engines hold much memory."""
    player = SchedulePlayer(SMALL.with_bug("swa_pad"))
    player.play(SCHEDULE)
    held = [weakref.ref(one) for one in (player.pair, *captured(player))]
    gc.disable()
    try:
        del player
        assert [one() for one in held] == [None, None, None]
    finally:
        gc.enable()
