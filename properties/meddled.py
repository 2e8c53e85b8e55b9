"""Play one schedule on a release with its populate meddled with; print what was judged, as JSON.

A script: one release per process. `python -m properties.meddled PACKAGE MEDDLING`.
"""

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.engines.faults import Observed
from harness.engines.fetch import DEPENDENCIES, folder
from harness.engines.kernels import KernelPlay
from harness.engines.pair import EngineArms, load
from harness.engines.play import EnginePlay
from harness.engines.prefill import populate
from harness.engines.speculative import hand_over
from harness.engines.trial import KERNELS, PREFILL, REUSING, SHRINKING, observe
from harness.lockstep.config import TrialConfig
from subjects.engines.sglang.loading import Engine
from subjects.engines.sglang.prefill import PiecewiseRunner
from subjects.engines.sglang.speculative import EagleDraftExtendRunner

Populate = Callable[..., None]


def heal_swa_pad(buffers: Any, populate: Populate, named: dict[str, Any]) -> None:
    """Reset the SWA locations of a padded batch first."""
    if named["bs"] != named["raw_bs"]:
        buffers.out_cache_loc_swa.zero_()
    populate(buffers, **named)


def plant_swa_pad(buffers: Any, populate: Populate, named: dict[str, Any]) -> None:
    """Leave the SWA locations of padded rows as they were."""
    tail = buffers.out_cache_loc_swa[named["raw_bs"] :]
    stale = tail.clone()
    populate(buffers, **named)
    tail.copy_(stale)


def heal_req_pool_pad(buffers: Any, populate: Populate, named: dict[str, Any]) -> None:
    """Reset the request rows of a padded batch first."""
    if named["bs"] != named["raw_bs"]:
        buffers.req_pool_indices.zero_()
    populate(buffers, **named)


def lose_a_token(buffers: Any, populate: Populate, named: dict[str, Any]) -> None:
    """Give the first live row another token."""
    populate(buffers, **named)
    buffers.input_ids[:1] = (buffers.input_ids[:1] + 1) % 96


MEDDLINGS = {
    each.__name__: each for each in (heal_swa_pad, plant_swa_pad, heal_req_pool_pad, lose_a_token)
}


def meddle(runner: Any, meddling: str) -> None:
    """Wrap the populate of a runner's buffers, unless `meddling` is none."""
    if meddling == "none":
        return
    kind = type(runner.runner.buffers)
    populate = kind.populate_from_forward_batch
    kind.populate_from_forward_batch = lambda buffers, **named: MEDDLINGS[meddling](
        buffers, populate, named
    )


def unmeddled(engine: Engine) -> dict[str, Any]:
    """Return what the other legs say: its own kernels, and what other runners populate."""
    piecewise = Observed("piecewise", ("swa_int64",))
    populate(EngineArms(engine, PREFILL, PiecewiseRunner), piecewise)
    return {
        **own_kernels(engine),
        "piecewise": piecewise.judge()[0].verdict,
        "draft_extend": draft_extend(engine, heals=False),
        "healed_draft_extend": draft_extend(engine, heals=True),
    }


def draft_extend(engine: Engine, *, heals: bool) -> str:
    """Return the verdict on stale request rows of the draft-extend runner, healed or not."""
    observed = Observed("eagle_draft_extend", ("req_pool_pad",))
    pair = EngineArms(engine, PREFILL, EagleDraftExtendRunner)
    if heals:
        replay, buffers = pair.runner.runner.replay, pair.runner.runner.buffers

        def healed(batch: Any) -> Any:
            buffers.req_pool_indices.zero_()
            return replay(batch)

        pair.runner.runner.replay = healed
    hand_over(pair, observed)
    return str(observed.judge()[0].verdict)


def own_kernels(engine: Engine) -> dict[str, Any]:
    """Return what the engine's own kernels see, and how often they are off the oracle."""
    kernels = KernelPlay(EngineArms(engine, KERNELS, own_kernels=True))
    windows = kernels.measure()
    kernels.play(REUSING)
    return {"windows": windows, "off": kernels.played.seen["dense_agreement"].violated}


def main(package: str, meddling: str) -> None:
    """Play with our arithmetic and, unmeddled, with the engine's own kernels; print both."""
    warnings.simplefilter("ignore")
    engine = load(Path(package), folder() / DEPENDENCIES, "cpu")
    pair = EngineArms(engine, TrialConfig())
    meddle(pair.runner, meddling)
    play = EnginePlay(pair)
    play.padding.at_once = len(play.padding.entries)
    play.play(SHRINKING)
    observed = Observed("decode")
    observe(observed, play.played)
    found = {
        "faults": {each.fault: each.verdict for each in observed.judge()},
        "violated": sorted(name for name, seen in play.played.seen.items() if seen.violated),
        "padded": play.played.padded,
        "padding": {name: entry.verdict for name, entry in play.padding.entries.items()},
        **(unmeddled(engine) if meddling == "none" else {}),
    }
    sys.stdout.write(f"\n{json.dumps(found)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
