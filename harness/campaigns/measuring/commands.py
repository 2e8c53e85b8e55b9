"""Measures the CPU seconds of commands, until they and all their processes have ended."""

import json
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paritybit.harness.errors import MalformedError
from paritybit.subjects.bugs.catalogue import BUGS

from paritybit.places import IMPORT_FOLDER

COMMANDS: Sequence[tuple[str, ...]] = (("--help",), ("list",), ("regress", "--bug", "no_bug"))
"""Commands that must not import slow modules: help, all names, an unknown name."""

ROUNDS = 5
"""The number of measurements. The result is the median."""


RUNS: Mapping[str, Collection[str]] = {"regress --bug swa_pad": ("swa_pad",), "regress": BUGS}
"""Commands that are measured in this tree and in another, if one is given, and their bugs.

Only bugs that both trees have are hunted.
"""

MODULES = "paritybit", "harness"
"""How a tree calls the package of its command line; older ones are called by the second name."""


def cpu_seconds(
    words: Sequence[str],
    folder: Path = IMPORT_FOLDER,
    module: str = MODULES[0],
    *,
    check: bool = False,
) -> float:
    """Return the seconds of the CPU that a command of a tree took in a process of its own.

    With `check`, raises CalledProcessError for a command that does not end with 0.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=folder,
        capture_output=True,
        check=check,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def commands() -> Iterator[dict[str, Any]]:
    """Yield the cost of each command. The cache of names is filled first."""
    cpu_seconds(["list"])
    for words in COMMANDS:
        seconds = statistics.median(cpu_seconds(words) for _ in range(ROUNDS))
        yield {"command": " ".join(("paritybit", *words)), "cpu_seconds": round(seconds, 3)}


def module_of(tree: Path) -> str:
    """Return what a tree of paritybit calls the package of its command line.

    Raises MalformedError for any other folder.
    """
    module = next((name for name in MODULES if (tree / name / "__main__.py").exists()), None)
    if module is None:
        raise MalformedError(f"{tree.name} has no command line of paritybit")
    return module


def against_tree(tree: Path, own: Path = IMPORT_FOLDER) -> Iterator[dict[str, Any]]:
    """Yield what each of RUNS costs in the own tree and in another, on a CPU, and their ratio.

    Raises MalformedError for a folder that is no tree of paritybit, CalledProcessError for a
    command that does not end with 0.
    """
    module = module_of(tree)
    listed = [sys.executable, "-m", module, "list", "--json"]
    others = json.loads(subprocess.run(listed, cwd=tree, capture_output=True, check=True).stdout)
    for command, bugs in RUNS.items():
        shared = [name for name in bugs if name in others["bugs"]]
        with tempfile.TemporaryDirectory(prefix="paritybit-") as out:
            asked = "regress", "--bug", ",".join(shared), "--device", "cpu", "--out", out
            here = cpu_seconds(asked, own, check=True)
            there = cpu_seconds(asked, tree, module, check=True)
        yield {
            "command": command,
            "bugs": len(shared),
            "cpu_seconds": round(here, 2),
            "other_cpu_seconds": round(there, 2),
            "ratio": round(here / there, 3),
        }
