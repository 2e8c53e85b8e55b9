"""Every check has a test that makes it fire, by a fault planted outside the subject's catalogue.

Each fault is one wrong byte, path or message, in one or in both worlds; the schedule is
clean without it. A fault planted in both worlds alike must not be seen by parity.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from harness.arms import Watched, allocations
from harness.lockstep import Lockstep, Outcome
from harness.logs import LogTrap
from harness.schedule import Admit, Decode, Idle, Schedule
from harness.trial import SUBJECT_LOGGER, TWIN_LOGGER, Trial
from harness.violation import PROPERTIES
from reference import oracle
from reference.batch import ForwardBatch, Mode
from reference.config import Kind
from reference.torch_ops import TorchOps
from subjects.behaviour import Era
from subjects.buffers import StaticInputs
from subjects.engine import Forward

SCHEDULE = Schedule(
    (
        Admit(12, 99),
        Admit(3, 99),
        Admit(5, 99),
        Decode((0, 1, 2)),
        Decode((0, 1)),
        Idle(),
        Decode((2, 0, 1)),
        Decode((1,)),
    ),
    seed=3,
)

Fault = Callable[[Lockstep, pytest.MonkeyPatch], None]


def on_forward(lockstep: Lockstep, change: Callable[[Forward], Forward | None]) -> None:
    """Let `change` alter what each forward of the subject left behind."""
    engine = lockstep.arms.subject.engine
    forward = engine.forward

    def changed(batch: ForwardBatch | None) -> Forward:
        result = forward(batch)
        return change(result) or result

    engine.forward = changed  # type: ignore[method-assign]


def wrong_logit(lockstep: Lockstep, _: pytest.MonkeyPatch) -> None:
    """The last bit of one live logit."""

    def change(result: Forward) -> None:
        if result.replay is not None and result.replay.raw_bs:
            result.logits.view(torch.int32)[-1, -1] ^= 1

    on_forward(lockstep, change)


def wrong_kv(lockstep: Lockstep, _: pytest.MonkeyPatch) -> None:
    """The last bit of one element in a slot that the step may write."""
    pool = lockstep.arms.graph_pool

    def change(result: Forward) -> None:
        span = lockstep.arms.graph.running[0]
        if result.replay is not None and result.replay.raw_bs and span.holding is not None:
            slot = lockstep.arms.graph.allocator.full_slots(span.holding, 0, 1)[0]
            pool.arena[Kind.FULL].view(torch.int32)[0, 1, slot, 0, 0] ^= 1

    on_forward(lockstep, change)


def stray_in_both(lockstep: Lockstep, _: pytest.MonkeyPatch) -> None:
    """The same free slot rewritten alike in both worlds: parity forgives it."""
    arms = lockstep.arms

    def free_slot() -> int:
        return arms.graph.allocator.free_full[0]

    def change(result: Forward) -> None:
        if result.replay is not None:
            arms.graph_pool.arena[Kind.FULL][0, 0, free_slot()] = 1.5
            arms.eager_pool.arena[Kind.FULL][0, 0, free_slot()] = 1.5

    on_forward(lockstep, change)


def padded_history(lockstep: Lockstep, _: pytest.MonkeyPatch) -> None:
    """A padded row of the static output that depends on how often the runner has run."""
    runs = [0]

    def change(result: Forward) -> None:
        runs[0] += 1
        if result.replay is not None and result.replay.padded:
            result.replay.output[-1, 0] += runs[0]

    on_forward(lockstep, change)


def reads_free_bytes(lockstep: Lockstep, _: pytest.MonkeyPatch) -> None:
    """Live logits of subject and twin that take up a byte which nobody owns."""
    arms = lockstep.arms

    def spoil(engine_forward: Callable[[ForwardBatch | None], Forward]) -> Callable[..., Forward]:
        def spoiled(batch: ForwardBatch | None) -> Forward:
            result = engine_forward(batch)
            if batch is not None and result.replay is not None:
                slot = arms.graph.allocator.free_full[0]
                result.logits[0, 0] += arms.graph_pool.arena[Kind.FULL][0, 0, slot, 0, 0]
            return result

        return spoiled

    for engine in (arms.subject.engine, arms.twin.engine):
        engine.forward = spoil(engine.forward)  # type: ignore[method-assign]


def moved_buffer(lockstep: Lockstep, _: pytest.MonkeyPatch) -> None:
    """A static buffer replaced by an equal one elsewhere, after capture."""
    buffers = lockstep.arms.subject.runner.inputs.buffers
    buffers["positions"] = buffers["positions"].clone()


def unlisted_conversion(lockstep: Lockstep, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head of another dtype than its buffer, which the copy converts."""
    populate = StaticInputs.populate

    def converting(self: StaticInputs, heads: dict[str, Tensor], *, padded: bool) -> None:
        narrow = {k: v.to(torch.int32) if k == "input_ids" else v for k, v in heads.items()}
        populate(self, narrow, padded=padded)

    monkeypatch.setattr(StaticInputs, "populate", converting)


def eager_fallback(lockstep: Lockstep, _: pytest.MonkeyPatch) -> None:
    """A decode that silently runs eagerly although a graph was captured."""
    engine = lockstep.arms.subject.engine
    engine.runner.can_run = lambda batch: False  # type: ignore[method-assign]


def moved_output(lockstep: Lockstep, _: pytest.MonkeyPatch) -> None:
    """A static output that is not where it was captured."""
    for graph in lockstep.arms.subject.runner.graphs.values():
        graph.output = graph.output.clone()


