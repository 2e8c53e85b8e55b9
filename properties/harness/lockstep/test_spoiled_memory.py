"""What the fresh engine's graphs allocate and do not write is NaN at every replay."""

import torch
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.padding import spoiled_memory
from paritybit.subjects.graphs.capture import Capture
from torch import Tensor


def half_written(values: Tensor) -> Tensor:
    """Return new memory in which only the first row is written."""
    output = torch.empty_like(values)
    output[0] = values[0]
    return output


def test_a_graph_shows_what_it_did_not_write(device: str) -> None:
    values = torch.ones(2, 3, device=device)
    pool = None if device == "cpu" else torch.cuda.graph_pool_handle()
    graph = Capture[Tensor](TrialConfig(device=device).ops(), pool)
    with torch.inference_mode(), spoiled_memory():
        graph.run(lambda: half_written(values))
    values.fill_(2)
    for _ in range(2):
        graph.replay()
        assert graph.output[0].tolist() == [2.0] * 3
        assert graph.output[1].isnan().all()
