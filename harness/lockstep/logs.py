"""Collects log records at WARNING or above, except those of the fresh engine."""

import logging

from paritybit.harness.lockstep.config import FRESH_LOGGER

FRESH_LOGGER.propagate = False
FRESH_LOGGER.addHandler(logging.NullHandler())


class LogTrap(logging.Handler):
    """Collects the messages of records that reach the root logger while it is entered."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Collect one message."""
        self.messages.append(record.getMessage())

    def take(self) -> tuple[str, ...]:
        """Return what was collected since the last call."""
        taken, self.messages = tuple(self.messages), []
        return taken

    def __enter__(self) -> "LogTrap":
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self)
