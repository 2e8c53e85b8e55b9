"""What a graph holds, and what it does not: the semantics every other property stands on.

Tests of a graph run on the device's own kind: a CUDA graph on CUDA, a tape on a CPU. A tape
runs its function while it records it and a CUDA graph does not, so static tensors get
their values after the capture.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from paritybit.harness.lockstep.config import DTYPES, TrialConfig
from paritybit.reference.ops import Ops
from paritybit.subjects.graphs.capture import Capture
from paritybit.subjects.graphs.dispatch import HOST_READS
from paritybit.subjects.graphs.segment import UncapturableError
from torch import Tensor

Function = Callable[[], Tensor]


@pytest.fixture(params=[False, True], ids=["outside", "inference"], autouse=True)
def inference(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run each test outside inference mode, and inside, where composite ops stay whole."""
    with torch.inference_mode(request.param):
        yield


def memory_pool(device: str) -> Any | None:
    """Return what the graphs of a device share: nothing on a CPU."""
    return None if device == "cpu" else torch.cuda.graph_pool_handle()


def capture(function: Function, ops: Ops, device: str) -> Capture[Tensor]:
    """Return the capture of `function`, run once before."""
    function()
    return Capture[Tensor](ops, memory_pool(device)).run(function)


def ops_of(device: str) -> Ops:
    """Return the op set of a device."""
    return TrialConfig(device=device).ops()


def counting(device: str) -> Tensor:
    """Return 0.0 .. 5.0 in two rows."""
    return torch.arange(6.0, device=device).view(2, 3)


def test_a_host_scalar_is_baked_in(device: str) -> None:
    static, factor = counting(device), 2.0

    def function() -> Tensor:
        return static * factor

    graph = capture(function, ops_of(device), device)
    factor = 5.0
    static.fill_(3)
    graph.replay()
    assert graph.output.tolist() == [[6.0] * 3] * 2


def test_a_tensor_bound_anew_is_not_seen_and_one_copied_into_is(device: str) -> None:
    captured = static = counting(device)

    def function() -> Tensor:
        return static + 1

    graph = capture(function, ops_of(device), device)
    captured.fill_(10)
    static = torch.full_like(captured, 50)
    graph.replay()
    assert graph.output.tolist() == [[11.0] * 3] * 2
    captured.copy_(static)
    graph.replay()
    assert graph.output.tolist() == [[51.0] * 3] * 2


def test_index_put_writes_where_its_static_indices_point_now(device: str) -> None:
    cache = torch.zeros(5, device=device)
    loc = torch.tensor([0, 1], device=device)
    values = torch.ones(2, device=device)

    def function() -> Tensor:
        cache.index_put_((loc,), values)
        cache[loc + 2] = values * 10
        return cache * 1

    graph = capture(function, ops_of(device), device)
    cache.zero_()
    loc.copy_(torch.tensor([2, 0]))
    values.copy_(torch.tensor([3.0, 4.0]))
    graph.replay()
    assert graph.output.tolist() == [4.0, 0.0, 40.0, 0.0, 30.0]


RESHAPED: dict[str, Callable[[Tensor], Tensor]] = {
    "to its own dtype": lambda static: static.to(static.dtype),
    "to another dtype": lambda static: static.to(torch.float64),
    "to an integer": lambda static: static.to(torch.int32),
    "float": lambda static: static.float(),
    "chunk": lambda static: static.chunk(2, -1)[1],
    "chunks of a result": lambda static: torch.cat((static + 1).chunk(3, -1)[::-1], -1),
    "split": lambda static: static.split([1, 2], -1)[1],
    "unbind": lambda static: static.unbind(0)[1],
    "T": lambda static: static.T,
    "reshaped as a view": lambda static: static.reshape(6),
    "reshaped as a copy": lambda static: static.T.reshape(6),
    "contiguous": lambda static: static.T.contiguous(),
    "flatten": lambda static: static.T.flatten(),
    "expand": lambda static: static[:, None].expand(2, 4, 3),
    "where with a scalar": lambda static: torch.where(static > 2, static, 0.0),
    "stack": lambda static: torch.stack([static, static + 1]),
    "list of indices": lambda static: static[static[:, 0].long().clamp(max=1)],
}


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_in_place_write_to_a_view_or_a_copy_ends_where_it_did(dtype: str, device: str) -> None:
    """A write through a view reaches the static tensor at replay, a write to a copy does not."""
    for name in RESHAPED.keys() - {"expand"}:  # Torch refuses a write to overlapping elements.
        function = partial(written_through, RESHAPED[name])
        static = counting(device).to(DTYPES[dtype])
        graph = capture(partial(function, static), ops_of(device), device)
        static.copy_(counting(device) * 2)
        graph.replay()
        wanted = function((counting(device) * 2).to(DTYPES[dtype]))
        assert torch.equal(graph.output, wanted), name


