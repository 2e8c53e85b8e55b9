"""No file, folder or archive that a user hands in runs code, fills the memory or blocks a command.

Each is refused in one sentence with a documented exit code, before anything is printed. Nothing is
lost, and no secret in it is shown.
"""

import gzip
import io
import json
import os
import pickle
import socket
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from paritybit.harness.records.case import Case
from paritybit.harness.records.codec import decoded, encoded
from paritybit.harness.records.schema import Record

from paritybit.__main__ import main
from paritybit.drive.script import Part, Planned, Script, Wave
from paritybit.drive.sglang.settings import SglangServed
from paritybit.explore.bound import Bound
from paritybit.explore.case import ExploreCase
from paritybit.launch.case import WatchCase
from paritybit.launch.known import Listed
from paritybit.launch.schema import WatchRecord
from properties.harness.cli.test_fuzz import CASE
from properties.support.harness.command_line import CANNOT_RUN, FINDING, MALFORMED, OK, edit
from properties.support.records import shown
from properties.support.reports.records import green

GIB = 2**30

SECRET = "hunter2"

ENGINE = "--engine sglang==0.5.12"


class Marks:
    """A pickle of it makes the file `ran`."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what unpickling calls."""
        return Path.touch, (Path("ran"),)


def archive(kind: str) -> bytes:
    """Return an archive with a case that leads out of its folder."""
    held = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(held, "w") as zipped:
            zipped.writestr("../case.json", "{}")
    else:
        with tarfile.open(fileobj=held, mode="w") as tar:
            tar.addfile(tarfile.TarInfo("../case.json"))
    return held.getvalue()


PLAIN = json.dumps({"format": "paritybit-case", "version": 4}).encode()

CONTENTS: dict[str, bytes] = {
    "nothing": b"",
    "blanks": b" \n" * 1000,
    "lists nested deep": b"[" * 100_000,
    "objects nested deep": b'{"a":' * 100_000,
    "closed lists nested deep": b"[" * 5_000 + b"]" * 5_000,
    "a number that no 64 bits hold": b"[1" + b"0" * 20 + b"]",
    "a number of many digits": b"1" * 10_000,
    "NaN": b"NaN",
    "a number without end": b"1e999",
    "a text alone": b'"paritybit-case"',
    "null": b"null",
    "a list of cases": b"[" + PLAIN + b"]",
    "two cases": PLAIN * 2,
    "half a case": PLAIN[:-4],
    "a comment": b"// a case\n" + PLAIN,
    "other quotes": PLAIN.replace(b'"', b"'"),
    "a byte order mark": b"\xef\xbb\xbf" + PLAIN,
    "UTF-16": PLAIN.decode().encode("utf-16"),
    "no UTF-8": PLAIN.replace(b"case", b"\xff\xfe"),
    "zeros within": PLAIN.replace(b"case", b"\0\0"),
    "half a surrogate": PLAIN.replace(b"case", b"\\ud800"),
    "a format that is no text": b'{"format": ["paritybit-case"], "version": 4}',
    "no format": b'{"version": 4}',
    "a format of nobody": b'{"format": "../../etc/passwd", "version": 4}',
    "a class to make": b'{"format": "os.system", "__class__": "os.system", "py/object": "os"}',
    "no version": b'{"format": "paritybit-case"}',
    "a version as text": b'{"format": "paritybit-case", "version": "4"}',
    "a later version": b'{"format": "paritybit-case", "version": 1000}',
    "a version that is true": b'{"format": "paritybit-case", "version": true}',
    "binary": bytes(range(256)) * 100,
    "a pickle": pickle.dumps({"format": "paritybit-case", "trial": Marks()}),
    "a zip archive": archive("zip"),
    "a tar archive": archive("tar"),
    "a compressed case": gzip.compress(PLAIN),
    "a program": b"#!/bin/sh\ntouch ran\n",
    "Python": b"import pathlib; pathlib.Path('ran').touch()",
    "YAML with an object": b"!!python/object/apply:os.system ['touch ran']",
    "a page": b"<html><script>alert(1)</script></html>",
    "a key": f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----".encode(),
    "variables": f"HF_TOKEN={SECRET}\n".encode(),
    "credentials": json.dumps({"type": "service_account", "private_key": SECRET}).encode(),
    "a record of another kind": b'{"format": "paritybit-case", "version": [], "trial": 1e999}',
    "a case of watch": b'{"format": "paritybit-watch-case", "version": 1, "config": ["--device"]}',
    "a record of watch": b'{"format": "paritybit-watch", "version": 1, "findings": {"0": "x"}}',
}


