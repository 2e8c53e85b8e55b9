"""Each runner's static buffers under real replays: what is populated, and that all of it is read.

Runs every runner on a padded batch of three requests, whose static buffers are changed
under the replay that is about to read them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.lockstep.bits import bits
from harness.lockstep.config import TrialConfig
from harness.lockstep.pair import Pair
from harness.lockstep.scheduler import Work
from harness.schedules.schedule import Admit, Decode, Draft, DraftExtend, Extend, Step, Verify
from properties.test_static_inputs import TOKENS, Row, table
from reference.batch import (
    ForwardBatch,
    Mode,
    Span,
)
from reference.config import SPECULATION, Kind, Role
from subjects.contracts import Axis
from subjects.protocol import Forward
from subjects.runners import RUNNERS, engine_runners
from subjects.toggles import LocationScheme

ENGINES = ("frozen_kv_mtp", "cpu_graph", "decode")
ENGINE = {each.name: name for name in ENGINES for each in engine_runners(name)}
"""The engine that a runner is run in here: whose runner on trial is which."""

REQUESTS = 3
EVERY = tuple(range(REQUESTS))
PREFILLS = ("piecewise", "breakable")

BEFORE: Mapping[str, tuple[Step, ...]] = {
    "decode": (Decode(EVERY),),
    "cpu_graph": (Decode(EVERY),),
    "target_verify": (Verify(EVERY, accept=0),),
    "eagle_draft": (DraftExtend(EVERY), Draft(EVERY)),
    "frozen_kv_mtp": (DraftExtend(EVERY), Draft(EVERY)),
    "eagle_draft_extend": (
        DraftExtend(EVERY),
        *(Decode(picks) for picks in (EVERY, (1, 2), (1,))),
        DraftExtend(EVERY),
    ),
}
"""What brings three admitted requests to a batch of each runner, and the batch's own step."""

NEITHER = (False, False)
FULL_DRAFT_EXTEND = (DraftExtend(EVERY), *[Decode(EVERY)] * 4, DraftExtend(EVERY))


@dataclass(frozen=True)
class Launched:
    """What one replay left: live outputs on the host, and the slots of each model it wrote."""

    output: Mapping[str, Tensor]
    written: Mapping[tuple[Role, Kind], set[int]]
    requests: list[int]

    def moved(self, other: "Launched") -> set[int]:
        """Return the live requests of whose output some row has other bits."""
        found: set[int] = set()
        for name, mine in self.output.items():
            theirs = other.output[name]
            places = (bits(mine) != bits(theirs)).flatten(1).any(-1).nonzero().flatten().tolist()
            by_token = mine.shape[0] == len(self.requests)
            found |= {self.requests[place] if by_token else place for place in places}
        return found


@pytest.fixture(scope="module", autouse=True)
def inference() -> Iterator[None]:
    """Live in inference mode, as the harness does."""
    with torch.inference_mode():
        yield


def nothing() -> None:
    """Change no buffer."""


@cache
def arms_of(
    engine: str, preset: str, scheme: LocationScheme, device: str, *, full: bool = False
) -> Pair:
    """Return the arms of an engine, captured once for all scenes, that three requests fill or not.

    Of the prefill batch of a scene either bucket is the one that it falls into.
    """
    buckets, tokens = ((REQUESTS, 8), (15, 40)) if full else ((REQUESTS + 1, 8), (24, 40))
    trial = TrialConfig(
        engine, preset, scheme=scheme, device=device, buckets=buckets, token_buckets=tokens
    )
    with torch.inference_mode():
        return Pair(trial)


