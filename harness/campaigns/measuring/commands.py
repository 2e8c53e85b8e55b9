"""What commands cost that only print something: the seconds of the CPU until they have ended."""

import resource
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from paritybit.places import IMPORT_FOLDER

COMMANDS: Sequence[tuple[str, ...]] = (("--help",), ("list",), ("regress", "--bug", "no_bug"))
"""Commands that must import nothing that takes long: help, all names, an unknown name."""

ROUNDS = 5
"""How often each is measured; the median counts."""


def cpu_seconds(words: Sequence[str]) -> float:
    """Return the seconds of the CPU that a command took in a process of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "paritybit", *words],
        cwd=IMPORT_FOLDER,
        capture_output=True,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def commands() -> Iterator[dict[str, Any]]:
    """Yield what each command costs, once the list of names that it needs is in its cache."""
    cpu_seconds(["list"])
    for words in COMMANDS:
        seconds = statistics.median(cpu_seconds(words) for _ in range(ROUNDS))
        yield {"command": " ".join(("paritybit", *words)), "cpu_seconds": round(seconds, 3)}
