"""Serve requests to transformers' continuous batching: `python -m paritybit.drive.transformers`.

The exit code is 0 if it has played for the requested time, and the engine was idle at the end.
"""

from paritybit.drive.playing import Drive, Engine, main
from paritybit.drive.transformers.settings import Served


def prepare(device: str) -> None:
    """Install the replacements for parts of the engine on a device, and import the engine."""
    from paritybit.drive.stand_ins.installing import install  # noqa: PLC0415
    from paritybit.drive.transformers.stand_ins import ON_A_CPU  # noqa: PLC0415

    install(device, (), ON_A_CPU)


def engine(served: Served) -> Engine:
    """Return the engine."""
    from paritybit.drive.transformers import serving  # noqa: PLC0415

    return serving.Engine(served)


if __name__ == "__main__":
    main(Drive(Served, prepare, engine))
