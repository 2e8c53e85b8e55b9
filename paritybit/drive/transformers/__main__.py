"""Serve requests to transformers' continuous batching: `python -m paritybit.drive.transformers`.

Ends with 0 when it has played for as long as asked, and the engine was idle at the end.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from paritybit.drive.models import MODELS
from paritybit.drive.playing import add_play_options, run
from paritybit.drive.script import read
from paritybit.drive.transformers.settings import DEVICES, SCHEDULERS, Served


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = argparse.ArgumentParser(prog="python -m paritybit.drive.transformers")
    made.add_argument("--model", choices=tuple(MODELS), default="gemma4")
    made.add_argument("--device", choices=DEVICES, default="cpu")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--page-size", type=int, default=16)
    made.add_argument("--full", action="store_true", help="make all layers ones of full attention")
    made.add_argument("--no-graphs", action="store_true")
    made.add_argument("--no-prefix-cache", action="store_true")
    made.add_argument("--overlap", action="store_true")
    made.add_argument("--offload", action="store_true")
    made.add_argument("--samples", type=int, default=1)
    made.add_argument("--scheduler", choices=SCHEDULERS, default="fifo")
    add_play_options(made)
    return made


def served_as(asked: argparse.Namespace) -> Served:
    """Return the settings that a command line asks for."""
    return Served(
        model=asked.model,
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
    script = None if asked.script is None else read(asked.script)
    served = served_as(asked) if script is None else Served.of(script.settings)
    from paritybit.drive.stand_ins.installing import install  # noqa: PLC0415
    from paritybit.drive.transformers.serving import Engine  # noqa: PLC0415
    from paritybit.drive.transformers.stand_ins import ON_A_CPU  # noqa: PLC0415

    install(served.device, (), ON_A_CPU)
    return run(Engine(served), served, script, asked)


if __name__ == "__main__":
    sys.stdout.flush()
    code = main()
    sys.stderr.flush()
    os._exit(code)
