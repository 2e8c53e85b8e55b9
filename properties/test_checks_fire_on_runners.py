"""The checks fire on every runner, and say where: each kind of output, both models' pools.

As in `test_checks_fire`, each fault is planted into a clean lockstep and violates exactly
what is said of it.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.checks.play import Lockstep, Outcome
from harness.checks.property import Violation
from harness.lockstep.bits import bits
from harness.lockstep.config import SUBJECT_LOGGER
from harness.lockstep.observation import ExtraResults, Noisy, Observation
from harness.lockstep.scheduler import Work
from harness.schedules.schedule import Step
from properties.test_checks_fire import (
    ENGINES,
    FAULTS,
    SCHEDULE,
    Plant,
    eager_fallback,
    failing_eager_arm,
    failing_replay,
    first_of,
    flip,
    moved_buffer,
    moved_output,
    on_eager,
    on_forward,
    on_replay,
    play,
    reads_free_bytes,
    runners_named,
    shared,
    unlisted_conversion,
    warning,
    wrong_kv,
    wrong_output,
)
from reference.batch import ForwardBatch, Mode
from reference.config import Kind, Role
from reference.model import Heads, Output
from subjects.captured import CapturedEngine
from subjects.pool import TRANSLATE
from subjects.protocol import Forward, Replay
from subjects.runners import RUNNERS, engine_runners
from subjects.runners.base import GraphRunner
from subjects.runners.prefill import PrefillRunner

PREFILLS = tuple(n for n, each in RUNNERS.items() if issubclass(each, PrefillRunner))


def padded_element(lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last bit of one element of a padded row, which the twin has right."""

    def change(batch: ForwardBatch | None, replay: Replay) -> None:
        if replay.live_rows < len(first_of(replay.output)):
            flip(first_of(replay.output), -1, 0)

    on_replay(lockstep, runner, monkeypatch, change)


