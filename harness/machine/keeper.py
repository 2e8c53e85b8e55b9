"""Keeps a private MPS daemon for as long as the process that asked for it lives.

A program of its own: `keeper.py FOLDER`. It starts the daemon, says on stdout that it is ready
or, in one sentence, why it is not, waits for the end of stdin, and then stops the daemon and
removes the folder. The system closes that pipe however the other process ends, so that nothing
it does, or is done to it, leaves a daemon behind. Imports nothing of ours: it is run by path.
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
"""NVIDIA's program: the daemon itself with -f, and else what sends a daemon commands."""

PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
"""The variables by which daemon and clients find one another, and that say where it logs."""

READY = "ready"
PROBE = "get_server_list"
"""The command that a daemon answers without doing anything: the probe of whether there is one."""

MISSING = "Cannot find MPS control daemon"
"""What NVIDIA's program says where no daemon listens."""

PROBE_SECONDS, QUIT_SECONDS = 10.0, 3.0
"""How long a command may take, and clients to end once told to."""

START_SECONDS, FIRST_SECONDS = 30.0, 2.0
"""How long a daemon may take until it answers, and a command meanwhile."""


def command(words: str, variables: Mapping[str, str], seconds: float) -> str | None:
    """Send a daemon a command and return its answer; None where no daemon takes it."""
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
    """Return the variables by which clients find the daemon of a folder."""
    return {PIPES: str(folder / "pipe"), LOGS: str(folder / "log")}


def keep(folder: Path) -> None:
    """Start a daemon, say how that went, and stop it when stdin ends."""
    variables = {**os.environ, **variables_of(folder)}
    # A daemon that sees some GPUs alone numbers them anew, and its clients' names would not fit.
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
        with suppress(subprocess.TimeoutExpired):  # A driver can hold a process that was killed.
            daemon.wait(QUIT_SECONDS)


def refused(
    daemon: subprocess.Popen[bytes], variables: Mapping[str, str], said: Path
) -> str | None:
    """Wait until a daemon answers, or stdin ends; return why it never will, or None."""
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
    """Tell a daemon to end its servers and itself, and give it time to."""
    if daemon.poll() is None:
        command(f"quit -t {QUIT_SECONDS:.0f}", variables, PROBE_SECONDS + QUIT_SECONDS)
    with suppress(subprocess.TimeoutExpired):
        daemon.wait(QUIT_SECONDS)


def say(sentence: str) -> None:
    """Write a line for whoever asked, if that is still there."""
    with suppress(BrokenPipeError):
        sys.stdout.write(f"{sentence}\n")
        sys.stdout.flush()


def main(folder: Path) -> None:
    """Keep a daemon in a folder, and remove that at the end."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # Not ignored: the daemon would inherit that.
    try:
        keep(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
