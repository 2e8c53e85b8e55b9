"""What graphs captured: the addresses and values of their static inputs."""

from collections.abc import Sequence

from paritybit.watch.facts import StaticInput
from paritybit.watch.journal import Journal
from paritybit.watch.observations import Captured
from paritybit.watch.weak import ByObject

SMALL = 2**20
"""Values of at most this many bytes are kept."""


class Captures(ByObject[dict[str, Captured]]):
    """The static inputs of each captured graph, by name. No graph and no input is kept alive."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self.journal = journal

    def note(self, graph: object, kind: str, inputs: Sequence[StaticInput]) -> None:
        """Record the state of the static inputs of a graph that has just been captured."""
        self[graph] = {
            static.name: Captured(
                static.tensor.data_ptr(),
                static.tensor.dtype,
                tuple(static.tensor.shape),
                static.tensor.clone() if static.tensor.nbytes <= SMALL else None,
            )
            for static in inputs
        }
        self.journal.count(captures=1, **{f"captures: {kind}": 1})
