"""The checks see a fault in any runner: in every output, in KV, in padded rows, in the facts.

Only what a runner brings itself is asked of all of them. What is the harness's own, and the same
whatever runner it judges, is asked once, on an observation made by hand.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from paritybit.harness.checks.play import Lockstep
from paritybit.harness.checks.step_properties.captured_path import graph_breaches
from paritybit.harness.checks.step_properties.index_contract import contract_breaches
from paritybit.harness.checks.table import STEP_PROPERTIES
from paritybit.harness.lockstep.observation import Observation
from paritybit.harness.schedules.schedule import Step
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.model import Heads, Output
from paritybit.subjects.contracts import LISTED_CONVERSIONS
from paritybit.subjects.pool import TRANSLATE
from paritybit.subjects.protocol import Overrides, Replay, ReplayFacts
from paritybit.subjects.runners import ONE_PER_ENGINE, RUNNERS
from paritybit.subjects.runners.base import NOTHING_OVERRIDDEN, GraphRunner
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
    on_eager,
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


@pytest.mark.parametrize("runner", RUNNERS)
def test_any_static_buffer_that_moved_is_named(
    runner: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inputs and metadata: replaced by an equal one elsewhere, after the capture."""
    under_test, facts = facts_of_replay(device, runner)
    assert contract_breaches(facts()) == []
    for buffers in (under_test.inputs.buffers, under_test.metadata.buffers):
        for name in list(buffers):
            with monkeypatch.context() as patch:
                patch.setitem(buffers, name, buffers[name].clone())
                (breach,) = contract_breaches(facts())
                assert breach.startswith(
                    f"static buffer {name} is not the tensor that was captured"
                )
                drifted = buffers[name].to(torch.float64)
                patch.setitem(buffers, name, drifted)
                breach = contract_breaches(facts())[0]
                assert breach.startswith(f"static buffer {name} was captured as ")
                assert f"and is now torch.float64 {list(drifted.shape)}" in breach


