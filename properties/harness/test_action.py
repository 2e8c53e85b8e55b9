"""The action of GitHub calls what there is, and its steps do what the documents say."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from paritybit.harness.cli.parser import parser

from paritybit import __version__
from paritybit.compat import tomllib
from paritybit.engines.fetch import in_order
from paritybit.launch.schema import FORMAT, VERSION, Verdict
from properties.support.actions import ACTION, Job, defaults, steps
from properties.support.container import CONTAINERFILE, instructions
from properties.support.places import ROOT
from properties.support.quick import quick
from properties.support.records import shown

TEXT = ACTION.read_text(encoding="utf-8")
OK, FINDING, CANNOT_RUN = 0, 1, 125

Run = Callable[..., tuple[Job, subprocess.CompletedProcess[str]]]

PYTHON = """#!/bin/sh
# Notes what it is called with. `watch` leaves a record that lies ready, and ends as is asked for.
case "$*" in
  "-m paritybit watch "*)
    printf '%s\\n' "$@" >words
    [ -z "$RECORD" ] || { mkdir -p "$OUT/latest" && cp "$RECORD" "$OUT/latest/watch.json"; }
    exit "$CODE" ;;
  "-m pip "*) echo "$@" >>pip ;;
  *) exec $REAL "$@" ;;
esac
"""

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run all steps of the action that are commands, with a Python that only notes its words."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(PYTHON)
    python.chmod(0o755)

    def all_steps(
        code: int = OK, verdict: Verdict | None = "no finding", **inputs: str
    ) -> tuple[Job, subprocess.CompletedProcess[str]]:
        record = tmp_path / "record.json"
        if verdict is not None:
            data = {"format": FORMAT, "version": VERSION}
            record.write_text(json.dumps(data | asdict(replace(shown(), verdict=verdict))))
        environment = {
            **os.environ,
            "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "REAL": " ".join(quick()),
            "RECORD": "" if verdict is None else str(record),
            "CODE": str(code),
        }
        job = Job(tmp_path, environment, {**defaults(TEXT), **inputs})
        commands = [step for step in steps(TEXT) if step.uses is None]
        return job, [job.run(step) for step in commands][-1]

    return all_steps


def words_of(folder: Path) -> list[str]:
    return (folder / "words").read_text().splitlines()[3:]


def test_it_watches_with_words_that_the_parser_knows(run: Run, tmp_path: Path) -> None:
    job, done = run()
    assert done.returncode == OK, done.stdout
    options = parser().parse_args(["watch", *words_of(tmp_path)])
    assert (options.engine, options.seconds, options.undecided) == (".", 300, "fail")
    assert options.keep_going
    assert options.baseline is None
    outputs = dict(line.split("=", 1) for line in job.outputs.read_text().splitlines())
    assert outputs == {
        "verdict": "no finding",
        "record": "paritybit-out/latest/watch.json",
        "sarif": "paritybit-out/latest/findings.sarif",
        "junit": "paritybit-out/latest/junit.xml",
    }
    assert "paritybit watch, sglang" in job.summary.read_text()
    assert (tmp_path / "pip").read_text().endswith(f"{ROOT}\n")


def test_its_inputs_are_words_whatever_they_hold(run: Run, tmp_path: Path) -> None:
    baseline = tmp_path / "before.json"
    baseline.write_text("{}")
    odd = "$(touch bad) `touch bad` \"; touch bad; '"
    inputs = {"settings": odd, "known": "a b", "baseline": str(baseline), "undecided": "warn"}
    run(engine=odd, out="o u t", **inputs)
    options = parser().parse_args(["watch", *words_of(tmp_path)])
    assert (options.engine, options.undecided) == (odd, "warn")
    assert (str(options.known), options.baseline) == ("a b", baseline)
    assert not (tmp_path / "bad").exists()


def test_a_baseline_that_is_not_there_yet_is_none(run: Run, tmp_path: Path) -> None:
    run(baseline=str(tmp_path / "missing.json"))
    assert "--baseline" not in words_of(tmp_path)


def test_it_fails_as_the_run_does_and_shows_its_record_nevertheless(run: Run) -> None:
    job, done = run(code=FINDING, verdict="finding")
    assert done.returncode == FINDING
    assert "verdict=finding\n" in job.outputs.read_text()
    assert "Findings by cause" in job.summary.read_text()


def test_a_run_that_left_no_record_has_no_outputs(run: Run) -> None:
    job, done = run(code=CANNOT_RUN, verdict=None)
    assert done.returncode == CANNOT_RUN
    assert job.outputs.read_text() == job.summary.read_text() == ""


def test_no_expression_is_part_of_a_command_and_each_action_is_pinned() -> None:
    for step in steps(TEXT):
        assert "${{" not in step.command
        assert step.uses is None or re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step.uses)
    assert len(steps(TEXT)) == 4


PINNED = re.compile(
    r'uses: actions/checkout@v5\n +with: { repository: "\${{ vars.PARITYBIT_REPOSITORY }}", '
    r"ref: v(\S+), path: (\S+) }\n +- uses: \./(\S+)\n"
)
"""How a job checks this repository out, whatever its address, and uses its action."""


def test_the_documents_pin_one_release_that_is_not_older_than_this() -> None:
    texts = [(ROOT / name).read_text() for name in ("README.md", "docs/ci.md")]
    found = [PINNED.findall(text) for text in texts]
    assert [len(one) for one in found] == [text.count("uses: ./") for text in texts] == [1, 3]
    ((tag, path, used),) = {one for part in found for one in part}
    assert path == used
    assert in_order(tag) >= in_order(__version__)


def test_the_container_has_all_packages_of_the_wheel() -> None:
    found = list(instructions(CONTAINERFILE.read_text(encoding="utf-8")))
    copied = {word for name, words in found if name == "COPY" for word in words.split()[:-1]}
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert set(build["targets"]["wheel"]["only-include"]) <= copied
    assert all((ROOT / word).exists() for word in copied)
    assert found[-1] == ("ENTRYPOINT", '["paritybit"]')
