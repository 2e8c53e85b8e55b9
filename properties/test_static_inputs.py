"""Static inputs as data: what the padding resets, what it leaves, and which buffers are shared.

The padding table stands here a second time, written from the engine's runners and not
from the contracts, so that a slip in a contract shows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product

import pytest
import torch
from torch import Tensor

from harness.checks.expectations import affected_runners
from harness.lockstep.config import TrialConfig
from harness.lockstep.pair import Pair
from subjects.buffers import BufferPool, SharedBufferError, StaticInputs
from subjects.bugs.catalogue import BUGS
from subjects.bugs.switching import broken_subject, missing_inputs
from subjects.contracts import (
    HIDDEN,
    Axis,
    Contract,
    Policy,
    StaticInput,
    keep,
    reset,
)
from subjects.engine import contract
from subjects.runners import RUNNERS, engine_runners
from subjects.runners.base import GraphRunner
from subjects.toggles import LocationScheme

T, B, M = Axis.TOKEN, Axis.REQUEST, Axis.MROPE
I64, I32, F32, BOOL = torch.int64, torch.int32, torch.float32, torch.bool
MODEL = None
"""The dtype of what has the model's."""

K, TOPK, STEPS = 4, 2, 3
"""Draft tokens of a verify, and of a draft-extend; branches and steps of a draft."""


@dataclass(frozen=True)
class Row:
    """A static input as upstream has it.

    `tail` is what padding leaves beyond the live part, None for what was there before;
    `new` is what a newly made buffer holds. What is not `populated` is never written at all.
    """

    axis: Axis
    dtype: torch.dtype | None
    tail: int | None = None
    new: int = 0
    width: int | None = None
    host: bool = False
    populated: bool = True
    scheme: LocationScheme | None = None


SEQ_LENS = Row(B, I32, 1, 1)
SEQ_LENS_CPU = Row(B, I32, 1, 1, host=True)
SWA_LOC = Row(T, I32, 0, scheme=LocationScheme.PRESET)

DECODE = {
    "input_ids": Row(T, I64),
    "positions": Row(T, I64, 0),
    "req_pool_indices": Row(B, I64, 0),
    "seq_lens": SEQ_LENS,
    "seq_lens_cpu": SEQ_LENS_CPU,
    "out_cache_loc": Row(T, I64, 0),
    "out_cache_loc_swa": SWA_LOC,
    "mrope_positions": Row(M, I64),
    "mamba_track_indices": Row(B, I64, 0),
    "mamba_track_mask": Row(B, BOOL, 0),
    "encoder_lens": Row(B, I32),
    "num_token_non_padded": Row(Axis.SCALAR, I32),
    "global_num_tokens": Row(Axis.SCALAR, I32),
}

PREFILL = {
    "out_cache_loc": Row(T, I64, 0),
    "out_cache_loc_swa": SWA_LOC,
    "input_ids": Row(T, I64, 0),
    "positions": Row(T, I64, 0),
    "mrope_positions": Row(M, I64, 0),
    "input_embeds": Row(T, F32, 0, width=HIDDEN),
    "mamba_track_indices": Row(B, I64),
    "mamba_track_mask": Row(B, BOOL),
}

