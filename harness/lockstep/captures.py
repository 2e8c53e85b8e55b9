"""The captures of both engines of a pair."""

import traceback
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from paritybit.harness.lockstep.logs import LogTrap
from paritybit.harness.lockstep.tracebacks import SUBJECT_RUNS, SUBJECTS, SubjectFailedError
from paritybit.reference.batch import Mode
from paritybit.subjects.buffers import SharedBufferError
from paritybit.subjects.captured import CapturedEngine


@contextmanager
def capture_runs() -> Iterator[None]:
    """Turn an error that code in `subjects/` raises in this context into SubjectFailedError.

    SharedBufferError stays as it is: see `Lockstep.refused`.
    """
    try:
        with SUBJECT_RUNS:
            yield
    except SubjectFailedError as error:
        cause = error.__cause__
        frames = traceback.extract_tb(cause.__traceback__) if cause is not None else []
        if isinstance(cause, SharedBufferError) or not frames:
            raise (cause or error) from None
        if not Path(frames[-1].filename).is_relative_to(SUBJECTS):
            raise (cause or error) from None
        raise


class Captures:
    """The captures of both engines of a pair.

    `warnings` are the messages that `log` collected meanwhile.
    """

    def __init__(
        self,
        subject: CapturedEngine,
        fresh: CapturedEngine,
        log: LogTrap,
    ) -> None:
        self.subject, self.fresh = subject, fresh
        self._log = log
        self.warnings = log.take()

    @property
    def engines(self) -> list[CapturedEngine]:
        """Both engines, without duplicates."""
        return list(dict.fromkeys((self.subject, self.fresh)))

    def lacks(self, modes: Collection[Mode]) -> list[CapturedEngine]:
        """Return the engines in which a runner of these modes is not captured."""
        return [engine for engine in self.engines if engine.lacks(modes)]

    def capture(self, modes: Collection[Mode]) -> None:
        """Capture the runners of these modes that are not captured yet. Reset the runs first."""
        with self._log:
            for engine in self.lacks(modes):
                engine.capture(modes)
        self.warnings += self._log.take()
