"""A planted fault of a static input: when it counts as planted, and as written over again."""

from types import SimpleNamespace
from typing import Any

import torch
from paritybit.reference.batch import Mode

from properties.engines.planted import Planted, input_fault

GIVEN = {"positions": torch.tensor([7, 8])}


class Backend:
    """An attention backend that plans nothing."""

    def init_forward_metadata_out_graph(self) -> None:
        """Plan what the graph reads, once its static inputs are populated."""


class Runner:
    """A runner of one static input, whose graph writes that input itself where told to."""

    mode = Mode.DECODE

    def __init__(self, graph_writes: bool) -> None:
        self.backend, self.graph_writes = Backend(), graph_writes
        self.held = torch.zeros(2, dtype=torch.int64)

    def statics(self) -> dict[str, torch.Tensor]:
        """Return the static inputs by name."""
        return {"positions": self.held}

    def given(self, _batch: Any) -> dict[str, torch.Tensor]:
        """Return what a batch brings."""
        return GIVEN

    def replay(self, _batch: Any) -> None:
        """Populate, plan, and launch the graph."""
        self.held.copy_(GIVEN["positions"])
        self.backend.init_forward_metadata_out_graph()
        if self.graph_writes:
            self.held.copy_(GIVEN["positions"])


class Subject:
    """An engine of one runner."""

    mode = Mode.DECODE

    def __init__(self, graph_writes: bool) -> None:
        self.runner = Runner(graph_writes)

    def forward(self, batch: Any, _mode: Mode) -> None:
        """Replay a batch."""
        self.runner.replay(batch)


def planted(graph_writes: bool) -> tuple[Planted, list[int]]:
    """Play one batch with the first row of an input wrong; return the counts and what it held."""
    subject, counted = Subject(graph_writes), Planted()
    with input_fault(subject, "positions", "first row wrong", counted):
        subject.forward(SimpleNamespace(), Mode.DECODE)
    return counted, subject.runner.held.tolist()


def test_a_fault_that_stays_is_planted_and_not_undone() -> None:
    assert planted(graph_writes=False) == (Planted(changed=1, undone=0), [8, 8])


def test_a_fault_that_the_graph_writes_over_is_told_as_undone() -> None:
    assert planted(graph_writes=True) == (Planted(changed=1, undone=1), [7, 8])
