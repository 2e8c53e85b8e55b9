"""Serve generated requests to a whole vLLM in this process: `python -m paritybit.drive.vllm`.

Ends with 0 when it has played for as long as asked, and the engine was idle at the end.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from paritybit.drive.models import MODELS
from paritybit.drive.playing import add_play_options, run
from paritybit.drive.script import read
from paritybit.drive.vllm.settings import BACKENDS, DEVICES, GRAPHS, Served


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = argparse.ArgumentParser(prog="python -m paritybit.drive.vllm")
    made.add_argument("--model", choices=tuple(MODELS), default="gemma4")
    made.add_argument("--device", choices=DEVICES, default="cpu")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--page-size", type=int, default=16)
    made.add_argument("--whole-prompts", action="store_true")
    made.add_argument("--no-prefix-cache", action="store_true")
    made.add_argument("--overlap", action="store_true")
    made.add_argument("--graphs", choices=tuple(GRAPHS), default="decode")
    made.add_argument("--runner", type=int, choices=(1, 2), default=1)
    made.add_argument("--backend", choices=tuple(BACKENDS), default="triton")
    add_play_options(made)
    return made


def served_as(asked: argparse.Namespace) -> Served:
    """Return the settings that a command line asks for."""
    return Served(
        model=asked.model,
        device=asked.device,
        seed=asked.seed,
        page_size=asked.page_size,
        whole_prompts=asked.whole_prompts,
        prefix_cache=not asked.no_prefix_cache,
        overlap=asked.overlap,
        graphs=asked.graphs,
        runner=asked.runner,
        backend=asked.backend,
    )


def main(words: Sequence[str] | None = None) -> int:
    """Play as the command line says; return the exit code."""
    asked = parser().parse_args(words)
    script = None if asked.script is None else read(asked.script)
    served = served_as(asked) if script is None else Served.of(script.settings)
    from paritybit.drive.vllm.serving import Engine  # noqa: PLC0415
    from paritybit.drive.vllm.stand_ins import install_before_engine  # noqa: PLC0415

    install_before_engine(served)
    return run(Engine(served), served, script, asked)


if __name__ == "__main__":
    sys.stdout.flush()
    code = main()
    sys.stderr.flush()
    os._exit(code)
