"""The lines that come first are of the function that is wrong: it is changed where it stands."""

import sys
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from paritybit.harness.checks.explanation import explanation, observe
from paritybit.harness.checks.play import Lockstep
from paritybit.harness.checks.table import PROPERTIES, STEP_PROPERTIES
from paritybit.harness.explain.facts import Explanation
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.scheduler import Scheduler
from paritybit.harness.schedules.schedule import (
    Admit,
    Decode,
    Draft,
    DraftExtend,
    Finish,
    Idle,
    Prefill,
    Recapture,
    Repeat,
    Schedule,
    Verify,
)
from paritybit.reference.allocator import Allocator
from paritybit.subjects import key_lists, states
from paritybit.subjects.access import ListedKV
from paritybit.subjects.buffers import StaticInputs
from paritybit.subjects.captured import CapturedEngine
from paritybit.subjects.contracts import StaticInput
from paritybit.subjects.engine import Engine
from paritybit.subjects.graphs.capture import Capture
from paritybit.subjects.listing import host
from paritybit.subjects.overlap import Overlap
from paritybit.subjects.pool import SubjectPool
from paritybit.subjects.runners.base import GraphRunner
from paritybit.subjects.runners.breakable import BreakingAttention
from paritybit.subjects.runners.cpu_graph import CpuGraphRunner
from paritybit.subjects.runners.decode import DecodeRunner
from paritybit.subjects.runners.eagle_draft import EagleDraftRunner
from paritybit.subjects.runners.eagle_draft_extend import EagleDraftExtendRunner
from paritybit.subjects.runners.piecewise import PiecewiseRunner
from paritybit.subjects.runners.target_verify import TargetVerifyRunner

from properties.support.harness.planting import SCHEDULE

SIZES: dict[str, Any] = {"full_slots": 56, "swa_slots": 48, "rows": 4, "buckets": (2, 4)}

FIRST = 3
"""Lines that a reader looks at."""

LEAVING = Schedule((Admit(3, 99), Admit(2, 99), Finish(0), Admit(1, 9)), seed=2)
VERIFYING = Schedule((Admit(11, 99), Admit(9, 99), Verify((0, 1), 1)), seed=3)

DRAFTING = Schedule((Admit(5, 99), Admit(3, 99), DraftExtend((0, 1)), Draft((0, 1))), seed=3)
LONG = Schedule((Prefill((14, 13, 9), 99),), seed=3)

CATCHING_UP = Schedule(
    (
        *(Admit(3, 99), Admit(4, 99), DraftExtend((0, 1))),
        *(Decode((0, 1)), Decode((0,)), DraftExtend((0, 1))),
    ),
    seed=3,
)


def changed(
    monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], old: str, new: str
) -> None:
    """Change one text of a function, whose lines stay where they are."""
    module = sys.modules[function.__module__]
    text = Path(str(module.__file__)).read_text()
    assert text.count(old) == 1 and old.count("\n") == new.count("\n")
    names = dict(vars(module))
    exec(compile(text.replace(old, new), str(module.__file__), "exec"), names)
    found = reduce(getattr, function.__qualname__.split("."), SimpleNamespace(**names))
    monkeypatch.setattr(function, "__code__", found.__code__)
    monkeypatch.setitem(vars(function), "memory", None)  # What it keeps there is taken away.
    monkeypatch.delitem(vars(function), "memory")


