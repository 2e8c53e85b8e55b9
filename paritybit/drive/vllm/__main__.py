"""Serve generated requests to a whole vLLM in this process: `python -m paritybit.drive.vllm`.

Ends with 0 when it has played for as long as asked, and the engine was idle at the end.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence

from paritybit.drive.models import MODELS
from paritybit.drive.vllm.settings import GRAPHS, Served
from paritybit.watch import journal


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = argparse.ArgumentParser(prog="python -m paritybit.drive.vllm")
    made.add_argument("--model", choices=tuple(MODELS), default="gemma4")
    made.add_argument("--device", choices=("cpu",), default="cpu")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--seconds", type=float, help="play for this long, then until idle")
    made.add_argument("--forwards", type=int, help="play for so many forwards, then until idle")
    made.add_argument("--page-size", type=int, default=16)
    made.add_argument("--whole-prompts", action="store_true")
    made.add_argument("--no-prefix-cache", action="store_true")
    made.add_argument("--overlap", action="store_true")
    made.add_argument("--graphs", choices=tuple(GRAPHS), default="decode")
    made.add_argument("--runner", type=int, choices=(1, 2), default=1)
    return made


def main(words: Sequence[str] | None = None) -> int:
    """Play as the command line says; return the exit code."""
    asked = parser().parse_args(words)
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = str(asked.runner - 1)
    os.environ["VLLM_USE_BREAKABLE_CUDAGRAPH"] = str(int(asked.graphs == "breakable"))
    served = Served(
        model=MODELS[asked.model],
        seed=asked.seed,
        page_size=asked.page_size,
        whole_prompts=asked.whole_prompts,
        prefix_cache=not asked.no_prefix_cache,
        overlap=asked.overlap,
        graphs=asked.graphs,
        runner=asked.runner,
    )
    return play(served, asked.seconds, asked.forwards)


def play(served: Served, seconds: float | None, forwards: int | None) -> int:
    """Serve until the time or the number of forwards is reached; return the exit code."""
    from paritybit.drive.vllm.serving import Engine, EngineFailedError  # noqa: PLC0415
    from paritybit.drive.vllm.stand_ins import install  # noqa: PLC0415

    install()
    lines = journal.of_process()
    if lines is not None:
        lines.scope(**served.scope())
    begun, asked_to_end = list[float](), list[int]()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *arguments: asked_to_end.append(arguments[0]))
    engine = Engine(served)

    def stop() -> bool:
        if not begun:  # The engine has started: its time counts from now.
            begun.append(time.monotonic())
        late = seconds is not None and time.monotonic() - begun[0] >= seconds
        return bool(asked_to_end) or late or (forwards is not None and engine.forwards >= forwards)

    try:
        engine.serve(stop)
    except EngineFailedError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    player = engine.player
    if player is not None and begun:
        took = time.monotonic() - begun[0]
        sys.stderr.write(
            f"{engine.forwards} forwards, {player.served} requests, {player.played} waves "
            f"in {took:.1f} s\n"
        )
    return 0


if __name__ == "__main__":
    sys.stdout.flush()
    code = main()
    sys.stderr.flush()
    os._exit(code)
