"""The checks see a fault in any runner: in every output, in KV, in padded rows, in the facts.

Only what a runner brings itself is asked of all of them. What is the harness's own, and the same
whatever runner it judges, is asked once, on an observation made by hand.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
from paritybit.harness.checks.play import Lockstep
from paritybit.harness.checks.step_properties.captured_path import graph_breaches
from paritybit.harness.checks.table import STEP_PROPERTIES
from paritybit.harness.lockstep.observation import Observation
from paritybit.harness.schedules.schedule import Step
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.model import Heads, Output
from paritybit.subjects.pool import TRANSLATE
from paritybit.subjects.protocol import Replay, ReplayFacts
from paritybit.subjects.runners import RUNNERS
from paritybit.subjects.runners.base import GraphRunner
from paritybit.subjects.runners.prefill import PrefillRunner
from paritybit.subjects.toggles import LocationScheme
from torch import Tensor

from properties.support.harness.faults import eager_fallback, reads_free_bytes, wrong_kv
from properties.support.harness.planting import (
    SCHEDULE,
    WITHOUT_REPLAYS,
    Plant,
    captured,
    engine_of,
    on_replay,
    play,
    runners_named,
    shared,
)
from properties.support.harness.tensors import first_of, flip

PREFILLS = tuple(name for name, runner in RUNNERS.items() if issubclass(runner, PrefillRunner))


@cache
def clean_replays(device: str, engine: str) -> dict[str, Observation]:
    """Return, of a clean playing, the last padded replay of a batch by every runner."""
    found: dict[str, Observation] = {}

    def observer(
        place: int, step: Step, observation: Observation | None, violated: frozenset[str]
    ) -> None:
        if observation is not None and observation.replay is not None and observation.graph.batch:
            found[observation.replay.runner] = observation

    lockstep = shared(device, engine)
    lockstep.watch(STEP_PROPERTIES)
    assert lockstep.play(SCHEDULE, observer).violations == ()
    return found


def facts_of_replay(device: str, runner: str) -> tuple[GraphRunner, Callable[[], ReplayFacts]]:
    """Return a runner, and what asks its engine for the facts of its last clean replay again."""
    lockstep = shared(device, engine_of(runner))
    replay = clean_replays(device, engine_of(runner))[runner].replay
    assert replay is not None
    subject, _ = captured(lockstep)
    return runners_named(lockstep, runner)[0], lambda: subject.facts(replay)


def operations_of(facts: ReplayFacts) -> list[str]:
    """Return the ops that the replayed graphs hold."""
    return list(facts.graph.operations)


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_graph_that_translates_more_or_less_than_its_scheme_does_is_off_its_path(
    runner: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_test, facts = facts_of_replay(device, runner)
    operations, right = operations_of(facts()), under_test.translations(LocationScheme.PRESET)
    assert operations.count(TRANSLATE) == right
    changed = {right + 1: [*operations, TRANSLATE]}
    if right:
        place = operations.index(TRANSLATE)
        changed[right - 1] = operations[:place] + operations[place + 1 :]
    for held, wrong in changed.items():
        monkeypatch.setitem(vars(under_test), "operations", lambda bucket, held=wrong: held)
        assert graph_breaches(facts()) == [
            f"the graph contains {held} translations; its location scheme needs {right}"
        ]


def padded_element(lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last bit of one element of a padded row, which the fresh engine has right."""

    def change(batch: ForwardBatch | None, replay: Replay) -> None:
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
    _, outcome = play(device, runner, plant, monkeypatch, WITHOUT_REPLAYS)
    assert outcome.violated == violated


def uninitialised(contents: tuple[float, float], *, folded: bool) -> Plant:
    """Return a prefill whose padded attention output holds `contents`.

    They are the subject's and the fresh engine's. If `folded`, a live token takes them up.
    """

    def plant(lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
        for under_test, held in zip(runners_named(lockstep, runner), contents, strict=True):
            assert isinstance(under_test, PrefillRunner)
            monkeypatch.setitem(
                vars(under_test), "attend", allocation(under_test, held, folded=folded)
            )

    return plant


def allocation(under_test: PrefillRunner, held: float, *, folded: bool) -> Callable[..., None]:
    """Return a runner's attention after which padded rows hold one value."""
    attend = under_test.attend

    def changed(layer: int, heads: Heads, mixed: Tensor) -> None:
        attend(layer, heads, mixed)
        mixed[under_test.tokens :] = held
        if folded:
            mixed[0] += mixed[under_test.tokens :].sum(0)

    return changed


@pytest.mark.parametrize("runner", PREFILLS[:1])
def test_a_prefill_may_leave_anything_in_padded_attention(
    runner: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = float("nan"), float("inf")
    _, outcome = play(
        device, runner, uninitialised(held, folded=False), monkeypatch, WITHOUT_REPLAYS
    )
    assert outcome.violations == ()


@pytest.mark.parametrize("runner", PREFILLS[:1])
def test_a_prefill_that_reads_padded_attention_is_interfered_with(
    runner: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It happens to hold nothing in the subject, so that parity is none the wiser."""
    plant = uninitialised((0.0, 3.0), folded=True)
    _, outcome = play(device, runner, plant, monkeypatch, WITHOUT_REPLAYS)
    assert outcome.violated == {"padding_noninterference", "hermetic_replay", "batch_invariance"}


def test_draft_logits_that_only_the_eager_path_has_wrong_disagree_with_the_oracle(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plant(lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
        forward = lockstep.pair.decoder.forward

        def shifted(batch: ForwardBatch) -> Output:
            if batch.mode is Mode.DRAFT_EXTEND:
                hidden = batch.spec_info["hidden_states"].roll(1, 0)
                batch = replace(batch, spec_info={**batch.spec_info, "hidden_states": hidden})
            return forward(batch)

        monkeypatch.setattr(lockstep.pair.decoder, "forward", shifted)

    _, outcome = play(device, "eagle_draft_extend", plant, monkeypatch, WITHOUT_REPLAYS)
    assert outcome.violated >= {"logits_parity", "kv_parity", "dense_agreement"}
    off = [found.message for found in outcome.violations if found.property == "dense_agreement"]
    assert all("eager draft logits differ from the dense oracle" in message for message in off)