def device(name: str) -> Callable[[Path], None]:
    """Return what makes a link to a device."""
    return lambda path: path.symlink_to(f"/dev/{name}")


def content(text: bytes) -> Callable[[Path], Any]:
    """Return what writes a file."""
    return lambda path: path.write_bytes(text)


def sparse(path: Path) -> None:
    """Make a file of 1 GiB that takes no room on the disk."""
    with path.open("wb") as file:
        file.truncate(GIB)


def listening(path: Path) -> None:
    """Make a socket. Its name may be too long at its place, so it is made elsewhere."""
    with socket.socket(socket.AF_UNIX) as one:
        before = Path.cwd()
        os.chdir(path.parent)
        one.bind(path.name)
        os.chdir(before)


HOSTILE: dict[str, Callable[[Path], Any]] = {
    **{what: content(text) for what, text in CONTENTS.items()},
    "zeros without end": device("zero"),
    "a full device": device("full"),
    "an empty device": device("null"),
    "a pipe without a writer": os.mkfifo,
    "a socket": listening,
    "a folder": os.mkdir,
    "a loop of links": lambda path: path.symlink_to(path),
    "a broken link": lambda path: path.symlink_to(path.with_name("nowhere")),
    "a gigabyte": sparse,
}
"""How to make each kind of hostile file."""

READING = (
    *("replay F", f"replay F {ENGINE}", f"shrink F {ENGINE}", "watch --known F -- true"),
    *("watch --baseline F -- true", "report F", "report F --markdown", "report F --issue"),
    *("report W F", "report F W"),
)
"""Commands that read the file F. W is a record of `watch`."""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the record W."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "W").write_text(encoded(shown()))
    return tmp_path


def everything(folder: Path) -> list[str]:
    """Return all paths in a folder."""
    return sorted(str(path) for path in folder.rglob("*"))


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_is_refused_by_each_command(kind: str, here: Path, refused: Any) -> None:
    HOSTILE[kind](here / "hostile.json")
    before = everything(here)
    for command in READING:
        said = refused(MALFORMED, *command.replace("F", "hostile.json").split())
        assert SECRET not in said
    assert everything(here) == before


SCRIPT = Script(
    SglangServed().scope(), (Wave(tuple(Planned(name, (Part("x", 2),), 3) for name in "ab")),)
)
FILES: dict[str, Any] = {
    "case": json.loads(encoded(CASE)),
    "watch-case": {
        **{"format": "paritybit-watch-case", "version": 3, "engine": "sglang==1", "every": 1},
        **{"config": "overlap", "script": msgspec.to_builtins(SCRIPT), "checks": None},
        **{"key": "k", "text": "t", "forward": 1},
    },
    "explore-case": json.loads(
        encoded(
            ExploreCase(engine="sglang==1", bound=Bound(), actions=("arrive 0", "step"), text="t")
        )
    ),
    "record": json.loads(encoded(green())),
    "watch-record": json.loads(encoded(shown())),
    "known": {
        **{"format": "paritybit-known", "version": 1},
        "known": [{"check": "leak", "cause": "c", "thread": "https://h", "expires": "2999-01-01"}],
    },
}
KINDS = Case, WatchCase, ExploreCase, Record, WatchRecord, Listed

READERS: Mapping[str, tuple[str, ...]] = {
    "case": ("replay F", "replay F F"),
    "watch-case": (f"replay F {ENGINE}", f"shrink F {ENGINE}", f"replay F F {ENGINE}"),
    "explore-case": (f"replay F {ENGINE}",),
    "record": ("report F", "report F --markdown"),
    "watch-record": ("report F", "report F W", "report F --issue", "watch --baseline F -- true"),
    "known": ("watch --known F -- true", "watch --engine E"),
}
"""The commands that read each kind of file. E is a source tree whose known findings are F."""

