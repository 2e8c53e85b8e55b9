"""The checks see a fault in any runner: in every output, in KV, in padded rows, in the facts.

Only what a runner brings itself is asked of all of them. What is the harness's own, and the same
whatever runner it judges, is asked once, on an observation made by hand.
"""

import pytest
from paritybit.harness.checks.play import Lockstep
from paritybit.reference.batch import ForwardBatch
from paritybit.subjects.protocol import ReplayResult
from paritybit.subjects.runners import RUNNERS
from paritybit.subjects.runners.prefill import PrefillRunner

from properties.support.harness.faults import eager_fallback, reads_free_bytes, wrong_kv
from properties.support.harness.planting import (
    Plant,
    on_replay,
    play,
)
from properties.support.harness.tensors import first_of, flip

PREFILLS = tuple(name for name, runner in RUNNERS.items() if issubclass(runner, PrefillRunner))


def padded_element(lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last bit of one element of a padded row, which the fresh engine has right."""

    def change(batch: ForwardBatch | None, replay: ReplayResult) -> None:
        if replay.live_rows < len(first_of(replay.output)):
            flip(first_of(replay.output), -1, 0)

    on_replay(lockstep, runner, monkeypatch, change)


ON_ANY_RUNNER: list[tuple[Plant, set[str]]] = [
    (wrong_kv, {"kv_parity"}),
    (padded_element, {"hermetic_replay"}),
    (reads_free_bytes, {"padding_noninterference"}),
    (eager_fallback, {"captured_path"}),
]
"""Faults, and what exactly they violate whatever runner they are planted in."""

WITHOUT_PADDED_OUTPUT = {(padded_element, runner) for runner in PREFILLS}
"""The padded rows of a prefill were never initialised: nothing is compared there."""

WRITES_NOTHING = {
    (wrong_kv, name) for name, runner in RUNNERS.items() if runner.mode.written is None
}


@pytest.mark.parametrize(
    ("runner", "plant", "violated"),
    [
        pytest.param(
            runner,
            plant,
            set() if (plant, runner) in WITHOUT_PADDED_OUTPUT else violated,
            id=f"{runner}-{plant.__name__}",
        )
        for runner in ("cpu_graph", "target_verify", "eagle_draft", "piecewise")
        for plant, violated in ON_ANY_RUNNER
        if (plant, runner) not in WRITES_NOTHING
    ],
)
def test_a_fault_planted_in_a_runner_is_seen_by_its_check_alone(
    runner: str, plant: Plant, violated: set[str], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, outcome = play(device, runner, plant, monkeypatch)
    assert outcome.violated == violated
