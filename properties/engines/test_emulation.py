"""What stands around an engine's code on a CPU: graphs, stubs, and calls by name."""

import json

import torch
from paritybit.reference.ops import Ops

from paritybit.engines.graphs import (
    CpuGraph,
    recording,
    whole,
)
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


def test_the_corrected_interpreter_refuses_small_floats_and_counts_in_tensors() -> None:
    done = run_interpreted("properties.engines.corrected")
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["loop"] == [0, 0, 0, 9, 0, 0, 36, 0]
    refused = 'NotImplementedError("Triton\'s interpreter cannot compute with bf16")'
    assert found["small"] == {
        "moves": True, "adds": refused, "multiplies": refused, "reduces": refused,
    }  # fmt: skip