TABLE: Mapping[str, Mapping[str, Row]] = {
    "decode": DECODE,
    "target_verify": {**DECODE, "custom_mask": Row(Axis.MASK, BOOL)},
    "cpu_graph": {
        "seq_lens": Row(B, I64, 1, 1),
        "out_cache_loc": Row(T, I64, 0),
        "req_pool_indices": Row(B, I64, 0),
        "input_ids": Row(T, I64),
        "positions": Row(T, I64),
        "mrope_positions": Row(M, I64),
    },
    "eagle_draft": {
        "seq_lens": SEQ_LENS,
        "seq_lens_cpu": SEQ_LENS_CPU,
        "out_cache_loc": Row(Axis.DRAFT_SLOT, I64, 0),
        "positions": Row(T, I64, 0),
        "topk_p": Row(B, F32, 0, width=TOPK),
        "topk_index": Row(B, I64, 0, width=TOPK),
        "hidden_states": Row(B, MODEL, 0, width=HIDDEN),
        "req_pool_indices": Row(B, I64, 0),
        "input_ids": Row(T, I64, populated=False),
        "mrope_positions": Row(M, I64, populated=False),
        "extend_seq_lens": Row(B, I32, populated=False),
    },
    "eagle_draft_extend": {
        "seq_lens": SEQ_LENS,
        "out_cache_loc": Row(T, I64, 0, new=1),
        "positions": Row(T, I64, 0),
        "req_pool_indices": Row(B, I64, 0),
        "num_correct_drafts": Row(B, I32, K, K),
        "num_accept_tokens": Row(B, I32, K, K),
        "extend_seq_lens": Row(B, I32, K, K),
        "input_ids": Row(T, I64),
        "hidden_states": Row(T, MODEL, width=HIDDEN),
        "seq_lens_cpu": SEQ_LENS_CPU,
        "extend_seq_lens_cpu": Row(B, I32, K, K, host=True),
    },
    "frozen_kv_mtp": {
        "seq_lens": Row(T, I32, 1, 1),
        "seq_lens_cpu": Row(T, I32, 1, 1, host=True),
        "positions": Row(T, I64, 0),
        "req_pool_indices": Row(T, I64, 0),
        "topk_p": Row(B, F32, width=TOPK),
        "topk_index": Row(B, I64, width=TOPK),
        "hidden_states": Row(B, MODEL, width=HIDDEN),
        "mrope_positions": Row(M, I64),
    },
    "piecewise": PREFILL,
    "breakable": PREFILL,
}
"""Every runner's static inputs, and what is right in the padded part of each."""

TOKENS = {
    "decode": 1,
    "target_verify": K,
    "cpu_graph": 1,
    "eagle_draft": TOPK,
    "eagle_draft_extend": K,
    "frozen_kv_mtp": TOPK,
}
"""Rows of a bucket on the token axis, for each request it holds."""

EACH = list(product(RUNNERS, LocationScheme))
each_runner_and_era = pytest.mark.parametrize(("runner", "scheme"), EACH)


def table(runner: str, scheme: LocationScheme) -> dict[str, Row]:
    """Return the static inputs that a runner has in an era."""
    return {name: row for name, row in TABLE[runner].items() if row.scheme in {None, scheme}}


def as_row(row: StaticInput, *, populated: bool) -> Row:
    """Return a row of a contract in this file's words."""
    return Row(
        row.axis,
        row.dtype,
        row.value if row.policy is Policy.RESET else None,
        row.value if row.allocated is None else row.allocated,
        row.width,
        row.host,
        populated,
        None if row.schemes == frozenset(LocationScheme) else next(iter(row.schemes)),
    )


def test_the_table_has_every_runner() -> None:
    assert TABLE.keys() == RUNNERS.keys()


@each_runner_and_era
def test_the_rows_of_a_contract_are_those_of_the_table(runner: str, scheme: LocationScheme) -> None:
    wanted = table(runner, scheme)
    found = {
        row.name: as_row(row, populated=wanted[row.name].populated)
        for row in contract(RUNNERS[runner], scheme)
    }
    assert found == wanted


@pytest.mark.parametrize("runner", TOKENS)
def test_each_axis_is_as_long_as_a_bucket_asks(runner: str, device: str) -> None:
    """A bucket is of requests, and a draft takes slots for every step of every branch."""
    found = of_lineup(engine_of(runner), device)[runner].extents(3)
    wanted = {T: 3 * TOKENS[runner], B: 3}
    wanted |= {Axis.DRAFT_SLOT: 3 * TOPK * STEPS} if runner == "eagle_draft" else {}
    wanted |= {Axis.MASK: 3 * K * 48} if runner == "target_verify" else {}
    assert found == wanted


@pytest.mark.parametrize("runner", ["piecewise", "breakable"])
def test_a_bucket_of_a_prefill_is_of_tokens(runner: str, device: str) -> None:
    assert of_lineup(engine_of(runner), device)[runner].extents(24)[T] == 24


