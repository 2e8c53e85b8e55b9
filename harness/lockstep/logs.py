"""Trapping what is logged at WARNING or above, the fresh engine's own log apart."""

import logging
from types import TracebackType

from harness.lockstep.config import FRESH_LOGGER

FRESH_LOGGER.propagate = False
FRESH_LOGGER.addHandler(logging.NullHandler())


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
