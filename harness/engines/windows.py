"""How many keys an engine's own kernels see on SWA layers, held against the model's window."""

from collections.abc import Mapping

import torch
from paritybit.harness.engines.faults import Finding
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.pair import Pair
from paritybit.harness.lockstep.requests import PlannedStep
from paritybit.harness.schedules.schedule import Admit, Decode, Extend, Step
from paritybit.reference.batch import Mode
from paritybit.reference.config import Kind, Role

BEYOND = 3
"""How many positions beyond the window are probed, on either side."""

ONE_MORE = (
    "in every known release the engine's extend kernel allows one key more than the window, "
    "and its decode kernel does not"
)
"""Why one key more on extend, and nothing else, is listed."""


def window_findings(
    trial: TrialConfig, window: int, seen: Mapping[Mode, int]
) -> tuple[dict[Mode, int], list[Finding]]:
    """Return the windows that the oracle is to hold the engine to, and where it sees others.

    They are the model's own, in every mode, but for the one difference that is listed.
    """
    held, found = dict.fromkeys((*seen, Mode.DECODE, Mode.EXTEND), window), list[Finding]()
    for mode, keys in seen.items():
        if keys == window:
            continue
        listed = ONE_MORE if mode is Mode.EXTEND and keys == window + 1 else None
        if listed:
            held[mode] = keys
        said = f"with a window of {window}, the engine's own attention sees {keys} keys on {mode}"
        found.append(Finding(trial.runner, trial.preset, "dense_agreement", said, listed=listed))
    return held, found


def measure(pair: Pair) -> dict[Mode, int]:
    """Return how many keys one query sees on SWA layers, by the mode of its forward.

    A mode whose logits are not numbers says nothing of that, and is left out.
    The query is alone in its forward: what another sees would reach it in a later layer.
    """
    length, windows = pair.config.window + BEYOND + 1, {}
    phases: tuple[tuple[Mode, Step], ...] = (
        (Mode.DECODE, Decode((0,))),
        (Mode.EXTEND, Extend(0, 1)),
    )
    with torch.inference_mode():
        for mode, last in phases:
            pair.reset(0)
            prompt = length + (mode is Mode.EXTEND)
            pair.step(Admit(prompt, length))
            planned = pair.plan(last)
            assert planned is not None
            seen = _keys_seen(pair, planned)
            if seen is not None:
                windows[mode] = seen
    return windows


def _keys_seen(pair: Pair, planned: PlannedStep) -> int | None:
    """Return how many of the last keys of a step's one request move its logits.

    None where these are not numbers.
    """
    batch = planned.graph.batch
    assert batch is not None
    span = batch.spans[0]
    owner = next(owner for owner in pair.graph.owners() if owner.row == span.row)
    swa_slots, storage = owner.slots(Kind.SWA), pair.graph_pools.storage
    kept = storage.clone()
    right = _logits(pair, planned)
    if not right.isfinite().all():
        return None
    for position in range(max(0, span.end - pair.config.window - BEYOND), span.begin):
        storage.copy_(kept)
        pair.graph_pools[Role.TARGET].arena[Kind.SWA][:, :, swa_slots[position]] += 1.0
        pair.subject.write_kv()
        if not torch.equal(_logits(pair, planned), right):
            return span.end - position
    return 0


def _logits(pair: Pair, planned: PlannedStep) -> torch.Tensor:
    return pair.subject.forward(planned.graph.batch, planned.mode).output["logits"].clone()