WIDEST = {T: 6, B: 5, Axis.DRAFT_SLOT: 12, Axis.MASK: 20}
LIVE = {T: 4, B: 2, Axis.DRAFT_SLOT: 6, Axis.MASK: 9}
WIDTH = 3
"""Of a hidden state."""


def length(row: StaticInput, extents: Mapping[Axis, int]) -> int:
    """Return how long a row is along its axis."""
    return {**extents, M: extents[T], Axis.SCALAR: 1}[row.axis]


def inputs_of(
    rows: Contract, bucket: int, device: str, pool: BufferPool | None = None
) -> StaticInputs:
    """Return static inputs of a bucket of requests with a token each."""
    pool = pool or BufferPool(torch.device(device))
    return StaticInputs(rows, {T: bucket, B: bucket}, pool, F32, WIDTH)


def stained(rows: Contract, device: str) -> StaticInputs:
    """Return static inputs whose every element holds what no padding writes."""
    inputs = StaticInputs(rows, WIDEST, BufferPool(torch.device(device)), torch.bfloat16, WIDTH)
    for row in rows:
        inputs.buffers[row.name].fill_(stain(row.dtype))
    return inputs


def stain(dtype: torch.dtype | None) -> int:
    """Return what an earlier batch left in a buffer: nothing that any padding would write."""
    return 1 if dtype is BOOL else 7


def heads_of(rows: Contract, device: str) -> dict[str, Tensor]:
    """Return live values for each row, each element its own: 2, 3, … or False."""
    heads = {}
    for row in rows:
        shape = row.shape(LIVE, WIDTH)
        count = torch.Size(shape).numel()
        values = torch.arange(2, 2 + count).view(shape)
        values = torch.zeros(shape) if row.dtype is BOOL else values
        heads[row.name] = values.to("cpu" if row.host else device, row.dtype or torch.bfloat16)
    return heads


def part(row: StaticInput, buffer: Tensor, first: int, last: int | None) -> list[float]:
    """Return what a buffer holds from `first` on, along its row's axis, flat."""
    return (buffer.T if row.axis is M else buffer)[first:last].flatten().tolist()


@pytest.mark.parametrize("on_host", [None, True, False], ids=["alike", "host too", "host not"])
@each_runner_and_era
def test_populating_a_padded_batch_resets_what_the_table_says_and_nothing_else(
    runner: str, scheme: LocationScheme, on_host: bool | None, device: str
) -> None:
    """Host rows follow a condition of their own, where the runner gives one."""
    rows, wanted = contract(RUNNERS[runner], scheme), table(runner, scheme)
    inputs = stained(rows, device)
    inputs.populate(heads_of(rows, device), padded=True, padded_on_host=on_host)
    tailed = set()
    for row in rows:
        tail = part(row, inputs.buffers[row.name], length(row, LIVE), None)
        left = wanted[row.name].tail
        if left is None or (row.host and on_host is False):
            left = stain(row.dtype)
        assert set(tail) <= {left}, row.name
        tailed |= {row.name} if tail else set()
    assert tailed == wanted.keys() - {"num_token_non_padded", "global_num_tokens"}


@each_runner_and_era
def test_populating_a_full_batch_resets_nothing(
    runner: str, scheme: LocationScheme, device: str
) -> None:
    rows = contract(RUNNERS[runner], scheme)
    inputs = stained(rows, device)
    inputs.populate(heads_of(rows, device), padded=False)
    for row in rows:
        tail = part(row, inputs.buffers[row.name], length(row, LIVE), None)
        assert set(tail) <= {stain(row.dtype)}, row.name


@pytest.mark.parametrize("padded", [True, False], ids=["padded", "full"])
@each_runner_and_era
def test_every_head_is_copied(
    runner: str, scheme: LocationScheme, padded: bool, device: str
) -> None:
    rows = contract(RUNNERS[runner], scheme)
    inputs, heads = stained(rows, device), heads_of(rows, device)
    inputs.populate(heads, padded=padded)
    for row in rows:
        copied = part(row, inputs.buffers[row.name], 0, length(row, LIVE))
        assert copied == part(row, heads[row.name], 0, None) != [], row.name


