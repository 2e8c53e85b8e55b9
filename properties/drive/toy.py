"""A toy engine: a player's requests are what it is served, until a test ends them."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from paritybit.drive.engine import Acts, Engine, PlayedError
from paritybit.drive.requests import Limits
from paritybit.drive.script import Planned

LIMITS = Limits(window=16, page=16, chunk=64, context=1536, pool=1536, rows=8)


class Toy(Engine):
    """An engine that ends each request at once, and has some acts of an operator."""

    def __init__(
        self, names: Sequence[str] = (), at_rest: Callable[[], bool] = lambda: True
    ) -> None:
        super().__init__()
        self.names, self._at_rest = names, at_rest

    def start(self, direct: Callable[[Engine], object]) -> None:
        """Call `direct`."""
        direct(self)

    def run(self) -> None:
        """Poll until all waves are played."""
        with suppress(PlayedError):
            while True:
                self.step([one for one in self.player.poll() if isinstance(one, Planned)])

    def step(self, arrived: Sequence[Planned]) -> None:
        """End the requests that have arrived."""
        for one in arrived:
            self.player.ended(one.name, [7] * one.tokens)

    def arrive(self, one: Planned, prompt: list[int]) -> Any:
        """Return the request."""
        return one

    def abort(self, name: str) -> Any:
        """Return the abort as text."""
        return f"abort {name}"

    def flush(self) -> Any:
        """Return the flush as text."""
        return "flush at the end"

    def acts(self) -> Acts:
        """Return acts that return their names."""
        return {name: lambda name=name: [name] for name in self.names}  # type: ignore[misc]

    def at_rest(self) -> bool:
        """Return what the test says."""
        return self._at_rest()


def said(orders: Sequence[Any]) -> list[str]:
    """Return the orders of a player as text. A request is its name."""
    return [one.name if isinstance(one, Planned) else one for one in orders]
