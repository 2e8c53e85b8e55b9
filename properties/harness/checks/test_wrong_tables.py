"""What no bit of KV or logits shows yet: leaks, wrong fills, inputs that nobody refreshes, views.

Each was missed once: both runs that were compared agreed, or nothing looked.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from paritybit.harness.checks.play import Lockstep, Outcome
from paritybit.harness.checks.static_inputs import CONVERTED, INPUTS, METADATA, ROOM
from paritybit.harness.checks.step_properties.live_inputs import describe as describe_inputs
from paritybit.harness.checks.step_properties.live_inputs import flag as inputs_flag
from paritybit.harness.checks.step_properties.live_inputs import parts
from paritybit.harness.checks.step_properties.read_frame import columns_read
from paritybit.harness.checks.step_properties.read_frame import flag as reads_flag
from paritybit.harness.checks.step_properties.slot_ownership import describe as describe_end
from paritybit.harness.checks.step_properties.slot_ownership import flag as end_flag
from paritybit.harness.checks.table import STEP_PROPERTIES
from paritybit.harness.explain.recorder import record_forward
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.observation import Observation, StepEnd
from paritybit.harness.schedules.schedule import (
    Admit,
    Decode,
    DraftExtend,
    Evict,
    Finish,
    Retract,
    Schedule,
    Step,
)
from paritybit.reference.allocator import Owner, Ownership
from paritybit.reference.batch import ForwardBatch, Mode, Span
from paritybit.reference.config import PRESETS, Role
from paritybit.reference.model import Output
from paritybit.subjects.contracts import LISTED_CONVERSIONS, Axis, Policy
from paritybit.subjects.protocol import Keys
from paritybit.subjects.runners import ONE_PER_ENGINE, RUNNERS
from paritybit.subjects.runners.base import GraphRunner
from torch import Tensor

from properties.support.harness.faults import (
    freed_twice,
    keeping_views,
    padding_filled_with,
    row_of_a_retracted_request_freed,
    still_mapped,
)
from properties.support.harness.observations import BUCKET, FREE, OWNERS, idle, observation
from properties.support.harness.planting import (
    SCHEDULE,
    Plant,
    play,
    runners_named,
    shared,
)
from properties.support.subjects.runners import EXPECTED

PER_STEP = tuple(STEP_PROPERTIES)

OTHER_DTYPES: Mapping[torch.dtype, torch.dtype] = {
    torch.int64: torch.int32,
    torch.int32: torch.int64,
    torch.bool: torch.uint8,
    torch.float32: torch.float64,
}
"""The wrong dtype for each dtype."""


def metadata(runner: type[GraphRunner]) -> tuple[str, ...]:
    """Return the names of a runner's static lists, which do not depend on the model."""
    bare: Any = object.__new__(runner)
    bare.target = bare.draft = SimpleNamespace(config=next(iter(PRESETS.values())))
    return tuple(runner.metadata_sizes(bare, 1))


def resetting(name: str) -> list[str]:
    """Return the runners whose padding resets a static input."""
    return [
        runner
        for runner, row in EXPECTED.items()
        if name in row.inputs and row.inputs[name].tail is not None
    ]


