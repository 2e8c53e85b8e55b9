"""Static buffers are shared by name: what runners of one engine have in common, and with what.

What is shared follows from the rule, played here once more over the rows of the table: who
needs more than is pooled makes a larger buffer, and who came before keeps the smaller one.
"""

import pytest
import torch
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.reference.batch import MROPE_SECTIONS
from paritybit.subjects.buffers import BufferPool, SharedBufferError, StaticInputs
from paritybit.subjects.contracts import HIDDEN, Axis, keep
from paritybit.subjects.runners import RUNNERS, engine_runners

from properties.support.subjects.engines import ENGINE_OF, ENGINES, trial_of
from properties.support.subjects.graph_world import GraphWorld, shared_world
from properties.support.subjects.runners import EXPECTED, PRESET, ExpectedRunner
from properties.support.subjects.static_inputs import ExpectedInput


def test_a_smaller_buffer_of_a_name_is_the_start_of_the_pooled_one(device: str) -> None:
    pool = BufferPool(torch.device(device))
    large = pool.get("ids", (3, 4), torch.int64, 5)
    small = pool.get("ids", (6,), torch.int64, 9)
    assert large.tolist() == [[5] * 4] * 3
    assert small.tolist() == [5] * 6
    assert small.data_ptr() == large.data_ptr()
    small.zero_()
    assert large.flatten().tolist() == [0] * 6 + [5] * 6


def test_a_larger_buffer_of_a_name_becomes_the_pooled_one_and_holders_keep_theirs(
    device: str,
) -> None:
    pool = BufferPool(torch.device(device))
    held = pool.get("ids", (2,), torch.int64, 5)
    larger = pool.get("ids", (4,), torch.int64, 6)
    again = pool.get("ids", (2,), torch.int64, 7)
    assert larger.tolist() == [6] * 4
    assert again.data_ptr() == larger.data_ptr() != held.data_ptr()
    again.zero_()
    assert held.tolist() == [5, 5]


def test_buffers_of_other_names_are_apart(device: str) -> None:
    pool = BufferPool(torch.device(device))
    first, second = pool.get("a", (2,), torch.int64, 1), pool.get("b", (2,), torch.int64, 2)
    assert first.data_ptr() != second.data_ptr()
    assert (first.tolist(), second.tolist()) == ([1, 1], [2, 2])


def test_a_name_has_one_dtype(device: str) -> None:
    pool = BufferPool(torch.device(device))
    pool.get("ids", (2,), torch.int64, 0)
    with pytest.raises(SharedBufferError, match=r"ids is shared as torch\.int64, not torch\.int32"):
        pool.get("ids", (2,), torch.int32, 0)


def test_a_host_buffer_is_on_the_host(device: str) -> None:
    pool = BufferPool(torch.device(device))
    assert pool.get("lens", (2,), torch.int32, 1, host=True).device.type == "cpu"
    assert pool.get("ids", (2,), torch.int32, 1).device.type == torch.device(device).type


def test_a_stale_tail_may_hold_the_bytes_of_another_runner(device: str) -> None:
    pool, rows = BufferPool(torch.device(device)), (keep("ids", Axis.TOKEN, torch.int64),)
    larger, smaller = (
        StaticInputs(rows, {Axis.TOKEN: bucket}, pool, torch.float32, 3) for bucket in (4, 3)
    )
    larger.populate({"ids": torch.full((4,), 8, device=device)}, padded=False)
    smaller.populate({"ids": torch.full((1,), 1, device=device)}, padded=True)
    assert smaller.buffers["ids"].tolist() == [1, 8, 8]


def bucket_of(runner: str, world: GraphWorld) -> int:
    """Return the largest bucket of a runner, in its own unit."""
    prefill = not EXPECTED[runner].attention_captured
    return max(world.trial.token_buckets if prefill else world.trial.buckets)


