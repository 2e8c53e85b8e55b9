"""A file of tasks that have ended, so that a campaign that was cut short goes on where it was.

It grows by each end as it comes. Whatever ends the process costs the last entry at most.
"""

import hashlib
import io
import os
import pickle
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

from paritybit.harness.campaigns.executor import Ended, Reported
from paritybit.harness.errors import MalformedError
from paritybit.harness.records.record import package_version
from paritybit.harness.records.sources import digest

T = TypeVar("T")
R = TypeVar("R", bound=Reported)

HEAD = b"paritybit-journal 2 "
"""What a journal begins with; what `build` returns follows, to the end of the line."""

SIZE = struct.Struct("<Q")
"""The length of an entry. It stands before it, and its digest: no damaged entry is a result."""

DIGEST = hashlib.sha256().digest_size

OURS = frozenset({"paritybit"})


def build() -> str:
    """Return what results depend on: this build's sources, Python, and what draws and computes."""
    versions = [str(package_version(name)) for name in ("torch", "triton", "numpy", "hypothesis")]
    return "-".join([digest(), *versions])


def framed(entry: bytes) -> bytes:
    """Return an entry as it stands in a journal, behind its length and its digest."""
    return SIZE.pack(len(entry)) + hashlib.sha256(entry).digest() + entry


class _ForeignError(Exception):
    """An entry refers to something that no journal of ours holds."""


class _OurClasses(pickle.Unpickler):
    """Makes nothing but objects of this build's classes, and calls no function of any."""

    def __init__(self, file: Any, packages: frozenset[str]) -> None:
        super().__init__(file)
        self.packages = packages

    def find_class(self, module: str, name: str) -> Any:
        """Return a class. Raises _ForeignError for anything else, or of other packages."""
        if (module, name) == ("collections", "Counter"):
            return Counter
        ours = module.partition(".")[0] in self.packages
        found = super().find_class(module, name) if ours else None
        if not isinstance(found, type):
            raise _ForeignError(f"{module}.{name} is nothing that a journal holds")
        return found


class Journal(Generic[T, R]):
    """The ends in one file of the tasks that a function carries out."""

    def __init__(self, path: Path, run: Callable[[T], R]) -> None:
        """Read what the file has; a new one is begun. Raises MalformedError for any other file."""
        self.path = path
        self.name = f"{run.__module__}.{run.__qualname__}"
        self.packages = OURS | {run.__module__.split(".")[0]}
        head = HEAD + build().encode() + b"\n"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            text = path.read_bytes() if path.exists() else b""
            whole = self._read(head, text)
            with path.open("r+b" if text else "wb") as file:
                file.truncate(whole)
                file.write(b"" if text else head)
        except OSError as error:
            raise MalformedError(f"journal {path} cannot be kept: {error.strerror}") from error

    def _read(self, head: bytes, text: bytes) -> int:
        """Take note of every whole entry of a file; return how many bytes these are."""
        self.ends: dict[str, Ended[T, R]] = {}
        if not text:
            return 0
        if not text.startswith(HEAD):
            raise MalformedError(f"{self.path.name} is no journal of paritybit")
        if not text.startswith(head):
            raise MalformedError(
                f"journal {self.path.name} is of another build, whose results are no part of this"
                " run: name a new file"
            )
        file = io.BytesIO(text)
        whole = file.seek(len(head))
        for key, ended in self._entries(file):
            self.ends[key] = ended
            whole = file.tell()
        return whole

    def _entries(self, file: io.BytesIO) -> Iterator[tuple[str, Ended[T, R]]]:
        """Yield the entries of a file up to its end, or to one that was cut short or damaged."""
        while len(size := file.read(SIZE.size)) == SIZE.size:
            kept, (length,) = file.read(DIGEST), SIZE.unpack(size)
            entry = file.read(min(length, sys.maxsize))
            if len(entry) != length or hashlib.sha256(entry).digest() != kept:
                return
            try:
                yield _OurClasses(io.BytesIO(entry), self.packages).load()
            except _ForeignError as error:
                raise MalformedError(f"{self.path.name}: {error}") from error

    def key(self, task: T) -> str:
        """Return what a task is known by: what carries it out, and all that it is."""
        return f"{self.name} {task!r}"

    def ended(self, task: T) -> Ended[T, R] | None:
        """Return how a task ended, if the journal has it."""
        return self.ends.get(self.key(task))

    def keep(self, ended: Ended[T, R]) -> None:
        """Add an end to the file. A task without a usable result is left out, to be run again."""
        if ended.result is None or ended.result.spoiled:
            return
        entry = framed(pickle.dumps((self.key(ended.task), ended)))
        with self.path.open("ab") as file:
            file.write(entry)
            file.flush()
            os.fsync(file.fileno())
