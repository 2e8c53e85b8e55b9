"""A process group of one process, as an engine finds it."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch


class OneRank:
    """A process group of one process."""

    world_size = 1
    rank_in_group = 0
    rank = 0
    local_rank = 0
    ca_comm = None
    pcie_ipc_comm = None
    is_first_rank = True
    is_last_rank = True

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        self.ranks = [0]

    def barrier(self) -> None:
        """Wait for nobody."""

    @contextmanager
    def graph_capture(self, context: Any = None, stream: Any = None) -> Iterator[Any]:
        """Give the stream that a capture runs on."""
        if self.device == "cpu":
            yield context or SimpleNamespace(stream=None)
            return
        context = context or SimpleNamespace(stream=stream or torch.cuda.Stream())
        context.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(context.stream):
            yield context
        torch.cuda.current_stream().wait_stream(context.stream)