WRONG: list[tuple[str, str, Any]] = [
    ("case", "seed", "1"),
    ("case", "trial", []),
    ("case", "trial.device", 0),
    ("case", "trial.buckets", [2**40]),
    ("case", "schedule.steps", {"0": "admit"}),
    ("case", "schedule.steps", [None]),
    ("case", "violations", "none"),
    ("case", "command", "touch ran"),
    ("watch-case", "every", 0),
    ("watch-case", "engine", None),
    ("watch-case", "checks", [1]),
    ("watch-case", "arguments", ["--model-path", "/"]),
    ("watch-case", "script.settings.model", "/etc/passwd"),
    ("watch-case", "script.settings.device", "cuda:0"),
    ("watch-case", "script.settings.backend", "--model-path=/"),
    ("watch-case", "script.settings.pool", 10**12),
    ("watch-case", "script.settings", {"api_key": SECRET}),
    ("watch-case", "script.waves.0.flushes", True),
    ("watch-case", "script.waves.0.requests.0.abortd", 3),
    ("watch-case", "script.waves.0.requests.0.tokens", 10**12),
    ("watch-case", "script.waves.0.requests.0.prompt", []),
    ("watch-case", "script.waves.0.requests.0.prompt.0.length", 10**12),
    ("watch-case", "script.waves.0.requests.0.follows", "nobody"),
    ("watch-case", "script.waves.0.requests.1.name", "a"),
    ("watch-case", "script.waves", [[[]]]),
    ("watch-case", "forward", 1.5),
    ("explore-case", "actions", []),
    ("explore-case", "actions", ["step"] * 100_000),
    ("explore-case", "bound.slots", 10**9),
    ("explore-case", "engine", ["sglang"]),
    ("record", "verdict", "blue"),
    ("record", "environment", None),
    ("watch-record", "findings", {"0": "x"}),
    ("watch-record", "counts", {"reads": "many"}),
    ("watch-record", "undecided", "no"),
    ("known", "known", {"leak": 1}),
    ("known", "known", [{"check": "leak"}]),
    ("known", "known", [{**FILES["known"]["known"][0], "expires": "2999-02-30"}]),
]
"""A kind of file, a place in it, and what is wrong there."""


@pytest.mark.parametrize(("kind", "place", "value"), WRONG, ids=lambda value: str(value)[:40])
def test_a_file_with_a_wrong_value_is_refused(
    kind: str, place: str, value: Any, here: Path, refused: Any
) -> None:
    (here / "E/sglang/srt").mkdir(parents=True)
    file = here / ("E/paritybit-known.json" if kind == "known" else "hostile.json")
    file.write_text(json.dumps(FILES[kind]))
    edit(file, *(int(one) if one.isdigit() else one for one in place.split(".")), value=value)
    before = everything(here)
    for command in READERS[kind]:
        said = refused(MALFORMED, *command.replace("F", str(file)).split())
        assert f"{file.name} is not a " in said or "is not a complete case" in said
        assert SECRET not in said
    assert everything(here) == before


@pytest.mark.parametrize("kind", FILES)
def test_a_file_without_a_wrong_value_is_read(kind: str) -> None:
    """So what is refused is the wrong value."""
    assert decoded(json.dumps(FILES[kind]).encode(), "F", *KINDS)


def journal(text: bytes) -> Callable[[Path], Any]:
    """Return what writes a journal in a folder."""
    return lambda path: (path / "process-1.jsonl").write_bytes(text)


