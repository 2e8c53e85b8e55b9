"""No file that a user hands in runs code, fills the memory or blocks a command.

Each is refused in one sentence, with exit code 2, before anything is printed.
"""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from paritybit.harness.cli.exit_codes import OK
from paritybit.harness.records.codec import encoded

from paritybit.__main__ import main
from properties.support.harness.command_line import MALFORMED
from properties.support.records import shown
from properties.support.reports.records import green

GIB = 2**30

CONTENTS: dict[str, bytes] = {
    "lists nested deep": b"[" * 100_000,
    "objects nested deep": b'{"a":' * 100_000,
    "a number that no 64 bits hold": b"[1" + b"0" * 20 + b"]",
    "NaN": b"NaN",
    "a number without end": b"1e999",
    "binary": bytes(range(256)) * 100,
    "a pickle": pickle.dumps({"format": "paritybit-case"}),
    "a record of another kind": b'{"format": "paritybit-case", "version": [], "trial": 1e999}',
    "a case of watch": b'{"format": "paritybit-watch-case", "version": 1, "config": ["--device"]}',
    "a record of watch": b'{"format": "paritybit-watch", "version": 1, "findings": {"0": "x"}}',
}


def device(name: str) -> Callable[[Path], None]:
    """Return what makes a link to a device."""
    return lambda path: path.symlink_to(f"/dev/{name}")


def content(text: bytes) -> Callable[[Path], None]:
    """Return what writes a file."""

    def make(path: Path) -> None:
        path.write_bytes(text)

    return make


def sparse(path: Path) -> None:
    """Make a file of 1 GiB that takes no room on the disk."""
    with path.open("wb") as file:
        file.truncate(GIB)


HOSTILE: dict[str, Callable[[Path], None]] = {
    **{what: content(text) for what, text in CONTENTS.items()},
    "zeros without end": device("zero"),
    "a full device": device("full"),
    "an empty device": device("null"),
    "a pipe without a writer": os.mkfifo,
    "a folder": os.mkdir,
    "a loop of links": lambda path: path.symlink_to(path),
    "a broken link": lambda path: path.symlink_to(path.with_name("nowhere")),
    "a gigabyte": sparse,
}
"""How to make each kind of hostile file."""


@pytest.fixture(params=HOSTILE)
def hostile(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A hostile file of each kind."""
    path = tmp_path / "hostile.json"
    HOSTILE[request.param](path)
    return path


@pytest.mark.parametrize("command", ["replay", "report", "report --markdown", "report --issue"])
def test_a_hostile_file_is_refused(command: str, hostile: Path, refused: Any) -> None:
    refused(MALFORMED, *command.split(), hostile)


CLEARS = "a\x1b[2J\r\x9b\u202eb\nc"


@pytest.mark.parametrize("record", [green(), shown()], ids=["regress", "watch"])
def test_the_texts_of_a_record_move_no_cursor(
    record: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are shown with their control characters escaped."""
    path = tmp_path / "record.json"
    path.write_text(encoded(replace(record, message=CLEARS)))
    assert main(["report", str(path), "--markdown"]) == OK
    said = capsys.readouterr().out
    assert r"a\\x1b\[2J\\x0d\\x9b\\u202eb c" in said
    assert not set(said) & set(CLEARS) - set("a[2Jb\nc")