@each_runner_and_era
def test_a_row_without_a_head_keeps_or_resets_all_of_itself(
    runner: str, scheme: LocationScheme, device: str
) -> None:
    """An idle step has no live values: what is reset is all padding, what is kept all stale."""
    rows = contract(RUNNERS[runner], scheme)
    inputs = stained(rows, device)
    inputs.populate({}, padded=True)
    for row in rows:
        tail = table(runner, scheme)[row.name].tail
        wanted = stain(row.dtype) if tail is None else tail
        assert set(inputs.buffers[row.name].flatten().tolist()) == {wanted}, row.name


@each_runner_and_era
def test_a_new_buffer_holds_what_it_is_allocated_with(
    runner: str, scheme: LocationScheme, device: str
) -> None:
    rows = contract(RUNNERS[runner], scheme)
    inputs = StaticInputs(rows, WIDEST, BufferPool(torch.device(device)), torch.bfloat16, WIDTH)
    for name, row in table(runner, scheme).items():
        buffer = inputs.buffers[name]
        assert set(buffer.flatten().tolist()) == {row.new}, name
        assert buffer.dtype is (row.dtype or torch.bfloat16), name
        assert buffer.device.type == ("cpu" if row.host else torch.device(device).type), name


def test_what_is_filled_once_is_filled_at_allocation_and_stale_ever_after(device: str) -> None:
    rows = (StaticInput("lens", Axis.REQUEST, torch.int32, Policy.FILL_ONCE, value=9),)
    inputs = inputs_of(rows, 4, device)
    lens = inputs.buffers["lens"]
    assert lens.tolist() == [9, 9, 9, 9]
    for live, wanted in ((3, [1, 1, 1, 9]), (1, [2, 1, 1, 9])):
        head = torch.full((live,), wanted[0], dtype=torch.int32, device=device)
        inputs.populate({"lens": head}, padded=True)
        assert lens.tolist() == wanted


def test_conversions_are_done_and_recorded(device: str) -> None:
    rows = (
        keep("narrow", Axis.TOKEN, torch.int32),
        keep("wide", Axis.TOKEN, torch.int64),
        keep("same", Axis.TOKEN, torch.int64),
        reset("host", Axis.REQUEST, torch.int32, host=True),
    )
    inputs = inputs_of(rows, 4, device)
    values = torch.tensor([5, 6], device=device)
    heads = {"narrow": values, "wide": values.int(), "same": values, "host": values.cpu()}
    inputs.populate(heads, padded=True)
    assert inputs.conversions == {
        ("narrow", torch.int64, torch.int32),
        ("wide", torch.int32, torch.int64),
        ("host", torch.int64, torch.int32),
    }
    assert all(inputs.buffers[row.name][:2].tolist() == [5, 6] for row in rows)


def test_a_smaller_buffer_of_a_name_is_the_start_of_the_pooled_one(device: str) -> None:
    pool = BufferPool(torch.device(device))
    large = pool.get("ids", (3, 4), torch.int64, 5)
    small = pool.get("ids", (6,), torch.int64, 9)
    assert large.tolist() == [[5] * 4] * 3
    assert small.tolist() == [5] * 6
    assert small.data_ptr() == large.data_ptr()
    small.zero_()
    assert large.flatten().tolist() == [0] * 6 + [5] * 6


def test_a_larger_buffer_of_a_name_becomes_the_pooled_one_and_holders_keep_theirs(
    device: str,
) -> None:
    pool = BufferPool(torch.device(device))
    held = pool.get("ids", (2,), torch.int64, 5)
    larger = pool.get("ids", (4,), torch.int64, 6)
    again = pool.get("ids", (2,), torch.int64, 7)
    assert larger.tolist() == [6] * 4
    assert again.data_ptr() == larger.data_ptr() != held.data_ptr()
    again.zero_()
    assert held.tolist() == [5, 5]


def test_buffers_of_other_names_are_apart(device: str) -> None:
    pool = BufferPool(torch.device(device))
    first, second = pool.get("a", (2,), torch.int64, 1), pool.get("b", (2,), torch.int64, 2)
    assert first.data_ptr() != second.data_ptr()
    assert (first.tolist(), second.tolist()) == ([1, 1], [2, 2])


