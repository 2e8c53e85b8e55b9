"""Whatever a command line, a case or a record holds, a command ends in one sentence and a code.

A few examples each belong to the suite; PARITYBIT_FUZZ says how many where there is more time.
"""

import copy
import io
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paritybit.harness.cli.app import app
from paritybit.harness.cli.replay import Replayed
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.records.case import Case
from paritybit.harness.records.codec import encoded
from paritybit.harness.schedules.schedule import Admit, Decode, Schedule
from typer.main import get_command

from paritybit.__main__ import main
from properties.support.harness.command_line import (
    CANNOT_RUN,
    FINDING,
    INTERRUPTED,
    MALFORMED,
    OK,
)
from properties.support.records import shown
from properties.support.reports.records import red

MOST = int(os.environ.get("PARITYBIT_FUZZ", "20"))

fuzzed = settings(
    max_examples=MOST,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def ends_well(*words: str) -> int:
    """Return the exit code of a command, which says no more than one sentence on stderr.

    And never that the error is ours. Of several cases each that cannot run has a line on stdout.
    """
    said = io.StringIO()
    with redirect_stderr(said), redirect_stdout(io.StringIO()):
        code = main(words)
    text = said.getvalue()
    assert code in {OK, FINDING, MALFORMED, CANNOT_RUN, INTERRUPTED}
    assert "internal error" not in text
    assert "Traceback" not in text
    assert (code == MALFORMED) <= text.count("\n") <= (code in {MALFORMED, CANNOT_RUN})
    assert not text or text.startswith("paritybit: ")
    assert not text or text[:-1].isprintable()
    return code


LONG = "x" * 400
ODD_TEXTS = ["", " ", ",", "-", "--", "@", "\x1b[2J", "\n", "é", "\udcff", "9" * 400, "../x", LONG]
ODD_PATHS = [
    *("/dev/full", "/dev/zero", "/dev/null", "/dev/stdin/x", ".", "~", "\0", "\ud800"),
    *("x" * 255, "x" * 256, "x/" * 1950, "x/" * 2046, "é" * 200, "/proc/self/status"),
    *("LOOP", "PIPE", "FOLDER", "SPARSE", "BINARY", "FOLDER/new/file", "BINARY/file"),
]
"""What may stand for a path: those in capitals are made."""
ODD: list[Any] = [
    *(None, True, False, -1, 0, 1, 2**31, 10**30, 1.5, float("nan"), [], {}, [[]], [0], {"a": 0}),
    *ODD_TEXTS,
]
"""What may stand anywhere in a file."""


LINES = (
    "watch --engine sglang==0.5.12 --settings overlap --seconds 3",
    "watch --every 2 -- python serve.py",
    "watch --overhead 3 -- python serve.py",
    "releases --engine vllm --releases 0.33.0",
    "explore --engine sglang==0.5.23 --page-size 2",
    "engine 0.5.12",
    "replay case.json --engine sglang==0.5.12",
    "shrink case.json --engine sglang==0.5.12",
    "report run.json later.json --markdown",
    "regress --bug swa_pad@decode --runner decode --seed 3",
    "list bugs --json",
)
"""Well-formed command lines."""


def vocabulary() -> list[str]:
    """Return the words of well-formed command lines, all options, and odd words."""
    words = {word for line in LINES for word in line.split()}
    top: Any = get_command(app)
    options = {name for one in top.commands.values() for each in one.params for name in each.opts}
    return sorted({*words, *options, *ODD_TEXTS, *ODD_PATHS})


VOCABULARY = vocabulary()


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every command end at once: only its command line is read."""
    top: Any = get_command(app)
    for command in top.commands.values():
        command.callback = lambda **_: OK
    monkeypatch.setattr("paritybit.harness.cli.app.get_command", lambda _: top)


@fuzzed
@given(st.data())
@pytest.mark.usefixtures("nothing_runs")
def test_no_command_line_ends_badly(data: st.DataObject) -> None:
    """Well-formed ones with words put in, taken out and replaced."""
    words = data.draw(st.sampled_from(LINES)).split()
    for _ in range(data.draw(st.integers(0, 4))):
        place = data.draw(st.integers(0, len(words)))
        word = data.draw(odd_words())
        words[place : place + data.draw(st.integers(0, 1))] = [word] * data.draw(st.integers(0, 1))
    ends_well(*words)


def odd_words() -> st.SearchStrategy[str]:
    """Return words of command lines, any text, and options with any of these as their value."""
    options = [word for word in VOCABULARY if re.fullmatch("--[a-z-]+", word)]
    words = st.sampled_from(VOCABULARY) | st.text(max_size=12)
    return words | st.builds("{}={}".format, st.sampled_from(options), words)


def places(value: Any, so_far: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of every value within JSON data, as its keys from the outside in."""
    inside: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict | list):
        inside = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in inside:
        yield (*so_far, key)
        yield from places(item, (*so_far, key))


def changed(data: st.DataObject, value: dict[str, Any]) -> dict[str, Any]:
    """Return JSON data with one to three of its values replaced, removed or added to."""
    found = copy.deepcopy(value)
    for _ in range(data.draw(st.integers(1, 3))):
        *before, last = data.draw(st.sampled_from(sorted(places(found), key=repr)))
        holder: Any = found
        for key in before:
            holder = holder[key]
        match data.draw(st.sampled_from(["replace", "remove", "add"])):
            case "replace":
                holder[last] = copy.deepcopy(data.draw(st.sampled_from(ODD)))
            case "remove":
                del holder[last]
            case "add" if isinstance(holder, dict):
                holder[data.draw(st.sampled_from(["", "extra", "x" * 400]))] = 0
            case "add":
                holder.append(copy.deepcopy(data.draw(st.sampled_from(ODD))))
        if not found:
            break
    return found


TRIAL = TrialConfig(buckets=(2,), token_buckets=(4,)).with_bug("swa_pad")
CASE = Case(TRIAL, Schedule((Admit(1, 16), Decode((0,)))), "kv_parity", 0, ())
DATA = json.loads(encoded(CASE))


@fuzzed
@given(data=st.data())
def test_no_case_ends_badly(
    data: st.DataObject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that can be read is not played here, nor is an engine looked for."""
    monkeypatch.setattr("paritybit.harness.cli.replay.replay_one", lambda *_: OK)
    replayed = Replayed(OK, "clean")
    monkeypatch.setattr("paritybit.harness.cli.replay.replay", lambda _: replayed)
    path = tmp_path / "case.json"
    path.write_text(json.dumps(changed(data, DATA)))
    paths = [str(path)] * data.draw(st.integers(1, 2))
    ends_well("replay", *paths)


RECORDS = {"regress": red(), "watch": shown()}


@pytest.mark.parametrize("form", [[], ["--markdown"]], ids=str)
@pytest.mark.parametrize("kind", RECORDS)
@settings(fuzzed, max_examples=max(4, MOST // 4))
@given(data=st.data())
def test_no_record_ends_badly(
    kind: str, form: list[str], data: st.DataObject, tmp_path: Path
) -> None:
    path = tmp_path / "record.json"
    path.write_text(json.dumps(changed(data, json.loads(encoded(RECORDS[kind])))))
    ends_well("report", str(path), *form)
