"""Trapping what is logged at WARNING or above, the fresh engine's own log apart."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TextIO

from harness.lockstep.config import FRESH_LOGGER, SUBJECT_LOGGER

FRESH_LOGGER.propagate = False
FRESH_LOGGER.addHandler(logging.NullHandler())


HEARD = UserWarning, RuntimeWarning
"""What of Python's warnings is for whoever runs an engine, as a log is: deprecations are not."""

IGNORES_ALL = "ignore", None, Warning
"""How the filter begins by which a process ignores every warning, as an engine's trial does."""


@contextmanager
def warnings_logged() -> Iterator[None]:
    """Let the subject log what it says by `warnings.warn`, each time, unless all is ignored."""
    if any(one[:3] == IGNORES_ALL for one in warnings.filters[:1]):
        yield
        return
    with warnings.catch_warnings():
        for category in HEARD:
            warnings.simplefilter("always", category)
        shown = warnings.showwarning

        def log(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, HEARD):
                SUBJECT_LOGGER.warning("%s", message)
            else:
                shown(message, category, filename, lineno, file, line)

        warnings.showwarning = log
        yield


class LogTrap(logging.Handler):
    """Collects messages on the root logger while it is entered."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def __enter__(self) -> "LogTrap":
        """Start collecting."""
        logging.getLogger().addHandler(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop collecting."""
        logging.getLogger().removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Collect one message."""
        self.messages.append(record.getMessage())

    def take(self) -> tuple[str, ...]:
        """Return what was collected since the last call."""
        taken, self.messages = tuple(self.messages), []
        return taken