def test_a_name_has_one_dtype(device: str) -> None:
    pool = BufferPool(torch.device(device))
    pool.get("ids", (2,), torch.int64, 0)
    with pytest.raises(SharedBufferError, match=r"ids is shared as torch\.int64, not torch\.int32"):
        pool.get("ids", (2,), torch.int32, 0)


def test_a_host_buffer_is_on_the_host(device: str) -> None:
    pool = BufferPool(torch.device(device))
    assert pool.get("lens", (2,), torch.int32, 1, host=True).device.type == "cpu"
    assert pool.get("ids", (2,), torch.int32, 1).device.type == torch.device(device).type


def test_a_stale_tail_may_hold_the_bytes_of_another_runner(device: str) -> None:
    pool, rows = BufferPool(torch.device(device)), (keep("ids", Axis.TOKEN, torch.int64),)
    larger, smaller = inputs_of(rows, 4, device, pool), inputs_of(rows, 3, device, pool)
    larger.populate({"ids": torch.full((4,), 8, device=device)}, padded=False)
    smaller.populate({"ids": torch.full((1,), 1, device=device)}, padded=True)
    assert smaller.buffers["ids"].tolist() == [1, 8, 8]


@cache
def of_lineup(runner: str, device: str, bug: str | None = None) -> dict[str, GraphRunner]:
    """Return the runners of a captured engine, by name."""
    trial = TrialConfig(
        runner, scheme=LocationScheme.PRESET, device=device, buckets=(8,), token_buckets=(40,)
    )
    with torch.inference_mode():
        pair = Pair(trial.with_bug(bug) if bug else trial)
    return {each.name: each for each in pair.subject.runners.values()}


def engine_of(runner: str) -> str:
    """Return a runner whose line-up has this one, the same for all of a line-up."""
    names = [each.name for each in engine_runners(runner)]
    return "frozen_kv_mtp" if "frozen_kv_mtp" in names else names[0]


SHARED: dict[str, dict[str, list[str]]] = {
    "decode": {
        "input_ids": ["decode", "target_verify eagle_draft eagle_draft_extend", "piecewise"],
        "positions": ["decode", "target_verify eagle_draft eagle_draft_extend", "piecewise"],
        "out_cache_loc": ["decode", "target_verify", "eagle_draft eagle_draft_extend piecewise"],
        "out_cache_loc_swa": ["decode", "target_verify", "piecewise"],
        "mrope_positions": ["decode", "target_verify eagle_draft", "piecewise"],
        "req_pool_indices": ["decode target_verify eagle_draft eagle_draft_extend"],
        "seq_lens": ["decode target_verify eagle_draft eagle_draft_extend"],
        "seq_lens_cpu": ["decode target_verify eagle_draft eagle_draft_extend"],
        "mamba_track_indices": ["decode target_verify piecewise"],
        "mamba_track_mask": ["decode target_verify piecewise"],
        "encoder_lens": ["decode target_verify"],
        "num_token_non_padded": ["decode target_verify"],
        "global_num_tokens": ["decode target_verify"],
        "hidden_states": ["eagle_draft", "eagle_draft_extend"],
        "extend_seq_lens": ["eagle_draft eagle_draft_extend"],
    },
    "frozen_kv_mtp": {
        "input_ids": ["decode", "target_verify eagle_draft_extend", "breakable"],
        "positions": ["decode", "target_verify eagle_draft_extend frozen_kv_mtp", "breakable"],
        "out_cache_loc": ["decode", "target_verify eagle_draft_extend", "breakable"],
        "out_cache_loc_swa": ["decode", "target_verify", "breakable"],
        "mrope_positions": ["decode", "target_verify frozen_kv_mtp", "breakable"],
        "req_pool_indices": ["decode target_verify eagle_draft_extend", "frozen_kv_mtp"],
        "seq_lens": ["decode target_verify eagle_draft_extend", "frozen_kv_mtp"],
        "seq_lens_cpu": ["decode target_verify eagle_draft_extend", "frozen_kv_mtp"],
        "mamba_track_indices": ["decode target_verify", "breakable"],
        "mamba_track_mask": ["decode target_verify", "breakable"],
        "encoder_lens": ["decode target_verify"],
        "num_token_non_padded": ["decode target_verify"],
        "global_num_tokens": ["decode target_verify"],
        "hidden_states": ["eagle_draft_extend frozen_kv_mtp"],
    },
}
"""For each static input that runners of an engine have in common: who holds one buffer of it.

Runners are made in the order of their table, for 8 requests or 40 tokens: whoever needs
more than is pooled makes a larger buffer, and who came before keeps the smaller one. The
breakable runner has its buffers to itself.
"""


