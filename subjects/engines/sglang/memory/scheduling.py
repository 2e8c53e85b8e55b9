"""What a mirror asks of an engine's host code. Knows no engine."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Asked:
    """What a batch asks for a request: columns begin .. end-1 of its row.

    `tokens` are those that it runs there, where they are known.
    """

    serial: int
    begin: int
    end: int
    tokens: tuple[int, ...] = ()


class Scheduling(Protocol):
    """Gives and takes rows and slots of requests, which are known by their serial numbers.

    All but `row`, `evicted` and `reserved` raise RuntimeError where the engine has no room,
    or fails.
    """

    def row(self, serial: int) -> int:
        """Return a request's row of the request table."""
        ...

    def evicted(self, serial: int) -> int:
        """Return how many of a request's first tokens have lost their SWA slots."""
        ...

    def reserved(self, serial: int) -> int:
        """Return how many of a request's tokens have slots for drafts to come, 0 if none has."""
        ...

    def extend(self, asked: Sequence[Asked]) -> Any:
        """Give slots to prefills, of new requests too; return the engine's batch."""
        ...

    def decode(self, asked: Sequence[Asked]) -> Any:
        """Give slots to decodes; return the engine's batch."""
        ...

    def draft(self, asked: Sequence[Asked]) -> None:
        """Give slots for drafts."""
        ...

    def drop(self, serial: int, begin: int, end: int) -> None:
        """Give up a request's last tokens, begin .. end-1, which were drafts.

        Their slots are free, unless the engine reserves them for drafts to come.
        """
        ...

    def advance(self, serial: int, length: int) -> None:
        """Keep account of what a request holds once drafts were accepted or dropped."""
        ...

    def evict(self, serial: int, length: int, unseen: int) -> None:
        """Evict what left the window of a request of so many tokens; the world has `unseen`."""
        ...

    def finish(self, serial: int) -> None:
        """Take back all that a request holds."""
        ...

    def retract(self, serial: int) -> None:
        """Take back all that a request holds, which may come again."""
        ...

    def clear(self) -> None:
        """Know no request; the pool is cleared besides."""
        ...