def explanation_of(
    property_id: str | None,
    schedule: Schedule,
    runner: str,
    *,
    overlap: bool = False,
    features: tuple[str, ...] = (),
) -> Explanation:
    """Return why a schedule violates a property; None is any."""
    trial = TrialConfig(runner, device="cpu", overlap=overlap, features=features, **SIZES)
    asked = PROPERTIES if property_id is None else STEP_PROPERTIES | {property_id}
    lockstep = Lockstep(trial, asked, records_ops=True)
    outcome, timeline = observe(lockstep, schedule)
    assert outcome.violated if property_id is None else property_id in outcome.violated, outcome
    found = explanation(lockstep, schedule, outcome, timeline, property_id)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("function", "old", "new", "property_id", "schedule", "runner"),
    [
        (
            key_lists.verify_lists,
            "    if toggles.translate_page_table:\n",
            "    if not toggles.translate_page_table:\n",
            "no_crash",
            SCHEDULE,
            "target_verify",
        ),
        (
            Allocator.release,
            "        (self.free_full if kind is Kind.FULL else self.free_swa).append(page)\n",
            "        (self.free_swa if kind is not Kind.FULL else []).append(page)\n",
            "slot_ownership",
            LEAVING,
            "decode",
        ),
        (
            Allocator._free_swa,
            "[allocation.full_pages[index] for index in free]",
            "[allocation.full_pages[index] for index in free[1:]]",
            "slot_ownership",
            LEAVING,
            "decode",
        ),
        (
            Allocator.free,
            "        self.free_states.insert(-1, allocation.state_slot)\n",
            "        self.free_states.insert(-1, allocation.row)\n",
            "slot_ownership",
            Schedule((Admit(3, 99), Admit(2, 99), Finish(0), Admit(2, 9), Finish(1)), seed=4),
            "decode",
        ),
        (
            key_lists.draft_lists,
            "torch.arange(topk, device=device)",
            "torch.arange(topk, device=device).flip(0)",
            "kv_parity",
            SCHEDULE,
            "eagle_draft",
        ),
        (
            key_lists.tree_lists,
            "first = (positions - window + 1).clamp(min=0)",
            "first = (positions - window).clamp(min=0)",
            "logits_parity",
            VERIFYING,
            "target_verify",
        ),
        (
            host.list_spans,
            "begin = lists.indptr[request]\n",
            "begin = lists.indptr[np.maximum(request - 1, 0)]\n",
            "read_frame",
            Schedule((Admit(2, 99), DraftExtend((0,))), seed=3),
            "eagle_draft_extend",
        ),
        (
            TargetVerifyRunner.keys,
            "        return verify_keys(self.metadata.buffers, tokens, mask, "
            "self.target.config.window)\n",
            "        return self.__dict__.setdefault(f'k{bucket}', "
            "verify_keys(self.metadata.buffers, tokens, mask, self.window))\n",
            "logits_parity",
            VERIFYING,
            "target_verify",
        ),
        (
            CpuGraphRunner._run,
            'self.pool, inputs["out_cache_loc"]',
            'self.pool, self.view("out_cache_loc", bucket)',
            "logits_parity",
            SCHEDULE,
            "cpu_graph",
        ),
        (
            key_lists.StaticLists.write,
            "for name, listed in values.items()]\n",
            "for name, listed in values.items() "
            "if (self.buffers[name][: len(listed)] != listed)[:: max(len(listed) - 1, 1)].any()]\n",
            "logits_parity",
            SCHEDULE,
            "target_verify",
        ),
        (
            key_lists.tree_keys,
            "begin - request * width + offsets[request]",
            "begin - request * width",
            "logits_parity",
            VERIFYING,
            "target_verify",
        ),
        (
            GraphRunner.replay,
            "self.choose_kernel()\n        self.plan(bucket)\n        overwrite",
            "self.choose_kernel()\n        batch is None or self.plan(bucket)\n        overwrite",
            "read_frame",
            Schedule((Admit(3, 99), Decode((0,)), Idle(0)), seed=1),
            "decode",
        ),
        (
            EagleDraftRunner.forward,
            'request_rows = self.view("req_pool_indices", bucket)',
            'request_rows = self.view("req_pool_indices", bucket).flip(0).contiguous()',
            "kv_parity",
            Schedule((Admit(3, 99), DraftExtend((0,)), Draft((0,))), seed=3),
            "eagle_draft",
        ),
        (
            states.verify_paths,
            "rows + 1 + node, parents",
            "rows + (1 + node) * (node > 0), parents",
            "kv_parity",
            Schedule((Admit(5, 99), Verify((0,), 0)), seed=3),
            "target_verify",
        ),
        (
            ListedKV.attend,
            "self.model.layers[layer].sinks,",
            "None if masked else self.model.layers[layer].sinks,",
            "logits_parity",
            VERIFYING,
            "target_verify",
        ),
        (
            Allocator.free,
            "        self.free_rows.append(allocation.row)\n",
            "        self.free_rows += [allocation.row] * (len(self.free_rows) != 2)\n",
            "slot_ownership",
            Schedule((*[Admit(2, 99)] * 4, Finish(0), Repeat(3)), seed=2),
            "decode",
        ),
        (
            Scheduler._enter,
            "            self.allocator.free(allocation)\n",
            "            self.allocator.truncate(allocation, 0)\n",
            "slot_ownership",
            Schedule((Admit(30, 99), Admit(30, 99), Admit(30, 99)), seed=2),
            "decode",
        ),
        (
            EagleDraftExtendRunner.padded,
            "batch.live_tokens != bucket * K",
            "batch.live_requests != bucket",
            "padding_noninterference",
            CATCHING_UP,
            "eagle_draft_extend",
        ),
        (
            states.verify_paths,
            "StatePaths(rows, rows + 1 + node, parents, drafts)",
            "StatePaths(rows, rows + 1 + node, parents, drafts - 1)",
            "kv_parity",
            Schedule((Admit(5, 99), Verify((0,), 3), Verify((0,), 1)), seed=3),
            "target_verify",
        ),
        (
            Capture.replay,
            "            eager()\n            segment.replay()\n",
            "            segment.replay()\n            eager()\n",
            "batch_invariance",
            SCHEDULE,
            "breakable",
        ),
        (
            ListedKV.attend,
            "keys.mask_start if masked",
            "self.lists.full.mask_start if masked",
            "logits_parity",
            VERIFYING,
            "target_verify",
        ),
        (
            StaticInput.head,
            "return buffer[:, :length] if self.axis is Axis.MROPE else buffer[:length]",
            "return (buffer.view(-1)[: 3 * length].view(3, length) "
            "if self.axis is Axis.MROPE else buffer[:length])",
            "kv_parity",
            SCHEDULE,
            "breakable",
        ),
        (
            Engine.forward,
            "(batch is None or runner.can_run(batch))",
            "(batch is None or (batch.live_tokens > 3 and runner.can_run(batch)))",
            "captured_path",
            SCHEDULE,
            "breakable",
        ),
        (
            PiecewiseRunner.capture,
            "self._attention(layer, left)",
            "self._attention(0, left)",
            "logits_parity",
            SCHEDULE,
            "piecewise",
        ),
        (
            key_lists.page_table_width,
            "return window - 1 + SPECULATION",
            "return window - 2 + SPECULATION",
            "batch_invariance",
            VERIFYING,
            "target_verify",
        ),
        (
            DecodeRunner.live_values,
            'return found | {"global_num_tokens": self.token_counts[bucket]}',
            "return found | ({} if batch and not self.padded(batch, bucket) else"
            ' {"global_num_tokens": self.token_counts[bucket]})',
            "logits_parity",
            Schedule((*[Admit(3, 99)] * 4, Decode((0,)), Decode((0, 1, 2, 3))), seed=3),
            "decode",
        ),
        (
            EagleDraftRunner.forward,
            "step * rows, rows",
            "step * bucket, rows",
            "logits_parity",
            DRAFTING,
            "eagle_draft",
        ),
        (
            Engine._inputs,
            "mrope_positions=batch.mrope_positions",
            "mrope_positions=batch.positions.expand(3, -1)",
            "logits_parity",
            LONG,
            "decode",
        ),
        (
            EagleDraftExtendRunner.forward,
            'self.view("num_correct_drafts", bucket)',
            'self.view("num_accept_tokens", bucket)',
            "logits_parity",
            CATCHING_UP,
            "eagle_draft_extend",
        ),
        (
            ListedKV.attend,
            "masked = self.lists.mask is not None",
            "masked = self.lists.mask is not None and kind is not Kind.SWA",
            "logits_parity",
            VERIFYING,
            "target_verify",
        ),
        (
            StaticInputs.__init__,
            "row.dtype or dtype",
            "row.dtype or torch.bfloat16",
            "logits_parity",
            CATCHING_UP,
            "eagle_draft_extend",
        ),
        (
            GraphRunner.scalar,
            "return torch.full((1,), value, dtype=torch.int32, device=self.target.device)",
            "new = torch.full((1,), value, dtype=torch.int32, device=self.target.device);"
            ' return self.__dict__.setdefault("number", new).fill_(value)',
            "live_inputs",
            Schedule((Admit(3, 9), Admit(3, 9), Idle(0), Decode((0, 1))), seed=3),
            "decode",
        ),
        (
            states.verify_paths,
            "torch.where(tree_parents >= 0, request * drafts + tree_parents, -1)",
            "tree_parents",
            "logits_parity",
            VERIFYING,
            "target_verify",
        ),
        (
            host.indptr_of,
            "indptr = np.zeros(len(lengths) + 1, np.int32)",
            'indptr: Ints = indptr_of.__dict__.setdefault("memory", np.zeros(4096, np.int32))'
            "[: len(lengths) + 1]",
            "read_frame",
            CATCHING_UP,
            "eagle_draft_extend",
        ),
        (
            TargetVerifyRunner.keys,
            "return verify_keys(self.metadata.buffers, tokens, mask, self.target.config.window)",
            "return verify_keys(self.metadata.buffers, tokens, None, self.target.config.window)",
            "logits_parity",
            VERIFYING,
            "target_verify",
        ),
        (
            CpuGraphRunner._payload,
            "self.ops, self.states.recurrent, paths, batch.input_ids",
            "self.ops, self.states.recurrent.clone(), paths, batch.input_ids",
            "kv_parity",
            SCHEDULE,
            "cpu_graph",
        ),
        (
            SubjectPool.set_kv_buffer,
            "self.ops.store_kv(cache, slots,",
            "self.ops.store_kv(cache.clone(), slots,",
            "kv_parity",
            SCHEDULE,
            "decode",
        ),
        (
            BreakingAttention.attend,
            "if self.capture is None:",
            "if self.capture is None or layer + 1 == len(self.runner.target.layers):",
            "logits_parity",
            SCHEDULE,
            "breakable",
        ),
    ],
    ids=[
        "fails",
        "lost page",
        "mapped",
        "lost state",
        "drafts",
        "window",
        "padded row",
        "kept",
        "view",
        "not copied",
        "mask",
        "not planned",
        "stored elsewhere",
        "paths",
        "no sinks",
        "repeated",
        "no room",
        "decides",
        "depth",
        "order",
        "mask start",
        "part",
        "not asked",
        "layer",
        "width",
        "asks",
        "rows taken",
        "expanded",
        "output",
        "no mask",
        "converts",
        "overwritten",
        "taken",
        "one array",
        "lists without mask",
        "stored in a copy",
        "KV in a copy",
        "no break",
    ],
)
def test_the_function_that_is_wrong_comes_first(
    function: Callable[..., Any],
    old: str,
    new: str,
    property_id: str,
    schedule: Schedule,
    runner: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changed(monkeypatch, function, old, new)
    found = explanation_of(property_id, schedule, runner)
    lines = [line.what for line in found.sources[:FIRST]]
    assert any(f" {function.__qualname__}" in what for what in lines), found.sources


@pytest.mark.parametrize(
    ("fits", "longest", "property_id", "bucket", "told"),
    [
        (
            "batch.live_tokens <= K * batch.live_requests",
            6,
            "logits_parity",
            2,
            "no captured graph can run this batch",
        ),
        (
            "all(s.end - s.begin < K for s in batch.spans)",
            4,
            "captured_path",
            None,
            "a captured graph must run it",
        ),
    ],
    ids=["replayed", "run eagerly"],
)
def test_what_chose_the_wrong_path_is_blamed(
    fits: str,
    longest: int,
    property_id: str,
    bucket: int | None,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    function = EagleDraftExtendRunner.can_run
    changed(monkeypatch, function, "all(s.end - s.begin <= K for s in batch.spans)", fits)
    schedule = Schedule((Admit(longest, 99), Admit(1, 99), DraftExtend((0, 1))), seed=3)
    found = explanation_of(property_id, schedule, "eagle_draft_extend")
    assert (found.cause.blame, found.at.bucket) == ("dispatch", bucket)
    assert told in " ".join(found.proof)
    lines = [line.what for line in found.sources]
    assert lines[0] == f"decided in {function.__qualname__}"
    assert "decided in Engine.forward" in lines


FOLLOW = "        self.streams.forward.run(follow)\n"
FINISHED = "        self.in_flight = self.streams.forward.record()\n"
COPY = "            stream.run(lambda: arrived.update(self.arrive(pinned)))\n"
COPIED = "            self.copied = stream.record()\n"
ONCE = "        once = {name: "
TAKEN_OVER = Schedule((Admit(1, 99), Finish(0), Admit(4, 99)), seed=3)
IN_TURN = Schedule((Admit(5, 99), Admit(3, 99), *[Decode((0, 1)), Decode((1,))] * 3), seed=3)


@pytest.mark.parametrize(
    ("function", "old", "new", "schedule", "blame"),
    [
        (Overlap.finish, FOLLOW + FINISHED, FINISHED + FOLLOW, TAKEN_OVER, "missing wait"),
        (Overlap.launch, COPY + COPIED, COPIED + COPY, IN_TURN, "missing wait"),
        (Overlap.write, f"{ONCE}self._once(", f"{ONCE}self.fill(name, ", IN_TURN, "missing copy"),
    ],
    ids=["finished", "copied", "written"],
)
def test_an_event_that_is_too_early_or_memory_that_is_shared_is_blamed(
    function: Callable[..., Any],
    old: str,
    new: str,
    schedule: Schedule,
    blame: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An event goes before the waits for it."""
    changed(monkeypatch, function, old, new)
    found = explanation_of(None, schedule, "decode", overlap=True)
    assert found.cause.blame == blame
    assert found.sources[0].what == function.__qualname__


CAPTURED_AGAIN = Schedule((Admit(3, 99), Decode((0,)), Recapture(), Decode((0,))), seed=3)


@pytest.mark.parametrize(
    ("function", "old", "new", "property_id", "blame", "named"),
    [
        (
            GraphRunner.capture_again,
            "self.graphs_held = {}, [], []\n        self.capture_all()\n",
            "old, self.graphs_held = {b: c.output for b, c in self.captured.items()}, ({}, [], []);"
            " self.capture_all()\n"
            "        for b, o in old.items(): self.captured[b].output = o\n",
            "logits_parity",
            "captured output",
            "taken in GraphRunner.launch",
        ),
        (
            CapturedEngine.capture_again,
            "self._capture_by(partial(self.engine.capture_again, self._keep_facts))",
            "self.engine.capture_again()",
            "captured_path",
            "build",
            "CapturedEngine.capture_again",
        ),
        (
            GraphRunner.blank,
            "self.inputs.populate({}, padded=True)",
            "for name, one in self.inputs.buffers.items(): name[:5] == 'mamba' or one.fill_(0)",
            "kv_parity",
            "inputs",
            "written in GraphRunner.blank",
        ),
        (
            GraphRunner.blank,
            "self.inputs.populate({}, padded=True)",
            "for one in self.inputs.buffers.values(): one.fill_(1)",
            "kv_parity",
            "inputs",
            "written in GraphRunner.blank",
        ),
        (
            CapturedEngine.reset,
            "torch._foreach_copy_(buffers, captured)",
            "torch._foreach_copy_(buffers[1:], captured[1:])",
            "declared_state",
            "Python state",
            "the engine is reset",
        ),
    ],
    ids=["not written", "moved", "not blank", "filled", "not restored"],
)
def test_what_is_wrong_after_another_capture_or_a_reset_has_a_cause(
    function: Callable[..., Any],
    old: str,
    new: str,
    property_id: str,
    blame: str,
    named: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changed(monkeypatch, function, old, new)
    found = explanation_of(property_id, CAPTURED_AGAIN, "decode", features=("recapture",))
    assert (found.cause.blame, found.sources[0].what) == (blame, named)


def test_a_second_play_plays_the_steps_behind_the_last_forward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else what a capture made again writes would be in one of two plays alone."""
    change = "for one in self.inputs.buffers.values(): one.fill_(1)"
    changed(monkeypatch, GraphRunner.blank, "self.inputs.populate({}, padded=True)", change)
    trial = TrialConfig("decode", device="cpu", features=("recapture",), **SIZES)
    written = Lockstep(trial, PROPERTIES).play(Schedule(CAPTURED_AGAIN.steps[:3], seed=3))
    assert "determinism" not in written.violated
