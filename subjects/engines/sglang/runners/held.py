"""Which tensors that attention backends hold are static buffers of graphs, and which a batch's."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from paritybit.subjects.captured import facts_of
from paritybit.subjects.engines.sglang.runners.tensors import tensors_of
from paritybit.subjects.engines.shared.graphs import Replays
from paritybit.subjects.protocol import BufferFacts
from torch import Tensor

OF_GRAPHS = ("cuda_graph", "_indptr")
"""Parts of names that backends give to what graphs read: such a tensor is static by its name."""

APART = "req_to_token"
"""The engine's table of requests, which backends hold too."""


class HeldByBackends:
    """The tensors that a runner's backends hold, by the names of both, watched during capture.

    `of_batches` are the names of those that belong to a batch: at a capture another tensor had
    the name than at the one before. A tensor that first came after the last capture is in no
    graph.
    """

    def __init__(self, backends: Callable[[], Mapping[str, Any]]) -> None:
        self.backends = backends
        self.of_batches = set[str]()
        self._captured: frozenset[str] | None = None
        self._last: Mapping[str, BufferFacts] = {}

    def all(self) -> dict[str, Tensor]:
        """Return every tensor that the backends hold."""
        return {
            f"{label}.{name}": tensor
            for label, backend in self.backends().items()
            for name, tensor in tensors_of(backend).items()
            if name != APART
        }

    def statics(self) -> dict[str, Tensor]:
        """Return those that the captured graphs may read; before any graph is captured, all."""
        held, captured = self.all(), self._captured
        if captured is None:
            return held
        known = captured - self.of_batches
        return {name: tensor for name, tensor in held.items() if name in known}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look at what is held as each graph is captured."""
        Replays.watchers.append(self._look)
        try:
            yield
        finally:
            Replays.watchers.remove(self._look)
        self._captured = frozenset(self.all())

    def _look(self) -> None:
        now = facts_of(self.all())
        other = {name for name in now.keys() & self._last.keys() if now[name] != self._last[name]}
        self.of_batches |= {name for name in other if not any(part in name for part in OF_GRAPHS)}
        self._last = now

    def notes(self) -> list[str]:
        """Return, in words, which tensors were taken for a batch's."""
        return [
            f"not checked directly: {name}. Each capture binds it to another tensor, so "
            "an error there shows only in what a replay reads, writes or returns"
            for name in sorted(self.of_batches)
        ]