@pytest.mark.parametrize("runner", resetting("req_pool_indices"))
def test_padded_rows_that_always_read_a_live_request_are_seen(
    runner: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 1 instead of 0: the runner just captured reads it too, so that hermetic_replay agrees.

    By that row drafts are scattered into the draft table: a padded one's over a request's.
    """
    _, outcome = play(
        device, runner, padding_filled_with("req_pool_indices", 1), monkeypatch, PER_STEP
    )
    overwritten = {"kv_parity"} if RUNNERS[runner].mode.drafts else set()
    assert outcome.violated == {"read_frame", "live_inputs"} | overwritten


def unrefreshed(name: str) -> Plant:
    """Return a fault: a static input that nothing reads any more keeps what it first held."""

    def plant(lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
        under_test = runners_named(lockstep, runner)[0]
        launch = under_test.launch
        held = under_test.inputs.buffers[name].clone()

        def launched(batch: ForwardBatch | None, bucket: int, *, captured: bool = True) -> Output:
            output = launch(batch, bucket, captured=captured)
            under_test.inputs.buffers[name].copy_(held)
            return output

        monkeypatch.setitem(vars(under_test), "launch", launched)

    return plant


@pytest.mark.parametrize(
    ("runner", "name"),
    [
        ("cpu_graph", "seq_lens"),
        ("frozen_kv_mtp", "hidden_states"),
        ("breakable", "out_cache_loc_swa"),
    ],
)
def test_an_input_that_is_never_refreshed_and_never_read_is_seen(
    runner: str, name: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that the replay gives is right: no other property has anything to see."""
    _, outcome = play(device, runner, unrefreshed(name), monkeypatch, PER_STEP)
    assert outcome.violated == {"live_inputs"}
    (violation,) = outcome.violations
    assert violation.where["input"] == name


def test_an_index_that_the_right_contract_itself_keeps_is_seen(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the subject, the fresh engine and what the harness levels, all by that contract."""
    kept = tuple(
        replace(row, policy=Policy.KEEP) if row.name == "out_cache_loc" else row
        for row in RUNNERS["decode"].rows
    )
    monkeypatch.setattr(RUNNERS["decode"], "rows", kept)
    trial = TrialConfig("decode", device=device, buckets=(2, 4), token_buckets=(4, 12))
    steps = *SCHEDULE.steps[:3], *[Decode((0, 1, 2))] * 3, *SCHEDULE.steps[3:]
    outcome = Lockstep(trial).play(Schedule(steps, SCHEDULE.seed))
    assert outcome.error is None
    assert {"live_inputs", "write_frame"} <= outcome.violated


@pytest.mark.parametrize("runner", RUNNERS)
def test_what_is_expected_of_static_inputs_is_what_the_tests_know_of_the_runner(
    runner: str,
) -> None:
    """Two tables by hand, neither made of the contracts."""
    rows = INPUTS[runner].rows
    counts = {"num_token_non_padded", "global_num_tokens"}
    known = {name: row for name, row in EXPECTED[runner].inputs.items() if name not in counts}
    assert {name: row.fill for name, row in rows.items()} == {
        name: row.tail for name, row in known.items()
    }
    assert {name for name, row in rows.items() if row.live is None} == {
        name for name, row in known.items() if not row.populated
    }
    extents = EXPECTED[runner].extents(1) | {Axis.MROPE: EXPECTED[runner].extents(1)[Axis.TOKEN]}
    for name, row in rows.items():
        if row.fill is not None:
            assert row.of(TrialConfig().model, 1) == extents[known[name].axis]


@pytest.mark.parametrize("make", [observation, idle])
@pytest.mark.parametrize("mode", Mode)
def test_any_element_that_is_judged_is_seen_and_named_where_it_is_wrong(
    mode: Mode, make: Callable[[Mode], Observation]
) -> None:
    """The first and the last element of each live part, and of each tail."""
    judged = [(part.name, part.live) for part in parts(make(mode))]
    assert judged
    for place, (name, live) in enumerate(judged):
        for corner in (0, -1):
            spoiled = make(mode)
            held = list(parts(spoiled))[place].held
            if not held.numel():
                continue
            index = (corner,) * held.dim()
            held[index] = ~held[index] if held.dtype is torch.bool else held[index] + 1
            assert inputs_flag(spoiled)
            message, where = describe_inputs(spoiled)
            assert (where["input"], where["live"]) == (name, live)
            assert f"{name}[" in message


@pytest.mark.parametrize("mode", Mode)
def test_a_part_is_judged_over_the_whole_of_its_other_axes(mode: Mode) -> None:
    """Every section of positions, and every element of a row."""
    judged = observation(mode)
    assert judged.replay is not None
    known = EXPECTED[judged.replay.runner]
    for part in parts(judged):
        wide = part.name in known.inputs and known.inputs[part.name].axis is Axis.MROPE
        held, whole = (list(t.shape) for t in (part.held, judged.static[part.name]))
        del held[-1 if wide else 0], whole[-1 if wide else 0]
        assert held == whole


@pytest.mark.parametrize("make", [observation, idle])
@pytest.mark.parametrize("mode", Mode)
def test_a_tail_is_judged_to_the_end_of_its_bucket(
    mode: Mode, make: Callable[[Mode], Observation]
) -> None:
    """As long as the tests' own table of the runner says that the axis of the input is."""
    judged = make(mode)
    assert judged.replay is not None
    known = EXPECTED[judged.replay.runner]
    extents = known.extents(judged.replay.bucket)
    for part in parts(judged):
        if not part.live:
            axis = known.inputs[part.name].axis
            wide = axis is Axis.MROPE
            length = part.held.shape[-1] if wide else part.held.shape[0]
            assert part.first + length == extents[Axis.TOKEN if wide else axis]


def test_a_tail_that_is_kept_and_a_buffer_beyond_its_bucket_may_hold_anything() -> None:
    right = observation()
    right.static["input_ids"][2:] = 77
    right.static["req_pool_indices"][BUCKET:] = 3
    assert not inputs_flag(right)


def test_a_static_input_that_nobody_expects_and_one_that_is_lacking_are_seen() -> None:
    right = observation()
    further = replace(right, static={**right.static, "grammar_rows": torch.zeros(4)})
    lacking = replace(right, static={k: v for k, v in right.static.items() if k != "positions"})
    for spoiled, words in (
        (further, "the expected value of static input grammar_rows is unknown"),
        (lacking, "static input positions does not exist"),
    ):
        assert inputs_flag(spoiled)
        assert describe_inputs(spoiled)[0] == f"decode: {words}"


def test_lengths_of_the_dtype_that_another_runner_has_are_seen() -> None:
    """Their copy converts as that runner's does, and every value is right."""
    right = observation()
    widened = right.static["seq_lens"].to(torch.int64)
    other = replace(right, static={**right.static, "seq_lens": widened})
    assert inputs_flag(other)
    assert describe_inputs(other)[0] == (
        "decode: static buffer seq_lens is torch.int64; the engine needs torch.int32"
    )


@pytest.mark.parametrize("mode", [RUNNERS[runner].mode for runner in ROOM])
def test_a_buffer_whose_dtype_drifts_in_every_runner_is_seen(mode: Mode) -> None:
    """No runner disagrees with another then, and no copy converts what is not listed."""
    bare = observation(mode)
    assert bare.replay is not None
    runner = bare.replay.runner
    dtypes = {name: METADATA[name] for name in metadata(RUNNERS[runner])}
    lists = {name: torch.zeros(4096, dtype=dtype) for name, dtype in dtypes.items()}
    right = replace(bare, static={**bare.static, **lists})
    assert not inputs_flag(right)
    dtypes |= {name: dtype for name, dtype in INPUTS[runner].dtypes.items() if name in right.static}
    for name, dtype in dtypes.items():
        drifted = right.static[name].to(OTHER_DTYPES[dtype])
        other = replace(right, static={**right.static, name: drifted})
        assert inputs_flag(other)
        words = f"static buffer {name} is {drifted.dtype}; the engine needs {dtype}"
        assert describe_inputs(other)[0] == f"{runner}: {words}"


def test_the_dtype_of_whatever_a_copy_may_convert_is_said() -> None:
    converted = {name: into for name, _, into in LISTED_CONVERSIONS}
    assert converted.items() <= {**METADATA, **CONVERTED}.items()
    assert METADATA.keys() == set().union(*(metadata(RUNNERS[runner]) for runner in ROOM))


@pytest.mark.parametrize("mode", [RUNNERS[runner].mode for runner in ROOM])
def test_a_buffer_that_the_longest_requests_of_a_bucket_outgrow_is_seen(mode: Mode) -> None:
    """By one element, though the batch at hand fits."""
    right = observation(mode)
    assert right.replay is not None
    runner = right.replay.runner
    for name, room in ROOM[runner].items():
        needed = room.of(right.layout.configs[Role.TARGET], BUCKET)
        none = torch.zeros(0, dtype=METADATA.get(name))
        held = right.static.get(name, none).flatten()
        whole = torch.cat([held, held.new_zeros(needed)])
        fits = replace(right, static={**right.static, name: whole[:needed]})
        assert not inputs_flag(fits)
        outgrown = replace(right, static={**right.static, name: whole[: needed - 1]})
        assert inputs_flag(outgrown)
        assert describe_inputs(outgrown)[0] == (
            f"{runner}: static buffer {name} has room for {needed - 1} elements; a bucket "
            f"of {BUCKET} can need {needed}"
        )


def test_a_batch_that_is_padded_in_tokens_alone_holds_what_it_should(device: str) -> None:
    """A draft-extend of as many requests as its bucket, but of fewer tokens than the one before."""
    trial = TrialConfig("eagle_draft_extend", device=device, buckets=(2,), token_buckets=(12,))
    both = (0, 1)
    steps = Admit(4, 4), Admit(4, 4), DraftExtend(both), Decode(both), DraftExtend(both)
    outcome = Lockstep(trial).play(Schedule(steps))
    assert (outcome.error, outcome.violations) == (None, ())
    assert outcome.events["eagle_draft_extend: padded replay"] == 1


# What rows read.


def spoiled_keys(observed: Observation, **changes: Tensor) -> Observation:
    """Return an observation whose lists of full layers are changed."""
    assert observed.keys is not None
    return replace(
        observed, keys=replace(observed.keys, full=replace(observed.keys.full, **changes))
    )


@pytest.mark.parametrize("mode", Mode)
def test_a_key_more_or_less_of_any_row_is_seen_in_any_mode(mode: Mode) -> None:
    """Of a live row; of a padded one, whatever is not slot 0."""
    right = observation(mode)
    assert right.keys is not None
    full = right.keys.full
    for row in range(len(full.begin)):
        padded = int(full.slots[full.begin[row]]) == 0
        last = int(full.end[row] - full.begin[row]) - 1
        mask = right.keys.mask
        start = full.mask_start
        unseen = mask is not None and start is not None and not mask[start[row] + last]
        less, more, other = full.end.clone(), full.end.clone(), full.slots.clone()
        less[row] -= 1
        more[row] += 1 if row + 1 < len(full.begin) else 0
        other[full.begin[row]] = FREE
        assert bool(reads_flag(spoiled_keys(right, end=less))) == (not padded and not unseen)
        assert reads_flag(spoiled_keys(right, slots=other))
        if row + 1 < len(full.begin):
            assert bool(reads_flag(spoiled_keys(right, end=more))) == (
                not padded or int(full.slots[full.end[row]]) != 0
            )


def test_a_mask_bit_of_a_tree_that_is_wrong_is_seen() -> None:
    """A verified token that sees a sibling, and one that does not see its parent."""
    for place in range(8):
        right = observation(Mode.TARGET_VERIFY)
        assert right.keys is not None and right.keys.mask is not None
        right.keys.mask[place] = ~right.keys.mask[place]
        assert reads_flag(right)


def test_the_same_slot_twice_and_a_slot_that_is_none_are_seen() -> None:
    for slot in (OWNERS[0].full_pages[1], -1, 10_000):
        right = observation()
        assert right.keys is not None
        right.keys.full.slots[0] = slot
        assert reads_flag(right)


def test_too_few_rows_are_seen() -> None:
    right = observation()
    assert right.keys is not None
    keys = [
        Keys(one.begin[:1], one.end[:1], one.slots) for one in (right.keys.full, right.keys.swa)
    ]
    assert reads_flag(replace(right, keys=replace(right.keys, full=keys[0], swa=keys[1])))


@pytest.mark.parametrize("engine", ONE_PER_ENGINE)
def test_the_lists_of_every_forward_are_seen_but_those_of_an_idle_prefill(
    engine: str, device: str
) -> None:
    lockstep = shared(device, engine)
    unseen: list[Observation] = []

    def observer(
        place: int, step: Step, observed: Observation | None, violated: frozenset[str]
    ) -> None:
        if observed is not None and observed.keys is None:
            unseen.append(observed)

    lockstep.watch(PER_STEP)
    assert lockstep.play(SCHEDULE, observer).violations == ()
    assert all(one.graph.batch is None and one.mode is Mode.EXTEND for one in unseen)


# Who holds what.


def right_end() -> StepEnd:
    """Return what a right step left."""
    return observation().end


def first(world: Ownership, **changes: object) -> tuple[Owner, ...]:
    """Return the holders with the first one changed."""
    return (world.holders[0]._replace(**changes), *world.holders[1:])  # type: ignore[arg-type]


WRONG_HOLDINGS: list[tuple[str, Callable[[Ownership], Ownership]]] = [
    (
        "full page 2 is held by nobody and appears 0 times in the free list",
        lambda w: replace(w, free_full=tuple(p for p in w.free_full if p != 2)),
    ),
    (
        "full page 2 is held by nobody and appears 2 times in the free list",
        lambda w: replace(w, free_full=(*w.free_full, 2)),
    ),
    (
        "full page 3 is held by request 7 and appears 1 times in the free list",
        lambda w: replace(w, free_full=(*w.free_full, 3)),
    ),
    (
        "swa page 0 is held by nobody and appears 1 times in the free list",
        lambda w: replace(w, free_swa=(*w.free_swa, 0)),
    ),
    (
        ("swa page 1 is held by request 7, request 4 and appears 0 times in the free list"),
        lambda w: replace(
            w, holders=first(w, swa_pages=(1, 8, 5, 11, 6)), free_swa=(*w.free_swa, 2)
        ),
    ),
    (
        "full page 99 is held by nobody and appears 1 times in the free list",
        lambda w: replace(w, free_full=(*w.free_full, 99)),
    ),
    (
        "row 0 is held by nobody and appears 1 times in the free list",
        lambda w: replace(w, free_rows=(*w.free_rows, 0)),
    ),
    (
        "row 1 is held by request 7, request 4 and appears 0 times in the free list",
        lambda w: replace(w, holders=first(w, row=1), free_rows=(*w.free_rows, 2)),
    ),
    (
        "state slot 0 is held by nobody and appears 1 times in the free list",
        lambda w: replace(w, free_states=(*w.free_states, 0)),
    ),
    (
        "token row 3 is held by request 9 and appears 1 times in the free list",
        lambda w: replace(w, retracted=((9, 3),)),
    ),
    (
        "token row 0 is held by request 7, request 9 and appears 0 times in the free list",
        lambda w: replace(w, retracted=((9, 0),)),
    ),
    (
        "token row 7 is held by nobody and appears 0 times in the free list",
        lambda w: replace(w, free_token_rows=w.free_token_rows[:-1]),
    ),
    (
        "request 7 has 5 full pages for 4 tokens",
        lambda w: replace(w, holders=first(w, length=4)),
    ),
]


@pytest.mark.parametrize("world", ["eager", "graph"])
@pytest.mark.parametrize(("words", "change"), WRONG_HOLDINGS)
def test_what_is_held_or_free_wrongly_is_named_with_its_world(
    words: str, change: Callable[[Ownership], Ownership], world: str
) -> None:
    end = right_end()
    if world == "eager":
        spoiled = replace(end, eager=change(end.eager))
    else:
        spoiled = replace(end, graph=change(end.graph))
    assert end_flag(spoiled)
    message, where = describe_end(spoiled)
    assert message == f"in the {world} run, {words}"
    assert where["world"] == world


WRONG_CELLS: list[tuple[str, Callable[[Ownership], Tensor]]] = [
    ("full slot 3 is mapped to SWA slot 4; expected 2", lambda w: w.mapping[3:4].fill_(4)),
    ("full slot 3 is mapped to SWA slot 0; expected 2", lambda w: w.mapping[3:4].fill_(0)),
    (
        "full slot 23 is mapped to SWA slot 1; expected 0",
        lambda w: w.mapping[FREE : FREE + 1].fill_(1),
    ),
    ("full slot 0 is mapped to SWA slot 1; expected 0", lambda w: w.mapping[:1].fill_(1)),
    ("full slot 25 is mapped to SWA slot 0; expected -1", lambda w: w.mapping[-1:].fill_(0)),
    (
        "row 2, column 1 of req_to_token is full slot 3; expected 9",
        lambda w: w.req_to_token[2, 1:2].fill_(3),
    ),
    (
        "row 0, column 4 of req_to_token is full slot 3; expected 0",
        lambda w: w.req_to_token[0, 4:5].fill_(3),
    ),
]


@pytest.mark.parametrize("world", ["eager", "graph"])
@pytest.mark.parametrize(("words", "spoil"), WRONG_CELLS)
def test_a_table_that_does_not_say_what_is_held_is_named(
    words: str, spoil: Callable[[Ownership], Tensor], world: str
) -> None:
    end = right_end()
    spoil(getattr(end, world))
    assert end_flag(end)
    assert describe_end(end)[0] == f"in the {world} run, {words}"


def test_what_left_the_window_is_mapped_to_0_and_unused_cells_hold_anything() -> None:
    end = right_end()
    for world in (end.eager, end.graph):
        world.req_to_token[2, 5:] = 9
        world.req_to_token[3] = 9
    assert not end_flag(end)
    eager, graph = (
        replace(
            world,
            holders=first(world, swa_pages=(None, 8, 5, 11, 6)),
            free_swa=(*world.free_swa, 2),
        )
        for world in (end.eager, end.graph)
    )
    evicted = replace(end, eager=eager, graph=graph)
    assert end_flag(evicted)
    for world in (evicted.eager, evicted.graph):
        world.mapping[3] = 0
    assert not end_flag(evicted)


@pytest.mark.parametrize(
    ("fault", "step"),
    [
        (freed_twice, Finish(0)),
        (row_of_a_retracted_request_freed, Retract(0)),
        (still_mapped, Evict(0)),
    ],
)
def test_a_wrong_holding_is_seen_at_its_step_though_that_runs_no_forward(
    fault: Plant, step: Step, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No bit differs, then or later in this schedule."""
    lockstep = shared(device, "cpu_graph")
    lockstep.watch(PER_STEP)
    fault(lockstep, "cpu_graph", monkeypatch)
    outcome = lockstep.play(Schedule((Admit(9, 99), Admit(8, 99), step)))
    found = [(violation.property, violation.step) for violation in outcome.violations]
    assert found == [("slot_ownership", 2)]


# Outputs that are kept, and tails that padding keeps.


def played_with_views(
    device: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[Lockstep, Outcome]:
    """Play the schedule with views of outputs kept where copies should be."""
    lockstep = shared(device, engine)
    lockstep.watch(PER_STEP)
    keeping_views(lockstep, engine, monkeypatch)
    return lockstep, lockstep.play(SCHEDULE)


@pytest.mark.parametrize("engine", ["decode", "breakable"])
def test_a_view_of_an_output_that_is_kept_shows_in_the_next_step_that_uses_it(
    engine: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The draft right after the draft-extends, whose output is NaN by then."""
    _, outcome = played_with_views(device, engine, monkeypatch)
    assert "logits_parity" in outcome.violated
    assert {violation.step for violation in outcome.violations} == {6}


def test_a_forward_that_is_recorded_has_the_views_that_were_kept(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recording clones no output that the caller got a view of, so that the fault is there."""
    lockstep, _ = played_with_views(device, "decode", monkeypatch)
    recorded = record_forward(lockstep.pair, SCHEDULE, 6)
    batch = recorded.planned.graph.batch
    assert batch is not None
    assert batch.spec_info["topk_p"].isnan().any()
    assert recorded.run.output["scores"].isnan().any()


@pytest.mark.parametrize(
    ("window", "right"),
    [
        (None, [[0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 5], [0, 1, 2, 3, 4, 6]]),
        (3, [[1, 2, 3], [2, 3, 4], [2, 3, 5], [3, 4, 6]]),
    ],
)
def test_a_row_of_a_tree_reads_its_keys_in_the_order_of_their_positions(
    window: int | None, right: list[list[int]]
) -> None:
    tree = ((7, -1), (8, 0), (9, 0), (8, 1))
    span = Span(1, 0, 3, 7, range(7), range(7), 0, 0, False, 0, tree)
    found = columns_read(Mode.TARGET_VERIFY, span, window)
    assert [np.arange(7)[row].tolist() for row in found] == right
