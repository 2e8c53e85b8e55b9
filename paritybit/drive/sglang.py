"""Serve generated requests to a whole sglang in this process: `python -m paritybit.drive.sglang`.

Ends with 0 when it has played for as long as asked, and the engine was idle at the end.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace

from paritybit.drive.models import MODELS
from paritybit.drive.playing import add_play_options, run
from paritybit.drive.script import read
from paritybit.drive.settings import DEVICES, GRAPHS, SPECULATION, Served


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = argparse.ArgumentParser(prog="python -m paritybit.drive.sglang")
    made.add_argument("--model", choices=tuple(MODELS), default="gemma4")
    made.add_argument("--device", choices=DEVICES, default="cpu")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--page-size", type=int, default=1)
    made.add_argument("--whole-prompts", action="store_true")
    made.add_argument("--no-prefix-cache", action="store_true")
    made.add_argument("--overlap", action="store_true")
    made.add_argument("--speculative", choices=SPECULATION)
    made.add_argument("--sliding-draft", action="store_true")
    made.add_argument("--topk", type=int, default=1)
    made.add_argument("--backend", default="triton")
    made.add_argument("--graphs", choices=GRAPHS, default="decode")
    made.add_argument("--alone", action="store_true", help="serve each request alone, too")
    add_play_options(made)
    return made


def main(words: Sequence[str] | None = None) -> int:
    """Play as the command line says; return the exit code."""
    asked = parser().parse_args(words)
    served = Served(
        model=asked.model,
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
        alone=asked.alone,
    )
    script = None
    if asked.script is not None:
        script = read(asked.script)
        served = replace(Served.of(script.settings), sliding_draft=asked.sliding_draft)
    if served.device == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")
    from paritybit.drive.serving import Engine  # noqa: PLC0415
    from paritybit.drive.stand_ins.installing import install  # noqa: PLC0415
    from paritybit.drive.stand_ins.table import ANYWHERE, ON_A_CPU  # noqa: PLC0415

    install(served.device, ANYWHERE, ON_A_CPU)
    return run(Engine(served), served, script, asked)


if __name__ == "__main__":
    sys.stdout.flush()
    code = main()
    sys.stderr.flush()
    os._exit(code)
