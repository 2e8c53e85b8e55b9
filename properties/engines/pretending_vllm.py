"""Play one leg of a release of vLLM that takes this CPU for a GPU: see `pretending`.

A script: `python -m properties.engines.pretending_vllm PACKAGE RUNNER PRESET`. The engine's
platform is its own of CUDA, unmodified, and what it has compiled is not here, as on a GPU.
"""

import sys
from typing import Any

from paritybit.subjects.engines.shared.loading import Engine
from paritybit.subjects.engines.vllm import loading

from properties.engines.pretending import pretend, said_of

PLATFORM = "vllm.platforms.cuda.CudaPlatform"


def of_cuda(*arguments: Any, **named: Any) -> Engine:
    """Return an engine that finds a GPU."""
    engine = MAKES(*arguments, **named)
    pretend()
    loading.define_compiled()
    engine.fill("platforms", {"resolve_current_platform_cls_qualname": lambda: PLATFORM})
    return engine


MAKES = Engine


def main(package: str, runner: str, preset: str) -> None:
    """Play the leg, and print the answer."""
    vars(loading).update(
        Engine=of_cuda,
        STUBS=loading.STUBS + loading.COMPILED,
        _stand_in_for_platform=lambda platform: None,
    )
    said_of("vllm", package, runner, preset)


if __name__ == "__main__":
    main(*sys.argv[1:])
