"""The captures of both engines of a pair."""

from collections import Counter
from collections.abc import Collection

from paritybit.harness.lockstep.logs import LogTrap
from paritybit.reference.batch import Mode
from paritybit.subjects.captured import CapturedEngine


class Captures:
    """The captures of both engines of a pair.

    - `executed`: whether a bug's code ran while they were built and captured. `counted` counts
      its calls.
    - `warnings`: the messages that `log` collected meanwhile.
    """

    def __init__(
        self,
        subject: CapturedEngine,
        fresh: CapturedEngine,
        counted: Counter[str],
        log: LogTrap,
    ) -> None:
        self.subject, self.fresh = subject, fresh
        self._counted, self._log = counted, log
        self.executed = counted.total() > 0
        self.warnings = log.take()

    @property
    def engines(self) -> list[CapturedEngine]:
        """Both engines, without duplicates."""
        return list(dict.fromkeys((self.subject, self.fresh)))

    def lacks(self, modes: Collection[Mode]) -> list[CapturedEngine]:
        """Return the engines in which a runner of these modes is not captured."""
        return [engine for engine in self.engines if engine.lacks(modes)]

    def capture(self, modes: Collection[Mode]) -> None:
        """Capture the runners of these modes that are not captured yet. Reset the worlds first."""
        before = self._counted.total()
        with self._log:
            for engine in self.lacks(modes):
                engine.capture(modes)
            self.executed = self.executed or self._counted.total() > before
        self.warnings += self._log.take()