class RecordedForward:
    """Three live requests about to be run by a runner, in a bucket that they fill or not.

    Request 1 alone is longer than the window. Scenes that share their arms take turns: each
    brings its own KV and tables back before it runs its batch.
    """

    def __init__(self, runner: str, pair: Pair, steps: tuple[Step, ...] | None = None) -> None:
        self.name = runner
        self.pair = pair
        self.runner = next(each for each in pair.subject.runners.values() if each.name == runner)
        self.rows = table(runner, pair.trial.scheme)
        pair.reset(seed=0)
        if runner in PREFILLS:
            self.batch = self._prefill()
        else:
            for prompt in (5, pair.config.window + 3, 4):
                self._run(Admit(prompt, chunk=prompt))
            *before, last = steps or BEFORE[runner]
            for step in before:
                self._run(step)
            self.batch = self._plan(last)
        assert self.batch.live_requests == REQUESTS
        allocator = pair.graph.allocator
        self.free = {Kind.FULL: allocator.free_full[0], Kind.SWA: allocator.free_swa[0]}
        pools = pair.graph_pools
        tables = pools.tables.full_to_swa_index_mapping, pools.tables.req_to_token
        self.kept = [(each, each.clone()) for each in (pools.storage, *tables)]

    @cached_property
    def plain(self) -> Launched:
        """What the batch gives with nothing changed."""
        return self.launch()

    def _prefill(self) -> ForwardBatch:
        """Return a batch that goes on with a long prompt between two short ones."""
        window = self.pair.config.window
        self._run(Admit(window + 3, chunk=4))
        long = self._plan(Extend(0, tokens=window))
        short = [self._plan(Admit(prompt, chunk=prompt)) for prompt in (5, 3)]
        spans = [*short[0].spans, *long.spans, *short[1].spans]
        return self.pair.graph.batch_of(Mode.EXTEND, spans)

    def _plan(self, step: Step) -> ForwardBatch:
        work = self.pair.graph.plan(step)
        assert work is not None and work.batch is not None
        return work.batch

    def _run(self, step: Step) -> None:
        batch = self._plan(step)
        forward = self.pair.subject.forward(Work(batch.mode, batch))
        self.pair.graph.commit(batch, forward.output)

    def buffer(self, name: str) -> Tensor:
        """Return a static buffer."""
        return self.runner.static_buffers()[name]

    def counts(self) -> list[int]:
        """Return how many tokens each request has in the forward."""
        return [len(span.positions(self.batch.mode)) for span in self.batch.spans]

    def first(self, request: int) -> int:
        """Return the row of a request's first token."""
        return sum(self.counts()[:request])

    def last(self, request: int) -> int:
        """Return the row of a request's last token."""
        return self.first(request + 1) - 1

    def at(self, name: str, request: int) -> int:
        """Return where in a static input the first element of a request stands."""
        places = {
            Axis.REQUEST: request,
            Axis.DRAFT_SLOT: request * SPECULATION.slots,
            Axis.MASK: sum(
                len(span.tree) * (span.begin + len(span.tree))
                for span in self.batch.spans[:request]
            ),
        }
        # What is no input is a list: one element per request, where it has none per token.
        axis = self.rows[name].axis if name in self.rows else Axis.REQUEST
        return places.get(axis, self.first(request))

    def owned(self, kind: Kind) -> dict[int, int]:
        """Return the slots that the forward is to write, each with its request.

        A draft's last step of each branch is proposed and never run.
        """
        if self.batch.mode is Mode.FROZEN_DRAFT:
            return {}
        return {
            slot: request
            for request, span in enumerate(self.batch.spans)
            for place, slot in enumerate(slots_of(span, kind))
            if self.batch.mode is not Mode.DRAFT or place % SPECULATION.steps < SPECULATION.forwards
        }

    def forward(self) -> Forward:
        """Run the batch through the engine, and see that the runner of the scene replays it."""
        for tensor, kept in self.kept:
            tensor.copy_(kept)
        forward = self.pair.subject.engine.forward(self.batch)
        assert forward.replay is not None and forward.replay.runner == self.name
        return forward

    def launch(
        self, at_populate: Callable[[], None] = nothing, at_launch: Callable[[], None] = nothing
    ) -> Launched:
        """Run the padded batch with the subject as it was captured.

        `at_populate` runs once the heads are copied, `at_launch` once the metadata is written.
        """
        self.pair.subject.recapture()
        self.pair.subject.equalize_padding(Work(self.batch.mode, self.batch))
        populate, launch, entries = self.runner.inputs.populate, self.runner.launch, [at_populate]

        def populate_meddled(heads: Mapping[str, Tensor], **padded: Any) -> None:
            populate(heads, **padded)
            if entries:  # A prefill populates once more, with what it makes of these heads.
                entries.pop()()

        def launch_meddled(*arguments: Any) -> Any:
            at_launch()
            return launch(*arguments)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.runner.inputs, "populate", populate_meddled)
            patch.setattr(self.runner, "launch", launch_meddled)
            forward = self.forward()
        assert forward.replay is not None and forward.replay.padded
        output = {name: each.to("cpu", copy=True) for name, each in forward.output.items()}
        (storage, before), *_ = self.kept
        written = {
            (role, kind): set(arena.any(dim=(0, 1, 3, 4)).nonzero().flatten().tolist()) - {0}
            for role, kind, arena in self.pair.graph_pools.arenas_of(bits(storage) != bits(before))
        }
        return Launched(output, written, self.batch.token_requests.tolist())


def slots_of(span: Span, kind: Kind) -> list[int]:
    """Return the slots of a span's columns."""
    return list(span.full_slots if kind is Kind.FULL else span.swa_slots)


# What a replay populates.


