"""Does the steps of `action.yml` as a runner of GitHub Actions would, without one.

A script: `python -m properties.support.actions engine=sglang==0.5.23 seconds=20`. It runs the steps
that are commands in the order of the file, in an environment of their own, and prints the outputs
and the summary. Steps that use other actions are named and left out.
"""

import os
import re
import subprocess
import sys
import tempfile
import textwrap
import venv
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from properties.support.places import ROOT

ACTION = ROOT / "action.yml"


@dataclass(frozen=True)
class Step:
    """A step: its name, the action that it uses and how, or its variables and command.

    `condition` says when it is done, if not after steps that ended well alone.
    """

    name: str
    uses: str | None
    variables: Mapping[str, str]
    command: str
    settings: Mapping[str, str]
    condition: str


@dataclass
class Job:
    """A job in a folder, and the files by which its steps tell the runner something.

    `expressions` are values of expressions besides those of `inputs`.
    """

    folder: Path
    environment: Mapping[str, str]
    inputs: Mapping[str, str] = field(default_factory=dict)
    expressions: Mapping[str, str] = field(default_factory=dict)
    outputs: Path = field(init=False)
    summary: Path = field(init=False)

    def __post_init__(self) -> None:
        """Make the files."""
        self.outputs, self.summary = self.folder / "outputs", self.folder / "summary.md"
        for file in (self.outputs, self.summary):
            file.touch()

    def run(self, step: Step) -> subprocess.CompletedProcess[str]:
        """Run the command of a step as its shell does."""
        known = {"github.action_path": str(ROOT), **self.expressions}
        known |= {f"inputs.{name}": value for name, value in self.inputs.items()}
        variables = {name: filled(value, known) for name, value in step.variables.items()}
        files = {"GITHUB_OUTPUT": str(self.outputs), "GITHUB_STEP_SUMMARY": str(self.summary)}
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step.command],
            cwd=self.folder,
            env={**self.environment, **variables, **files, "GITHUB_ACTIONS": "true"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )


def filled(text: str, known: Mapping[str, str]) -> str:
    """Return a text with the values of its expressions. Raises KeyError for an unknown one."""
    return re.sub(r"\$\{\{ *(.*?) *\}\}", lambda found: known[found[1]], text)


def defaults(text: str) -> dict[str, str]:
    """Return the default of each input."""
    inputs = text.partition("\ninputs:\n")[2].partition("\noutputs:\n")[0]
    found = re.findall(r"^  ([\w-]+):\n(?:    .*\n)*?    default: (.*)$", inputs, re.M)
    return {name: value.strip('"') for name, value in found}


def steps(text: str) -> list[Step]:
    """Return the steps of a composite action, or of a job of a workflow, less its indentation."""
    parts = re.split(r"^    - ", text.partition("\n  steps:\n")[2], flags=re.M)[1:]
    return [step_of(f"      {part}") for part in parts]


def step_of(text: str) -> Step:
    """Return a step from its lines."""
    values = dict(re.findall(r"^      (\w+): (\S.*)$", text, re.M))
    blocks = dict(re.findall(r"^      (\w+):.*\n((?:        .*\n?|\n)+)", text, re.M))
    named = re.findall(r"^ +(\w+): (.*)$", blocks.get("env", ""), re.M)
    uses = values.get("uses", "").partition(" ")[0] or None
    command = textwrap.dedent(blocks["run"]) if "run" in blocks else values.get("run", "")
    settings = dict(re.findall(r"^ +([\w-]+): (.*?)(?: #.*)?$", blocks.get("with", ""), re.M))
    condition = values.get("if", "")
    return Step(values.get("name", ""), uses, dict(named), command, settings, condition)


def main(words: list[str]) -> int:
    """Do all steps with some inputs; return the exit code of the first that fails."""
    text = ACTION.read_text(encoding="utf-8")
    given = {name: value for name, _, value in (word.partition("=") for word in words)}
    unknown = set(given) - set(defaults(text))
    if unknown:
        sys.stderr.write(f"no input of the action: {', '.join(sorted(unknown))}\n")
        return 2
    folder = Path(tempfile.mkdtemp(prefix="paritybit-"))
    venv.create(folder / "environment", with_pip=True)
    path = os.pathsep.join([str(folder / "environment" / "bin"), os.environ["PATH"]])
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    job = Job(folder, {**kept, "PATH": path}, {**defaults(text), **given})
    code = 0
    for step in steps(text):
        if step.uses is not None:
            sys.stdout.write(f"--- {step.name}: not done, it uses {step.uses}\n")
            continue
        done = job.run(step)
        sys.stdout.write(f"--- {step.name}: {done.returncode}\n{done.stdout}")
        code = done.returncode
        if code:
            break
    sys.stdout.write(
        f"--- outputs\n{job.outputs.read_text()}--- summary\n{job.summary.read_text()}"
    )
    sys.stdout.write(f"--- in {folder}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
