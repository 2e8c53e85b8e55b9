"""What stands around an engine's code on a CPU: graphs, stubs, and calls by name."""

import json

import pytest
import torch
from paritybit.reference.torch_ops import TorchOps
from paritybit.subjects.engines.sglang.host.loading import STUBS
from paritybit.subjects.engines.shared.graphs import (
    STREAM,
    CpuGraph,
    as_written,
    on_own_stream,
    recording,
    whole,
)
from paritybit.subjects.engines.shared.interpreter import remembered
from paritybit.subjects.engines.shared.loading import named
from paritybit.subjects.engines.shared.operators import define_operators
from paritybit.subjects.engines.shared.stubs import StubFinder
from paritybit.subjects.engines.shared.tensors import PinnedArray, on_device

from properties.support.interpreting import run_interpreted


def test_a_cpu_graph_keeps_a_kernel_whole_and_runs_no_python_again() -> None:
    CpuGraph.ops = TorchOps()
    source, doubled, total = torch.ones(3), torch.zeros(3), torch.zeros(3)
    ran: list[str] = []

    @whole
    def kernel(out: torch.Tensor, values: torch.Tensor) -> None:
        out.copy_(torch.from_numpy(values.numpy() * 2))

    graph = CpuGraph()
    with recording(graph):
        ran.append("python")
        kernel(doubled, source)
        total.copy_(doubled + source)
    source.fill_(5)
    graph.replay()
    assert total.tolist() == [15, 15, 15]
    assert ran == ["python"]


def test_a_kernel_within_one_that_is_kept_whole_is_a_part_of_it() -> None:
    CpuGraph.ops = TorchOps()
    ran: list[str] = []
    inner = whole(lambda: ran.append("inner"))

    @whole
    def outer() -> None:
        inner()
        ran.append("outer")

    graph, value = CpuGraph(), torch.ones(3)
    with recording(graph):
        outer()
    assert value.sum().item() == 3  # Nothing is recorded any more.
    graph.replay()
    assert ran == ["inner", "outer"] * 2


def test_stubs_are_the_names_listed_and_what_lies_below_them() -> None:
    finder = StubFinder(STUBS)
    assert all(finder.find_spec(name) for name in STUBS)
    assert finder.find_spec("sglang.srt.configs.model_config") is not None
    assert finder.find_spec("sglang.srt.utils") is None
    assert finder.find_spec("transformers_other") is None


def test_arguments_that_a_signature_does_not_name_are_left_out() -> None:
    def make(*, size: int) -> int:
        return size

    assert named(make, size=3, transpose=False)() == 3


def test_operators_that_an_import_wants_exist_and_give_one_answer_or_none() -> None:
    asked = ("supports_this", "supports_that")
    define_operators("paritybit_asked", asked, "(int capability) -> bool", lambda capability: False)
    define_operators("paritybit_asked", ("fused",), "(Tensor values) -> Tensor")
    assert not any(getattr(torch.ops.paritybit_asked, name)(90) for name in asked)
    with pytest.raises(NotImplementedError):
        torch.ops.paritybit_asked.fused(torch.ones(1))


def test_memory_that_is_not_pinned_is_its_own_view_and_an_array_tells_where_memory_lies() -> None:
    host = torch.arange(6, dtype=torch.int32).view(2, 3)
    assert on_device(host) is host
    told = PinnedArray(host).__cuda_array_interface__
    assert told["data"] == (host.data_ptr(), False)
    assert told["shape"] == (2, 3)
    assert told["typestr"] == "<i4"


def test_graphs_of_a_cpu_are_captured_on_the_stream_that_stands_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", CpuGraph)
    with on_own_stream(device="cpu") as context:
        assert context.stream is STREAM


def test_kernels_give_the_same_bits_by_a_quickened_interpreter_which_patches_once() -> None:
    done = run_interpreted("properties.engines.quickened")
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert any(abs(bits) > 1 << 30 for bits in found["before"]["wrapped"])
    assert found["after"] == [found["before"]] * 2
    assert {"moved", "scaled", "spread", "wrapped"} <= set(found["patched"])
    assert len(found["patched"]) == len(set(found["patched"]))


def test_what_describes_an_object_is_computed_once_a_key_and_never_its_own() -> None:
    computed: list[tuple[str, int]] = []

    class Made:
        """Stands for a type of tensor."""

        def __init__(self, handle: str, size: int) -> None:
            computed.append((handle, size))
            self.handle, self.doubled = handle, 2 * size

    described = remembered(Made.__init__, lambda handle, size: size or None, ("handle",))
    vars_of = []
    for handle, size in (("a", 3), ("b", 3), ("c", 4), ("d", 0), ("e", 0)):
        made = Made.__new__(Made)
        described(made, handle, size)
        vars_of.append((made.handle, made.doubled))
    assert vars_of == [("a", 6), ("b", 6), ("c", 8), ("d", 0), ("e", 0)]
    assert computed == [("a", 3), ("c", 4), ("d", 0), ("e", 0)]


def test_what_an_engine_compiles_runs_as_it_is_written() -> None:
    def doubled(value: int) -> int:
        return 2 * value

    assert as_written(doubled) is doubled
    assert as_written(doubled, dynamic=True) is doubled
    assert as_written(fullgraph=True)(doubled) is doubled
