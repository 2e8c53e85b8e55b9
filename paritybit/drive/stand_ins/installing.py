"""Installs stand-ins in an engine's process, and reports them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from paritybit.watch import journal


@dataclass(frozen=True)
class StandIn:
    """What is replaced, why, and what replaces it. `install` says what it replaced, if it varies.

    One that replaced nothing returns an empty text.
    """

    what: str
    why: str
    install: Callable[[], str | None]


def install(device: str, anywhere: Sequence[StandIn], on_a_cpu: Sequence[StandIn]) -> None:
    """Install what the device lacks, and report it. Must run before the engine is imported."""
    if device == "cpu":
        torch.set_num_threads(1)  # Tiny tensors: more threads only wait for one another.
    put((*anywhere, *(on_a_cpu if device == "cpu" else ())))


def put(stand_ins: Sequence[StandIn]) -> None:
    """Install some stand-ins in their order, and report each."""
    lines = journal.of_process()
    for one in stand_ins:
        detail = one.install()
        if lines is not None and detail != "":
            lines.stand_in(f"{one.what}: {detail}" if detail else one.what, one.why)
