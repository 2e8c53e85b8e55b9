"""No file that a user hands in runs code, fills the memory or blocks a command.

Each is refused in one sentence, with exit code 2, before anything is printed.
"""

import json
import os
import pickle
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from paritybit.harness.cli.exit_codes import OK
from paritybit.harness.cli.report import previous_of
from paritybit.harness.errors import CannotRunError, MalformedError
from paritybit.harness.records import files, schema
from paritybit.harness.records.case import read_json
from paritybit.harness.records.record import write
from paritybit.harness.records.typed_json import to_json

from paritybit.__main__ import main
from paritybit.launch import schema as launch_schema
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
    "a case of watch": b'{"format": "paritybit-watch-case", "version": 1, "leg": ["--device"]}',
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

READING: dict[str, Callable[[Path, Path], list[object]]] = {
    "replay": lambda file, whole: ["replay", file],
    "report": lambda file, whole: ["report", file, "--page", file.with_name("page.html")],
    "report, later": lambda file, whole: ["report", whole, file, "--page", whole],
}
"""Commands that read a file, beside a whole record where they need one."""


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the writer of a pipe only a moment."""
    monkeypatch.setattr(files, "PIPE_SECONDS", 0.05)


@pytest.fixture(params=HOSTILE)
def hostile(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A hostile file of each kind."""
    path = tmp_path / "hostile.json"
    HOSTILE[request.param](path)
    return path


@pytest.mark.parametrize("command", READING)
def test_a_case_or_a_record_is_refused(command: str, hostile: Path, refused: Any) -> None:
    whole = hostile.with_name("whole.json")
    write(green(), whole)
    refused(MALFORMED, *READING[command](hostile, whole))


def test_an_earlier_record_is_reported_as_unreadable(hostile: Path, tmp_path: Path) -> None:
    earlier, now = tmp_path / "20260101T000000Z", tmp_path / "20260102T000000Z"
    earlier.mkdir()
    hostile.rename(earlier / "run.json")
    regular = (earlier / "run.json").is_file()
    previous = previous_of(now / "run.json", green())
    assert (previous is not None) == regular
    assert previous is None or previous.sentence.startswith("cannot be compared: run.json ")


def test_a_pipe_is_read_to_the_end_of_its_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PIPE_SECONDS", 10.0)
    os.mkfifo(path := tmp_path / "pipe")
    (whole := tmp_path / "whole").write_text(json.dumps({"text": "x" * 200_000}))
    with subprocess.Popen(["dd", f"if={whole}", f"of={path}", "status=none"]):
        assert read_json(path) == read_json(whole)


def test_an_endless_pipe_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PIPE_SECONDS", 10.0)
    os.mkfifo(path := tmp_path / "pipe")
    with subprocess.Popen(["dd", "if=/dev/zero", f"of={path}", "status=none"]) as writer:
        with pytest.raises(MalformedError, match="pipe is larger than 64 MiB"):
            read_json(path)
        writer.kill()


def test_a_pipe_that_gets_no_reader_cannot_be_written(tmp_path: Path) -> None:
    os.mkfifo(path := tmp_path / "pipe")
    with pytest.raises(CannotRunError, match="pipe cannot be written: No such device"):
        files.write_whole(path, "text")


def test_an_object_with_many_keys_is_judged_at_once(tmp_path: Path) -> None:
    """A key that stands twice behind 200,000 others is found in one pass."""
    keys = [f'"{number}": 0' for number in range(200_000)]
    (path := tmp_path / "case.json").write_text(f"{{{', '.join([*keys, keys[-1]])}}}")
    with pytest.raises(MalformedError, match="the key '199999' appears twice"):
        read_json(path)


CLEARS = "a\x1b[2J\r\x9b\u202eb\nc"
RECORDS: dict[str, tuple[str, int, Any]] = {
    "regress": (schema.FORMAT, schema.VERSION, replace(green(), message=CLEARS)),
    "watch": (launch_schema.FORMAT, launch_schema.VERSION, replace(shown(), message=CLEARS)),
}


@pytest.mark.parametrize("kind", RECORDS)
def test_the_texts_of_a_record_move_no_cursor(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are shown with their control characters escaped."""
    file_format, version, record = RECORDS[kind]
    path = tmp_path / "record.json"
    path.write_text(json.dumps({"format": file_format, "version": version, **to_json(record)}))
    assert main(["report", str(path), "--markdown"]) == OK
    said = capsys.readouterr().out
    assert r"a\\x1b\[2J\\r\\x9b\\u202eb c" in said
    assert not set(said) & set(CLEARS) - set("a[2Jb\nc")
