"""Plays waves of requests to an engine that polls for them."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paritybit.drive.operating.actions import Operator
from paritybit.drive.script import Planned, Wave

if TYPE_CHECKING:
    from paritybit.drive.engine import Engine


class PlayedError(BaseException):
    """Ends the event loop of a scheduler when all waves are played.

    It is a BaseException, so the engine's own handlers do not catch it.
    """


@dataclass
class Player:
    """Returns the arriving requests at each poll, and records the requests that have ended.

    When `stop` returns True, the player aborts the running requests. It ends as soon as the engine
    is idle, after that or after the last wave. `made` has the generated tokens of each request of
    the current wave that has ended, by name. `served` counts requests that have ended, and `played`
    counts waves.
    """

    waves: Iterator[Wave]
    engine: "Engine"
    stop: Callable[[], bool]
    idle_polls: int = 2
    served: int = 0
    played: int = 0
    made: dict[str, tuple[int, ...]] = field(default_factory=dict)
    _open: dict[str, Planned] = field(default_factory=dict)
    _waiting: list[Planned] = field(default_factory=list)
    _ended: dict[str, int] = field(default_factory=dict)
    _aborted: set[str] = field(default_factory=set)
    _prompts: dict[str, list[int]] = field(default_factory=dict)
    _poll: int = 0
    _quiet: int = 0
    _calm: int = 0
    _flush: bool = False
    _leaving: bool = False
    _operator: Operator = field(init=False)

    def __post_init__(self) -> None:
        """Create the operator for the actions that the engine supports."""
        self._operator = Operator(self.engine.acts(), self.engine.settled)

    @property
    def open(self) -> int:
        """The number of requests that have arrived and not ended."""
        return len(self._open)

    def poll(self) -> list[Any]:
        """Return the arrivals, aborts and actions of this poll.

        Raises PlayedError when all waves are played and the engine is idle.
        """
        given: list[Any] = []
        if not self._leaving and self.stop():
            self._leave(given)
        self._calm = 0 if self._open else self._calm + 1
        if not self._open and not self._waiting and not self._operator.busy:
            self._quiet += 1
            if self._quiet <= self.idle_polls:
                return given
            wave = None if self._leaving else next(self.waves, None)
            if wave is None:
                raise PlayedError
            self._begin(wave, given)
        self._poll += 1
        given += self._operator.due(self._poll, idle=self._calm > self.idle_polls)
        if self._operator.asleep:
            return given
        for planned in [one for one in self._waiting if self._due(one)]:
            self._arrive(planned, given)
        for name, planned in self._open.items():
            late = planned.aborted is not None and self._poll >= planned.aborted
            if late and name not in self._aborted:
                self._aborted.add(name)
                given.append(self.engine.abort(name))
        return given

    def ended(self, name: str, tokens: Iterable[int]) -> None:
        """Record that a request has ended with these tokens."""
        if self._open.pop(name, None) is not None:
            self._ended[name], self.made[name] = self._poll, tuple(tokens)
            self.served += 1

    def _begin(self, wave: Wave, given: list[Any]) -> None:
        if self._flush:
            given.append(self.engine.flush())
        self._waiting = list(wave.requests)
        self._ended, self._prompts, self._aborted, self.made = {}, {}, set(), {}
        self._poll, self._quiet, self._flush = 0, 0, wave.flush
        self._operator.begin(wave.actions)
        self.played += 1

    def _due(self, planned: Planned) -> bool:
        if planned.follows is None:
            return planned.arrives <= self._poll
        ended = self._ended.get(planned.follows)
        return ended is not None and ended + planned.arrives <= self._poll

    def _arrive(self, planned: Planned, given: list[Any]) -> None:
        self._waiting.remove(planned)
        prompt = planned.ids()
        if planned.follows is not None:
            before = self.made[planned.follows]
            prompt = [*self._prompts[planned.follows], *before, *prompt]
        self._open[planned.name] = planned
        self._prompts[planned.name] = prompt
        given.append(self.engine.arrive(planned, prompt))

    def _leave(self, given: list[Any]) -> None:
        self._leaving = True
        self._waiting = []
        given += self._operator.leave()
        for name in self._open:
            if name not in self._aborted:
                self._aborted.add(name)
                given.append(self.engine.abort(name))
