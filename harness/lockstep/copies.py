"""Copies of the KV of a pair around a step, so that it can be compared and restored."""

import torch
from paritybit.reference.pool import KVPools


class Copies:
    """Copies of both runs' storages, before and after the forwards of a step.

    `compared` is a mask in the storages' layout: all but the reserved slot of each sub-pool, and
    the reserved state slot.
    """

    def __init__(self, eager: KVPools, graph: KVPools) -> None:
        self.eager, self.graph = eager.storage, graph.storage
        self.eager_before, self.eager_after, self.graph_before, self.graph_after = (
            torch.empty_like(self.eager) for _ in range(4)
        )
        self.compared = torch.ones_like(self.eager, dtype=torch.bool)
        for _, _, arena in eager.layout.arenas_of(self.compared):
            arena[:, :, 0] = False
        eager.layout.states_of(self.compared)[0] = False

    def begin(self) -> None:
        """Copy both storages before a step."""
        torch._foreach_copy_([self.eager_before, self.graph_before], [self.eager, self.graph])

    def end_eager(self) -> None:
        """Copy the eager storage after its forward."""
        self.eager_after.copy_(self.eager)

    def end_graph(self) -> None:
        """Copy the graph storage after its forward."""
        self.graph_after.copy_(self.graph)

    def restore_eager(self) -> None:
        """Restore the eager storage to its bytes before the step."""
        self.eager.copy_(self.eager_before)

    def restore_graph(self) -> None:
        """Restore the graph storage to its bytes before the step."""
        self.graph.copy_(self.graph_before)
