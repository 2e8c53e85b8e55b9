"""Whatever run of a step violates a property is the one in which causes are tried."""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from paritybit.harness.checks.explanation import explanation, observe
from paritybit.harness.checks.play import Lockstep, Outcome
from paritybit.harness.checks.step_properties.no_crash import EXTRA_RUN
from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.explain.counterfactuals.made import Wanted, made_at
from paritybit.harness.explain.counterfactuals.replaced import as_given
from paritybit.harness.explain.facts import Explanation, TimelineEntry
from paritybit.harness.explain.tracing import RAISED_IN
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.schedules.schedule import Admit, Decode, Idle, Schedule
from paritybit.reference.batch import ForwardBatch
from paritybit.reference.ops import Ops
from paritybit.subjects import key_lists
from paritybit.subjects.buffers import StaticInputs
from paritybit.subjects.overlap import Overlap
from paritybit.subjects.parts import Part
from paritybit.subjects.runners.base import GraphRunner
from paritybit.subjects.runners.decode import DecodeRunner
from paritybit.subjects.toggles import LocationScheme
from torch import Tensor

ADMITTED = (Admit(5, 99), Admit(3, 99), Admit(4, 99))
DECODES = Schedule((*ADMITTED, Decode((0, 1)), Decode((1, 2)), Decode((2, 0))), seed=3)
PADDED = Schedule((*ADMITTED, Decode((0, 1, 2)), Decode((1, 2, 0))), seed=3)
ALONE = Schedule((*ADMITTED, Decode((0,))), seed=3)
IDLE = Schedule((*ADMITTED, Idle(0)), seed=3)

MASK = "mamba_track_mask"

Plant = Callable[[pytest.MonkeyPatch], None]
Playing = tuple[Outcome, list[TimelineEntry]]


def played(
    schedule: Schedule, *, runner: str = "decode", overlap: bool = False
) -> tuple[frozenset[str], Lockstep, Playing]:
    """Return what a schedule violates, the lockstep that played it, and what it saw."""
    trial = TrialConfig(
        runner,
        device="cpu",
        overlap=overlap,
        scheme=LocationScheme.PRESET,
        full_slots=56,
        swa_slots=48,
        rows=4,
        buckets=(2, 4),
        token_buckets=(4, 12),
    )
    lockstep = Lockstep(trial, PROPERTIES, records_ops=True)
    outcome, timeline = observe(lockstep, schedule)
    assert outcome.error is None, outcome.error
    return outcome.violated, lockstep, (outcome, timeline)


def explained(schedule: Schedule, *violated: str, overlap: bool = False) -> Explanation:
    """Return why a schedule violates these properties, and no others."""
    found, lockstep, seen = played(schedule, overlap=overlap)
    assert found == frozenset(violated)
    told = explanation(lockstep, schedule, seen[0], seen[1], None)
    assert told is not None
    return told


