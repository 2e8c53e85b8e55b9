"""An engine's prefill runners: what they hand to what they captured, padded and not."""

from typing import Any

import torch
from torch import Tensor

from harness.engines.faults import Observed
from harness.engines.pair import EngineArms
from harness.schedules.schedule import Admit
from subjects.engines.sglang.prefill import PrefillRunner

PROMPTS = (11, 3, 12, 7)
"""Prompts prefilled in turn: each second one is padded after a longer one."""

BUFFERS = ("input_ids", "positions", "mrope_positions", "out_cache_loc", "out_cache_loc_swa")


def populate(pair: EngineArms, observed: Observed) -> tuple[int, list[dict[str, Any]]]:
    """Populate some prefills; return how many were padded, and what the padding of each held."""
    runner = pair.runner
    assert isinstance(runner, PrefillRunner)
    held: dict[str, list[Tensor]] = {}
    padded = 0
    with torch.inference_mode():
        pair.reset(0)
        for prompt in PROMPTS:
            work = pair.world.plan(Admit(prompt, prompt))
            assert work is not None and work.batch is not None
            rows, loc = pair.mirror.take(work.batch)
            static = runner.populate(runner.batch(work.batch, rows, loc, extend=True))
            padded += static.input_ids.shape[0] > prompt
            judge_dtype(observed, getattr(static, "out_cache_loc_swa", None), pair, loc)
            for name in BUFFERS:
                values = getattr(static, name, None)
                if values is not None and values.shape[-1] > prompt:
                    held.setdefault(name, []).append(values[..., prompt:].clone())
            pair.world.commit(work.batch, pair.eager.forward(work.batch))
    return padded, [entry(name, tails) for name, tails in held.items()]


def judge_dtype(observed: Observed, given: Tensor | None, pair: EngineArms, loc: Tensor) -> None:
    """Hold the dtype of static SWA locations against the pool's own translation."""
    if given is None:
        observed.lacks("swa_int64", "it has no static SWA locations")
        return
    right = pair.sglang.translate(loc).dtype
    wrong = f"the static SWA locations are {given.dtype}; the pool translates to {right}"
    observed.add("swa_int64", wrong if given.dtype != right else None)


def entry(name: str, tails: list[Tensor]) -> dict[str, Any]:
    """Return what the padding of a buffer held, as a row of the padding table."""
    kept = sum(bool(tail.any()) for tail in tails)
    return {
        "buffer": name,
        "dtype": str(tails[0].dtype).removeprefix("torch."),
        "disturbed": len(tails),
        "outlived": kept,
        "moved": 0,
        "message": None,
        "verdict": "kept, not decided who reads it" if kept else "reset",
    }
