"""Does the steps of `.github/workflows/releases.yml` on this machine, against the package index.

A script: `python -m properties.support.walk --seconds 30`. It clones the last commit and runs the
commands of the jobs `releases` and `report` there, one after the other; the second one twice. The
issues go to a repository that answers here, and are printed. Artifacts are moved to where the
second job finds them, and other steps that use an action are named and left out. Exits with 0 if
each command did and the second report changed nothing.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import venv
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from properties.support.actions import Job, filled, steps
from properties.support.github import answering
from properties.support.places import ROOT

WORKFLOW = ROOT / ".github/workflows/releases.yml"

NEWEST = "--releases newest"
"""Words of the workflow's command, which others replace for a shorter walk."""

REPORTING: Mapping[str, str] = {
    "github.token": "token",
    "(github.event_name == 'schedule' || inputs.post) && '--post' || ''": "--post",
}
"""Values of expressions in the job that reports."""


def job_of(name: str) -> str:
    """Return the lines of a job, without its indentation."""
    jobs = textwrap.dedent(WORKFLOW.read_text(encoding="utf-8").partition("\njobs:\n")[2])
    return str(re.findall(rf"^{name}:\n(?: .*\n|\n)+", jobs, re.M)[0])


def engines() -> list[str]:
    """Return the engines whose releases are watched."""
    (listed,) = re.findall(r"engine: \[(.*)\]", job_of("releases"))
    return [name.strip() for name in listed.split(",")]


def done(name: str, job: Job, words: str = "") -> bool:
    """Do the steps of a job; return whether its commands ended with 0."""
    well = True
    for step in steps(job_of(name)):
        action = (step.uses or "").partition("@")[0]
        if not (well or step.condition == "always()"):
            continue
        if action == "actions/upload-artifact":
            target = job.folder / "found" / filled(step.settings["name"], job.expressions)
            shutil.move(job.folder / step.settings["path"], target)
        elif step.uses is not None:
            say(f"--- {name}: not done: {action}")
        else:
            ended = job.run(replace(step, command=step.command.replace(NEWEST, words)))
            well = well and not ended.returncode
            say(f"--- {name}: {step.name}: {ended.returncode}\n{ended.stdout}")
    return well


def say(text: str) -> None:
    """Print a text at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Do all steps; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=30, help="of requests for each release")
    parser.add_argument("--engines", default=",".join(engines()))
    parser.add_argument("--release", default="newest", help="in place of the newest one")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="paritybit-"))
    say(f"--- in {folder}")
    checkout = folder / "checkout"
    subprocess.run(["git", "clone", "--quiet", ROOT, checkout], check=True)
    (checkout / "found").mkdir()
    venv.create(folder / "python", with_pip=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    kept["PATH"] = os.pathsep.join([str(folder / "python" / "bin"), os.environ["PATH"]])
    kept["PARITYBIT_ENGINES"] = str(folder / "engines")
    seconds = f"--seconds {options.seconds} --shrink {options.seconds}"
    words = f"--releases {options.release} {seconds}"
    watched = [
        done("releases", Job(checkout, kept, expressions={"matrix.engine": engine}), words)
        for engine in options.engines.split(",")
    ]
    with answering() as repository:
        job = Job(checkout, {**kept, **repository.variables}, expressions=REPORTING)
        reported = [done("report", job)]
        first = [dict(issue) for issue in repository.issues]
        reported.append(done("report", job) and repository.issues == first)
    for issue in first:
        say(f"--- issue: {issue['title']}\n{issue['body']}")
    return int(not all((*watched, *reported)))


if __name__ == "__main__":
    sys.exit(main())