def allocating_replay(lockstep: Lockstep, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay around which the allocator handed out blocks."""
    monkeypatch.setattr(lockstep.arms.subject, "allocated", lambda replay: 1)


def failing_step(lockstep: Lockstep, _: pytest.MonkeyPatch) -> None:
    """A forward that fails: a slot far outside the pool."""

    def change(result: Forward) -> None:
        if result.replay is not None:
            raise IndexError("index 10000 is out of bounds")

    on_forward(lockstep, change)


def warning(lockstep: Lockstep, _: pytest.MonkeyPatch) -> None:
    """A message at WARNING in one forward."""

    def change(result: Forward) -> None:
        if result.replay is not None:
            SUBJECT_LOGGER.warning("something is odd")

    on_forward(lockstep, change)


def drifting(lockstep: Lockstep, _: pytest.MonkeyPatch) -> None:
    """Weights, shared by both worlds, that drift from one playing to the next."""
    arms = lockstep.arms
    reset = arms.reset

    def drift(seed: int) -> None:
        reset(seed)
        arms.model.head.add_(1e-3)

    arms.reset = drift  # type: ignore[method-assign]


def batch_dependent(lockstep: Lockstep, _: pytest.MonkeyPatch) -> None:
    """A request decoded eagerly alone that has other bits than in company."""
    decoder = lockstep.arms.decoder
    forward = decoder.forward

    def dependent(batch: ForwardBatch) -> Tensor:
        logits = forward(batch)
        return logits + 1e-3 if batch.mode is Mode.DECODE and batch.raw_bs == 1 else logits

    decoder.forward = dependent  # type: ignore[method-assign]


def window_off_by_one(lockstep: Lockstep, monkeypatch: pytest.MonkeyPatch) -> None:
    """An oracle whose window is one key wider, as a fault equal in both worlds would look."""
    visible = oracle.visible
    monkeypatch.setattr(
        oracle, "visible", lambda kind, window, length: visible(kind, window + 1, length)
    )


def wrong_token(lockstep: Lockstep, _: pytest.MonkeyPatch) -> None:
    """A sampled token that is not the most likely one."""
    world = lockstep.arms.graph
    sample = world.sample
    world.sample = lambda batch, logits: sample(batch, -logits)  # type: ignore[method-assign]


FAULTS: list[tuple[str, Fault]] = [
    ("logits_parity", wrong_logit),
    ("kv_parity", wrong_kv),
    ("write_frame", stray_in_both),
    ("hermetic_replay", padded_history),
    ("padding_noninterference", reads_free_bytes),
    ("index_contract", moved_buffer),
    ("index_contract", unlisted_conversion),
    ("captured_path", eager_fallback),
    ("captured_path", moved_output),
    ("captured_path", allocating_replay),
    ("captured_path", failing_step),
    ("log_hygiene", warning),
    ("determinism", drifting),
    ("batch_invariance", batch_dependent),
    ("dense_agreement", window_off_by_one),
    ("token_trajectory", wrong_token),
]
UNSEEN_BY_OTHERS = {
    stray_in_both,
    padded_history,
    unlisted_conversion,
    eager_fallback,
    allocating_replay,
    warning,
    drifting,
    window_off_by_one,
}
"""Faults that one property alone can see: parity forgives them."""


def play(device: str, plant: Fault | None, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    """Play the schedule with every property on, with a fault planted or without."""
    lockstep = Lockstep(Trial(device=device, era=Era.PRESET), PROPERTIES)
    with torch.inference_mode():
        if plant is not None:
            plant(lockstep, monkeypatch)
        return lockstep.play(SCHEDULE)


def test_the_schedule_is_clean_without_a_fault(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = play(device, None, monkeypatch)
    assert outcome.violations == ()
    assert outcome.padded_replays > 2


@pytest.mark.parametrize(("property_id", "plant"), FAULTS, ids=lambda x: getattr(x, "__name__", x))
def test_a_planted_fault_fires_its_check(
    property_id: str, plant: Fault, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check sees its fault; where parity forgives the fault, no other check does."""
    violated = play(device, plant, monkeypatch).violated
    assert property_id in violated
    if plant in UNSEEN_BY_OTHERS:
        assert violated == {property_id}


def test_every_property_has_a_fault() -> None:
    assert {property_id for property_id, _ in FAULTS} == set(PROPERTIES)


def test_a_batch_dependent_op_is_seen_though_both_worlds_use_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One op that sums in another order for wide batches, shared by both worlds."""
    linear_add = TorchOps._linear_add

    def dependent(self: TorchOps, inputs: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
        result = linear_add(self, inputs, weight, residual)
        return result + 1e-3 if residual.shape[0] > 2 else result

    monkeypatch.setattr(TorchOps, "_linear_add", dependent)
    outcome = play("cpu", None, monkeypatch)
    assert "batch_invariance" in outcome.violated


def test_blocks_handed_out_around_a_replay_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The count is the difference that one replay makes."""
    handed_out = [7]

    class Allocating:
        def __init__(self) -> None:
            self.output = torch.zeros(1)
            self.operations: list[str] = []

        def replay(self) -> None:
            handed_out[0] += 2

    monkeypatch.setattr("harness.arms.allocations", lambda: handed_out[0])
    graph = Watched(Allocating())
    graph.replay()
    assert graph.allocated == 2


def test_the_allocator_counts_blocks_on_cuda_alone(device: str) -> None:
    before = allocations()
    block = torch.empty(1 << 20, device=device)
    assert allocations() - before == (1 if device == "cuda" else 0)
    del block


def test_only_the_subject_is_heard() -> None:
    """The twin's messages are not the subject's: it runs without a history of its own."""
    with LogTrap() as trap:
        TWIN_LOGGER.warning("twin")
        SUBJECT_LOGGER.warning("subject")
        SUBJECT_LOGGER.info("quiet")
    SUBJECT_LOGGER.warning("afterwards")
    assert trap.take() == ("subject",)
