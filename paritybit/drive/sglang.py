"""Serve generated requests to a whole sglang in this process: `python -m paritybit.drive.sglang`.

Ends with 0 when it has played for as long as asked, and the engine was idle at the end.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from paritybit.drive.directing import counted, serve, shrink
from paritybit.drive.legs import LACKING
from paritybit.drive.models import MODELS
from paritybit.drive.requests import waves
from paritybit.drive.script import Script, read
from paritybit.drive.settings import DEVICES, GRAPHS, SPECULATION, LackingError, Served
from paritybit.watch import journal


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = argparse.ArgumentParser(prog="python -m paritybit.drive.sglang")
    made.add_argument("--model", choices=tuple(MODELS), default="gemma4")
    made.add_argument("--device", choices=DEVICES, default="cpu")
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
    made.add_argument("--alone", action="store_true", help="serve each request alone, too")
    made.add_argument("--script", type=Path, help="play this script, with its settings")
    made.add_argument("--shrink", metavar="KEY", help="shrink the script that has this finding")
    made.add_argument("--best", type=Path, help="where the smallest script is written")
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
    return run(served, script, asked)


def run(served: Served, script: Script | None, asked: argparse.Namespace) -> int:
    """Start the engine, and serve as asked; return the exit code."""
    from paritybit.drive.serving import Engine, EngineFailedError  # noqa: PLC0415
    from paritybit.drive.stand_ins.table import install  # noqa: PLC0415

    install(served.device)
    lines = journal.of_process()
    if lines is not None:
        lines.scope(**served.scope())
    codes, signals = list[int](), list[int]()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *arguments: signals.append(arguments[0]))

    def direct(engine: Engine) -> None:
        if script is not None and asked.shrink is not None:
            found = shrink(engine, served, script, asked.shrink, asked.best, asked.seconds)
            codes.append(0 if found else 1)
            return
        begun, limits = time.monotonic(), served.limits()
        given = waves(served.seed, limits) if script is None else iter(script.waves)

        def stop() -> bool:
            late = asked.seconds is not None and time.monotonic() - begun >= asked.seconds
            enough = asked.forwards is not None and engine.forwards >= asked.forwards
            return bool(signals) or late or enough

        serve(engine, served, counted(given, limits), stop)
        sys.stderr.write(f"{engine.forwards} forwards in {time.monotonic() - begun:.1f} s\n")

    try:
        Engine(served).start(direct)
    except LackingError as error:
        sys.stderr.write(f"{error}\n")
        return LACKING
    except EngineFailedError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return max(codes, default=0)


if __name__ == "__main__":
    sys.stdout.flush()
    code = main()
    sys.stderr.flush()
    os._exit(code)
