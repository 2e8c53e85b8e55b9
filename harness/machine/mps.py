"""NVIDIA's MPS, with which kernels of several processes overlap on one GPU.

`echo get_server_list | nvidia-cuda-mps-control` shows whether a daemon answers. It uses the pipe
folder in CUDA_MPS_PIPE_DIRECTORY, as clients do. A running daemon is used and never changed.
`private_daemon` starts a separate one.
"""

import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paritybit.harness.errors import CannotRunError
from paritybit.harness.machine import keeper
from paritybit.harness.machine.gpus import visible_gpus

BY_DRIVER = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""The variable with which torch asks the driver for GPUs, and does not initialise CUDA for it."""


def answers() -> bool:
    """Whether an MPS daemon answers to processes started from this one."""
    return keeper.command(keeper.PROBE, os.environ, keeper.PROBE_SECONDS) is not None


@contextmanager
def private_daemon(device: str) -> Iterator[None]:
    """Run a private MPS daemon for the processes that are started in this context.

    The daemon has its own pipe and log folders. It is stopped at the end of the context, and when
    this process ends in any way. This process must not initialise CUDA meanwhile, because the
    daemon would wait for it as a client. `device` is the value of --device. Raises CannotRunError
    if the daemon cannot start.
    """
    if device == "cpu":
        raise CannotRunError("--mps cannot start an MPS daemon because this run uses the CPU")
    if not visible_gpus():
        raise CannotRunError("--mps cannot start an MPS daemon because no GPU is visible")
    before = {name: os.environ.get(name) for name in (keeper.PIPES, keeper.LOGS, BY_DRIVER)}
    folder = Path(tempfile.mkdtemp(prefix="paritybit-mps-"))
    with _kept(folder) as said:
        if said != keeper.READY:
            raise CannotRunError(f"--mps cannot start an MPS daemon: {said}")
        os.environ.update({**keeper.variables_of(folder), BY_DRIVER: "1"})
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value


LONGEST_SECONDS = 120.0
"""The time limit in seconds for a keeper to answer or end: three times its own limits."""


@contextmanager
def _kept(folder: Path) -> Iterator[str]:
    """Run the keeper of a daemon in this context. Yields its first line."""
    with subprocess.Popen(
        [sys.executable, "-I", keeper.__file__, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if not select.select([process.stdout], [], [], LONGEST_SECONDS)[0]:
                yield "its starter did not answer"
            else:
                line = process.stdout.readline()
                yield line.strip() or "its starter exited without an answer"
        finally:
            process.stdin.close()
            try:
                process.wait(LONGEST_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
