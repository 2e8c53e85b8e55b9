"""Runs a forward several times, with the engine's own state as after the first run."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor


class Repeated:
    """A forward that may run several times. Only its first run is watched.

    Later runs take place in the context that `hidden` returns. It hides them from the connector,
    and restores the state of the engine that a forward changes.
    """

    def __init__(self, first: Callable[[], Any], hidden: Callable[[], Any]) -> None:
        self.first, self.hidden = first, hidden
        self.result: Any = None

    def run(self) -> Any:
        """Run the forward, and return its result."""
        with contextlib.nullcontext() if self.result is None else self.hidden():
            self.result = self.first()
        return self.result


@contextlib.contextmanager
def attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute, and restore its value afterwards."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def tensors(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in an output: a tensor, a container, or an object with attributes."""
    if isinstance(value, Tensor):
        yield name or "output", value
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from tensors(item, f"{name or 'output'}[{number}]")
    elif isinstance(value, Mapping) or dataclasses.is_dataclass(value):
        for key, item in (value if isinstance(value, Mapping) else vars(value)).items():
            if isinstance(item, Tensor):
                yield key, item
