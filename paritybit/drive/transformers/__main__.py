"""Serve requests to transformers' continuous batching: `python -m paritybit.drive.transformers`.

Ends with 0 when it has played for as long as asked, and the engine was idle at the end.
"""

import argparse

from paritybit.drive.playing import Drive, Engine, add_play_options, main
from paritybit.drive.served import DEVICES
from paritybit.drive.transformers.settings import SCHEDULERS, Served


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = argparse.ArgumentParser(prog="python -m paritybit.drive.transformers")
    add_play_options(made, DEVICES, page_size=16)
    made.add_argument("--full", action="store_true", help="make all layers ones of full attention")
    made.add_argument("--no-graphs", dest="graphs", action="store_false")
    made.add_argument("--offload", action="store_true")
    made.add_argument("--samples", type=int, default=1)
    made.add_argument("--scheduler", choices=SCHEDULERS, default="fifo")
    return made


def prepare(device: str) -> None:
    """Install what stands in for parts of the engine on a device, and import the engine."""
    from paritybit.drive.stand_ins.installing import install  # noqa: PLC0415
    from paritybit.drive.transformers.stand_ins import ON_A_CPU  # noqa: PLC0415

    install(device, (), ON_A_CPU)


def engine(served: Served) -> Engine:
    """Return the engine."""
    from paritybit.drive.transformers import serving  # noqa: PLC0415

    return serving.Engine(served)


if __name__ == "__main__":
    main(parser(), Drive(Served, prepare, engine))
