"""A started engine that serves the requests of a player, in this process."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from paritybit.drive.failures import StalledError
from paritybit.drive.player import Player
from paritybit.drive.script import Planned, Wave

MOST_POLLS = 3000
"""The most polls in a row without a forward while requests wait."""

Likely: TypeAlias = Sequence[tuple[int, float]]
"""The likeliest next tokens, each with its log-likelihood, in descending order."""

Acts = Mapping[str, Callable[[], Sequence[Any]]]
"""Functions that return the engine's own requests for an act, by the name of the act.

Acts are the actions, and `continue` and `wake`, which end one. Some have variants: `flush
retracted` empties the cache while requests are retracted, and `weights kept` updates the weights
without emptying the cache.
"""


class Engine(ABC):
    """An engine. The functions that a player calls return the engine's own requests.

    - `forwards`: the number of batches that ran.
    - `likely`: if it is not None, it collects the likeliest tokens at each step of each request.
    """

    likely: dict[str, list[Likely]] | None = None
    forwards: int = 0
    player: Player
    _polls: tuple[int, int] = (0, 0)

    @abstractmethod
    def start(self, direct: Callable[["Engine"], object]) -> None:
        """Start the engine, and call `direct` when it is ready. Returns when `direct` has ended.

        Raises EngineFailedError if the engine raises, and LackingError for unsupported settings.
        """

    def play(self, waves: Iterator[Wave], stop: Callable[[], bool]) -> Player:
        """Serve waves until `stop` returns True or none is left, then until the engine is idle.

        Raises EngineFailedError if the engine raises.
        """
        self._polls = self.forwards, 0
        self.player = Player(waves, self, stop)
        self.run()
        return self.player

    def require_progress(self, waiting: int) -> None:
        """Raise StalledError if requests wait and the engine has not run a batch for too long."""
        before, polls = self._polls
        self._polls = self.forwards, polls + 1 if waiting and before == self.forwards else 1
        if self._polls[1] > MOST_POLLS:
            raise StalledError(
                f"{waiting} requests wait, and the engine asked {MOST_POLLS} times for more "
                "without running a batch"
            )

    @abstractmethod
    def run(self) -> None:
        """Run the engine until the player raises PlayedError."""

    @abstractmethod
    def arrive(self, one: Planned, prompt: list[int]) -> Any:
        """Return what starts a request. `prompt` begins with the conversation that it follows."""

    @abstractmethod
    def abort(self, name: str) -> Any:
        """Return what aborts a request."""

    @abstractmethod
    def flush(self) -> Any:
        """Return what empties the cache of an idle engine."""

    def acts(self) -> Acts:
        """Return the acts of an operator that the release supports."""
        return {}

    def settled(self) -> bool:
        """Return whether the engine copies no KV now, without which it refuses some actions."""
        return True
