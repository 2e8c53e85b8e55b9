"""Serve requests to a whole engine in this process: `python -m paritybit.drive ENGINE FILE`.

The exit code is 0 if the job is done, and the engine was idle at the end.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from paritybit.drive.adapters import adapter
from paritybit.drive.job import read
from paritybit.drive.run import leave, run
from paritybit.drive.warm import OPTION, forked


def main(name: str, *words: str) -> None:
    """Do the job in a file, in this process or in a fork of it."""
    serving: Any = import_module(f"paritybit.drive.{name}.serving")
    forks = words[0] == OPTION
    if forks:
        serving.install("cpu")
        words = (forked(int(words[1])),)
    job = read(Path(words[0]))
    served = adapter(name).settings.of(job.settings)
    if not forks:
        serving.install(served.device)
    leave(run(serving.ENGINE(served), served, job))


if __name__ == "__main__":
    main(*sys.argv[1:])
