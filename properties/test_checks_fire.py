"""Every check has a test that makes it fire, by a fault planted outside the subject's catalogue.

Each fault is one wrong byte, path or message, in one or in both worlds; the schedule is
clean without it, and the fault violates exactly what is said of it. A fault planted in both
worlds alike must not be seen by parity. `test_checks_fire_on_runners` plants them in every runner.
"""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import count

import pytest
import torch
from torch import Tensor

from harness.checks.play import Lockstep, Outcome
from harness.checks.table import PROPERTIES
from harness.lockstep.config import FRESH_LOGGER, SUBJECT_LOGGER, TrialConfig
from harness.lockstep.logs import LogTrap
from harness.lockstep.observation import Observation
from harness.schedules.schedule import (
    Admit,
    Decode,
    Draft,
    DraftExtend,
    Idle,
    Schedule,
    Step,
    Verify,
)
from reference import oracle
from reference.batch import ForwardBatch, Mode, Span, prepare
from reference.config import Kind, Role
from reference.eager import EagerDecoder
from reference.model import Output
from reference.pool import Tables
from reference.torch_ops import TorchOps
from subjects.captured import CountingGraph, allocations
from subjects.protocol import Forward, Replay
from subjects.runners import RUNNERS, engine_runners
from subjects.runners.base import GraphRunner
from subjects.toggles import LocationScheme

SCHEDULE = Schedule(
    (
        Admit(11, 99),
        Admit(3, 99),
        Admit(2, 99),
        Decode((2, 0, 1)),
        DraftExtend((2, 1)),
        DraftExtend((0,)),
        Draft((1, 2, 0)),
        Verify((2, 0, 1), 2),
        DraftExtend((2, 0, 1)),
        Draft((1, 0)),
        Idle(0),
        Idle(2),
        Verify((1, 0), 0),
        Decode((2, 0)),
    ),
    seed=3,
)
"""What every runner replays, padded and not; an engine without drafts leaves out their steps.

Of a batch the first request was admitted after the last. No batch that a graph can run
is of one request, but for a prefill, or fills the largest bucket. The first draft-extend of
the longest request is more than a graph can run.
"""

ENGINES = ("decode", "frozen_kv_mtp", "cpu_graph")
"""A runner of each line-up; every other runner is in the engine of one of them."""

Plant = Callable[[Lockstep, str, pytest.MonkeyPatch], None]
"""Plants a fault that concerns one runner of a lockstep, given its name."""

ForwardChange = Callable[[ForwardBatch | None, Forward], None]
ReplayChange = Callable[[ForwardBatch | None, Replay], None]


def engine_of(runner: str) -> str:
    """Return which of ENGINES has the runner."""
    return next(each for each in ENGINES if RUNNERS[runner] in engine_runners(each))


def build(device: str, runner: str) -> Lockstep:
    """Return a new clean lockstep whose engine has the runner, with every property on."""
    return Lockstep(
        TrialConfig(engine_of(runner), device=device, scheme=LocationScheme.PRESET), PROPERTIES
    )


@cache
def shared(device: str, engine: str) -> Lockstep:
    """Return a clean lockstep for faults that monkeypatch takes back."""
    return build(device, engine)


def play(
    device: str, runner: str, plant: Plant | None, monkeypatch: pytest.MonkeyPatch
) -> tuple[Lockstep, Outcome]:
    """Play the schedule with a fault planted in a runner, or without one."""
    lasting = plant in LASTING
    lockstep = build(device, runner) if lasting else shared(device, engine_of(runner))
    with torch.inference_mode():
        if plant is not None:
            plant(lockstep, runner, monkeypatch)
        return lockstep, lockstep.play(SCHEDULE)


def runners_named(lockstep: Lockstep, name: str) -> list[GraphRunner]:
    """Return the subject's runner of that name, and the twin's."""
    mode = RUNNERS[name].mode
    return [arm.runners[mode] for arm in (lockstep.pair.subject, lockstep.pair.fresh_engine)]


def on_forward(
    lockstep: Lockstep,
    monkeypatch: pytest.MonkeyPatch,
    change: ForwardChange,
    *,
    fresh_engine: bool = False,
) -> None:
    """Let `change` alter what each forward of the subject, and of its twin, left behind."""

    def after(forward: Callable[[ForwardBatch | None, Mode], Forward]) -> Callable[..., Forward]:
        def changed(batch: ForwardBatch | None, idle: Mode) -> Forward:
            result = forward(batch, idle)
            change(batch, result)
            return result

        return changed

    for arm in (lockstep.pair.subject, lockstep.pair.fresh_engine)[: 1 + fresh_engine]:
        monkeypatch.setattr(arm.engine, "forward", after(arm.engine.forward))