def elements(row: ExpectedInput, runner: ExpectedRunner, bucket: int, hidden: int) -> int:
    """Return how many elements a static input has for a bucket."""
    if row.axis is Axis.SCALAR:
        return 1
    extents = runner.extents(bucket)
    if row.axis is Axis.MROPE:
        return MROPE_SECTIONS * extents[Axis.TOKEN]
    return extents[row.axis] * {None: 1, HIDDEN: hidden}.get(row.width, row.width or 1)


Holders = dict[str, list[tuple[list[str], int]]]
"""By the name of a static input: the holders of each of its buffers, and what it holds."""


def expected_holders(world: GraphWorld) -> Holders:
    """Return who shares what, by the rule, and what its maker has filled each buffer with."""
    found: Holders = {}
    pooled: dict[str, int] = {}
    for kind in engine_runners(world.trial.runner):
        runner = EXPECTED[kind.name]
        bucket = bucket_of(kind.name, world)
        for name, row in runner.inputs_under(world.trial.scheme).items():
            wanted = elements(row, runner, bucket, world.config.hidden)
            of_name = found.setdefault(name, [])
            if runner.shares_buffers and wanted <= pooled.get(name, 0):
                of_name[-1][0].append(kind.name)
                continue
            if runner.shares_buffers:
                pooled[name] = wanted
                of_name.append(([kind.name], row.new))
            else:  # Kept apart from the pooled one, which stays last.
                of_name.insert(0, ([kind.name], row.new))
    return found


@pytest.mark.parametrize("engine", ENGINES)
def test_the_runners_of_one_engine_share_the_buffers_of_a_name(engine: str, device: str) -> None:
    """And are captured with what the maker of a shared buffer has filled it with."""
    world = shared_world(trial_of(engine, PRESET, device))
    world.reset()
    found: dict[str, dict[int, tuple[list[str], set[float]]]] = {}
    for runner in world.runners.values():
        for name, buffer in runner.inputs.buffers.items():
            holders, values = found.setdefault(name, {}).setdefault(buffer.data_ptr(), ([], set()))
            holders.append(runner.name)
            values.update(buffer.flatten().tolist())
    wanted = expected_holders(world)
    assert found.keys() == wanted.keys()
    for name, buffers in found.items():
        by_address = sorted((holders, values) for holders, values in buffers.values())
        assert by_address == sorted((holders, {new}) for holders, new in wanted[name]), name


def test_buffers_are_shared_and_outgrown_somewhere(device: str) -> None:
    """Else what is held against the rule would prove nothing."""
    holders = [
        buffers
        for engine in ENGINES
        for buffers in expected_holders(shared_world(trial_of(engine, PRESET, device))).values()
    ]
    assert any(len(names) > 1 for buffers in holders for names, _ in buffers)
    assert any(len(buffers) > 1 and len(buffers[-1][0]) > 1 for buffers in holders)


@pytest.mark.parametrize("runner", RUNNERS)
def test_each_axis_is_as_long_as_a_bucket_asks(runner: str, device: str) -> None:
    """A bucket is of requests, or of tokens; a draft takes slots for each step of each branch."""
    world = shared_world(trial_of(ENGINE_OF[runner], PRESET, device))
    found = world.runners[runner].extents(3)
    wanted = EXPECTED[runner].extents(3)
    assert {axis: found[axis] for axis in wanted} == wanted == dict(found)


@pytest.mark.parametrize("runner", RUNNERS)
def test_an_engine_whose_runners_disagree_on_a_dtype_is_not_built(runner: str, device: str) -> None:
    """One that has its buffers to itself has no one to disagree with."""
    trial = TrialConfig(runner, device=device, buckets=(2,), token_buckets=(4,))
    broken = trial.with_bug("shared_buffer_dtype")
    if EXPECTED[runner].shares_buffers:
        with pytest.raises(SharedBufferError, match=r"static buffer positions is shared as"):
            GraphWorld(broken)
    else:
        buffers = GraphWorld(broken).runners[runner].inputs.buffers
        assert buffers["positions"].dtype is torch.int32
