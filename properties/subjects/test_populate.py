"""Each runner's static buffers under real replays: what is populated, and what is left stale.

Every runner runs a batch of live requests, in a bucket that it pads or fills, over static
inputs that hold what an earlier batch left.
"""

import pytest
import torch
from paritybit.harness.lockstep.bits import bits
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.subjects.contracts import Axis
from paritybit.subjects.runners import RUNNERS

from properties.support.subjects.engines import BUCKETS, ENGINE_OF, trial_of
from properties.support.subjects.graph_world import GraphWorld, shared_world
from properties.support.subjects.ready_forward import ReadyForward, live_values
from properties.support.subjects.runners import EXPECTED, PRESET
from properties.support.subjects.static_inputs import stale


def check_populated(planned: ReadyForward, *, device_reset: bool, host_reset: bool) -> None:
    """Replay over stale static inputs; see every live value, and every tail reset or as it was."""
    wanted = live_values(planned, EXPECTED[planned.name].per_bucket[Axis.TOKEN])
    planned.world.recapture()
    for name, row in planned.inputs.items():
        planned.buffer(name).fill_(stale(row.dtype))
    planned.forward()
    for name, row in planned.inputs.items():
        by_token = planned.buffer(name).T if row.axis is Axis.MROPE else planned.buffer(name)
        live = 0
        if name in wanted:
            values = wanted[name].T if row.axis is Axis.MROPE else wanted[name]
            live = values.shape[0]
            head = by_token[:live]
            assert torch.equal(head, values.to(head.device, head.dtype)), name
        assert by_token.shape[0] > live or row.axis is Axis.SCALAR, name
        was_reset = row.tail is not None and (host_reset if row.host else device_reset)
        left = row.tail if was_reset else stale(row.dtype)
        assert set(by_token[live:].flatten().tolist()) <= {left}, name


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_padded_replay_copies_live_values_and_resets_what_the_table_says(
    runner: str, device: str
) -> None:
    """Of a draft the inputs that are never populated stay as they were, all of them."""
    world = shared_world(trial_of(ENGINE_OF[runner], PRESET, device))
    planned = EXPECTED[runner].planned(runner, world)
    check_populated(planned, device_reset=True, host_reset=True)


@pytest.mark.parametrize("runner", [name for name, row in EXPECTED.items() if row.captures])
def test_a_replay_that_fills_its_bucket_resets_nothing(runner: str, device: str) -> None:
    world = shared_world(trial_of(ENGINE_OF[runner], PRESET, device))
    planned = EXPECTED[runner].planned(runner, world, requests=min(BUCKETS), filled=True)
    check_populated(planned, device_reset=False, host_reset=False)


@pytest.mark.parametrize(
    "runner", [name for name, row in EXPECTED.items() if row.host_follows_requests]
)
def test_a_replay_padded_in_tokens_alone_resets_nothing_on_the_host(
    runner: str, device: str
) -> None:
    """Its device rows are padded by tokens, its host rows by requests."""
    world = shared_world(trial_of(ENGINE_OF[runner], PRESET, device))
    planned = EXPECTED[runner].planned(runner, world, requests=min(BUCKETS))
    check_populated(planned, device_reset=True, host_reset=False)


@pytest.mark.parametrize("runner", [name for name, row in EXPECTED.items() if not row.captures])
def test_a_compiled_batch_of_a_captured_size_goes_past_the_static_inputs(
    runner: str, device: str
) -> None:
    """And what it gives has the bits of the same batch padded to another size."""
    fits, padded = (
        EXPECTED[runner].planned(
            runner, GraphWorld(TrialConfig(runner, device=device, buckets=buckets))
        )
        for buckets in ((3,), (4,))
    )
    for name, row in fits.inputs.items():
        fits.buffer(name).fill_(stale(row.dtype))
    output = fits.forward().output
    for name, row in fits.inputs.items():
        assert set(fits.buffer(name).flatten().tolist()) == {stale(row.dtype)}, name
    for name, value in output.items():
        assert torch.equal(bits(value.cpu()), bits(padded.plain.output[name])), name


def test_a_kept_tail_holds_the_tokens_of_another_runner(device: str) -> None:
    """A draft-extend after a verify, which left its own tokens in the buffer they share."""
    world = shared_world(trial_of(ENGINE_OF["target_verify"], PRESET, device))
    verify, extend = (
        EXPECTED[name].planned(name, world) for name in ("target_verify", "eagle_draft_extend")
    )
    live, left = extend.batch.live_tokens, verify.batch.input_ids.tolist()
    assert 0 < live < len(left)
    verify.forward()
    assert extend.buffer("input_ids")[: len(left)].tolist() == left
    extend.forward()
    ids = extend.buffer("input_ids")[: len(left)].tolist()
    assert ids == extend.batch.input_ids.tolist() + left[live:]
