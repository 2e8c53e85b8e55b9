"""Hears log records at WARNING or above, except those of the fresh engine."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import numpy as np
from paritybit.harness.lockstep.config import FRESH_LOGGER, SUBJECT_LOGGER

FRESH_LOGGER.propagate = False
FRESH_LOGGER.addHandler(logging.NullHandler())


HEARD = UserWarning, RuntimeWarning
"""Categories of Python warnings that are meant for the users of an engine."""


@contextmanager
def warnings_logged() -> Iterator[None]:
    """Log each warning of the engine from `warnings.warn`, except deprecations.

    Floating-point warnings of numpy are silenced, because they come from Triton's interpreter and
    not from the engine.
    """
    with np.errstate(all="ignore"), warnings.catch_warnings():
        for category in HEARD:
            warnings.simplefilter("always", category)
        show = warnings.showwarning

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
                show(message, category, filename, lineno, file, line)

        warnings.showwarning = log
        yield


class LogTrap(logging.NullHandler):
    """Collects the messages of records at WARNING or above while it is entered.

    Those of the fresh engine are left out. It hears the records of all loggers as they are made,
    because an engine's logger may have its own handlers and pass nothing to the root logger. It is
    also a handler of the root logger, so that records without another handler are not printed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def hear(self, record: logging.LogRecord) -> None:
        """Collect one message."""
        self.messages.append(record.getMessage())

    def take(self) -> tuple[str, ...]:
        """Return what was collected since the last call."""
        taken, self.messages = tuple(self.messages), []
        return taken

    def __enter__(self) -> "LogTrap":
        """Start hearing."""
        make = self._make = logging.getLogRecordFactory()

        def made(name: str, level: int, *rest: Any, **named: Any) -> logging.LogRecord:
            record = make(name, level, *rest, **named)
            if level >= logging.WARNING and name != FRESH_LOGGER.name:
                self.hear(record)
            return record

        logging.setLogRecordFactory(made)
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop hearing."""
        logging.setLogRecordFactory(self._make)
        logging.getLogger().removeHandler(self)
