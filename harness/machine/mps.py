"""NVIDIA's MPS, by which the kernels of several processes overlap on one GPU.

The probe of whether a daemon answers is `echo get_server_list | nvidia-cuda-mps-control`, which
asks on the pipe folder that CUDA_MPS_PIPE_DIRECTORY names, as clients do. A daemon that was
running is used and never touched; `private_daemon` starts one of its own.
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
"""Has torch ask the driver whether there is a GPU, and begin CUDA only where it is used."""


def answers() -> bool:
    """Whether an MPS daemon answers where a process started from here would look for one."""
    return keeper.command(keeper.PROBE, os.environ, keeper.PROBE_SECONDS) is not None


@contextmanager
def private_daemon(device: str) -> Iterator[None]:
    """Let the processes that are started within share GPUs by an MPS daemon of their own.

    It has pipe and log folders of its own and is stopped however this ends, or this process, which
    asks for GPUs without CUDA meanwhile: it would be a client that the daemon waits for. `device`
    is as it was asked for. Raises CannotRunError where none can start.
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
"""How long a keeper may take to say something, or to end: three times what its own limits allow."""


@contextmanager
def _kept(folder: Path) -> Iterator[str]:
    """Run the keeper of a daemon until the end; yield what it says first."""
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
