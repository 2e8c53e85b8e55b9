"""Play one leg of a release that takes this CPU for a GPU; print what it says of it.

A script: `python -m properties.engines.pretending PACKAGE RUNNER PRESET`. The engine's own
branches for CUDA run, with tensors, graphs and kernels as on a CPU: a setting that only those
branches ask for, or a compiled function that only they call, shows here without a GPU. The answer
is JSON: why the leg is undecided, what it violates, how many padded replays it had, and the
settings that were asked for and not declared.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from paritybit.harness.engines.adapters import sglang
from paritybit.harness.engines.adapters.packages import DEPENDENCIES
from paritybit.harness.engines.fetch import dependencies_folder
from paritybit.harness.engines.playlist import Kind
from paritybit.harness.engines.worker import LegTask, run_leg
from paritybit.subjects.engines.sglang.host.host import Host
from paritybit.subjects.engines.sglang.host.loading import define_compiled
from paritybit.subjects.engines.shared.loading import Engine

MEMORY = 100 << 30, 140 << 30
"""Free and total bytes of the GPU that is pretended."""


class EitherDevice(str):
    """The name of a CPU, which is also that of a GPU to whoever compares it."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return other in ("cpu", "cuda")

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def pretend() -> None:
    """Let torch say that there is a GPU. No tensor goes there."""
    found = SimpleNamespace(
        name="pretended",
        major=9,
        minor=0,
        multi_processor_count=132,
        total_memory=MEMORY[1],
        is_integrated=False,
    )
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_capability": lambda *device: (found.major, found.minor),
        "get_device_name": lambda *device: found.name,
        "get_device_properties": lambda *device: found,
        "mem_get_info": lambda *device: MEMORY,
        "empty_cache": lambda: None,
        "set_stream": lambda stream: None,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    torch.version.cuda = "13.0"


def load(package: Path, dependencies: Path, device: str) -> Engine:
    """Load an engine that finds a GPU, and the operators that its import wants there."""
    engine = LOADS(package, dependencies, device)
    define_compiled()
    pretend()
    return engine


def publish(host: Host) -> None:
    """Let the engine find its settings, and do without what it compiles, as on a GPU."""
    PUBLISHES(host)
    host._without_compiled()


def model_runner(host: Host, *given: Any) -> Any:
    """Return the stand-in of a model runner, whose device is either."""
    made = RUNS_MODELS(host, *given)
    made.set("device", EitherDevice(made.device))
    return made


LOADS, PUBLISHES, RUNS_MODELS = sglang.load, Host._publish, Host.model_runner


def said_of(engine: str, package: str, runner: str, preset: str) -> None:
    """Play a leg, and print the answer."""
    # A leg lets all that its process prints go to its log: the answer goes where that went before.
    shown = os.fdopen(os.dup(1), "w")
    with shown, tempfile.TemporaryDirectory(prefix="paritybit-") as scratch:
        log = Path(scratch) / "engine.log"
        said = run_leg(
            LegTask(
                package=package,
                dependencies=str(dependencies_folder() / DEPENDENCIES),
                device="cpu",
                runner=runner,
                preset=preset,
                kind=Kind.REPLAYED,
                seed=0,
                examples=1,
                log=str(log),
                progress=str(log.with_suffix(".progress")),
                engine=engine,
            )
        )
        answer = {
            "undecided": said.undecided,
            "violated": sorted({finding["property"] for finding in said.findings}),
            "padded": said.played["padded"] if said.played else 0,
            "asked": said.assumed_off,
        }
        shown.write(json.dumps(answer) + "\n")


def main(package: str, runner: str, preset: str) -> None:
    """Play the leg of sglang, and print the answer."""
    vars(sglang)["load"] = load
    for name, method in {"_publish": publish, "model_runner": model_runner}.items():
        setattr(Host, name, method)
    said_of("sglang", package, runner, preset)


if __name__ == "__main__":
    main(*sys.argv[1:])
