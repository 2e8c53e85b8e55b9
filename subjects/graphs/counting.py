"""A graph that counts what a check asks about its replays."""

import torch
from paritybit.subjects.graphs.protocol import Graph


class CountingGraph:
    """A graph that adds itself to `replayed` with each replay.

    It also counts the blocks that the CUDA allocator hands out during its last replay.
    """

    def __init__(self, graph: Graph, replayed: list[Graph]) -> None:
        self.graph = graph
        self.operations = graph.operations
        self.replayed = replayed
        self.allocated = 0

    def replay(self) -> None:
        """Replay the graph and count."""
        before = allocations()
        self.graph.replay()
        self.allocated = allocations() - before
        self.replayed.append(self)


def allocations() -> int:
    """Return the number of blocks that the CUDA caching allocator has handed out so far."""
    if not torch.cuda.is_initialized():
        return 0
    stats = torch.cuda.memory.memory_stats_as_nested_dict()
    return int(stats["allocation"]["all"]["allocated"])
