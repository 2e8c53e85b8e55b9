"""NVIDIA's MPS, with which kernels of several processes overlap on one GPU.

`echo get_server_list | nvidia-cuda-mps-control` shows whether a daemon answers. It uses the pipe
folder in CUDA_MPS_PIPE_DIRECTORY, as clients do. A running daemon is used and never changed.
`private_daemon` starts a separate one.
"""

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from paritybit.harness.errors import CannotRunError
from paritybit.harness.machine.environment import variables_set
from paritybit.harness.machine.gpus import VISIBLE, visible_gpus
from paritybit.harness.machine.guard import Guarded

CONTROL = "nvidia-cuda-mps-control"
"""NVIDIA's program. With -f it is the daemon, otherwise it sends commands to a daemon."""

PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
"""The environment variables with the pipe folder and the log folder of a daemon."""

BY_DRIVER = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""The variable with which torch asks the driver for GPUs, and does not initialise CUDA for it."""

MISSING = "Cannot find MPS control daemon"
"""The message of NVIDIA's program if no daemon listens."""

START_SECONDS, COMMAND_SECONDS, QUIT_SECONDS = 30.0, 10.0, 3.0
"""Time limits in seconds for a daemon to start, for a command, and for a daemon to quit."""

REFUSED = "--mps cannot start an MPS daemon"


def answers(variables: Mapping[str, str] = os.environ, seconds: float = COMMAND_SECONDS) -> bool:
    """Whether an MPS daemon answers to processes with some environment variables."""
    return command("get_server_list", variables, seconds)


def command(words: str, variables: Mapping[str, str], seconds: float = COMMAND_SECONDS) -> bool:
    """Send a daemon a command. Returns whether there is one that carries it out."""
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
        return False
    return MISSING not in sent.stdout + sent.stderr


@contextmanager
def private_daemon(device: str) -> Iterator[None]:
    """Run a private MPS daemon for the processes that are started in this context.

    The daemon has its own pipe and log folders. It is stopped at the end of the context, and killed
    when this process ends in any other way. This process must not initialise CUDA meanwhile,
    because the daemon would wait for it as a client. `device` is the value of --device. Raises
    CannotRunError if the daemon cannot start.
    """
    if device == "cpu":
        raise CannotRunError(f"{REFUSED} because this run uses the CPU")
    if not visible_gpus():
        raise CannotRunError(f"{REFUSED} because no GPU is visible")
    with tempfile.TemporaryDirectory(prefix="paritybit-mps-") as folder:
        variables = {PIPES: f"{folder}/pipe", LOGS: f"{folder}/log"}
        with _daemon(Path(folder), variables), variables_set({**variables, BY_DRIVER: "1"}):
            yield


@contextmanager
def _daemon(folder: Path, variables: Mapping[str, str]) -> Iterator[None]:
    """Run a daemon in this context. Raises CannotRunError if it does not answer."""
    for path in variables.values():
        Path(path).mkdir()
    environment = {**os.environ, **variables}
    # A daemon that sees only some GPUs renumbers them, so the clients' indices would not match.
    environment.pop(VISIBLE, None)
    said = folder / "said"
    with said.open("wb") as output:
        try:
            daemon = Guarded([CONTROL, "-f"], environment, output)
        except OSError as error:
            reason = f"{CONTROL} cannot be run: {error.strerror}"
            raise CannotRunError(f"{REFUSED}: {reason}") from error
    try:
        _require_answer(daemon, environment, said)
        try:
            yield
        finally:
            command(f"quit -t {QUIT_SECONDS:.0f}", environment)
            with suppress(subprocess.TimeoutExpired):
                daemon.wait(QUIT_SECONDS)
    finally:
        daemon.end()


def _require_answer(daemon: Guarded, variables: Mapping[str, str], said: Path) -> None:
    """Wait until a daemon answers. Raises CannotRunError if it ends or does not answer in time."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        code = daemon.poll()
        if code is not None:
            lines = said.read_text(errors="replace").split("\n")
            why = next((line.strip() for line in reversed(lines) if line.strip()), "no word")
            raise CannotRunError(f"{REFUSED}: {CONTROL} exited with code {code}: {why}")
        if answers(variables, 2.0):
            return
        time.sleep(0.05)
    raise CannotRunError(f"{REFUSED}: {CONTROL} did not answer within {START_SECONDS:.0f} s")
