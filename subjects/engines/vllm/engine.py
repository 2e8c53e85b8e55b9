"""One of the engine's runners as the harness takes it: `EngineUnderTest` over its own blocks."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from reference.allocator import Ownership
from reference.batch import ForwardBatch, Mode
from reference.config import Kind
from reference.model import Output
from subjects.engines.shared.engine import NeverReplays, OthersEngine
from subjects.engines.shared.padded import PaddedInput, PaddedTokens, padding_of
from subjects.engines.shared.paged import listed_slots
from subjects.engines.vllm.contract import clears_below_windows, promised
from subjects.engines.vllm.ownership import ownership
from subjects.engines.vllm.requests import Settling, VllmRequests
from subjects.engines.vllm.runner import Ran, VllmRunner
from subjects.engines.vllm.settings import BLOCK, DECLARED, GROUPS
from subjects.protocol import Forward, Offer, Reads, Replay

NOT_OFFERED = {Offer[name]: why for name, why in DECLARED["missing"].items()}
"""What no runner of this engine offers besides, and why."""

SLOTS = [f"slot_mapping.{kind}" for kind in GROUPS]
"""The static inputs that say where tokens store their KV."""


class VllmEngine(OthersEngine):
    """The engine's runner of batches of one mode; others run eagerly, by the engine's own code."""

    def __init__(
        self,
        name: str,
        mode: Mode,
        runner: VllmRunner,
        requests: VllmRequests,
        missing: Mapping[Offer, str],
    ) -> None:
        self.runner = runner
        self.requests = requests
        offers = {**NOT_OFFERED, **missing}
        super().__init__(name, mode, runner.statics, requests.pages, offers, runner.graphs)

    def reset(self) -> None:
        """Start again just captured: no request owns a slot, and KV is the world's storage."""
        self.requests.clear()
        self.runner.clear()
        self.requests.pages.write_kv()
        self.recapture()

    def forward(self, batch: ForwardBatch | None, mode: Mode) -> Forward:
        """Run one forward, by replay where it can. RuntimeError is raised for an idle one."""
        if batch is None:
            raise RuntimeError(self.missing[Offer.IDLE_REPLAY])
        ran = self.target(batch, mode)
        if not self._replays:
            return self.eagerly(ran.output, batch.live_tokens, ran.batch.num_tokens_after_padding)
        return Forward(ran.output, self._replay(batch, ran.batch, ran.output))

    def eagerly(self, output: Output, live: int, end: int | None = None) -> Forward:
        """Return what a forward gave that is no replay on trial, padded from `live` tokens on."""
        slots = {name: self.statics()[name][live:end].clone() for name in SLOTS}
        return Forward(output, None, padding=slots)

    def target(self, batch: ForwardBatch, mode: Mode) -> Ran:
        """Let the engine run a batch of the target's; it is to be told what that sampled."""
        told = self.requests.place(batch, self._settle)
        verifies = mode is Mode.TARGET_VERIFY
        ran = self.counted(lambda: self.runner.run(told, verifies=verifies))
        starts = ran.batch.query_start_loc.clone()
        ends = tuple((serial, end) for serial, _, end in self._asked(batch))
        self.requests.ran = Settling(ran.batch, starts, ends)
        return ran

    def _replay(self, batch: ForwardBatch, own: Any, output: Output) -> Replay:
        """Return the replay of a batch, of which `own` is the engine's."""
        query, given = self.runner.tokens_per_request, self._given(batch)
        bucket, rows = own.num_tokens_after_padding // query, promised(self.runner)
        padding = padding_of(rows, self.statics(), given, batch, bucket, query)
        reads = self._reads(*self._attending(batch, bucket))
        sizes = bucket, batch.live_tokens // query, batch.live_tokens
        return self.replay_of(*sizes, output, reads=reads, given=given, padding=padding)

    def _asked(self, batch: ForwardBatch) -> tuple[tuple[int, int, int], ...]:
        """Return the request, begin and end of what a batch runs."""
        serials = {one.owner.row: key for key, one in self.requests.world.running().items()}
        return tuple((serials[span.row], span.begin, span.end) for span in batch.spans)

    def _settle(self, ran: Settling) -> None:
        """Tell the engine what the requests of a batch sampled since, as the world has it."""
        known = self.requests.world.running()
        sampled, rejected = list[Sequence[int]](), list[int]()
        for serial, end in ran.ends:
            one, request = known.get(serial), self.requests.held.get(serial)
            if one is None or request is None:  # It left, and the engine is told so next.
                sampled.append(())
                rejected.append(0)
                continue
            sampled.append(one.tokens[request.num_tokens :])
            rejected.append(max(end - one.owner.length, 0))
        self.runner.settle(ran.batch, ran.starts, sampled, rejected)

    def _given(self, batch: ForwardBatch) -> dict[str, Tensor]:
        """Return what a batch brings for static inputs, by their names, in the engine's slots."""
        ends = [span.end for span in batch.spans]
        counts = [span.end - span.begin for span in batch.spans]
        made = partial(torch.tensor, device=batch.positions.device)
        found = {
            "input_ids": batch.input_ids.to(torch.int32),
            "positions": batch.positions,
            "seq_lens": made(ends, dtype=torch.int32),
            "query_start_loc": made([0, *accumulate(counts)], dtype=torch.int32),
        }
        for kind in GROUPS:
            slots = [
                slot
                for serial, begin, end in self._asked(batch)
                for slot in self.requests.slots_of(serial, kind, begin, end)
            ]
            found[f"slot_mapping.{kind}"] = made(slots)
            found[f"block_table.{kind}"] = self._blocks(batch, kind)
        if "is_padding" in self.runner.statics():
            found["is_padding"] = made([False] * batch.live_tokens)
        return found

    def _blocks(self, batch: ForwardBatch, kind: Kind) -> Tensor:
        """Return what the rows of a batch in a block table must hold: as they do where it is open.

        That is behind a request's blocks, and below its window in a release that clears nothing
        there.
        """
        rows = self.runner.statics()[f"block_table.{kind}"][: batch.live_requests].clone()
        window = self.runner.model.config.window
        for row, (serial, begin, _) in enumerate(self._asked(batch)):
            blocks = torch.tensor(self.requests.blocks_of(serial, kind), dtype=rows.dtype)
            below = max(begin - window + 1, 0) // BLOCK if kind is Kind.SWA else 0
            blocks[:below] = 0 if clears_below_windows(self.runner) else rows[row, :below]
            rows[row, : len(blocks)] = blocks
        return rows

    def _attending(self, batch: ForwardBatch, bucket: int) -> tuple[int, int]:
        """Return of how many tokens and requests attention takes the static inputs."""
        return bucket * self.runner.tokens_per_request, bucket

    def _reads(self, tokens: int, requests: int) -> Reads:
        """Return the world's slots that each token is to read by static inputs of requests."""
        held, config = self.runner.statics(), self.runner.model.config
        found = dict[str, list[list[int]]]()
        for kind in GROUPS:
            slots = listed_slots(
                tokens,
                held["query_start_loc"][: requests + 1],
                held["seq_lens"][:requests],
                held[f"block_table.{kind}"][:requests],
                config.max_context,
                config.window if kind is Kind.SWA else None,
                BLOCK,
            )
            found[kind] = [self.requests.pages.ours(kind, row) for row in slots]
        return found

    def static_buffers(self, mode: Mode) -> Mapping[str, Tensor]:
        """Return every static buffer that a replay reads, by name, whatever the mode.

        A prefill of as many tokens as a decode has is replayed by the same graph.
        """
        return self.runner.statics()

    def state(self) -> Any:
        """Return the engine's own note of how many rows of its block tables are in use."""
        return getattr(self.runner.runner.block_tables, "_num_dirty_rows", None)

    def restore(self, state: Any) -> None:
        """Bring back that note, where the engine keeps one."""
        if state is not None:
            self.runner.runner.block_tables._num_dirty_rows = state

    def ownership_changed(self) -> None:
        """Free what the world's allocator took; a forward takes the blocks that it needs."""
        self.requests.follow()

    def ownership(self) -> Ownership:
        """Return who holds which blocks and rows, by the engine's manager and tables."""
        return ownership(self.requests, self.runner)

    def slot_named(self, name: str, value: int) -> tuple[Kind, int] | None:
        """Return the world's slot that a value of a static input names; None if it names none."""
        what, _, group = name.partition(".")
        if what not in {"slot_mapping", "block_table"} or value < 0:
            return None
        kind = Kind(group)
        slot = self.requests.pages.ours(kind, [value if what == "slot_mapping" else value * BLOCK])[
            0
        ]
        return None if slot < 0 else (kind, slot)

    def padded_inputs(self) -> Mapping[str, PaddedInput]:
        """Return the static inputs of tokens and requests that have a padded tail, by name."""
        statics, query = self.runner.statics(), self.runner.tokens_per_request
        return {
            name: PaddedInput(statics[name], name, each)
            for name, each in (("input_ids", query), ("positions", query), ("seq_lens", 1))
        }


class EagerVllmEngine(NeverReplays, VllmEngine):
    """The engine in its own eager mode: its runner has captured nothing."""


class PiecewiseEngine(VllmEngine):
    """The engine with graphs in pieces, which are of all batches; their buckets count tokens."""

    def runner_name(self, mode: Mode) -> str | None:
        """Return the runner's name for prefills and decodes."""
        return self.name if mode in {Mode.EXTEND, Mode.DECODE} else None

    def _attending(self, batch: ForwardBatch, bucket: int) -> tuple[int, int]:
        """Return the live tokens and requests: padded ones do not attend."""
        return batch.live_tokens, batch.live_requests

    def padded_inputs(self) -> Mapping[str, PaddedInput]:
        """Return the static inputs of tokens, which alone have a padded tail, by name."""
        statics = self.runner.statics()
        return {name: PaddedTokens(statics[name], name) for name in ("input_ids", "positions")}