def test_an_unlisted_conversion_of_metadata_is_seen_as_it_is_written(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = "window_key_begin"

    def plant(lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
        metadata = runners_named(lockstep, runner)[0].metadata
        write = metadata.write
        monkeypatch.setattr(metadata, "write", lambda v: write({**v, wide: v[wide].long()}))

    _, outcome = play(device, "target_verify", plant, monkeypatch, WITHOUT_REPLAYS)
    assert outcome.violated == {"index_contract"}
    assert outcome.violations[0].message == (
        f"copying {wide} converts torch.int64 to torch.int32, which is not on the "
        "list of allowed conversions"
    )


def operations_of(facts: ReplayFacts) -> list[str]:
    """Return the ops that the replayed graphs hold."""
    return list(facts.graph.operations)


def test_every_listed_conversion_is_some_runner_s(device: str) -> None:
    """A list that forgives more than runners need would forgive a drift."""
    done = set()
    for engine in ONE_PER_ENGINE:
        lockstep = shared(device, engine)
        lockstep.watch(())
        assert lockstep.play(SCHEDULE).error is None
        done |= {
            one for runner in captured(lockstep)[0].runners.values() for one in runner.conversions
        }
    assert done == LISTED_CONVERSIONS


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


def runs_nothing(lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runner that refuses every batch, in the fresh engine too: all of them run eagerly."""
    for refusing in runners_named(lockstep, runner):
        monkeypatch.setitem(vars(refusing), "can_run", lambda _: False)


@pytest.mark.parametrize("runner", PREFILLS[:1])
def test_a_runner_that_replays_nothing_in_any_engine_is_found_with_every_property_on(
    runner: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Further runs of a step are no error where the fresh engine runs it eagerly as well."""
    _, outcome = play(device, runner, runs_nothing, monkeypatch)
    assert "captured_path" in outcome.violated


def drifting_replay(lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runner that gives other bits when the schedule is played again."""
    reset, playings = lockstep.pair.reset, [0]

    def counted(seed: int) -> None:
        reset(seed)
        playings[0] += 1

    def change(batch: ForwardBatch | None, replay: Replay) -> None:
        if batch is not None and playings[0] > 1:
            flip(first_of(replay.live_output), -1, -1)

    monkeypatch.setattr(lockstep.pair, "reset", counted)
    on_replay(lockstep, runner, monkeypatch, change)


@pytest.mark.parametrize("runner", ["cpu_graph"])
def test_a_runner_that_drifts_is_not_deterministic(
    runner: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the logits drift, or what a prefill gives before them."""
    _, outcome = play(device, runner, drifting_replay, monkeypatch)
    assert outcome.violated == {"determinism"}


def reads_a_padded_mask(lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Live logits of a verify that take up mask bits of padded requests, where any is cleared."""

    def reading(under_test: GraphRunner) -> Callable[..., Replay]:
        run = under_test.replay

        def changed(
            batch: ForwardBatch | None, overrides: Overrides = NOTHING_OVERRIDDEN
        ) -> Replay:
            result = run(batch, overrides)
            # The largest bucket is replayed over buffers just captured, their mask all clear.
            if batch is not None and not overrides.largest:
                tail = under_test.inputs.buffers["custom_mask"][-100:]
                first_of(result.live_output)[-1] += 1e-3 * (~tail).sum()
            return result

        return changed

    for under_test in runners_named(lockstep, runner):
        monkeypatch.setitem(vars(under_test), "replay", reading(under_test))


def test_a_verify_that_reads_a_padded_mask_is_interfered_with(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, outcome = play(device, "target_verify", reads_a_padded_mask, monkeypatch, WITHOUT_REPLAYS)
    assert outcome.violated == {"padding_noninterference"}


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


def other_bits_in_the_largest_bucket(
    lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph, of a bucket that no step of the runner fills, that sums in another order."""
    for under_test in runners_named(lockstep, runner):
        monkeypatch.setitem(vars(under_test), "replay", flipping(under_test))


def flipping(under_test: GraphRunner) -> Callable[..., Replay]:
    """Return a runner's replay with one wrong bit in a larger bucket than the batch needs."""
    run = under_test.replay

    def changed(*given: Any, **named: Any) -> Replay:
        result = run(*given, **named)
        if under_test.bucket(result.live_size) != result.bucket:
            flip(first_of(result.live_output), 0, 0)
        return result

    return changed


def other_bits(comes: Callable[[list[int]], bool]) -> Plant:
    """Return a reference with other bits for batches whose requests come in some orders."""

    def plant(lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
        world = lockstep.pair.eager

        def change(batch: ForwardBatch, output: Output) -> None:
            serials = [world.request_of(span.row).serial for span in batch.spans]
            small = lockstep.trial.expects_graph(batch)
            if small and batch.mode is RUNNERS[runner].mode and comes(serials):
                flip(first_of(output), 0, 0)

        on_eager(lockstep, monkeypatch, change)

    return plant


VARIANTS: dict[str, Plant] = {
    "alone": other_bits(lambda serials: len(serials) == 1),
    "in reverse": other_bits(lambda serials: serials[0] < serials[-1]),
    "in its runner's largest bucket": other_bits_in_the_largest_bucket,
}


@pytest.mark.parametrize(
    ("runner", "variant"),
    [
        *((runner, "in its runner's largest bucket") for runner in ("decode", "piecewise")),
        ("cpu_graph", "alone"),
        ("target_verify", "in reverse"),
    ],
)
def test_what_the_bits_of_a_request_depend_on_is_named(
    runner: str, variant: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every runner replays in its largest bucket; batches are rebuilt alike whatever the runner.

    A prefill is always of one request.
    """
    properties = ("batch_invariance", *STEP_PROPERTIES)
    _, outcome = play(device, runner, VARIANTS[variant], monkeypatch, properties)
    (violation,) = outcome.violations
    assert violation.property == "batch_invariance"
    assert violation.where["variant"] == variant


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