def on_replay(
    lockstep: Lockstep,
    runner: str,
    monkeypatch: pytest.MonkeyPatch,
    change: ReplayChange,
    *,
    fresh_engine: bool = False,
) -> None:
    """Let `change` alter what each replay of one runner left behind."""

    def changed(batch: ForwardBatch | None, result: Forward) -> None:
        if result.replay is not None and result.replay.runner == runner:
            change(batch, result.replay)

    on_forward(lockstep, monkeypatch, changed, fresh_engine=fresh_engine)


def on_eager(
    lockstep: Lockstep,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[ForwardBatch, Output], None],
) -> None:
    """Let `change` alter what each forward of the eager arm left behind."""
    forward = lockstep.pair.decoder.forward

    def changed(batch: ForwardBatch) -> Output:
        output = forward(batch)
        change(batch, output)
        return output

    monkeypatch.setattr(lockstep.pair.decoder, "forward", changed)


def flip(values: Tensor, *place: int) -> None:
    """Flip the last bit of one element."""
    whole = values if values.dtype == torch.int64 else values.view(torch.int32)
    whole[place] ^= 1


def first_of(output: Output) -> Tensor:
    """Return the first tensor of an output, one of floats."""
    return next(iter(output.values()))


def free_slot(lockstep: Lockstep) -> int:
    """Return a full slot that nobody owns."""
    return lockstep.pair.graph.allocator.free_full[0]