def heads_of(recorded: RecordedForward) -> dict[str, Tensor]:
    """Return what the live part of each static input must be, read off the batch."""
    batch, model = recorded.batch, recorded.pair.model
    requests = batch.token_requests
    swa_slots = [slot for span in batch.spans for slot in slots_of(span, Kind.SWA)]
    bucket = next(each for each in recorded.runner.buckets if each >= REQUESTS)
    named = {name: value for name in recorded.rows if (value := batch.value(name)) is not None}
    named["out_cache_loc_swa"] = torch.tensor(swa_slots)
    named["extend_seq_lens_cpu"] = torch.tensor(recorded.counts())
    named["global_num_tokens"] = torch.tensor([bucket * TOKENS.get(recorded.name, 0)])
    named["input_embeds"] = model.payload(
        recorded.runner.ops,
        batch.positions,
        batch.mamba_track_indices[requests],
        batch.mamba_track_mask[requests],
        batch.encoder_lens[requests],
    )
    if recorded.name == "frozen_kv_mtp":
        for name in ("seq_lens", "seq_lens_cpu", "req_pool_indices"):
            named[name] = named[name].repeat_interleave(SPECULATION.topk)
    return {name: named[name] for name, row in recorded.rows.items() if row.populated}


def stain(row: Row) -> int:
    """Return what stood in a buffer before: no padding value, and valid wherever it is kept."""
    return 1 if row.dtype is torch.bool else 3


def check_populated(recorded: RecordedForward, *, device_reset: bool, host_reset: bool) -> None:
    """Replay over stained static inputs; see every head, and every tail reset or as it was."""
    heads = heads_of(recorded)
    recorded.pair.subject.recapture()
    for name, row in recorded.rows.items():
        recorded.buffer(name).fill_(stain(row))
    recorded.forward()
    for name, row in recorded.rows.items():
        flat = recorded.buffer(name).T if row.axis is Axis.MROPE else recorded.buffer(name)
        live = 0
        if name in heads:
            head = heads[name].T if row.axis is Axis.MROPE else heads[name]
            live = head.shape[0]
            assert torch.equal(flat[:live], head.to(flat.device, flat.dtype)), name
        was_reset = row.tail is not None and (host_reset if row.host else device_reset)
        wanted = row.tail if was_reset else stain(row)
        assert set(flat[live:].flatten().tolist()) <= {wanted}, name
        assert flat.shape[0] > live or row.axis is Axis.SCALAR, name


RESETS = [
    *((name, "padded", False, None, (True, True)) for name in RUNNERS),
    *(
        (name, "full", True, FULL_DRAFT_EXTEND if name == "eagle_draft_extend" else None, NEITHER)
        for name in RUNNERS
        if name != "cpu_graph"
    ),
    ("eagle_draft_extend", "padded in tokens alone", True, None, (True, False)),
]
"""Runner, how its bucket is filled, and whether device and host rows are reset."""


@pytest.mark.parametrize(
    ("runner", "full", "steps", "resets"),
    [pytest.param(name, *rest, id=f"{name} {message}") for name, message, *rest in RESETS],
)
def test_a_replay_copies_every_head_and_resets_what_the_table_says(
    runner: str,
    full: bool,
    steps: tuple[Step, ...] | None,
    resets: tuple[bool, bool],
    device: str,
) -> None:
    """Of a draft the inputs that are never populated stay as they were, heads and all."""
    pair = arms_of(ENGINE[runner], "gpt_oss", LocationScheme.PRESET, device, full=full)
    on_device, on_host = resets
    check_populated(
        RecordedForward(runner, pair, steps), device_reset=on_device, host_reset=on_host
    )


def test_a_compiled_batch_of_a_captured_size_goes_past_the_static_inputs(device: str) -> None:
    """And what it gives has the bits of the padded one."""
    padded, captured = (
        RecordedForward(
            "cpu_graph", arms_of("cpu_graph", "gpt_oss", LocationScheme.PRESET, device, full=full)
        )
        for full in (False, True)
    )
    for name, row in captured.rows.items():
        captured.buffer(name).fill_(stain(row))
    output = captured.forward().output
    for name, row in captured.rows.items():
        assert set(captured.buffer(name).flatten().tolist()) == {stain(row)}, name
    for name, each in output.items():
        assert torch.equal(bits(each.cpu()), bits(padded.plain.output[name])), name


def test_a_kept_tail_holds_the_tokens_of_another_runner(device: str) -> None:
    """A draft-extend after a verify, which left its own tokens in the buffer they share."""
    pair = arms_of("decode", "gpt_oss", LocationScheme.PRESET, device)
    verify, extend = (
        RecordedForward(name, pair) for name in ("target_verify", "eagle_draft_extend")
    )
    live, left = extend.batch.live_tokens, verify.batch.input_ids.tolist()
    assert 0 < live < len(left)
    verify.forward()
    assert extend.buffer("input_ids")[: len(left)].tolist() == left
    extend.forward()
    ids = extend.buffer("input_ids")[: len(left)].tolist()
    assert ids == extend.batch.input_ids.tolist() + left[live:]
