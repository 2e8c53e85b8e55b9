"""`git bisect run paritybit replay CASE`, as docs/triage.md has it, over a history of this tree.

A throw-away repository holds a few commits of the packages. One of them plants a fault in a
subject, one lacks what the case names. Git must name the fault, from exit codes alone.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.records.case import Case, write_case
from paritybit.harness.schedules.schedule import Admit, Decode, Schedule
from paritybit.subjects.toggles import LocationScheme

from properties.support.harness.command_line import LONGEST
from properties.support.places import copy_packages

CASE = Case(
    trial=TrialConfig(
        dtype="bfloat16", scheme=LocationScheme.PRESET, buckets=(2,), token_buckets=(4,)
    ),
    schedule=Schedule((Admit(1, 16), Admit(1, 16), Decode((0, 1)), Decode((0,)))),
    target="kv_parity",
    seed=0,
    violations=(),
)
"""A schedule on a clean trial: what it shows, the tree has, and no toggle."""

HISTORY = (
    ("A list of what there is", "NOTES", "", "reference, subjects, harness\n"),
    ("One dtype for now", "harness/lockstep/config.py", ', "bfloat16": torch.bfloat16', ""),
    (
        "Both dtypes again",
        "harness/lockstep/config.py",
        '"float32": torch.float32}',
        '"float32": torch.float32, "bfloat16": torch.bfloat16}',
    ),
    (
        "Zero what is int64 in one call",
        "subjects/buffers.py",
        "in resets if not (row.value or row.host)]",
        "in resets if row.dtype == torch.int64 and not row.value]",
    ),
    ("The list is longer", "NOTES", "harness", "harness, reports"),
)
"""Commits after the first: what each says, and the one change that it makes to a file."""

UNABLE, FAULT = 2, 4
"""Places in the history: the commit that knows no bfloat16, and the one that forgets int32."""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with the history, checked out at its end."""
    root = tmp_path / "tree"
    copy_packages(root)
    (root / ".gitignore").write_text("__pycache__/\n")
    (root / "NOTES").touch()
    git(root, "init", "--quiet")
    commit(root, "The tree as it is")
    for message, path, before, after in HISTORY:
        text = (root / path).read_text()
        assert text.count(before) == 1
        (root / path).write_text(text.replace(before, after))
        commit(root, message)
    return root


def commit(root: Path, message: str) -> None:
    """Commit all that there is."""
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", message)


def git(root: Path, *words: str) -> str:
    """Run git in a repository, with nothing of this machine's own settings."""
    settings = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    who = {f"GIT_{role}_NAME": "nobody" for role in ("AUTHOR", "COMMITTER")}
    who |= {f"GIT_{role}_EMAIL": "nobody@example.org" for role in ("AUTHOR", "COMMITTER")}
    suite = ("PYTHONPATH", "PYTHONPYCACHEPREFIX")  # The tree compiles for itself, as a user's does.
    inherited = {name: value for name, value in os.environ.items() if name not in suite}
    done = subprocess.run(
        ["git", *words],
        cwd=root,
        env=inherited | settings | who,
        capture_output=True,
        text=True,
        timeout=LONGEST * 4,  # It runs a command for each commit that it tries.
        check=True,
    )
    return done.stdout


@pytest.mark.long
@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed here")
def test_git_bisect_names_the_commit_that_plants_a_fault(repository: Path, tmp_path: Path) -> None:
    """One commit cannot run the case and is skipped."""
    write_case(CASE, tmp_path / "case.json")
    commits = git(repository, "rev-list", "--reverse", "HEAD").split()
    assert len(commits) == 1 + len(HISTORY)
    git(repository, "bisect", "start", commits[-1], commits[0])
    message = git(
        repository,
        *("bisect", "run", sys.executable, "-m", "paritybit", "replay"),
        str(tmp_path / "case.json"),
    )
    assert f"{commits[FAULT]} is the first bad commit" in message
    log = git(repository, "bisect", "log")
    assert f"git bisect skip {commits[UNABLE]}" in log
    assert f"git bisect bad {commits[FAULT]}" in log
    assert f"git bisect good {commits[FAULT - 1]}" in log
    assert "4 steps, 2 replays (1 padded): differs" in message
