"""Serve requests to a whole engine in this process: `python -m paritybit.drive ENGINE FILE`.

The exit code is 0 if the job is done, and the engine was idle at the end.
"""

import sys
from pathlib import Path

from paritybit.drive.adapters import adapter
from paritybit.drive.job import read
from paritybit.drive.run import leave, run
from paritybit.drive.warm import OPTION, forked


def main(name: str, *words: str) -> None:
    """Do the job in a file, in this process or in a fork of it."""
    one = adapter(name)
    forks = words[0] == OPTION
    if forks:
        one.install("cpu")
        words = (forked(int(words[1])),)
    job = read(Path(words[0]))
    served = one.settings.of(job.settings)
    if not forks:
        one.install(served.device)
    leave(run(one.engine(served), served, job))


if __name__ == "__main__":
    main(*sys.argv[1:])
