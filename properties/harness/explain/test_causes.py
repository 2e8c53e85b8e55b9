"""The cause that is named of a planted fault is that fault, and no bystander.

Each fault is planted in a clean pair, played and explained. Every sentence that is told of any of
them is held to say something.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import count, product
from typing import Any

import pytest
import torch
from paritybit.harness.checks.explanation import explanation, observe
from paritybit.harness.checks.play import Lockstep
from paritybit.harness.checks.table import STEP_PROPERTIES
from paritybit.harness.explain.cause import diverged_cause
from paritybit.harness.explain.facts import (
    CAPTURE,
    BakedIn,
    Cause,
    Explanation,
    FirstDifference,
    GivenValue,
    IndexOrigin,
    ListFault,
    Situation,
    SlotTaken,
    TableCell,
    Writer,
)
from paritybit.harness.explain.origins.lists import wrong_list
from paritybit.harness.explain.origins.outputs import OutputLedger, kept_output
from paritybit.harness.explain.origins.tables import Cell, TableLedger
from paritybit.harness.explain.proof import prove
from paritybit.harness.explain.recorded import RecordedForward, Run, record_forward
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.schedules.schedule import Admit, Decode, Evict, Finish, Retract, Schedule
from paritybit.reference.batch import ForwardBatch
from paritybit.reference.config import Kind
from paritybit.reference.model import Output
from paritybit.reference.pool import PoolSizes, Tables
from paritybit.subjects.parts import Part
from paritybit.subjects.protocol import KeyLists, Replay
from paritybit.subjects.runners.base import GraphRunner
from paritybit.subjects.toggles import LocationScheme
from torch import Tensor

from properties.support.harness.faults import (
    freed_twice,
    keeping_views,
    leaked_page,
    moved_buffer,
    other_bits_alone,
    padded_history,
    padding_filled_with,
    python_warning,
    row_of_a_retracted_request_freed,
    still_mapped,
    warning,
    window_off_by_one,
    wrong_fill,
)
from properties.support.harness.planting import BEGINNING, SCHEDULE, Plant, engine_of, runners_named

SIZES: dict[str, Any] = {
    "scheme": LocationScheme.PRESET,
    "full_slots": 56,
    "swa_slots": 48,
    "rows": 4,
    "buckets": (2, 4),
    "token_buckets": (4, 12),
}


@cache
def recording(device: str, engine: str) -> Lockstep:
    """Return a clean lockstep of an engine that records its ops, for faults that are taken back."""
    return Lockstep(TrialConfig(engine, device=device, **SIZES), records_ops=True)


@cache
def unchanged(trial: TrialConfig, *, records_ops: bool) -> Lockstep:
    """Return a clean lockstep of a trial, in which no fault is ever planted."""
    return Lockstep(trial, records_ops=records_ops)


def explained(lockstep: Lockstep, property_id: str, schedule: Schedule = SCHEDULE) -> Explanation:
    """Play a schedule in a lockstep with a fault; return why a property is violated."""
    lockstep.watch({*STEP_PROPERTIES, property_id})
    outcome, timeline = observe(lockstep, schedule)
    assert outcome.error is None, outcome.error
    assert property_id in outcome.violated
    found = explanation(lockstep, schedule, outcome, timeline, property_id)
    assert found is not None
    assert found.property == property_id
    assert BEGINNING.match(found.proof[0])
    assert found.proof[-1].startswith("So ")
    assert all("None" not in sentence for sentence in found.proof)
    return found


def planted(
    device: str,
    runner: str,
    plant: Plant,
    monkeypatch: pytest.MonkeyPatch,
    property_id: str,
    schedule: Schedule = SCHEDULE,
) -> Explanation:
    """Return why a property is violated with a fault planted in a clean pair.

    A new pair, on which an explanation is tried first, lacks the fault: one is as good for all.
    """
    lockstep = recording(device, engine_of(runner))
    monkeypatch.setattr(
        "paritybit.harness.checks.explanation.Lockstep",
        unchanged,
    )
    with torch.inference_mode():
        plant(lockstep, runner, monkeypatch)
    return explained(lockstep, property_id, schedule)


def built(
    device: str,
    part: type,
    monkeypatch: pytest.MonkeyPatch,
    property_id: str,
    schedule: Schedule = SCHEDULE,
    runner: str = "decode",
) -> Explanation:
    """Return why a property is violated by engines that are both built with a class of runner."""
    config = TrialConfig(runner, device=device, **SIZES)
    right = config.subject()
    broken = replace(right, parts=right.parts.with_before({Part.RUNNER: part}))
    monkeypatch.setattr(TrialConfig, "subject", lambda _: broken)
    return explained(Lockstep(config, records_ops=True), property_id, schedule)


# Faults that the runner just captured has too.


FULL_THEN_PADDED = Schedule((Admit(3, 9), Admit(5, 9), Decode((0, 1)), Decode((0,))), seed=3)


def test_a_wrong_fill_of_every_runner_is_named_and_no_stale_element_beside_it(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The full batch before it left a stale tail in another input: that is a bystander."""

    def plant(lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
        padding_filled_with("req_pool_indices", 1)(lockstep, runner, monkeypatch)
        inputs = runners_named(lockstep, runner)[0].inputs
        kept = inputs.buffers["mamba_track_indices"]
        zeroed = [buffer for buffer in inputs._zeroed if buffer is not kept]
        monkeypatch.setitem(vars(inputs), "_zeroed", zeroed)

    found = planted(device, "decode", plant, monkeypatch, "read_frame", FULL_THEN_PADDED)
    assert any(row.stale for row in found.static_inputs)
    index, cause = found.cause.index, found.cause
    assert index is not None
    assert (cause.blame, index.buffer, index.element) == ("inputs", "req_pool_indices", 1)
    assert (cause.twin_agrees, index.stale, index.left_by.step) == (True, False, 3)
    assert "stale state is not the cause" in " ".join(found.proof)


def test_an_input_that_every_runner_is_given_wrongly_is_named_where_an_op_reads_it(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = built(device, RolledTokens, monkeypatch, "logits_parity")
    given = found.cause.given
    assert given is not None and found.cause.difference is not None
    assert found.cause.difference.op == "scan_states"
    assert (found.cause.blame, given.what, given.how) == ("inputs", "input_ids[0]", "copied")
    assert (found.cause.twin_agrees, given.stale) == (True, False)


class RolledTokens(GraphRunner):
    """Hands each request its neighbour's token."""

    def live_values(self, batch: ForwardBatch | None, bucket: int) -> dict[str, Tensor]:
        """Return the live values, tokens rolled by one."""
        found = super().live_values(batch, bucket)  # type: ignore[safe-super]
        rolled = {"input_ids": found["input_ids"].roll(1)} if "input_ids" in found else {}
        return {**found, **rolled}


class ShortMask(GraphRunner):
    """Lets the state of no request but the first enter its input."""

    def live_values(self, batch: ForwardBatch | None, bucket: int) -> dict[str, Tensor]:
        """Return the live values, with one mask bit alone."""
        found = super().live_values(batch, bucket)  # type: ignore[safe-super]
        short = {"mamba_track_mask": found["mamba_track_mask"][:1]} if batch is not None else {}
        return {**found, **short}


def test_an_input_that_an_op_reads_by_way_of_others_is_named_by_the_run_that_it_mends(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verifying repeats each request's bit for its tokens, outside of any op."""
    found = built(device, ShortMask, monkeypatch, "logits_parity", runner="target_verify")
    given = found.cause.given
    assert given is not None
    assert found.cause.blame == "inputs"
    assert (given.what, given.value, given.right) == ("mamba_track_mask[1]", "False", "True")


def narrower(lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window that is one key narrower in every engine's lists."""
    window = property(lambda self: self.target.config.window - 1)
    monkeypatch.setattr(type(runners_named(lockstep, runner)[0]), "window", window)


@pytest.mark.parametrize("property_id", ["read_frame", "logits_parity"])
def test_a_window_list_one_short_is_named_with_its_row_and_its_columns(
    property_id: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = planted(device, "decode", narrower, monkeypatch, property_id)
    window = recording(device, engine_of("decode")).pair.config.window
    listed = found.cause.listed
    assert listed is not None
    assert (found.cause.blame, listed.kind, listed.owner) == ("key lists", "swa", "request 0")
    first = 12 - window
    assert listed.message.startswith(f"is one short: it begins at column {first + 1} (slot ")
    assert f"the window begins at column {first} (slot " in listed.message
    assert found.cause.index is None
    assert "the window list of live row 1 (request 0) is one short" in " ".join(found.proof)


# Tables.


def wrong_write(number: int, table: str, value: int) -> Plant:
    """Return a fault of the graph world: a write of the tables leaves one cell otherwise."""

    def plant(lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
        tables = lockstep.pair.graph_pools.tables
        write, clear, writes = tables.write, tables.reset, [0]

        def wrong(rows: Tensor, columns: Tensor, full: Tensor, swa: Tensor) -> None:
            write(rows, columns, full, swa)
            writes[0] += 1
            if writes[0] == number and table == "req_to_token":
                tables.req_to_token[rows[0], columns[0]] = value
            elif writes[0] == number:
                tables.full_to_swa_index_mapping[full[0]] = value

        def cleared() -> None:
            writes[0] = 0
            clear()

        monkeypatch.setattr(tables, "write", wrong)
        monkeypatch.setattr(tables, "reset", cleared)

    return plant


@pytest.mark.parametrize(
    ("table", "property_id"),
    [
        ("req_to_token", "logits_parity"),
        ("full_to_swa_index_mapping", "kv_parity"),
        ("full_to_swa_index_mapping", "live_inputs"),
    ],
)
def test_a_cell_of_a_table_is_named_with_its_value_and_since_when_it_has_it(
    table: str, property_id: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not the list or the location that was made of it, nor any stale element."""
    plant = wrong_write(2, table, 7)
    found = planted(device, "decode", plant, monkeypatch, property_id)
    cell = found.cause.cell
    assert cell is not None
    assert (found.cause.blame, cell.table, cell.value) == ("index tables", table, 7)
    assert (cell.since, found.at.step, found.cause.index) == (1, 1, None)
    eager = recording(device, engine_of("decode")).pair.eager_pools.tables
    assert int(getattr(eager, table)[cell.place]) == cell.right
    place = ", ".join(map(str, cell.place))
    assert f"{table}[{place}] has been 7 since step 1" in " ".join(found.proof)


def test_a_cell_knows_since_which_step_it_has_held_its_value() -> None:
    tables = Tables(PoolSizes(4, 4, 1, 2), 3, torch.device("cpu"))
    ledger = TableLedger(tables)
    tables.req_to_token[1, 2] = 4
    ledger.follow(3)
    tables.req_to_token[1, 2] = 4
    tables.full_to_swa_index_mapping[2] = 1
    ledger.follow(5)
    found = [ledger.since(Cell(0, 5, 0)), ledger.since(Cell(1, 2, 0)), ledger.since(Cell(0, 4, 0))]
    assert found == [3, 5, CAPTURE]


# Outputs that were kept.


@pytest.mark.parametrize("property_id", ["logits_parity", "live_inputs"])
def test_a_view_of_an_output_is_traced_to_the_step_that_gave_it(
    property_id: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 0 of the draft of step 6 is request 1, the second row of the draft-extend of step 4."""
    found = planted(device, "eagle_draft", keeping_views, monkeypatch, property_id)
    kept = found.cause.kept
    assert kept is not None
    assert (found.cause.blame, found.at.step) == ("kept output", 6)
    assert (kept.what, kept.value, kept.output) == ("topk_p of row 0", "nan", "topk_p")
    assert (kept.row, kept.step, kept.runner) == (1, 4, "eagle_draft_extend")


def test_a_value_that_is_wrong_is_no_kept_output_unless_it_was_overwritten() -> None:
    """Nor is a row that no output ever held."""
    ledger, right = OutputLedger(), torch.tensor([1.0, 2.0])
    output = {"hidden": torch.stack([right + 1, right])}
    ledger.follow(3, Replay("decode", 2, 2, False, output, 2, output, output))
    output["hidden"].fill_(torch.nan)
    nan = torch.full((2,), torch.nan)
    found = kept_output(ledger.given, "it", nan, right)
    assert found is not None
    assert (found.output, found.row, found.step) == ("hidden", 1, 3)
    assert kept_output(ledger.given, "it", right + 3, right) is None
    assert kept_output(ledger.given, "it", nan, right + 7) is None


# What a graph has from its capture.


class Capturing(GraphRunner):
    """Knows whether it is being captured."""

    @property
    def capturing(self) -> bool:
        """Whether not all buckets are captured yet."""
        return len(self.captured) < len(self.buckets)


class BakedStride(Capturing):
    """At capture takes multimodal positions for three times the positions of text."""

    def view(self, name: str, bucket: int) -> Tensor:
        """Return the part of a static input that a bucket reads."""
        if name == "mrope_positions" and self.capturing:
            return super().view("positions", bucket).expand(3, -1)
        return super().view(name, bucket)


class BakedBranch(Capturing):
    """At capture takes the branch of a single row."""

    def forward(self, bucket: int) -> Output:
        """Run what is captured."""
        output = super().forward(bucket)  # type: ignore[safe-super]
        if self.capturing:
            output["logits"] = self.ops.limit_rows(output["logits"], self.scalar(1))
        return output


class BakedBegin(Capturing):
    """At capture begins each window one key later."""

    def keys(self, bucket: int) -> KeyLists | None:
        """Return the key lists."""
        keys = super().keys(bucket)  # type: ignore[safe-super]
        if keys is None or not self.capturing:
            return keys
        return replace(keys, swa=replace(keys.swa, begin=keys.swa.begin + 1))


@pytest.mark.parametrize(
    ("part", "argument", "value", "right"),
    [
        (BakedStride, "the stride of positions", "[0, 1]", "[4, 1]"),
        (BakedBranch, None, "limit_rows", "nothing more"),
        (BakedBegin, "begin", "no static buffer", "static buffer window_kv_indptr[0]"),
    ],
)
def test_what_was_baked_in_at_capture_is_named_with_its_op(
    part: type,
    argument: str | None,
    value: str,
    right: str,
    device: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the function run eagerly through the same buffers, which gives the eager world's bits."""
    found = built(device, part, monkeypatch, "logits_parity")
    baked = found.cause.baked
    assert baked is not None
    assert (found.cause.blame, found.cause.uncaptured_run) == (
        "captured state",
        "as the eager world",
    )
    assert (baked.argument, baked.value, baked.right) == (argument, value, right)
    assert found.cause.given is None


# Who holds what.


LEAVING = Schedule((Admit(3, 99), Admit(2, 99), Finish(0), Admit(1, 9)))
RETRACTING = Schedule((Admit(3, 99), Admit(2, 99), Retract(1)))
EVICTING = Schedule((Admit(20, 99), Evict(0)))


@pytest.mark.parametrize(
    ("plant", "schedule", "what", "step", "before", "after", "both"),
    [
        (
            freed_twice,
            LEAVING,
            "full page ",
            (2, "finish"),
            "held by request 0 and not free",
            "held by nobody and free 2 times",
            True,
        ),
        (
            leaked_page,
            SCHEDULE,
            "full page ",
            (6, "draft"),
            "held by nobody and free once",
            "held by nobody and not free",
            True,
        ),
        (
            row_of_a_retracted_request_freed,
            RETRACTING,
            "token row ",
            (2, "retract"),
            "held by request 1 and not free",
            "held by request 1 and free once",
            True,
        ),
        (
            still_mapped,
            EVICTING,
            "full_to_swa_index_mapping[",
            (1, "evict"),
            "expected from the pages held: ",
            "expected from the pages held: 0",
            False,
        ),
    ],
    ids=["freed twice", "leaked", "token row freed", "still mapped"],
)
def test_what_is_held_wrongly_is_named_with_the_step_that_left_it_so(
    plant: Plant,
    schedule: Schedule,
    what: str,
    step: tuple[int, str],
    before: str,
    after: str,
    both: bool,
    device: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where that step ran no forward."""
    found = planted(device, "decode", plant, monkeypatch, "slot_ownership", schedule)
    held = found.cause.held
    assert held is not None
    assert found.cause.blame == "slot bookkeeping"
    assert held.what.startswith(what)
    assert (held.since, held.step) == step
    assert before in held.before and after in held.found and held.before != held.found
    assert held.both == both


# Several runs.


def in_eager(op: str, change: Callable[[Tensor, tuple[Any, ...]], None]) -> Plant:
    """Return a fault of the eager world alone: an op whose result is changed."""

    def plant(lockstep: Lockstep, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
        ops = lockstep.pair.decoder.ops
        right = getattr(ops, op)

        def wrong(*inputs: Any) -> Tensor:
            result: Tensor = right(*inputs)
            change(result, inputs)
            return result

        monkeypatch.setattr(ops, op, wrong)

    return plant


def alone(result: Tensor, inputs: tuple[Any, ...]) -> None:
    """Change what a single row gives."""
    if len(result) == 1:
        result[0, 3] += 1e-3


def test_the_first_op_that_depends_on_the_batching_is_named(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant = in_eager("_linear_add", alone)
    found = planted(device, "decode", plant, monkeypatch, "batch_invariance")
    difference = found.cause.difference
    assert difference is not None
    assert (difference.op, difference.element) == ("linear_add", 3)
    assert found.cause.compared[1] == "when it runs alone"


def test_the_first_op_that_is_another_when_played_again_is_named(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = count()

    def sometimes(result: Tensor, inputs: tuple[Any, ...]) -> None:
        if next(calls) % 47 == 46:
            result[0, 0, 0] += 1

    plant = in_eager("_attention", sometimes)
    found = planted(device, "decode", plant, monkeypatch, "determinism")
    assert found.cause.difference is not None
    assert found.cause.difference.op == "attention"
    assert "in the first play of the schedule in the eager run" in found.proof[-1]


def test_the_first_layer_that_is_off_the_oracle_is_named(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third of four layers of the target."""
    layers = recording(device, engine_of("decode")).pair.config.layers
    calls = count()

    def third(result: Tensor, inputs: tuple[Any, ...]) -> None:
        if next(calls) % len(layers) == 2:
            result[-1, 0] += 0.5

    schedule = Schedule((Admit(3, 99),))
    plant = in_eager("_gated_linear_add", third)
    found = planted(device, "decode", plant, monkeypatch, "dense_agreement", schedule)
    difference = found.cause.difference
    assert difference is not None
    assert (difference.op, difference.layer, difference.row) == ("gated_linear_add", 2, 2)
    assert found.cause.listed is None


def test_keys_that_are_not_those_of_the_definition_are_named(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oracle's window is one wider: by it the eager world's list is one short."""
    found = planted(device, "decode", window_off_by_one, monkeypatch, "dense_agreement")
    listed = found.cause.listed
    assert listed is not None
    assert (found.cause.blame, listed.kind, listed.row) == ("key lists", "swa", 10)
    assert listed.message.startswith("is one short: it begins at column 3 ")


@pytest.mark.parametrize(
    ("property_id", "plant", "blame", "words"),
    [
        ("live_inputs", wrong_fill, "inputs", "positions[3] is 1; expected: 0"),
        (
            "index_contract",
            moved_buffer,
            "build",
            "seq_lens_cpu is no longer the tensor that was captured",
        ),
        ("log_hygiene", warning, "call site", "something is odd."),
        ("log_hygiene", python_warning, "call site", "something is odd."),
        ("hermetic_replay", padded_history, "not known", "the cause is not known"),
        ("batch_invariance", other_bits_alone, "not known", "when it runs alone"),
    ],
)
def test_faults_that_one_property_sees_are_told_by_what_is_known_of_them(
    property_id: str,
    plant: Plant,
    blame: str,
    words: str,
    device: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = planted(device, "decode", plant, monkeypatch, property_id)
    assert found.cause.blame == blame
    assert words in " ".join(found.proof)


# What is no evidence, and sentences.


def test_a_run_that_fails_while_something_is_changed_is_no_evidence(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is changed, the forward fails: nothing is named, and no run is spoken of."""
    lockstep = recording(device, engine_of("decode"))
    with torch.inference_mode():
        wrong_write(2, "req_to_token", 7)(lockstep, "decode", monkeypatch)
        recorded = record_forward(lockstep.pair, SCHEDULE, 1)

        again = RecordedForward.again

        def fails(self: RecordedForward, *changed: Any, **otherwise: Any) -> Run:
            if not changed and not otherwise:
                return again(self)
            return Run({}, self.run.calls[:3], self.run.storage, "it failed")

        monkeypatch.setattr(RecordedForward, "again", fails)
        cause = diverged_cause(recorded)
    assert cause is not None
    assert cause.uncaptured_run is None
    assert (cause.index, cause.cell, cause.given, cause.baked) == (None, None, None, None)
    assert cause.blame in {"not known", "key lists"}


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (
            [5, 6, 7],
            (
                "is one short: it begins at column 1 (slot 5), but the window begins at "
                "column 0 (slot 4)"
            ),
        ),
        (
            [4, 5],
            (
                "is two short: it ends at column 1 (slot 5), but the window ends at column 3 "
                "(slot 7)"
            ),
        ),
        (
            [9, 4, 5, 6, 7],
            ("is one too long: it begins at slot 9, but the window begins at column 0 (slot 4)"),
        ),
        (
            [4, 5, 6, 7, 9],
            ("is one too long: it ends at slot 9, but the window ends at column 3 (slot 7)"),
        ),
        ([4, 9, 6, 7], "has slot 9 as key 1; expected slot 5 (column 1)"),
        ([4, 6, 7], "has slot 6 (column 2) as key 1; expected slot 5 (column 1)"),
        ([], "has no slot as key 0; expected slot 4 (column 0)"),
    ],
)
def test_what_is_wrong_with_a_list_is_said_by_its_ends_or_its_first_key(
    found: list[int], message: str
) -> None:
    right = [4, 5, 6, 7]

    def column(slot: int) -> int | None:
        return slot - 4 if slot in right else None

    wrong = wrong_list(Kind.SWA, found, right, column)
    assert wrong is not None
    assert wrong.message == message
    assert wrong_list(Kind.SWA, right, right, column) is None


WRITERS = Writer(2, "decode", 1, 3), Writer(2, None, 1, None), Writer(CAPTURE, None, 0, None)

PARTS: list[dict[str, Any]] = [
    {},
    {"twin_agrees": True},
    {"cell": TableCell("req_to_token", (1, 2), 3, 4, CAPTURE)},
    {
        "listed": ListFault(
            "swa", 1, None, "is one short: it begins at slot 4, but the window begins at 5"
        )
    },
    *(
        {"given": GivenValue("positions[1]", "3", right, stale, by, "reset" if by else None)}
        for right, stale, by in product((None, "4"), (True, False), (None, *WRITERS))
    ),
    {"baked": BakedIn("op", 3, None, "op", "nothing more")},
    *(
        {"taken": SlotTaken("target", "swa", 1, key, slot, right)}
        for key, slot, right in product((None, 0), (4, None), (None, 5))
        if slot is not None or (key is not None and right is not None)
    ),
]


OF_TOKENS = FirstDifference(
    "store_kv", "draft", 1, "full", "K", 5, True, 45, 0, 0, "0x0", "0x1", axis="token"
)


@pytest.mark.parametrize(
    ("op", "key", "slot", "right", "does"),
    [
        ("store_kv", None, 45, 50, "stores at slot 45 in layer 1; expected slot 50"),
        ("store_kv", None, 45, None, "stores at slot 45 in layer 1"),
        ("attention", 2, 45, None, "reads slot 45 as key 2 in layer 1; expected no slot"),
        ("attention", 2, 45, 50, "reads slot 45 as key 2 in layer 1; expected slot 50"),
        ("attention", 2, None, 50, "does not read key 2 (slot 50) in layer 1"),
        ("scan_states", None, 4, 3, "continues the state in slot 4; expected slot 3"),
    ],
)
def test_the_slot_that_an_index_led_to_is_told_though_what_led_there_is_not_known(
    op: str, key: int | None, slot: int | None, right: int | None, does: str
) -> None:
    """As of an offset that overflows: nothing that is static led there."""
    taken = SlotTaken("draft", "full", 5, key, slot, right)
    cause = Cause("not known", difference=replace(OF_TOKENS, op=op), taken=taken)
    _, then, but, _ = prove("kv_parity", Situation(1, "decode", 2, 1), cause)
    assert then == f"Then live token row 5 {does}."
    assert but.startswith("But the cause is not known")


def test_what_the_harness_gave_is_not_said_to_be_written_by_the_step() -> None:
    left_by = Writer(1, "decode", 0, None, "scalar")
    index = IndexOrigin("count", 0, 0, 1, False, 0, None, 0, 0, left_by, "equalized")
    for parts in (
        {"index": index},
        {"given": GivenValue("count[0]", "0", "1", False, left_by, "equalized")},
    ):
        cause = Cause("inputs", difference=OF_TOKENS, **parts)
        told = " ".join(prove("logits_parity", Situation(1, "decode", 2, 1), cause))
        assert "was not written in this step" in told
        assert "expected 1" in told


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("req_pool_indices", 16, True),
        ("req_pool_indices", 17, False),
        ("out_cache_loc", -1, False),
        ("seq_lens", 1, False),
        ("kv_indptr", 1, False),
    ],
)
def test_only_what_stays_within_bounds_is_changed_on_a_device_that_asserts(
    name: str, value: int, allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row too many, a slot below 0, a length that the host has too, the ends of lists."""
    lockstep = unchanged(TrialConfig(buckets=(2,), token_buckets=(4,)), records_ops=True)
    recorded = record_forward(lockstep.pair, Schedule((Admit(3, 9), Decode((0,)))), 1)
    monkeypatch.setattr(lockstep.pair, "trial", replace(lockstep.trial, device="cuda"))
    with torch.inference_mode():
        run = recorded.again(((name, 0, torch.tensor(value)),))
    assert (run.failed is None) == allowed
