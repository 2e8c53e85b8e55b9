"""Serve generated requests to a whole sglang in this process: `python -m paritybit.drive.sglang`.

Ends with 0 when it has played for as long as asked, and the engine was idle at the end.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from paritybit.drive.models import MODELS
from paritybit.drive.playing import play
from paritybit.drive.settings import GRAPHS, SPECULATION, Served


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = argparse.ArgumentParser(prog="python -m paritybit.drive.sglang")
    made.add_argument("--model", choices=tuple(MODELS), default="gemma4")
    made.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--seconds", type=float, help="play for this long, then until idle")
    made.add_argument("--forwards", type=int, help="play for so many forwards, then until idle")
    made.add_argument("--page-size", type=int, default=1)
    made.add_argument("--whole-prompts", action="store_true")
    made.add_argument("--no-prefix-cache", action="store_true")
    made.add_argument("--overlap", action="store_true")
    made.add_argument("--speculative", choices=SPECULATION)
    made.add_argument("--sliding-draft", action="store_true")
    made.add_argument("--topk", type=int, default=1)
    made.add_argument("--backend", default="triton")
    made.add_argument("--graphs", choices=GRAPHS, default="decode")
    return made


def main(words: Sequence[str] | None = None) -> int:
    """Play as the command line says; return the exit code."""
    asked = parser().parse_args(words)
    served = Served(
        model=MODELS[asked.model],
        device=asked.device,
        seed=asked.seed,
        page_size=asked.page_size,
        whole_prompts=asked.whole_prompts,
        prefix_cache=not asked.no_prefix_cache,
        overlap=asked.overlap,
        speculative=asked.speculative,
        topk=asked.topk,
        sliding_draft=asked.sliding_draft,
        backend=asked.backend,
        graphs=asked.graphs,
    )
    if served.device == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")
    from paritybit.drive.serving import Engine  # noqa: PLC0415
    from paritybit.drive.stand_ins.installing import install  # noqa: PLC0415
    from paritybit.drive.stand_ins.table import ANYWHERE, ON_A_CPU  # noqa: PLC0415

    install(served.device, ANYWHERE, ON_A_CPU)
    return play(Engine(served), asked.seconds, asked.forwards)


if __name__ == "__main__":
    sys.stdout.flush()
    code = main()
    sys.stderr.flush()
    os._exit(code)