@pytest.mark.parametrize("under_test", SHARED)
def test_the_runners_of_one_engine_share_the_buffers_of_a_name(
    under_test: str, device: str
) -> None:
    runners = of_lineup(under_test, device)
    found: dict[str, dict[int, list[str]]] = {}
    for runner in runners.values():
        for name, buffer in runner.inputs.buffers.items():
            found.setdefault(name, {}).setdefault(buffer.data_ptr(), []).append(runner.name)
    in_common = {
        name: [" ".join(holders) for holders in by_address.values()]
        for name, by_address in found.items()
        if sum(map(len, by_address.values())) > 1
    }
    assert in_common == SHARED[under_test]


def test_a_shared_buffer_is_captured_with_what_its_maker_filled_in(device: str) -> None:
    """A draft-extend's own allocation shows only in what no runner before it has made."""
    names = ("extend_seq_lens", "out_cache_loc", "num_accept_tokens")
    found = {}
    for under_test in SHARED:
        buffers = of_lineup(under_test, device)["eagle_draft_extend"].inputs.buffers
        found[under_test] = {name: set(buffers[name].tolist()) for name in names}
    assert found == {
        "decode": {"extend_seq_lens": {0}, "out_cache_loc": {0}, "num_accept_tokens": {K}},
        "frozen_kv_mtp": {"extend_seq_lens": {K}, "out_cache_loc": {0}, "num_accept_tokens": {K}},
    }


ALONE = ("cpu_graph", "breakable")
"""Runners that have their buffers to themselves: there is no one to disagree with."""


@pytest.mark.parametrize("runner", affected_runners(BUGS["shared_buffer_dtype"]))
def test_an_engine_whose_runners_disagree_on_a_dtype_is_not_built(runner: str, device: str) -> None:
    if runner in ALONE:
        broken = of_lineup(runner, device, bug="shared_buffer_dtype")[runner]
        assert broken.inputs.buffers["positions"].dtype is I32
        return
    with pytest.raises(SharedBufferError, match=r"static buffer positions is shared as"):
        of_lineup(runner, device, bug="shared_buffer_dtype")


CHANGED = {
    "swa_pad": "policy",
    "swa_int64": "dtype",
    "req_pool_pad": "policy",
    "shared_buffer_dtype": "dtype",
}
"""The bugs of the contracts, and the field of a row that each changes."""


def test_no_other_bug_changes_a_contract() -> None:
    assert {name for name, bug in BUGS.items() if bug.rows} == CHANGED.keys()


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("name", CHANGED)
def test_a_row_of_a_bug_replaces_its_fields_alone(name: str, runner: str) -> None:
    """The broken contracts differ from the right ones in one row each, and that in one field."""
    bug = BUGS[name]
    if missing_inputs(bug, runner):
        with pytest.raises(KeyError, match="no static input called"):
            broken_subject([bug], runner, bug.scheme)
        return
    right = contract(RUNNERS[runner], bug.scheme)
    broken = broken_subject([bug], runner, bug.scheme).contract
    changed = [pair for pair in zip(right, broken, strict=True) if pair[0] != pair[1]]
    assert [before.name for before, _ in changed] == list(bug.rows)
    ((before, after),) = changed
    fields = {key for key in vars(before) if vars(before)[key] != vars(after)[key]}
    assert fields == {CHANGED[name]}
