"""The CI jobs call what there is: targets of the Makefile, settings of it, and command lines."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from paritybit.harness.cli.parser import parser

from properties.support.places import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def calls_of_make(text: str) -> Iterator[list[str]]:
    """Yield the words of each call of make in a workflow; its variables are taken for numbers."""
    for call in re.findall(r"\bmake ([a-z].*?)(?: \||>>|$)", joined(text), re.M):
        yield shlex.split(re.sub(r"\$\w+", "1", call))


def joined(text: str) -> str:
    """Return a text of which no line goes on in the next."""
    return re.sub(r"\\\n\s*", "", text)


def commands_of(words: list[str]) -> str:
    """Return what a call of make would run, without running it.

    The suite's own call of make, if it was one, hands its settings to every make below it by
    the environment.
    """
    done = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", "PYTHON=true", "READY=ready", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"PATH": os.environ["PATH"]},
    )
    return joined(done.stdout)


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed here")
@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_job_calls_commands_that_the_parser_knows(path: Path) -> None:
    """With settings that the Makefile has."""
    calls = list(calls_of_make(path.read_text()))
    assert calls
    known = set(re.findall(r"^([A-Z]+) \?=", (ROOT / "Makefile").read_text(), re.M))
    for words in calls:
        settings = {word.partition("=")[0] for word in words[1:]}
        assert settings <= known
        for _, line in re.findall(r"-m (harness|pytest) (.*)", commands_of(words)):
            options = shlex.split(line)
            if options[0] in {"regress", "summary"}:
                parser().parse_args(options)
            else:
                assert options[:2] == ["-n", "auto"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_job_calls_scripts_that_are_there(path: Path) -> None:
    for script in re.findall(r"\.ci/[\w.-]+", path.read_text()):
        assert (ROOT / script).is_file()


def test_there_are_the_jobs_that_the_documents_name() -> None:
    named = set(re.findall(r"^\| `(\w+\.yml)`", (ROOT / "docs" / "ci.md").read_text(), re.M))
    assert named == {path.name for path in WORKFLOWS}
