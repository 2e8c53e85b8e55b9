"""Play one schedule on a release's prefill runner, mutated in turn; print what was judged, as JSON.

A script: one release and one runner per process.
`python -m properties.engines.mutated_prefill PACKAGE RUNNER MUTATION …`, where `none` is the
runner as it is.
"""

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paritybit.harness.checks.play import Lockstep
from paritybit.harness.engines.adapters.packages import DEPENDENCIES
from paritybit.harness.engines.adapters.sglang import RunnerEngines, load
from paritybit.harness.engines.faults import Evidence
from paritybit.harness.engines.fetch import dependencies_folder
from paritybit.harness.engines.legs import OURS, Leg
from paritybit.harness.engines.padding import PaddingLedger
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.schedules.schedule import Admit, Decode, Extend, Finish, Schedule
from paritybit.subjects.engines.sglang.engine import ReplayingEngine
from paritybit.subjects.engines.sglang.runners.prefill import PrefillRunner
from torch import Tensor

from properties.engines.mutated import verdicts

CHUNKS = Schedule(
    (
        *(Admit(11, 11), Admit(14, 5), Extend(0, 4), Admit(9, 4), Extend(1, 3), Extend(0, 3)),
        *(Decode((0,)), Finish(0), Extend(0, 2), Extend(0, 2), Admit(3, 3), Decode((0, 1, 2))),
    )
)
"""Prompts whole and in chunks, of requests that take turns; between them decodes."""


@dataclass(frozen=True)
class Prefill:
    """A prefill about to be replayed: the static inputs, by name, and how much of them is live."""

    buffers: dict[str, Tensor]
    live: int


Fill = Callable[[], Any]


def stale_full_tail(prefill: Prefill, fill: Fill) -> Any:
    """Leave the locations of padded tokens as they were."""
    return leave(prefill.buffers["out_cache_loc"][prefill.live :], fill)


def stale_positions_tail(prefill: Prefill, fill: Fill) -> Any:
    """Leave the positions of padded tokens as they were."""
    return leave(prefill.buffers["positions"][prefill.live :], fill)


def stale_location(prefill: Prefill, fill: Fill) -> Any:
    """Leave the location of the first live token as it was."""
    return leave(prefill.buffers["out_cache_loc"][:1], fill)


def stale_swa_location(prefill: Prefill, fill: Fill) -> Any:
    """Leave the SWA location of the first live token as it was."""
    return leave(prefill.buffers["out_cache_loc_swa"][:1], fill)


def lose_a_token(prefill: Prefill, fill: Fill) -> Any:
    """Give the first live token another id."""
    given = fill()
    prefill.buffers["input_ids"][:1] = (prefill.buffers["input_ids"][:1] + 1) % 96
    return given


def too_few_attend(prefill: Prefill, fill: Fill) -> Any:
    """Hand one live token too few to attention."""
    return narrowed(fill(), prefill.live - 1)


def all_attend(prefill: Prefill, fill: Fill) -> Any:
    """Hand padded tokens to attention, too."""
    return narrowed(fill(), None)


def all_attend_at_stale_locations(prefill: Prefill, fill: Fill) -> Any:
    """Hand padded tokens to attention, too, and leave their locations as they were."""
    return narrowed(stale_full_tail(prefill, fill), None)


def leave(part: Tensor, fill: Fill) -> Any:
    """Fill, and give a part of one buffer back what it held."""
    stale = part.clone()
    given = fill()
    part.copy_(stale)
    return given


def narrowed(given: Any, count: int | None) -> Any:
    """Let attention be told of so many live tokens, of a whole bucket where that is None."""
    batch = given[0] if isinstance(given, tuple) else given
    for name in ("num_token_non_padded_cpu", "global_num_token_non_padded_cpu"):
        if hasattr(batch, name):
            setattr(batch, name, len(batch.input_ids) if count is None else count)
    return given


MUTATIONS: dict[str, Callable[[Prefill, Fill], Any]] = {
    mutation.__name__: mutation
    for mutation in (
        stale_full_tail,
        stale_positions_tail,
        stale_location,
        stale_swa_location,
        lose_a_token,
        too_few_attend,
        all_attend,
        all_attend_at_stale_locations,
    )
}
"""What is done to the batch that a runner fills its static inputs from."""


def planted(runner: PrefillRunner, mutation: str) -> AbstractContextManager[None]:
    """Mutate a runner for a while, unless `mutation` is none."""
    if mutation == "none":
        return nullcontext()
    return stale_window(runner) if mutation == "stale_window" else filled(runner, mutation)


@contextmanager
def filled(runner: PrefillRunner, mutation: str) -> Iterator[None]:
    """Wrap what fills a runner's static inputs for a while, by a mutation of that."""
    name = "load_batch" if hasattr(runner.runner, "load_batch") else "replay_prepare"
    fill = getattr(runner.runner, name)

    def other(batch: Any, **named: Any) -> Any:
        prefill = Prefill(dict(runner.inputs()), len(batch.input_ids))
        return MUTATIONS[mutation](prefill, lambda: fill(batch, **named))

    setattr(runner.runner, name, other)
    yield
    delattr(runner.runner, name)


@contextmanager
def stale_window(runner: PrefillRunner) -> Iterator[None]:
    """Let SWA layers read the prefix as it was translated for the prefill before another."""
    plan, translated = runner.backend.init_forward_metadata, dict[str, Tensor]()

    def other(batch: Any) -> None:
        plan(batch)
        if not batch.forward_mode.is_extend():
            return
        key, listed = str(batch.seq_lens_cpu), runner.backend.forward_metadata.window_kv_indices
        translated.pop(key, None)
        stale = next(reversed(translated.values()), listed)
        translated[key] = listed.clone()
        shared = min(len(listed), len(stale))
        listed[:shared] = stale[:shared]

    runner.backend.init_forward_metadata = other
    yield
    runner.backend.init_forward_metadata = plan


def judged(lockstep: Lockstep, mutation: str) -> dict[str, Any]:
    """Return what a runner shows, mutated."""
    subject = lockstep.pair.subject
    assert isinstance(subject, ReplayingEngine)
    assert isinstance(subject.runner, PrefillRunner)
    ledger = PaddingLedger(subject, lockstep.pair)
    ledger.at_once = len(ledger.entries)
    leg = Leg(lockstep, Evidence(subject.runner.name), OURS, ledger=ledger)
    with planted(subject.runner, mutation):
        leg.play(CHUNKS)
    return {
        "faults": verdicts(leg.evidence),
        "violated": sorted(leg.failing),
        "replays": leg.result.replays,
        "padded": leg.result.padded_replays,
        "padding": {name: entry.verdict for name, entry in ledger.entries.items()},
        "unasked": lockstep.unasked,
    }


def main(package: str, runner: str, *mutations: str) -> None:
    """Play with each mutation; print what it shows."""
    warnings.simplefilter("ignore")
    engine = load(Path(package), dependencies_folder() / DEPENDENCIES, "cpu")
    trial = TrialConfig(runner=runner, preset="mimo")
    lockstep = Lockstep(trial, engines=RunnerEngines(engine))
    found = {mutation: judged(lockstep, mutation) for mutation in mutations}
    sys.stdout.write(f"\n{json.dumps(found)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
