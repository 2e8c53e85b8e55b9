"""What stands around an engine's code on a CPU: graphs, stubs, and calls by name."""

import json

import torch
from paritybit.reference.ops import Ops

from paritybit.engines.graphs import (
    CpuGraph,
    as_written,
    recording,
    whole,
)
from paritybit.engines.loading import named
from paritybit.engines.stubs import StubFinder
from paritybit.explore.sglang.loading import STUBS
from properties.support.interpreting import run_interpreted


def test_a_cpu_graph_keeps_a_kernel_whole_and_runs_no_python_again() -> None:
    CpuGraph.ops = Ops()
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
    CpuGraph.ops = Ops()
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


def test_the_corrected_interpreter_refuses_small_floats_and_counts_in_tensors() -> None:
    done = run_interpreted("properties.engines.corrected")
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["loop"] == [0, 0, 0, 9, 0, 0, 36, 0]
    refused = 'NotImplementedError("Triton\'s interpreter cannot compute with bf16")'
    assert found["small"] == {
        "moves": True, "adds": refused, "multiplies": refused, "reduces": refused,
    }  # fmt: skip


def test_what_an_engine_compiles_runs_as_it_is_written() -> None:
    def doubled(value: int) -> int:
        return 2 * value

    assert as_written(doubled) is doubled
    assert as_written(doubled, dynamic=True) is doubled
    assert as_written(fullgraph=True)(doubled) is doubled
