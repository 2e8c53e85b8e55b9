"""Serve generated requests to a whole sglang in this process: `python -m paritybit.drive.sglang`.

The exit code is 0 if it has played for the requested time, and the engine was idle at the end.
"""

import importlib
import os

from paritybit.drive.playing import Drive, Engine, main
from paritybit.drive.sglang.settings import OF_RELEASE, Served

IMPORTED = ("sglang.srt.managers.scheduler", "sglang.srt.models.registry")
"""Modules of the engine that take longest to import. The second one imports all models."""


def stand_in(device: str) -> None:
    """Install the replacements for parts of the engine on a device."""
    if device == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")
    from paritybit.drive.stand_ins.installing import install  # noqa: PLC0415
    from paritybit.drive.stand_ins.table import ANYWHERE, ON_A_CPU  # noqa: PLC0415

    install(device, ANYWHERE, ON_A_CPU)


def prepare(device: str) -> None:
    """Install the replacements for parts of the engine on a device, and import the engine."""
    stand_in(device)
    for name in IMPORTED:
        importlib.import_module(name)


def engine(served: Served) -> Engine:
    """Return the engine."""
    from paritybit.drive.sglang import serving  # noqa: PLC0415

    return serving.Engine(served)


if __name__ == "__main__":
    main(Drive(Served, prepare, engine, of_release=OF_RELEASE))