def written_through(reshape: Callable[[Tensor], Tensor], static: Tensor) -> Tensor:
    """Return what was written, and what became of the tensor it may be a view of."""
    written = reshape(static)
    written.add_(1)
    return torch.cat([written.double().flatten(), static.double().flatten()])


UNCAPTURABLE: dict[str, Callable[[Tensor], Any]] = {
    "tolist": lambda static: static * static.sum().tolist(),
    "numpy": lambda static: static * float(static.numpy().sum()),
    "repeats that follow values": lambda static: static.repeat_interleave(static[0].long(), 1),
    "item": lambda static: static * static.sum().item(),
    "float": lambda static: static * float(static.sum()),
    "array": lambda static: static * float(np.asarray(static).sum()),
    "a branch on a value": lambda static: static if static.sum() > 0 else -static,
    "a slice up to a value": lambda static: static[: static[0, 1].long()],
    "equal": lambda static: static if torch.equal(static, static) else -static,
    "nonzero": lambda static: static.nonzero(),
    "where without choices": lambda static: torch.where(static > 2)[0],
    "argwhere": torch.argwhere,
    "read by mask": lambda static: static[static > 2],
    "select by mask": lambda static: static.masked_select(static > 2),
    "write by mask": lambda static: static.index_put((static > 2,), static[1]),
    "write by mask in place": lambda static: static.index_put_((static > 2,), static[1].clone()),
    "a tensor of host data": lambda static: static + torch.tensor([1.0, 2.0, 3.0]),
    "an index of host data": lambda static: static[[1, 0]],
    "rand": lambda static: static + torch.rand(3),
    "randint": lambda static: static + torch.randint(5, (3,)),
    "randn_like": lambda static: static + torch.randn_like(static),
    "normal_": lambda static: static.normal_(),
    "multinomial": lambda static: torch.multinomial(static + 1, 1),
    "dropout": torch.nn.functional.dropout,
}


def test_the_tape_refuses_what_a_graph_cannot_hold() -> None:
    """Read back values, shapes and branches that follow values, host data, random draws."""
    recorded = set()
    before = [vars(holder).get(name) for holder, name in HOST_READS]
    for name, function in UNCAPTURABLE.items():
        ops = Ops()
        try:
            Capture[Any](ops, None).run(partial(function, counting("cpu")))
            recorded.add(name)
        except UncapturableError:
            assert ops.log is None, name
        assert [vars(holder).get(name) for holder, name in HOST_READS] == before, name
    assert recorded == set()


def test_what_a_break_writes_is_read_by_the_next_segment(device: str) -> None:
    """And a host scalar is baked into a segment, but not into a break."""
    static, mixed, factor = counting(device), torch.zeros(2, 3, device=device), 2.0
    graph = Capture[Tensor](ops_of(device), memory_pool(device))

    def function() -> Tensor:
        scaled = static * factor

        def eager() -> None:
            mixed.copy_(scaled * factor)

        graph.break_here(eager)
        return torch.cat([scaled, mixed + factor])

    graph.run(function)
    factor = 100.0
    for value in (3.0, 7.0):
        static.fill_(value)
        graph.replay()
        assert graph.output.tolist() == [[2 * value] * 3] * 2 + [[200 * value + 2] * 3] * 2


class GivenUpError(Exception):
    """Raised in the midst of a capture."""


def fail() -> None:
    """Give up."""
    raise GivenUpError


@pytest.mark.parametrize(
    "breaks", [0, 2, -1], ids=["in the first segment", "in a later segment", "in a break"]
)
def test_a_function_that_raises_leaves_nothing_recording(breaks: int, device: str) -> None:
    """Its own error comes out, no list is kept on, and the next capture holds what it ran."""
    ops, static = ops_of(device), counting(device)
    given_up = Capture[Tensor](ops, memory_pool(device))

    def function() -> Tensor:
        for _ in range(breaks):
            static.add_(1)
            given_up.break_here(lambda: None)
        ops.likeliest(static)
        if breaks < 0:
            given_up.break_here(fail)
        raise GivenUpError

    with pytest.raises(GivenUpError):
        given_up.run(function)
    assert ops.log is None
    held = given_up.operations
    graph = capture(lambda: ops.likeliest(static * 0)[0], ops, device)
    assert graph.operations == ["likeliest"]
    assert given_up.operations == held == ["likeliest"]
    static.fill_(3)
    graph.replay()
    assert graph.output.tolist() == [[pytest.approx(1 / 3)]] * 2


def test_graphs_of_one_memory_pool_leave_each_other_s_outputs_alone(device: str) -> None:
    shared, static = memory_pool(device), counting(device)
    ops = ops_of(device)
    graphs = [
        Capture[Tensor](ops, shared).run(partial(torch.mul, static, factor))
        for factor in (2.0, 3.0, 5.0)
    ]
    static.fill_(1)
    for graph in reversed(graphs):
        graph.replay()
    assert [graph.output.unique().tolist() for graph in graphs] == [[2.0], [3.0], [5.0]]
