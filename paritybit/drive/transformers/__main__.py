"""Serve requests to transformers' continuous batching: `python -m paritybit.drive.transformers`.

Ends with 0 when it has played for as long as asked, and the engine was idle at the end.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from paritybit.drive.models import MODELS
from paritybit.drive.playing import play
from paritybit.drive.transformers.settings import Served


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = argparse.ArgumentParser(prog="python -m paritybit.drive.transformers")
    made.add_argument("--model", choices=tuple(MODELS), default="gemma4")
    made.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--seconds", type=float, help="play for this long, then until idle")
    made.add_argument("--forwards", type=int, help="play for so many forwards, then until idle")
    made.add_argument("--page-size", type=int, default=16)
    made.add_argument("--full", action="store_true", help="make all layers ones of full attention")
    made.add_argument("--no-graphs", action="store_true")
    made.add_argument("--no-prefix-cache", action="store_true")
    made.add_argument("--overlap", action="store_true")
    made.add_argument("--offload", action="store_true")
    made.add_argument("--samples", type=int, default=1)
    made.add_argument("--scheduler", default="fifo")
    return made


def served_as(asked: argparse.Namespace) -> Served:
    """Return the settings that a command line asks for."""
    return Served(
        model=MODELS[asked.model],
        device=asked.device,
        seed=asked.seed,
        page_size=asked.page_size,
        full=asked.full,
        graphs=not asked.no_graphs,
        sharing=not asked.no_prefix_cache,
        overlap=asked.overlap,
        offload=asked.offload,
        samples=asked.samples,
        scheduler=asked.scheduler,
    )


def main(words: Sequence[str] | None = None) -> int:
    """Play as the command line says; return the exit code."""
    asked = parser().parse_args(words)
    served = served_as(asked)
    from paritybit.drive.stand_ins.installing import install  # noqa: PLC0415
    from paritybit.drive.transformers.serving import Engine  # noqa: PLC0415
    from paritybit.drive.transformers.stand_ins import ON_A_CPU  # noqa: PLC0415

    install(served.device, (), ON_A_CPU)
    return play(Engine(served), asked.seconds, asked.forwards)


if __name__ == "__main__":
    sys.stdout.flush()
    code = main()
    sys.stderr.flush()
    os._exit(code)