def wrong_output(lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last bit of one live element, in each replay and in the twin's: a graph that is wrong."""

    def change(batch: ForwardBatch | None, replay: Replay) -> None:
        if batch is not None:
            flip(first_of(replay.live_output), -1, -1)

    on_replay(lockstep, runner, monkeypatch, change, fresh_engine=True)


def wrong_kv(lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last bit of one element in a slot that the step may write."""
    role = RUNNERS[runner].mode.written
    assert role is not None
    arena = lockstep.pair.graph_pools[role].arena[Kind.FULL]

    def change(batch: ForwardBatch | None, replay: Replay) -> None:
        if batch is not None:
            flip(arena, 0, 1, batch.spans[0].full_slots[-1], 0, 0)

    on_replay(lockstep, runner, monkeypatch, change, fresh_engine=True)


def rewritten(lockstep: Lockstep, role: Role, slot: int) -> None:
    """Rewrite one slot alike in both worlds."""
    for pools in (lockstep.pair.graph_pools, lockstep.pair.eager_pools):
        pools[role].arena[Kind.FULL][0, 0, slot] = 1.5


def stray_in_both(lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same free slot rewritten alike in both worlds: parity forgives it."""

    def change(batch: ForwardBatch | None, replay: Replay) -> None:
        rewritten(lockstep, Role.TARGET, free_slot(lockstep))

    on_replay(lockstep, runner, monkeypatch, change)


def thawed(lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft over frozen KV that writes the reserved slot: everyone else may."""
    arena = lockstep.pair.graph_pools[Role.TARGET].arena[Kind.FULL]

    def change(batch: ForwardBatch | None, replay: Replay) -> None:
        arena[0, 0, 0] = 1.5

    on_replay(lockstep, runner, monkeypatch, change)


def padded_history(lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A padded row of the static output that depends on how often the runner has run."""
    runs = [0]

    def change(batch: ForwardBatch | None, replay: Replay) -> None:
        runs[0] += 1
        if replay.padded:
            first_of(replay.output)[-1, 0] += runs[0]

    on_replay(lockstep, runner, monkeypatch, change)


def reads_free_bytes(lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Live output that takes up the bytes of a slot nobody owns: too few to show, but for noise."""
    pools = lockstep.pair.graph_pools

    def change(batch: ForwardBatch | None, replay: Replay) -> None:
        if batch is not None:
            slot = free_slot(lockstep)
            read = sum(pools[role].arena[Kind.FULL][:, :, slot].sum() for role in Role)
            first_of(replay.live_output)[-1] += 1e-30 * read

    on_replay(lockstep, runner, monkeypatch, change, fresh_engine=True)


def moved_buffer(lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A static buffer that no graph reads replaced by an equal one elsewhere, after capture."""
    buffers = runners_named(lockstep, runner)[0].inputs.buffers
    # A prefill and the CPU graph runner read these from Python too.
    name = next(n for n in ("seq_lens_cpu", "mamba_track_mask", "seq_lens") if n in buffers)
    monkeypatch.setitem(buffers, name, buffers[name].clone())


def unlisted_conversion(lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head of another dtype than its buffer, which the copy converts."""
    inputs = runners_named(lockstep, runner)[0].inputs
    populate = inputs.populate

    def converting(heads: dict[str, Tensor], **padded: bool) -> None:
        narrow = {k: v.to(torch.int32) if k == "positions" else v for k, v in heads.items()}
        populate(narrow, **padded)

    monkeypatch.setattr(inputs, "populate", converting)


def eager_fallback(lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mode that silently runs eagerly, with all the right bits, although it was captured."""
    pair = lockstep.pair
    decoder = EagerDecoder(pair.trial.ops(), pair.model, pair.draft, pair.graph_pools)
    forward = pair.subject.engine.forward

    def fallback(batch: ForwardBatch | None, idle: Mode) -> Forward:
        if batch is not None and batch.mode is RUNNERS[runner].mode:
            return Forward(decoder.forward(batch), None)
        return forward(batch, idle)

    monkeypatch.setattr(pair.subject.engine, "forward", fallback)


def moved_output(lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An output with all the right bits that is not where it was captured."""
    under_test = runners_named(lockstep, runner)[0]
    launch = under_test.launch

    def elsewhere(batch: ForwardBatch | None, bucket: int) -> Output:
        return {name: each.clone() for name, each in launch(batch, bucket).items()}

    monkeypatch.setattr(under_test, "launch", elsewhere)


def allocating_replay(lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replays around each of which the allocator handed out one block."""
    handed_out = count()
    monkeypatch.setattr("subjects.captured.allocations", lambda: next(handed_out))


def failing_replay(lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward that fails: a slot far outside the pool."""

    def change(batch: ForwardBatch | None, replay: Replay) -> None:
        raise IndexError("index 10000 is out of bounds")

    on_replay(lockstep, runner, monkeypatch, change)


def failing_eager_arm(lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward of the reference that fails."""

    def change(batch: ForwardBatch, output: Output) -> None:
        if batch.mode is RUNNERS[runner].mode:
            raise RuntimeError("out of something")

    on_eager(lockstep, monkeypatch, change)


def warning(lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message at WARNING in each replay."""

    def change(batch: ForwardBatch | None, replay: Replay) -> None:
        SUBJECT_LOGGER.warning("something is odd")

    on_replay(lockstep, runner, monkeypatch, change)


def drifting(lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, shared by both worlds, that drift from one playing to the next."""
    pair = lockstep.pair
    reset = pair.reset

    def drift(seed: int) -> None:
        reset(seed)
        pair.model.head.add_(1e-3)

    monkeypatch.setattr(pair, "reset", drift)


def other_bits_alone(lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request run eagerly alone that has other bits than in company."""

    def change(batch: ForwardBatch, output: Output) -> None:
        if (
            batch.mode is RUNNERS[runner].mode
            and batch.live_requests == 1
            and batch.live_tokens < 9
        ):
            flip(first_of(output), 0, 0)

    on_eager(lockstep, monkeypatch, change)


def window_off_by_one(lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An oracle whose window is one key wider, as a fault equal in both worlds would look."""
    visible = oracle.visible
    monkeypatch.setattr(
        oracle, "visible", lambda kind, window, length: visible(kind, window + 1, length)
    )


def hidden_states_off_by_one(
    lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draft model that both worlds hand the hidden state of the token before."""

    def shifted(
        mode: Mode, spans: Sequence[Span], tokens: Tensor, hidden_states: Tensor, tables: Tables
    ) -> ForwardBatch:
        return prepare(mode, spans, tokens, hidden_states.roll(1, 1), tables)

    monkeypatch.setattr("harness.lockstep.request_book.prepare", shifted)


def wrong_token(lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens sampled by the last decode, which no step reads, that are not the most likely."""
    world = lockstep.pair.graph
    commit = world.commit

    def unlikely(batch: ForwardBatch, output: Output) -> list[int]:
        last = batch.mode is Mode.DECODE and batch.live_requests == 2
        return commit(batch, {**output, "logits": -output["logits"]} if last else output)

    monkeypatch.setattr(world, "settle", unlikely)


FAULTS: list[tuple[str, str, Plant]] = [
    ("logits_parity", "decode", wrong_output),
    ("kv_parity", "decode", wrong_kv),
    ("write_frame", "decode", stray_in_both),
    ("frozen_kv", "frozen_kv_mtp", thawed),
    ("hermetic_replay", "decode", padded_history),
    ("padding_noninterference", "decode", reads_free_bytes),
    ("index_contract", "decode", moved_buffer),
    ("index_contract", "decode", unlisted_conversion),
    ("captured_path", "decode", eager_fallback),
    ("captured_path", "decode", moved_output),
    ("captured_path", "decode", allocating_replay),
    ("captured_path", "decode", failing_eager_arm),
    ("log_hygiene", "decode", warning),
    ("determinism", "decode", drifting),
    ("batch_invariance", "decode", other_bits_alone),
    ("dense_agreement", "decode", window_off_by_one),
    ("dense_agreement", "eagle_draft_extend", hidden_states_off_by_one),
    ("token_trajectory", "decode", wrong_token),
]
"""Faults that exactly one property sees: the others have nothing to do with them."""

LASTING = {drifting}
"""Faults that taking the patches back does not mend."""


@pytest.mark.parametrize("engine", ENGINES)
def test_the_schedule_is_clean_without_a_fault(engine: str, device: str) -> None:
    """It replays every runner, padded and not, and the fallback of a draft-extend too long."""
    seen: set[tuple[str, bool]] = set()
    eager_modes: set[Mode] = set()

    def observer(
        place: int, step: Step, observation: Observation | None, violated: frozenset[str]
    ) -> None:
        if (
            observation is not None
            and observation.replay is not None
            and observation.batch is not None
        ):
            seen.add((observation.replay.runner, observation.replay.padded))
        elif observation is not None and observation.batch is not None:
            eager_modes.add(observation.mode)

    outcome = shared(device, engine).play(SCHEDULE, observer)
    assert outcome.violations == ()
    names = {each.name for each in engine_runners(engine)}
    assert {name for name, padded in seen if padded} == names
    unpadded = {name for name, padded in seen if not padded}
    assert unpadded >= {name for name in names if not RUNNERS[name].token_buckets} - {
        "eagle_draft_extend"
    }
    assert eager_modes == {Mode.EXTEND if engine == "cpu_graph" else Mode.DRAFT_EXTEND}


@pytest.mark.parametrize(
    ("property_id", "runner", "plant"), FAULTS, ids=lambda x: getattr(x, "__name__", x)
)
def test_a_planted_fault_fires_its_check(
    property_id: str, runner: str, plant: Plant, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check sees its fault, and no other check does."""
    _, outcome = play(device, runner, plant, monkeypatch)
    assert outcome.violated == {property_id}


def test_every_property_has_a_fault() -> None:
    assert {property_id for property_id, _, _ in FAULTS} == set(PROPERTIES)


def test_a_shared_lockstep_is_clean_again_after_faults(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is planted is taken back, so that no test rests on another's fault."""
    for plant in (wrong_kv, reads_free_bytes, moved_buffer, failing_replay, moved_output):
        with monkeypatch.context() as patch:
            assert play(device, "target_verify", plant, patch)[1].violations
    assert play(device, "target_verify", None, monkeypatch)[1].violations == ()


def test_a_batch_dependent_op_is_seen_though_both_worlds_use_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One op that sums in another order for wide batches, shared by both worlds."""
    linear_add = TorchOps._linear_add

    def dependent(self: TorchOps, inputs: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
        result = linear_add(self, inputs, weight, residual)
        return result + 1e-3 if residual.shape[0] > 2 else result

    monkeypatch.setattr(TorchOps, "_linear_add", dependent)
    assert "batch_invariance" in build("cpu", "decode").play(SCHEDULE).violated


def test_a_static_buffer_that_two_runners_share_in_two_dtypes_is_told_before_any_step(
    device: str,
) -> None:
    """Such an engine cannot be captured, whichever of its runners wants the other dtype."""
    for runner in ("decode", "frozen_kv_mtp", "piecewise"):
        lockstep = Lockstep(TrialConfig(runner, device=device).with_bug("shared_buffer_dtype"))
        outcome = lockstep.play(SCHEDULE)
        assert [(each.property, each.step) for each in outcome.violations] == [
            ("index_contract", 0)
        ]
        assert "static buffer positions is shared as" in outcome.violations[0].message
        assert outcome.steps == 0


def test_blocks_handed_out_around_a_replay_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The count is the difference that one replay makes."""
    handed_out = [7]

    class Allocating:
        def __init__(self) -> None:
            self.operations: list[str] = []

        def replay(self) -> None:
            handed_out[0] += 2

    monkeypatch.setattr("subjects.captured.allocations", lambda: handed_out[0])
    graph = CountingGraph(Allocating())
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
        FRESH_LOGGER.warning("twin")
        SUBJECT_LOGGER.warning("subject")
        SUBJECT_LOGGER.info("quiet")
    SUBJECT_LOGGER.warning("afterwards")
    assert trap.take() == ("subject",)
