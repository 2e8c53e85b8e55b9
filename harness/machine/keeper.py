"""Runs a private MPS daemon for the lifetime of the process that asked for it.

It is a separate program: `keeper.py FOLDER`. It starts the daemon, prints that it is ready or why
it is not, waits for the end of stdin, then stops the daemon and removes the folder. The system
closes the pipe when the other process ends in any way, so no daemon is left behind. It imports
nothing of paritybit, because it is run by path.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
"""NVIDIA's program. With -f it is the daemon, otherwise it sends commands to a daemon."""

PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
"""The environment variables with the pipe folder and the log folder of a daemon."""

READY = "ready"
PROBE = "get_server_list"
"""A command without effect, to find out whether a daemon answers."""

MISSING = "Cannot find MPS control daemon"
"""The message of NVIDIA's program if no daemon listens."""

PROBE_SECONDS, QUIT_SECONDS = 10.0, 3.0
"""Time limits in seconds for a command, and for clients to end."""

START_SECONDS, FIRST_SECONDS = 30.0, 2.0
"""Time limits in seconds for a daemon to start, and for a command meanwhile."""


def command(words: str, variables: Mapping[str, str], seconds: float) -> str | None:
    """Send a daemon a command, and return its answer. None if there is no daemon."""
    try:
        sent = subprocess.run(
            [CONTROL],
            input=f"{words}\n",
            capture_output=True,
            text=True,
            timeout=seconds,
            env=dict(variables),
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return None if MISSING in sent.stdout + sent.stderr else sent.stdout


def variables_of(folder: Path) -> dict[str, str]:
    """Return the environment variables for clients of the daemon in a folder."""
    return {PIPES: str(folder / "pipe"), LOGS: str(folder / "log")}


def keep(folder: Path) -> None:
    """Start a daemon, report the result, and stop it when stdin ends."""
    variables = {**os.environ, **variables_of(folder)}
    # A daemon that sees only some GPUs renumbers them, so the clients' indices would not match.
    variables.pop("CUDA_VISIBLE_DEVICES", None)
    for name in (PIPES, LOGS):
        Path(variables[name]).mkdir()
    said = folder / "said"
    try:
        with said.open("w") as output:
            daemon = subprocess.Popen(
                [CONTROL, "-f"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=variables,
                start_new_session=True,
            )
    except OSError as error:
        say(f"{CONTROL} cannot be run: {error.strerror}")
        return
    try:
        refusal = refused(daemon, variables, said)
        say(refusal or READY)
        if refusal is None:
            sys.stdin.read()
            dismiss(daemon, variables)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(daemon.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):  # A driver can delay a killed process.
            daemon.wait(QUIT_SECONDS)


def refused(
    daemon: subprocess.Popen[bytes], variables: Mapping[str, str], said: Path
) -> str | None:
    """Wait until a daemon answers or stdin ends. Returns the reason for a failure, or None."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        code = daemon.poll()
        if code is not None:
            lines = said.read_text(errors="replace").split("\n")
            why = next((line.strip() for line in reversed(lines) if line.strip()), "no word")
            return f"{CONTROL} exited with code {code}: {why}"
        if command(PROBE, variables, FIRST_SECONDS) is not None:
            return None
        if select.select([sys.stdin], [], [], 0.05)[0]:
            return "the process that started it is gone"
    return f"{CONTROL} did not answer within {START_SECONDS:.0f} s"


def dismiss(daemon: subprocess.Popen[bytes], variables: Mapping[str, str]) -> None:
    """Make a daemon end its servers and itself, up to a time limit."""
    if daemon.poll() is None:
        command(f"quit -t {QUIT_SECONDS:.0f}", variables, PROBE_SECONDS + QUIT_SECONDS)
    with suppress(subprocess.TimeoutExpired):
        daemon.wait(QUIT_SECONDS)


def say(sentence: str) -> None:
    """Write a line to the process that asked, if it still exists."""
    with suppress(BrokenPipeError):
        sys.stdout.write(f"{sentence}\n")
        sys.stdout.flush()


def main(folder: Path) -> None:
    """Run a daemon with its files in a folder, and remove the folder at the end."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # Not SIG_IGN, which the daemon would inherit.
    try:
        keep(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
