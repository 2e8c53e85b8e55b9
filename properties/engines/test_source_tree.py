"""A source tree of an engine: `git bisect run` finds the commit that planted a fault in it."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from properties.support.harness.command_line import LONGEST
from properties.support.places import ROOT
from properties.support.releases import package_of

RESET = "                self.out_cache_loc_swa.zero_()\n"
"""The line by which a release resets the SWA locations of padded rows."""


def git(root: Path, *words: str) -> str:
    """Run git in a repository and return what it says."""
    name = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org")
    done = subprocess.run(
        ["git", *name, *words],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def commit(root: Path, subject: str) -> str:
    """Commit all there is and return the commit."""
    git(root, "add", "--all", "--force")
    git(root, "commit", "--quiet", "--allow-empty", "--message", subject)
    return git(root, "rev-parse", "HEAD").strip()


def test_git_bisect_finds_the_commit_that_planted_a_fault_in_a_source_tree(tmp_path: Path) -> None:
    package = package_of("0.5.12")
    tree = tmp_path / "engine"
    shutil.copytree(package, tree / "python" / "sglang", ignore=shutil.ignore_patterns("*.pyc"))
    git(tmp_path, "init", "--quiet", str(tree))
    good = commit(tree, "as released")
    commit(tree, "nothing")
    runner = tree / "python/sglang/srt/model_executor/cuda_graph_runner.py"
    text = runner.read_text()
    assert text.count(RESET) == 1
    runner.write_text(text.replace(RESET, RESET.replace("self.out_cache_loc_swa.zero_()", "pass")))
    planted = commit(tree, "the reset is gone")
    bad = commit(tree, "nothing more")
    git(tree, "bisect", "start", bad, good)
    tried = (
        f"PYTHONPATH={shlex.quote(str(ROOT))} {shlex.quote(sys.executable)} -m harness regress"
        f" --engine . --bug swa_pad@decode --preset gpt_oss --examples 1 --device cpu"
        f" --out {shlex.quote(str(tmp_path / 'out'))}"
    )
    said = git(tree, "bisect", "run", "sh", "-c", tried)
    assert f"{planted} is the first bad commit" in said
    git(tree, "bisect", "reset")
