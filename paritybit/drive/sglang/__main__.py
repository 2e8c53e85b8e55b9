"""Serve generated requests to a whole sglang in this process: `python -m paritybit.drive.sglang`.

Ends with 0 when it has played for as long as asked, and the engine was idle at the end.
"""

import argparse
import os

from paritybit.drive.playing import Engine, add_play_options, leave, play
from paritybit.drive.served import DEVICES
from paritybit.drive.sglang.settings import (
    CHUNK,
    GRAPHS,
    POOL,
    RANKS,
    ROWS,
    SPECULATION,
    Served,
)


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
    made.add_argument("--topk", type=int, default=1)
    made.add_argument("--adapters", type=int, default=0, help="serve so many LoRA adapters")
    made.add_argument("--ranks", type=int, choices=RANKS, default=1, help="data-parallel ranks")
    made.add_argument("--host-cache", action="store_true", help="keep KV on the host, too")
    made.add_argument("--backend", default="triton")
    made.add_argument("--graphs", choices=GRAPHS, default="decode")
    made.add_argument("--alone", action="store_true", help="serve each request alone, too")
    return made


def engine(served: Served) -> Engine:
    """Return the engine, with what stands in for parts of it on its device."""
    if served.device == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")
    from paritybit.drive.sglang import serving  # noqa: PLC0415
    from paritybit.drive.stand_ins.installing import install  # noqa: PLC0415
    from paritybit.drive.stand_ins.table import ANYWHERE, ON_A_CPU  # noqa: PLC0415

    install(served.device, ANYWHERE, ON_A_CPU)
    return serving.Engine(served)


if __name__ == "__main__":
    leave(play(parser(), Served, engine, of_release=("sliding_draft",)))
