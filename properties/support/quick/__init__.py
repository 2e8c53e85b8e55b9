"""Python commands that start from a fork: what takes seconds to import is imported once.

`quick` gives a command line that does what `python WORDS...` does. Its process is `client.py`. That
asks the server of `server.py` for a fork, hands it its variables, folder and streams, passes
signals on, and ends as the fork ends. Each process that runs tests has one server.
"""

import atexit
import os
import shlex
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from properties.support.places import ROOT

CLIENT = Path(__file__).with_name("client.py")

FORKS = hasattr(os, "pidfd_open")
"""Whether forks can be waited for here. Where they cannot, each command starts an interpreter."""

OF_THIS_RUN = ("PYTEST_", "HYPOTHESIS_", "CI")
"""How the variables begin that say something of the run of these tests."""


def quick(*words: object) -> list[str]:
    """Return a command line that runs Python's `words` from a fork.

    The fork starts an interpreter all the same if it has other variables of Python or triton than
    its server, or if the words have an option of the interpreter other than `-u`.
    """
    given = [str(word) for word in words]
    if not FORKS:
        return [sys.executable, *given]
    return [sys.executable, "-I", "-S", str(CLIENT), str(_server()), *given]


def quick_worker() -> list[str]:
    """Return the options of pytest that run the tests in one worker of xdist, from a fork."""
    return ["--dist", "load", "--tx", f"popen//python={shlex.join(quick())}"]


@cache
def _server() -> Path:
    """Start the server of this process and return its socket. The server ends with this process."""
    socket = Path(tempfile.mkdtemp(prefix="quick-")) / "socket"
    kept = {name: text for name, text in os.environ.items() if not name.startswith(OF_THIS_RUN)}
    process = subprocess.Popen(
        [sys.executable, "-c", "from properties.support.quick.server import main; main()", socket],
        cwd=ROOT,
        env={**kept, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    atexit.register(_end, process, socket)
    return socket


def _end(process: subprocess.Popen[bytes], socket: Path) -> None:
    """End a server, whose processor time is then counted as this process's."""
    process.communicate()
    socket.unlink(missing_ok=True)
    socket.parent.rmdir()
