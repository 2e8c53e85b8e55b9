"""What a command costs that only says something: the seconds until its answer, on the CPU."""

import resource
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]

COMMANDS: Sequence[tuple[str, ...]] = (("--help",), ("list",), ("regress", "--bug", "no_bug"))
"""What needs nothing that takes long: help, the names, and a name that no build has."""

ROUNDS = 5
"""How often each is measured; the median counts."""


def cpu_seconds(words: Sequence[str]) -> float:
    """Return the seconds of the CPU that a command took in a process of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "harness", *words], cwd=ROOT, capture_output=True, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def commands() -> Iterator[dict[str, Any]]:
    """Yield what each command costs, once the names that it needs are kept."""
    cpu_seconds(["list"])
    for words in COMMANDS:
        seconds = statistics.median(cpu_seconds(words) for _ in range(ROUNDS))
        yield {"command": " ".join(("paritybit", *words)), "cpu_seconds": round(seconds, 3)}
