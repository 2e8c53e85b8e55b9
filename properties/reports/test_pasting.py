"""A case that is pasted into a shell, or downloaded from the page, is the case of its file."""

import json
import os
import pty
import re
import select
import shutil
import subprocess
import time
from contextlib import suppress
from html import unescape
from pathlib import Path

import pytest
from paritybit.harness.records.case import load_case
from paritybit.reports.cards import bug_cards
from paritybit.reports.pasting import LONGEST, file_name, opening, pastable

from properties.support.places import ROOT
from properties.support.reports.pages import sample_markup
from properties.support.reports.records import green

CORPUS_FILE = ROOT / "properties/corpus/swa_pad@decode.json"
CORPUS_CASE = CORPUS_FILE.read_text()
COMMAND = "paritybit replay 'paritybit-out/a run/cases/a.json' --engine 'sglang==1'"
ODD = json.dumps({"text": "!x $HOME `id` \\ ' \" \t EOF é 'EOF'"}, indent=1)

STUB = """#!/bin/sh
printf '%s\\n' "$@" > "$HERE/words"
cat "$2" > "$HERE/case.json"
echo ended > "$HERE/ended"
"""
"""Stands where `paritybit` would: keeps its words and what it is given to read."""

WITHIN = 30.0
"""Seconds in which a shell runs one command, on a busy machine."""


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a stub of `paritybit` on the path, which writes into the folder that is returned."""
    script = tmp_path / "bin" / "paritybit"
    script.parent.mkdir()
    script.write_text(STUB)
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HERE", str(tmp_path))
    return tmp_path


def pasted(case: str) -> str:
    """Return the text that is pasted for a case."""
    return f"{opening(COMMAND, 'cases/a.json', case)}\n{pastable(case)}\nEOF\n"


@pytest.mark.parametrize("case", [CORPUS_CASE.rstrip("\n"), ODD])
def test_a_shell_that_is_fed_the_text_hands_on_the_case(stub: Path, case: str) -> None:
    subprocess.run(["sh"], input=pasted(case), text=True, check=True, timeout=WITHIN)
    assert (stub / "words").read_text().split() == ["replay", "/dev/stdin", "--engine", "sglang==1"]
    assert json.loads((stub / "case.json").read_text()) == json.loads(case)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash is installed")
@pytest.mark.parametrize("case", [CORPUS_CASE.rstrip("\n"), ODD])
def test_an_interactive_shell_takes_the_pasted_text(stub: Path, case: str) -> None:
    """With its history on, and a terminal between: what a person's shell has."""
    ours, theirs = pty.openpty()
    words = ["bash", "--norc", "--noprofile", "-i"]
    process = subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    os.set_blocking(ours, False)
    typed, until = f"{pasted(case)}exit\n".encode(), time.monotonic() + WITHIN
    try:
        # What it echoes is read meanwhile: else it would wait for us, and we for it.
        while process.poll() is None and time.monotonic() < until:
            readable, writable, _ = select.select([ours], [ours] if typed else [], [], 0.05)
            with suppress(OSError):  # It has just ended, or takes no more for now.
                if writable:
                    typed = typed[os.write(ours, typed) :]
                if readable:
                    os.read(ours, 4096)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert json.loads((stub / "case.json").read_text()) == json.loads(case)


def test_no_exclamation_mark_is_pasted_which_some_shells_take_for_their_history() -> None:
    assert "!" in ODD
    assert "!" not in pastable(ODD)
    assert json.loads(pastable(ODD)) == json.loads(ODD)


@pytest.mark.parametrize(
    ("command", "case"),
    [
        (COMMAND, " " * (LONGEST + 1)),
        (COMMAND, "{}\nEOF\nrm -r ."),
        (COMMAND, "{}\x1b[201~"),
        ("paritybit regress", "{}"),
        ("paritybit replay 'cases/a.json", "{}"),
    ],
)
def test_what_a_shell_would_not_take_as_it_stands_is_offered_as_a_file_alone(
    command: str, case: str
) -> None:
    assert opening(command, "cases/a.json", case) == ""


def blocks(markup: str) -> list[str]:
    """Return the texts of a page that can be pasted, or copied."""
    found = re.findall(r'<pre id="[^"]*--pasted"[^>]*>(.*?)</pre>', markup, re.DOTALL)
    return [unescape(re.sub("</?span[^>]*>", "", block)) for block in found]


def test_the_page_offers_every_case_to_a_shell_and_as_a_download(stub: Path) -> None:
    markup = sample_markup("green")
    cards = [card for card in bug_cards(green()) if card.finding is not None]
    assert len(blocks(markup)) == len(cards) > 0
    for card, block in zip(cards, blocks(markup), strict=True):
        assert card.finding is not None
        subprocess.run(["sh"], input=block, text=True, check=True, timeout=WITHIN)
        assert json.loads((stub / "case.json").read_text()) == json.loads(card.finding.case)
        name = file_name(card.finding.case_file)
        assert f'data-download="{card.anchor}--case" data-name="{name}"' in markup


def test_a_case_that_was_pasted_is_the_case_of_its_file(stub: Path) -> None:
    subprocess.run(["sh"], input=pasted(CORPUS_CASE), text=True, check=True, timeout=WITHIN)
    assert load_case(stub / "case.json") == load_case(CORPUS_FILE)
