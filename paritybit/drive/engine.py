"""A started engine that serves waves of requests in this process, and its errors."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from zlib import crc32

from paritybit.connectors.failures import judge, report
from paritybit.drive.operating.actions import Operator
from paritybit.drive.script import Planned, Wave
from paritybit.watch import journal
from paritybit.watch.observations import EngineError
from paritybit.watch.settings import active

MOST_POLLS = 3000
"""The most polls in a row without a forward while requests wait."""


class LikelyStep(NamedTuple):
    """The next token of a request, also where a draft is forced, and the likeliest ones.

    `likely` has each of these with its log-likelihood, in descending order.
    """

    taken: int
    likely: Sequence[tuple[int, float]]


Acts = Mapping[str, Callable[[], Sequence[Any]]]
"""Functions that return the engine's own requests for an act, by the name of the act.

Acts are the actions, `continue`, which ends a pause, and variants: `flush retracted` is for times
at which requests are retracted, and `weights kept` does not empty the cache.
"""


class EngineFailedError(BaseException):
    """The engine raised an error. Its own handlers do not catch this."""


class StalledError(EngineFailedError):
    """Requests wait, but the engine runs none of them."""


def judge_failure(failed: BaseException) -> None:
    """Write a finding if an error is the engine's fault."""
    lines, settings = journal.of_process(), active()
    if lines is None or settings is None:
        return
    error = failed.__cause__ or failed
    if isinstance(error, StalledError):
        text = " ".join(str(error).split())
        forwards = lines.counts.get("forwards", 0)
        report(EngineError(forwards, "the engine stalls", text), lines, settings)
    else:
        judge(error, lines, settings)


class PlayedError(BaseException):
    """Ends the event loop of a scheduler when all waves are played. Engines do not catch it."""


ABORTED = "requests aborted while their KV moved"
SAMPLED = "requests with parameters of sampling"
"""The names of counts."""

MOST_QUIET = 500
"""The most polls in which a player waits for copies of KV to end."""


@dataclass
class Player:
    """Returns the arriving requests at each poll, and records the requests that have ended.

    When `stop` returns True, the player aborts the running requests. It ends as soon as the engine
    is idle, after that or after the last wave. `made` has the tokens of each ended request of the
    current wave, by name.
    """

    waves: Iterator[Wave]
    engine: "Engine"
    stop: Callable[[], bool]
    idle_polls: int = 2
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
    _asked: bool = False
    _leaving: bool = False
    _left: float = math.inf
    _moving: dict[str, set[str]] = field(default_factory=dict)
    """The ways in which KV of each request has moved."""
    _operator: Operator = field(init=False)

    def __post_init__(self) -> None:
        self._operator = Operator(self.engine.acts(), self.engine.at_rest)

    @property
    def open(self) -> int:
        """The number of requests that have arrived and not ended."""
        return len(self._open)

    @property
    def sessions(self) -> tuple[set[int | None], set[int | None]]:
        """The sessions of the requests that will arrive, and of those that run."""
        waiting, running = self._waiting, self._open.values()
        return {one.session for one in waiting}, {one.session for one in running}

    def poll(self) -> list[Any]:
        """Return the arrivals, aborts and actions of this poll. Raises PlayedError at the end."""
        given: list[Any] = []
        if not self._leaving and (self.stop() or self._poll >= self._left):
            self._leaving, self._waiting = True, []
            if (lines := journal.of_process()) is not None:
                lines.write("leave", poll=self._poll)
            given += self._operator.leave()
        self._calm = 0 if self._open else self._calm + 1
        if not self._open and not self._waiting and not self._operator.busy:
            self._quiet += 1
            if self._quiet <= self.idle_polls:
                return given
            if self._flush and self._quiet < MOST_QUIET:
                if self.engine.defers and not self._asked:
                    self._asked = True
                    return [*given, self.engine.flush()]
                # An engine that copies KV refuses to empty its cache.
                if self.engine.defers or not self.engine.at_rest():
                    return given
            wave = None if self._leaving else next(self.waves, None)
            if wave is None:
                raise PlayedError
            self._begin(wave, given)
        self._poll += 1
        given += self._operator.due(self._poll, idle=self._calm > self.idle_polls)
        for planned in [one for one in self._waiting if self._due(one)]:
            self._arrive(planned, given)
        for name, planned in self._open.items():
            polls = self._poll - self._ended.get(planned.follows or "", 0)
            late = planned.aborted is not None and polls >= planned.aborted
            late = late and (not planned.while_moving or self._moves(name))
            if (late or self._leaving) and name not in self._aborted:
                self._aborted.add(name)
                if self.engine.moves(name):
                    journal.count(**{ABORTED: 1})
                given.append(self.engine.abort(name))
        return given

    def _moves(self, name: str) -> bool:
        """Return whether KV of a request moves, for every second one in a second way."""
        seen = self._moving.setdefault(name, set())
        seen.add(self.engine.moves(name))
        return len(seen - {""}) > crc32(name.encode()) % 2

    def ended(self, name: str, tokens: Iterable[int]) -> None:
        """Record that a request has ended with these tokens."""
        if (one := self._open.pop(name, None)) is not None:
            journal.count(requests=1, **{SAMPLED: int(one.sampling is not None)})
            self._ended[name], self.made[name] = self._poll, tuple(tokens)

    def flushed(self) -> None:
        """Record that the engine has emptied its cache, for which it waited."""
        self._flush = self._flush and not self._asked

    def _begin(self, wave: Wave, given: list[Any]) -> None:
        if self._flush and not self._asked:
            given.append(self.engine.flush())
        self._asked = False
        self._waiting = list(wave.requests)
        self._ended, self._prompts, self._aborted, self.made = {}, {}, set(), {}
        self._moving = {}
        self._poll, self._quiet, self._flush = 0, 0, wave.flush
        self._left = math.inf if wave.left is None else wave.left
        self._operator.begin(wave.actions)

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


class Engine(ABC):
    """An engine. The functions that a player calls return the engine's own requests.

    `forwards` is the number of batches that ran. `likely` collects the steps of each request if it
    is not None.
    """

    likely: dict[str, list[LikelyStep]] | None = None
    defers: bool = False
    """Whether a flush waits until the engine copies no KV. The player is then told."""
    forwards: int = 0
    player: Player
    _polls: tuple[int, int] = (0, 0)

    @abstractmethod
    def start(self, direct: Callable[["Engine"], object]) -> None:
        """Start the engine, and call `direct` when it is ready.

        Raises EngineFailedError if the engine raises, and LackingError for unsupported settings.
        """

    def play(self, waves: Iterator[Wave], stop: Callable[[], bool]) -> None:
        """Serve waves until `stop` returns True or none is left, then until the engine is idle.

        Raises EngineFailedError if the engine raises.
        """
        self._polls = self.forwards, 0
        self.player = Player(waves, self, stop)
        self.run()

    def require_progress(self, waiting: int) -> None:
        """Raise StalledError if requests wait and MOST_POLLS polls have run no batch."""
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

    def moves(self, name: str) -> str:
        """Return in which way KV of a request is copied from or to elsewhere, or only there.

        It is "" if it is not.
        """
        return ""

    def at_rest(self) -> bool:
        """Return whether the engine copies no KV now, without which it refuses some actions."""
        return True