def stray_into_the_other_pool(
    lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step's own slot rewritten alike in both worlds, but in the other model's pool."""
    pair, other = lockstep.pair, other_model(runner)

    def change(batch: ForwardBatch | None, replay: Replay) -> None:
        if batch is not None:
            pair.graph_pools[other].arena[Kind.FULL][0, 0, own_slot(lockstep, batch)] = 1.5

    def change_eagerly(batch: ForwardBatch, output: Output) -> None:
        if batch.mode is RUNNERS[runner].mode:
            pair.eager_pools[other].arena[Kind.FULL][0, 0, own_slot(lockstep, batch)] = 1.5

    on_replay(lockstep, runner, monkeypatch, change, fresh_engine=True)
    on_eager(lockstep, monkeypatch, change_eagerly)


def other_model(runner: str) -> Role:
    """Return the model whose pool is none of the runner's business."""
    return Role.TARGET if RUNNERS[runner].mode.written is Role.DRAFT else Role.DRAFT


def own_slot(lockstep: Lockstep, batch: ForwardBatch) -> int:
    """Return a full slot that a step may write; one it reads if it writes none."""
    if batch.out_cache_loc.numel():
        return int(batch.out_cache_loc[0])
    return int(lockstep.pair.graph_pools.tables.req_to_token[batch.spans[0].row, 0])


def with_operations(change: Callable[[GraphRunner, list[str]], list[str]]) -> Plant:
    """Return a fault in the list of ops that a runner's graphs hold."""

    def plant(lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
        under_test, _ = runners_named(lockstep, runner)
        operations = under_test.operations
        monkeypatch.setattr(
            under_test, "operations", lambda bucket: change(under_test, operations(bucket))
        )

    plant.__name__ = change.__name__
    return plant


def one_translation_more(under_test: GraphRunner, operations: list[str]) -> list[str]:
    """The slow path, in a layer that need not take it."""
    return [*operations, TRANSLATE]


def one_translation_less(under_test: GraphRunner, operations: list[str]) -> list[str]:
    """A translation that was never recorded: the graph writes where the capture wrote."""
    place = operations.index(TRANSLATE)
    return operations[:place] + operations[place + 1 :]


def attention_out_of_place(under_test: GraphRunner, operations: list[str]) -> list[str]:
    """Attention in the graphs of a prefill, or none in a full graph."""
    if not under_test.attention_captured:
        return [*operations, "attention"]
    return [name for name in operations if name != "attention"]


def other_bits_in_the_largest_bucket(
    lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph, of a bucket that no step fills, that sums in another order."""
    for under_test in runners_named(lockstep, runner):
        monkeypatch.setattr(under_test, "replay", flipping(under_test))


def flipping(under_test: GraphRunner) -> Callable[..., Replay]:
    """Return a runner's replay with one wrong bit in its largest bucket."""
    run = under_test.replay

    def changed(batch: ForwardBatch | None, least: int = 0) -> Replay:
        result = run(batch, least)
        if result.bucket == under_test.buckets[-1]:
            flip(first_of(result.live_output), 0, 0)
        return result

    return changed


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


ON_EVERY_RUNNER: list[tuple[Plant, set[str]]] = [
    (wrong_output, {"logits_parity"}),
    (wrong_kv, {"kv_parity"}),
    (padded_element, {"hermetic_replay"}),
    (reads_free_bytes, {"padding_noninterference"}),
    (moved_buffer, {"index_contract"}),
    (unlisted_conversion, {"index_contract"}),
    (eager_fallback, {"captured_path"}),
    (moved_output, {"captured_path"}),
    (with_operations(one_translation_more), {"captured_path"}),
    (with_operations(one_translation_less), {"captured_path"}),
    (with_operations(attention_out_of_place), {"captured_path"}),
    (failing_eager_arm, {"captured_path"}),
    (failing_replay, {"captured_path", "logits_parity"}),
    (warning, {"log_hygiene"}),
    (drifting_replay, {"determinism"}),
]
"""Each fault, and what exactly it violates whatever runner it is planted in."""

TRANSLATING = {"eagle_draft", "eagle_draft_extend", "cpu_graph"}
"""The runners whose graphs translate where a `swa_loc` is preset: they have none of their own."""

EXCEPT: dict[tuple[str, str], set[str] | None] = {
    **{("padded_element", runner): set() for runner in PREFILLS},
    ("moved_output", "cpu_graph"): set(),
    ("wrong_kv", "frozen_kv_mtp"): None,
    **{("one_translation_less", runner): None for runner in RUNNERS if runner not in TRANSLATING},
}
"""Where that is otherwise, by fault and runner; None where the fault cannot be planted.

The padded rows of a prefill were never initialised, and nothing keeps the CPU graph runner's
output in one place.
"""


def planted() -> list[Any]:
    """Return every fault in every runner that `test_checks_fire` does not plant it in."""
    elsewhere = {(runner, plant) for _, runner, plant in FAULTS}
    return [
        pytest.param(runner, plant, violated, id=f"{runner}-{plant.__name__}")
        for runner in RUNNERS
        for plant, usual in ON_EVERY_RUNNER
        if (violated := EXCEPT.get((plant.__name__, runner), usual)) is not None
        and (runner, plant) not in elsewhere
    ]


@pytest.mark.parametrize(("runner", "plant", "violated"), planted())
def test_a_fault_planted_in_a_runner_fires_its_check(
    runner: str, plant: Plant, violated: set[str], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, outcome = play(device, runner, plant, monkeypatch)
    assert outcome.violated == violated


OUTPUTS: dict[str, dict[str, int]] = {
    "decode": {"logits": 2, "hidden": 2},
    "target_verify": {"logits": 9, "hidden": 9},
    "cpu_graph": {"logits": 2, "hidden": 2},
    "eagle_draft": {"scores": 0, "tokens": 0, "chosen": 0},
    "eagle_draft_extend": {"logits": 1, "hidden": 1, "topk_p": 1, "topk_index": 1},
    "frozen_kv_mtp": {"scores": 0, "tokens": 0, "chosen": 0},
    "piecewise": {"hidden": 1, "logits": 0},
    "breakable": {"hidden": 1, "logits": 0},
}
"""What each runner gives, and the row of it in which request 1 has its second, or only, one.

The schedule runs 2, 0, 1 of the requests, or 1, 2, 0, or 2, 1; a prefill has one request.
"""


def wrong_in_request_1(tensor: str) -> Plant:
    """Return a fault in a graph: the last bit of one element of a row of request 1."""

    def plant(lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
        world = lockstep.pair.graph

        def change(batch: ForwardBatch | None, replay: Replay) -> None:
            serials = [world.request_of(s.row).serial for s in batch.spans] if batch else []
            if 1 in serials:
                each = len(replay.live_output[tensor]) // len(serials)
                flip(replay.live_output[tensor], serials.index(1) * each + min(1, each - 1), 1)

        on_replay(lockstep, runner, monkeypatch, change, fresh_engine=True)

    return plant


@pytest.mark.parametrize(
    ("runner", "tensor", "row"),
    [(runner, *each) for runner, rows in OUTPUTS.items() for each in rows.items()],
)
def test_a_wrong_element_of_any_output_is_told_with_its_row_and_owner(
    runner: str, tensor: str, row: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, outcome = play(device, runner, wrong_in_request_1(tensor), monkeypatch)
    (violation,) = outcome.violations
    assert violation.property == "logits_parity"
    where = violation.where
    assert where.items() >= {"tensor": tensor, "row": row, "element": 1}.items()
    assert where["owner"] == "request 1"
    assert int(where["eager_bits"], 16) ^ int(where["graph_bits"], 16) == 1
    assert f"live row {row} (request 1), {tensor} 1:" in violation.message


@pytest.mark.parametrize("engine", ENGINES)
def test_no_output_of_a_runner_is_left_out(engine: str, device: str) -> None:
    given: dict[str, set[str]] = {}

    def observer(
        place: int, step: Step, observation: Observation | None, violated: frozenset[str]
    ) -> None:
        if (
            observation is not None
            and observation.replay is not None
            and observation.graph_output is not None
        ):
            given.setdefault(observation.replay.runner, set()).update(observation.graph_output)

    shared(device, engine).play(SCHEDULE, observer)
    assert given == {each.name: set(OUTPUTS[each.name]) for each in engine_runners(engine)}


def violation_of(property_id: str, outcome: Outcome) -> Violation:
    """Return the one violation of a property."""
    (found,) = [each for each in outcome.violations if each.property == property_id]
    return found


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("plane", [0, 1], ids=["K", "V"])
@pytest.mark.parametrize("runner", ["target_verify", "eagle_draft", "eagle_draft_extend"])
def test_a_wrong_element_of_either_pool_is_told_with_its_model_and_place(
    runner: str, plane: int, kind: Kind, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = RUNNERS[runner].mode.written
    assert role is not None
    written: list[int] = []

    def plant(lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def change(batch: ForwardBatch | None, replay: Replay) -> None:
            if batch is not None:
                span = batch.spans[0]
                written.append((span.full_slots if kind is Kind.FULL else span.swa_slots)[0])
                flip(lockstep.pair.graph_pools[role].arena[kind], 0, plane, written[-1], 0, 3)

        on_replay(lockstep, runner, monkeypatch, change, fresh_engine=True)

    _, outcome = play(device, runner, plant, monkeypatch)
    (violation,) = outcome.violations
    assert violation.property == "kv_parity"
    # Of both models the first layer has a window and the second has none.
    layer, slot = int(kind is Kind.FULL), written[-1]
    place = {"model": role, "layer": layer, "kind": kind, "tensor": "KV"[plane], "slot": slot}
    assert violation.where.items() >= {**place, "head": 0, "element": 3}.items()
    assert violation.where["differing_slots"] == [slot]
    assert f"{role} layer {layer} ({kind}), {'KV'[plane]}, slot {slot}" in violation.message


def test_a_wrong_element_of_the_draft_pool_is_told_with_its_owner(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the requests of the first draft-extend, request 2 comes first."""
    _, outcome = play(device, "eagle_draft_extend", wrong_kv, monkeypatch)
    assert outcome.violations[0].where["owner"] == "request 2"


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_stray_write_into_the_other_pool_is_told_with_its_model(
    runner: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, outcome = play(device, runner, stray_into_the_other_pool, monkeypatch)
    assert outcome.violated == {"write_frame"} | (
        {"frozen_kv"} if runner == "frozen_kv_mtp" else set()
    )
    where = violation_of("write_frame", outcome).where
    assert where.items() >= {"world": "graph", "model": other_model(runner), "kind": "full"}.items()


@pytest.mark.parametrize("reserved", [True, False], ids=["reserved slot", "free slot"])
@pytest.mark.parametrize("world", ["graph", "eager"])
@pytest.mark.parametrize("role", Role)
def test_a_frozen_draft_that_writes_is_told_with_pool_and_slot(
    role: Role, world: str, reserved: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reserved slot too, which any other forward may write."""
    written: list[int] = []

    def plant(lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
        pair = lockstep.pair
        pools = pair.graph_pools if world == "graph" else pair.eager_pools

        def change(batch: ForwardBatch | None, replay: Replay) -> None:
            written.append(0 if reserved else pair.graph.allocator.free_swa[0])
            pools[role].arena[Kind.SWA][-1, 1, written[-1]] = 1.5

        on_replay(lockstep, runner, monkeypatch, change)

    _, outcome = play(device, "frozen_kv_mtp", plant, monkeypatch)
    expected = {"world": world, "model": role, "kind": "swa", "slot": written[0]}
    assert violation_of("frozen_kv", outcome).where == expected
    seen_by_others: set[str] = set() if reserved else {"write_frame", "kv_parity"}
    assert outcome.violated == {"frozen_kv"} | seen_by_others


def reads_a_padded_mask(lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Live logits of a verify that take up mask bits of padded requests, where any is cleared."""

    def reading(under_test: GraphRunner) -> Callable[..., Replay]:
        run = under_test.replay

        def changed(batch: ForwardBatch | None, least: int = 0) -> Replay:
            result = run(batch, least)
            # Further buckets are replayed over buffers just captured, their mask all clear.
            if batch is not None and not least:
                tail = under_test.inputs.buffers["custom_mask"][-100:]
                first_of(result.live_output)[-1] += 1e-3 * (~tail).sum()
            return result

        return changed

    for under_test in runners_named(lockstep, runner):
        monkeypatch.setattr(under_test, "replay", reading(under_test))


def test_a_verify_that_reads_a_padded_mask_is_interfered_with(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, outcome = play(device, "target_verify", reads_a_padded_mask, monkeypatch)
    assert outcome.violated == {"padding_noninterference"}


def uninitialised(contents: tuple[float, float], *, folded: bool) -> Plant:
    """Return a prefill whose padded attention output holds `contents`: the subject's, the twin's.

    If `folded`, a live token takes it up.
    """

    def plant(lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
        for under_test, held in zip(runners_named(lockstep, runner), contents, strict=True):
            assert isinstance(under_test, PrefillRunner)
            monkeypatch.setattr(under_test, "attend", allocation(under_test, held, folded=folded))

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


@pytest.mark.parametrize("runner", PREFILLS)
def test_a_prefill_may_leave_anything_in_padded_attention(
    runner: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = float("nan"), float("inf")
    _, outcome = play(device, runner, uninitialised(held, folded=False), monkeypatch)
    assert outcome.violations == ()


@pytest.mark.parametrize("runner", PREFILLS)
def test_a_prefill_that_reads_padded_attention_is_interfered_with(
    runner: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It happens to hold nothing in the subject, so that parity is none the wiser."""
    _, outcome = play(device, runner, uninitialised((0.0, 3.0), folded=True), monkeypatch)
    assert outcome.violated == {"padding_noninterference", "hermetic_replay", "batch_invariance"}


METADATA = {
    "decode": "window_kv_indices",
    "target_verify": "swa_page_table",
    "eagle_draft": "kv_indptr",
    "eagle_draft_extend": "key_end",
    "frozen_kv_mtp": "kv_indices",
}
"""A static metadata buffer of each runner that has any."""


@pytest.mark.parametrize("runner", METADATA)
def test_a_moved_metadata_buffer_is_named(
    runner: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = METADATA[runner]

    def plant(lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
        buffers = runners_named(lockstep, runner)[0].metadata.buffers
        monkeypatch.setitem(buffers, name, buffers[name].clone())

    _, outcome = play(device, runner, plant, monkeypatch)
    (breach,) = violation_of("index_contract", outcome).where["breaches"]
    assert breach.startswith(f"static buffer {name} was captured as ")


def test_an_unlisted_conversion_of_metadata_is_named(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = "window_key_begin"

    def plant(lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
        metadata = runners_named(lockstep, runner)[0].metadata
        write = metadata.write
        monkeypatch.setattr(metadata, "write", lambda v: write({**v, wide: v[wide].long()}))

    _, outcome = play(device, "target_verify", plant, monkeypatch)
    assert outcome.violated == {"index_contract"}
    assert outcome.violations[0].message == (
        f"{wide} is converted on copy from torch.int64 to torch.int32, which is not listed"
    )


TOLD_OF_PATH = [
    ("piecewise", with_operations(one_translation_more), "holds 1 translations; its era has 0"),
    ("eagle_draft", with_operations(one_translation_less), "holds 1 translations; its era has 2"),
    ("breakable", with_operations(attention_out_of_place), "attention, which runs between"),
    ("target_verify", with_operations(attention_out_of_place), "the graph holds no attention"),
    ("frozen_kv_mtp", moved_output, "the static output scores is not where it was captured"),
    ("eagle_draft_extend", eager_fallback, "no graph was replayed though one was captured"),
]


@pytest.mark.parametrize(("runner", "plant", "message"), TOLD_OF_PATH)
def test_what_left_the_captured_path_is_told(
    runner: str, plant: Plant, message: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, outcome = play(device, runner, plant, monkeypatch)
    assert message in violation_of("captured_path", outcome).message


def test_a_warning_is_told_with_the_path_that_logged_it(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_an_eager_forward(
        lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def change(batch: ForwardBatch | None, result: Forward) -> None:
            if result.replay is None:
                SUBJECT_LOGGER.warning("something is odd")

        on_forward(lockstep, monkeypatch, change)

    for plant, path in ((warning, "graph replay"), (of_an_eager_forward, "eager forward")):
        with monkeypatch.context() as patch:
            _, outcome = play(device, "eagle_draft_extend", plant, patch)
            assert [each.message for each in outcome.violations] == [f"{path}: something is odd"]


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
    "in the bucket of": other_bits_in_the_largest_bucket,
}


@pytest.mark.parametrize(
    ("runner", "variant"),
    [
        (runner, variant)
        for runner in RUNNERS
        for variant in VARIANTS
        # A prefill is always of one request.
        if runner not in PREFILLS or variant == "in the bucket of"
    ],
)
def test_what_the_bits_of_a_request_depend_on_is_told(
    runner: str, variant: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lockstep, outcome = play(device, runner, VARIANTS[variant], monkeypatch)
    (violation,) = outcome.violations
    assert violation.property == "batch_invariance"
    trial = lockstep.trial
    largest = max(trial.token_buckets if runner in PREFILLS else trial.buckets)
    bucket = f" {largest}" if variant == "in the bucket of" else ""
    assert violation.where["variant"] == variant + bucket


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

    _, outcome = play(device, "eagle_draft_extend", plant, monkeypatch)
    assert outcome.violated >= {"logits_parity", "kv_parity", "dense_agreement"}
    off = [each.message for each in outcome.violations if each.property == "dense_agreement"]
    assert all("eager draft logits are off the dense oracle" in message for message in off)


def buffers_of(arm: CapturedEngine) -> dict[str, Tensor]:
    """Return all static buffers of an arm, by runner and name."""
    return {
        f"{runner.name}: {name}": buffer
        for runner in arm.runners.values()
        for name, buffer in runner.static_buffers().items()
    }


def bytes_of(lockstep: Lockstep, arm: CapturedEngine) -> dict[str, Tensor]:
    """Return a copy of all bytes of both worlds' pools and of one arm's static buffers."""
    found = buffers_of(arm)
    for world, pools in (
        ("eager", lockstep.pair.eager_pools),
        ("graph", lockstep.pair.graph_pools),
    ):
        found |= {
            f"{world}: storage": pools.storage,
            f"{world}: req_to_token": pools.tables.req_to_token,
            f"{world}: full_to_swa_index_mapping": pools.tables.full_to_swa_index_mapping,
        }
    return {name: each.clone() for name, each in found.items()}


def changed_since(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    """Return the names of what no longer has the same bits."""
    assert before.keys() == after.keys()
    return {name for name in before if not torch.equal(bits(before[name]), bits(after[name]))}


@pytest.mark.parametrize("engine", ENGINES)
def test_probes_leave_no_byte_behind(
    engine: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither noise, nor the twin, nor a further eager run, in any mode."""
    lockstep = shared(device, engine)
    subject, fresh_engine = lockstep.pair.subject, lockstep.pair.fresh_engine
    run, modes = lockstep.extra_runs.run, set[Mode]()

    def watched(properties: Collection[str], eager: Work, graph: Work, seed: int) -> ExtraResults:
        fresh_engine.recapture()
        before = bytes_of(lockstep, subject), bytes_of(lockstep, fresh_engine)
        states = [pool.state for pool in subject.engine.pools.values()]
        extra = run(properties, eager, graph, seed)
        if extra.noisy is not None and extra.fresh_output is not None:
            modes.add(graph.mode)
        assert changed_since(before[0], bytes_of(lockstep, subject)) == set()
        assert states == [pool.state for pool in subject.engine.pools.values()]
        fresh_engine.recapture()
        assert changed_since(before[1], bytes_of(lockstep, fresh_engine)) == set()
        return extra

    monkeypatch.setattr(lockstep.extra_runs, "run", watched)
    assert lockstep.play(SCHEDULE).violations == ()
    assert modes == set(lockstep.pair.subject.runners)


LENGTHS = (
    *("num_token_non_padded", "global_num_tokens", "kv_indptr", "window_kv_indptr"),
    *("key_begin", "key_end", "window_key_begin", "window_key_end"),
    *("mask_indptr", "window_mask_indptr", "window_kv_offsets"),
)
"""Static buffers of places in lists and the like, for which no noise is valid."""


@pytest.mark.parametrize("engine", ENGINES)
def test_noise_reaches_whatever_nobody_owns(
    engine: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both pools, the cells of both tables that are free, static buffers; no byte of the batch."""
    lockstep = shared(device, engine)
    pair, extra_runs = lockstep.pair, lockstep.extra_runs
    noisy, forward = extra_runs.noisy, pair.fresh_engine.engine.forward
    before: dict[str, Tensor] = {}
    reached: set[str] = set()

    def watched(work: Work, seed: int) -> Noisy:
        pair.fresh_engine.recapture()
        before.update(bytes_of(lockstep, pair.fresh_engine))
        found = noisy(work, seed)
        before.clear()
        return found

    def spied(batch: ForwardBatch | None, idle: Mode) -> Forward:
        if before:
            storage, owned = pair.graph_pools.storage, extra_runs.noise.owned(pair.graph, batch)
            changed = bits(storage) != bits(before["graph: storage"])
            assert not (changed & owned).any()
            for _, _, arena in pair.graph_pools.arenas_of(changed | owned):
                assert arena.float().mean() > 0.999
            reached.update(changed_since(before, bytes_of(lockstep, pair.fresh_engine)))
            for request in pair.graph.running:
                assert request.allocation is not None
                row, held = request.allocation.row, len(request.allocation.full_pages)
                for name, place in (
                    ("req_to_token", (row, slice(held))),
                    ("full_to_swa_index_mapping", request.allocation.full_pages),
                ):
                    table = getattr(pair.graph_pools.tables, name)
                    assert torch.equal(table[place], before[f"graph: {name}"][place])
        return forward(batch, idle)

    monkeypatch.setattr(extra_runs, "noisy", watched)
    monkeypatch.setattr(pair.fresh_engine.engine, "forward", spied)
    assert lockstep.play(SCHEDULE).violations == ()
    tables = {"graph: storage", "graph: req_to_token", "graph: full_to_swa_index_mapping"}
    filled = {name for name in buffers_of(pair.fresh_engine) if name.split(": ")[1] not in LENGTHS}
    assert reached == tables | filled
