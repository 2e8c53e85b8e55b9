"""What stands around an engine's code on a CPU: graphs, stubs, and calls by name."""

import torch

from reference.torch_ops import TorchOps
from subjects.engines.sglang.host.loading import STUBS
from subjects.engines.shared.graphs import CpuGraph, recording, whole
from subjects.engines.shared.loading import named
from subjects.engines.shared.stubs import StubFinder


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
