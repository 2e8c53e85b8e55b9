"""The journal: a file of finished tasks, with which an interrupted campaign can continue.

The file has one JSON object per line. The first line says what the file is:

    {"format": "paritybit-journal", "version": 3, "build": TEXT}

Every other line is a task that has ended, as `Entry` declares it:

    {"run": TEXT, "task": TEXT, "seconds": NUMBER, "result": OBJECT, "sha256": TEXT}

The return type of the function `run` declares the type of `result`; the file names no classes.
`sha256` is the digest of the line without this key. A line that is damaged, truncated, longer than
MOST_LINE_BYTES or not a valid result is ignored, and its task runs again.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, get_type_hints

from paritybit.harness.campaigns.executor import Ended, Reported
from paritybit.harness.errors import CannotRunError, MalformedError
from paritybit.harness.records.case import json_of
from paritybit.harness.records.files import MOST_BYTES, read_bytes
from paritybit.harness.records.record import package_version
from paritybit.harness.records.sources import digest
from paritybit.harness.records.typed_json import from_json, to_json

T = TypeVar("T")
R = TypeVar("R", bound=Reported)

FORMAT = "paritybit-journal"
VERSION = 3

BEGINNING = f'{{"format": "{FORMAT}"'.encode()
"""The first bytes of the journal of any build."""

MOST_LINE_BYTES = 4 * 2**20
"""The size limit of a line in bytes. The limit of the file is MOST_BYTES."""


@dataclass(frozen=True)
class Entry:
    """A task that has ended: the name of the function that ran it, its `repr` and its result."""

    run: str
    task: str
    seconds: float
    result: dict[str, Any]


def build() -> str:
    """Return the identity of the build: its sources, and the versions that results depend on."""
    versions = [str(package_version(name)) for name in ("torch", "triton", "numpy", "hypothesis")]
    return "-".join([digest(), *versions])


def head() -> bytes:
    """Return the first line of a journal of this build."""
    return json.dumps({"format": FORMAT, "version": VERSION, "build": build()}).encode() + b"\n"


def line_of(entry: dict[str, Any]) -> bytes:
    """Return the line of an entry, given as JSON data without its digest."""
    sha256 = hashlib.sha256(json.dumps(entry).encode()).hexdigest()
    return json.dumps({**entry, "sha256": sha256}).encode() + b"\n"


def entry_of(line: bytes) -> Entry:
    """Return the entry of a line. Raises ValueError for a line that `line_of` cannot have made."""
    data = json_of(line, "a line")
    if not isinstance(data, dict):
        raise ValueError("the line is no object")
    without_digest = {key: value for key, value in data.items() if key != "sha256"}
    if line_of(without_digest) != line:
        raise ValueError("the line is damaged")
    return from_json(Entry, without_digest, "the line")


def begun(path: Path) -> bytes:
    """Return the complete lines of a journal. A new or empty file gets its first line.

    An incomplete last line is cut off. Raises MalformedError for the journal of another build, any
    other file, and anything that is not a regular file, CannotRunError for a full disk.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            raise MalformedError(f"journal {path} cannot be kept: it is not a regular file")
        path.open("ab").close()
    except OSError as error:
        raise MalformedError(f"journal {path} cannot be kept: {error.strerror}") from error
    content, first = read_bytes(path), head()
    if first.startswith(content):
        content = b""
    elif not content.startswith(BEGINNING):
        raise MalformedError(f"{path.name} is not a journal of paritybit")
    elif not content.startswith(first):
        raise MalformedError(
            f"journal {path.name} was written by another build, whose results this run cannot use:"
            " name a new file"
        )
    whole = content[: content.rfind(b"\n") + 1]
    try:
        with path.open("r+b") as file:
            file.truncate(len(whole))
            file.write(b"" if whole else first)
    except OSError as error:
        raise not_kept(path, error) from error
    return whole or first


def not_kept(path: Path, error: OSError) -> CannotRunError:
    """Return the error for a journal that cannot be written any more."""
    return CannotRunError(f"journal {path} cannot be written: {error.strerror}")


class Journal(Generic[T, R]):
    """The finished tasks of one function in one file, with their results."""

    def __init__(self, path: Path, run: Callable[[T], R]) -> None:
        """Read the file, or create it. Raises as `begun` does."""
        self.path = path
        self.name = f"{run.__module__}.{run.__qualname__}"
        self.result_type: type[R] = get_type_hints(run)["return"]
        content = begun(path)
        self.size = len(content)
        self.ends = dict(self._ends(content.splitlines(keepends=True)[1:]))

    def _ends(self, lines: list[bytes]) -> Iterator[tuple[str, tuple[float, R]]]:
        """Yield task, seconds and result of each valid line for this function."""
        for line in lines:
            if len(line) > MOST_LINE_BYTES:
                continue
            try:
                entry = entry_of(line)
                if entry.run == self.name:
                    result = from_json(self.result_type, entry.result, "the result")
                    yield entry.task, (entry.seconds, result)
            except ValueError:  # The task runs again.
                continue

    def ended(self, task: T) -> Ended[T, R] | None:
        """Return the end of a task, or None if the journal does not have it."""
        kept = self.ends.get(repr(task))
        return None if kept is None else Ended(task, *kept)

    def keep(self, ended: Ended[T, R]) -> None:
        """Add an end to the file. Raises CannotRunError if it cannot be written.

        A task without a usable result, or with one above a size limit, is not added, so it runs
        again.
        """
        if ended.result is None or ended.result.spoiled:
            return
        entry = Entry(self.name, repr(ended.task), ended.seconds, to_json(ended.result))
        line = line_of(to_json(entry))
        if len(line) > MOST_LINE_BYTES or self.size + len(line) > MOST_BYTES:
            return
        try:
            with self.path.open("ab") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise not_kept(self.path, error) from error
        self.size += len(line)