def with_runner(part: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Build engines with a class of runner."""
    right = TrialConfig("decode", device="cpu", scheme=LocationScheme.PRESET).subject()
    wrong = replace(right, parts=right.parts.with_before({Part.RUNNER: part}))
    monkeypatch.setattr(TrialConfig, "subject", lambda _: wrong)


def test_an_input_that_was_not_copied_is_found_among_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the noise it holds what the batch has: zeros."""
    batch_inputs = GraphRunner.batch_inputs

    def without_zeros(self: GraphRunner, batch: ForwardBatch) -> dict[str, Tensor]:
        found = batch_inputs(self, batch)
        return {name: values for name, values in found.items() if values.any()}

    monkeypatch.setattr(GraphRunner, "batch_inputs", without_zeros)
    told = explained(ALONE, "padding_noninterference")
    given, made = told.cause.given, told.cause.made
    assert given is not None
    assert (told.cause.blame, given.right, given.how) == ("inputs", "0", "equalized")
    assert (told.at.failed, told.at.further is not None) == (None, True)
    assert made[0].what == "last held in GraphRunner.batch_inputs"


def test_an_input_that_another_one_is_made_of_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Embeddings are made of a mask as soon as that is copied: put right later it mends nothing."""
    populate = StaticInputs.populate

    def without_mask(self: StaticInputs, values: dict[str, Tensor], **padded: Any) -> None:
        kept = {name: one for name, one in values.items() if name != MASK or one.any()}
        populate(self, kept, **padded)

    monkeypatch.setattr(StaticInputs, "populate", without_mask)
    schedule = Schedule((*ADMITTED, Decode((0,)), Admit(4, 99)), seed=3)
    _, lockstep, seen = played(schedule, runner="piecewise")
    told = explanation(lockstep, schedule, seen[0], seen[1], "kv_parity")
    assert told is not None and told.cause.given is not None
    assert (told.cause.blame, told.cause.given.what) == ("inputs", f"{MASK}[0]")


def test_whole_numbers_of_other_widths_are_compared() -> None:
    held, right = torch.tensor([1, 2, 7], dtype=torch.int32), torch.tensor([1, 3])
    found = as_given(held, right)
    assert (found.tolist(), found.dtype) == ([1, 3, 7], torch.int32)
    assert as_given(held, right.float()) is None


class WideBucket(GraphRunner):
    """Reads positions one too low in its largest bucket."""

    def view(self, name: str, bucket: int) -> Tensor:
        """Return another tensor there."""
        found = super().view(name, bucket)
        wrong = name == "positions" and bucket == self.buckets[-1]
        return (found - 1).clamp(min=0) if wrong else found


def test_an_argument_is_found_in_the_largest_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    with_runner(WideBucket, monkeypatch)
    told = explained(DECODES, "batch_invariance")
    given = told.cause.given
    assert given is not None
    assert (told.cause.blame, given.what) == ("what an op is given", "positions of rotary")
    assert (told.at.bucket, told.at.live_size) == (4, 2)
    assert "in its runner's largest bucket" in told.proof[0]


def blanked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write nothing in an idle replay that follows another one."""
    populate = GraphRunner.populate

    def kept(self: Any, batch: ForwardBatch | None, bucket: int, *, padded: bool) -> None:
        if batch is not None or not getattr(self, "blanked", False):
            populate(self, batch, bucket, padded=padded)
        self.blanked = batch is None

    monkeypatch.setattr(GraphRunner, "populate", kept)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_further_run_that_fails_is_explained_by_itself(
    overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step's own run succeeds: what is kept from a run before does no harm but among noise."""
    blanked_once(monkeypatch)
    violated, lockstep, (outcome, timeline) = played(IDLE, overlap=overlap)
    assert violated == {"no_crash"}
    assert outcome.violations[0].where[EXTRA_RUN] == "padding_noninterference"
    told = explanation(lockstep, IDLE, outcome, timeline, None)
    assert told is not None and told.cause.state is not None
    assert told.cause.state.path == "engine.engine.runners[DECODE].blanked"
    assert told.at.failed is not None and told.at.further is not None


def failing_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask for more keys than there are, of each batch that is decoded."""
    module, plan = key_lists.listing(torch.device("cpu")), DecodeRunner.plan
    list_rows, live_values, asked = module.list_rows, DecodeRunner.live_values, [0]

    def values(self: DecodeRunner, batch: ForwardBatch | None, bucket: int) -> dict[str, Tensor]:
        asked[0] = 99 if batch is not None else 0
        return live_values(self, batch, bucket)

    def planned(self: DecodeRunner, bucket: int) -> None:
        try:
            plan(self, bucket)
        finally:
            asked[0] = 0

    def more(rows: Tensor, lengths: Tensor, totals: tuple[int, int], *given: Any) -> Any:
        return list_rows(rows, lengths, (totals[0] + asked[0], totals[1]), *given)

    monkeypatch.setattr(DecodeRunner, "live_values", values)
    monkeypatch.setattr(DecodeRunner, "plan", planned)
    monkeypatch.setattr(module, "list_rows", more)


def kept_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the lengths on the host out of every batch but the first."""
    live_values = DecodeRunner.live_values

    def fewer(self: DecodeRunner, batch: ForwardBatch | None, bucket: int) -> dict[str, Tensor]:
        found = live_values(self, batch, bucket)
        if batch is not None:
            found["seq_lens"] = found["seq_lens"] - 2
        return found

    monkeypatch.setattr(DecodeRunner, "live_values", fewer)


def test_an_input_makes_a_step_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named only because parity holds as well once it is right."""
    kept_lengths(monkeypatch)
    told = explained(DECODES, "no_crash")
    given = told.cause.given
    assert given is not None
    assert (told.cause.blame, given.what) == ("inputs", "seq_lens[0]")
    assert told.at.failed is not None
    assert any(line.what.startswith(RAISED_IN) for line in told.sources)


def test_the_line_that_raised_is_named_where_no_cause_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing_lists(monkeypatch)
    told = explained(DECODES, "no_crash")
    assert told.cause.blame == "not known"
    assert told.sources[0].what == f"{RAISED_IN}_Lists.__init__"


class PaddingListed(DecodeRunner):
    """Lists a live request's first key for each padded row."""

    def plan(self, bucket: int) -> None:
        """List the keys of every row."""

        def wrong(*given: Any) -> key_lists.Lists:
            lists = key_lists.row_lists(*given)
            if bucket == 4:
                lists["kv_indices"][int(lists["kv_indptr"][3])] = lists["kv_indices"][0]
            return lists

        self.list_rows(bucket, wrong)


class PaddingOverwritten(DecodeRunner):
    """Overwrites what is listed for a padded row."""

    def plan(self, bucket: int) -> None:
        """List it last."""
        super().plan(bucket)
        lists, lengths = self.metadata.buffers, self.view("seq_lens_cpu", bucket)
        if bucket == 4:
            lists["kv_indices"][int(lengths[:3].sum())] = lists["kv_indices"][0]


def test_a_padded_row_that_reads_a_request_is_explained_though_no_op_differs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_runner(PaddingListed, monkeypatch)
    told = explained(PADDED, "read_frame")
    assert told.cause.blame == "key lists"
    assert told.cause.listed is not None
    assert told.cause.listed.owner is None


def test_a_list_that_is_overwritten_is_a_wrong_input(monkeypatch: pytest.MonkeyPatch) -> None:
    with_runner(PaddingOverwritten, monkeypatch)
    told = explained(PADDED, "read_frame")
    assert told.cause.blame == "inputs"
    assert told.cause.given is not None
    assert told.cause.given.what.startswith("kv_indices[")


def test_what_is_changed_between_two_ops_is_wrong_in_each_layer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All ops were given the right tensors, and one of them no longer holds what it gave."""
    as_stored = Ops.as_stored

    def halved(self: Ops, cache: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        key, value = as_stored(self, cache, key, value)
        if sys._getframe(1).f_globals["__name__"].endswith("subjects.pool"):
            value.mul_(0.5)
        return key, value

    monkeypatch.setattr(Ops, "as_stored", halved)
    _, lockstep, seen = played(DECODES)
    told = explanation(lockstep, DECODES, seen[0], seen[1], "kv_parity")
    assert told is not None and told.cause.given is not None
    given = told.cause.given
    assert (told.cause.blame, given.what) == ("what an op is given", "value of store_kv")
    assert given.value != given.right


def test_a_value_is_looked_at_again_once_a_line_has_changed_it() -> None:
    """At every pass of that line what is wrong is put right, another value there too."""
    right, wrong = torch.tensor([1, 2, 3]), torch.tensor([9, 2, 3])
    others = ((torch.tensor([9, 5, 6]), torch.tensor([4, 5, 6])),)
    ended: list[list[int]] = []

    def layer(values: list[int], seen: Any) -> None:
        held, frame = torch.tensor(values), sys._getframe()
        seen(frame, frame.f_lineno - 1, None)
        held[0] = 9
        seen(frame, frame.f_lineno - 1, None)
        ended.append(held.tolist())

    def again(seen: Any) -> Any:
        ended.clear()
        layer([1, 2, 3], seen)
        layer([4, 5, 6], seen)

    def holds(_: Any) -> bool:
        return ended == [[1, 2, 3], [4, 5, 6]]

    assert len(made_at(Wanted(wrong, right, others=others), again, holds)) == 1


def test_memory_that_is_staged_in_again_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Overlap, "arrive", lambda _, values: dict(values))
    _, lockstep, seen = played(DECODES, overlap=True)
    told = explanation(lockstep, DECODES, seen[0], seen[1], None)
    assert told is not None and told.cause.site is not None
    assert told.cause.blame == "missing copy"
