"""Serve generated requests to a whole sglang in this process: `python -m paritybit.drive.sglang`.

Ends with 0 when it has played for as long as asked, and the engine was idle at the end.
"""

import argparse
import importlib
import os

from paritybit.drive.playing import Drive, Engine, add_play_options, main
from paritybit.drive.served import DEVICES
from paritybit.drive.sglang.settings import (
    CHUNK,
    FROZEN,
    GRAPHS,
    OF_RELEASE,
    POOL,
    RANKS,
    ROWS,
    SPECULATION,
    Served,
)

IMPORTED = ("sglang.srt.managers.scheduler", "sglang.srt.models.registry")
"""Modules of the engine that take longest to import: the second one imports each model's."""


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = argparse.ArgumentParser(prog="python -m paritybit.drive.sglang")
    add_play_options(made, DEVICES, page_size=1)
    made.add_argument("--chunk", type=int, default=CHUNK)
    made.add_argument("--rows", type=int, default=ROWS)
    made.add_argument("--pool", type=int, default=POOL)
    made.add_argument("--windows", type=int, help="slots of the window pool")
    made.add_argument("--whole-prompts", action="store_true")
    made.add_argument("--speculative", choices=SPECULATION)
    made.add_argument("--sliding-draft", action="store_true")
    made.add_argument("--frozen-draft", choices=FROZEN)
    made.add_argument("--topk", type=int, default=1)
    made.add_argument("--adapters", type=int, default=0, help="serve so many LoRA adapters")
    made.add_argument("--ranks", type=int, choices=RANKS, default=1, help="data-parallel ranks")
    made.add_argument("--host-cache", action="store_true", help="keep KV on the host, too")
    made.add_argument("--backend", default="triton")
    made.add_argument("--graphs", choices=GRAPHS, default="decode")
    made.add_argument("--alone", action="store_true", help="serve each request alone, too")
    return made


def stand_in(device: str) -> None:
    """Install what stands in for parts of the engine on a device."""
    if device == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")
    from paritybit.drive.stand_ins.installing import install  # noqa: PLC0415
    from paritybit.drive.stand_ins.table import ANYWHERE, ON_A_CPU  # noqa: PLC0415

    install(device, ANYWHERE, ON_A_CPU)


def prepare(device: str) -> None:
    """Install what stands in for parts of the engine on a device, and import the engine."""
    stand_in(device)
    for name in IMPORTED:
        importlib.import_module(name)


def engine(served: Served) -> Engine:
    """Return the engine, with the graph runner that is asked for."""
    from paritybit.drive.sglang import serving  # noqa: PLC0415
    from paritybit.drive.sglang.compiled import CPU_GRAPHS  # noqa: PLC0415
    from paritybit.drive.stand_ins.installing import put  # noqa: PLC0415
    from paritybit.drive.stand_ins.table import RUNNER_OF_CUDA  # noqa: PLC0415

    if served.device == "cpu":
        put(CPU_GRAPHS if served.graphs == "cpu" else (RUNNER_OF_CUDA,))
    return serving.Engine(served)


if __name__ == "__main__":
    main(parser(), Drive(Served, prepare, engine, of_release=OF_RELEASE))