def inside(name: str, make: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """Return what makes something in a folder, and the folders above it."""

    def made(path: Path) -> None:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        make(path / name)

    return made


def trees(*names: str) -> Callable[[Path], Any]:
    """Return what makes folders in a folder."""

    def made(path: Path) -> None:
        for name in names:
            (path / name).mkdir(parents=True)

    return made


FOLDERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "nothing in it": (lambda path: None, "report F"),
    "no case": (lambda path: None, "replay F"),
    "a folder as record": (inside("watch.json", os.mkdir), "report F"),
    "a pipe as record": (inside("run.json", os.mkfifo), "report F"),
    "a folder as case": (inside("a.json", os.mkdir), "replay F"),
    "a loop as the last run": (inside("latest", lambda path: path.symlink_to(path)), "report F"),
    "a pipe as journal": (inside("process-1.jsonl", os.mkfifo), "report F"),
    "zeros as journal": (inside("process-1.jsonl", device("zero")), "report F"),
    "a binary journal": (journal(bytes(range(256)) * 100), "report F"),
    "a nested journal": (journal(b"[" * 100_000 + b"\n"), "report F"),
    "a journal of other types": (journal(b'[]\n{"kind": 1}\n"x"\n'), "report F"),
    "a file as engine": (inside("sglang", content(b"")), "watch --engine F"),
    "a loop as engine": (inside("sglang", lambda path: path.symlink_to(path)), "watch --engine F"),
    "no part of the engine": (inside("sglang/srt", content(b"")), "watch --engine F"),
    "two engines": (
        trees("sglang/srt", "vllm/v1"),
        "watch --engine F",
    ),
    "an engine without what it needs": (
        trees("sglang/srt"),
        "watch --engine F --device cpu --settings overlap",
    ),
    "a hostile record of a release": (
        inside("0.5.11/latest/watch.json", content(b"[")),
        "releases --releases 0.5.12 --out F",
    ),
    "a pipe as record of a release": (
        inside("0.5.12/latest/watch.json", os.mkfifo),
        "releases --releases 0.5.12 --out F",
    ),
}
"""What makes each kind of hostile folder, and a command that reads the folder F."""


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_hostile_folder_is_refused(
    kind: str, here: Path, refused: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paritybit.engines.fetch._require_dependencies", lambda _: None)
    make, command = FOLDERS[kind]
    (here / "F").mkdir()
    make(here / "F")
    before = everything(here)
    refused(MALFORMED, *command.split())
    assert everything(here) == before


@pytest.mark.parametrize(
    "command", ["report F", "report F --issue", f"shrink F/case.json {ENGINE}"]
)
def test_no_link_in_a_folder_leads_to_a_file_that_is_overwritten(
    command: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "victim").write_text("precious")
    (here / "F").mkdir()
    for name in ("index.html", "issue-1.md", "issue-2.md", "case-small.json"):
        (here / "F" / name).symlink_to(here / "victim")
    (here / "F/watch.json").write_text(encoded(shown()))
    (here / "F/case.json").write_text(json.dumps(FILES["watch-case"]))
    monkeypatch.setattr("paritybit.drive.sglang.adapter.ADAPTER.prepare", lambda spec: None)
    monkeypatch.setattr(
        "paritybit.harness.cli.watch.shrink.Shrinking.smallest", lambda _, case, seconds: case
    )
    assert main(command.split()) in {OK, FINDING}
    assert (here / "victim").read_text() == "precious"


def wheel(*names: str, text: bytes = b"") -> bytes:
    """Return a wheel with some files."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as zipped:
        for name in names:
            zipped.writestr(name, text)
    return held.getvalue()


def linked() -> bytes:
    """Return a wheel whose folder of the engine is a link out of it."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as zipped:
        link = zipfile.ZipInfo("sglang")
        link.external_attr = 0o120777 << 16
        zipped.writestr(link, "/etc")
    return held.getvalue()


WHEELS = {
    "nothing": b"",
    "a page": b"<html>404</html>",
    "half a wheel": wheel("sglang/srt/a.py", text=b"x" * 1000)[:-30],
    "a wrong sum": wheel("sglang/srt/a.py", text=b"unchanged").replace(
        b"unchanged", b"is changed"[1:]
    ),
    "encrypted": wheel("sglang/srt/a.py").replace(
        b"PK\x01\x02\x14\x03\x14\0\0", b"PK\x01\x02\x14\x03\x14\0\1"
    ),
    "another engine": wheel("vllm/v1/a.py"),
    "files above": wheel("../../ran", "../ran", "a/../../ran"),
    "files at the root": wheel("/ran", "//ran"),
    "a link": linked(),
}
"""What a package index may give in place of a wheel of sglang."""


@pytest.mark.parametrize("kind", WHEELS)
def test_a_hostile_wheel_leaves_nothing(
    kind: str, here: Path, refused: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = here / "sglang-0.5.12-py3-none-any.whl"
    file.write_bytes(WHEELS[kind])
    monkeypatch.setenv("PARITYBIT_ENGINES", str(here / "deep/engines"))
    monkeypatch.setattr("paritybit.engines.fetch._download", lambda *_: file)
    said = refused(CANNOT_RUN, "engine", "0.5.12")
    assert "is not a valid wheel: " in said or "contains no sglang/srt" in said
    assert everything(here / "deep") == [str(here / "deep/engines")]
    assert not Path("/ran").exists()


def test_the_kinds_are_many() -> None:
    assert len(HOSTILE) + len(FOLDERS) + len(WHEELS) + len(WRONG) >= 100


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
