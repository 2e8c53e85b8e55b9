"""A runner over KV in blocks as the harness takes it: `EngineUnderTest` but for what is its own.

Its static inputs have the names of the field: `slot_mapping.KIND` says where tokens store,
`block_table.KIND` which blocks a request has, `query_start_loc` where its tokens begin.
"""

from abc import ABC
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate

import torch
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.config import Kind
from paritybit.reference.model import Output
from paritybit.subjects.engines.paged.keys import listed_slots
from paritybit.subjects.engines.paged.requests import PagedRequests, Settling
from paritybit.subjects.engines.paged.runner import PagedRunner, Ran
from paritybit.subjects.engines.shared.engine import OthersEngine
from paritybit.subjects.engines.shared.padded import (
    PaddedInput,
    PaddedTokens,
    PaddingRow,
    padding_of,
)
from paritybit.subjects.protocol import Forward, Offer, Reads
from torch import Tensor

SLOTS = [f"slot_mapping.{kind}" for kind in Kind]
TABLES = [f"block_table.{kind}" for kind in Kind]
"""The static inputs that say where tokens store their KV, and which blocks requests have."""


class PagedEngine(OthersEngine, ABC):
    """A runner of batches of one mode; others run eagerly, by the engine's own code.

    Graphs in pieces are of all batches of the target. `contract` is what the engine's padding
    holds, where the release at hand promises it.
    """

    contract: Sequence[PaddingRow] = ()

    def __init__(
        self,
        name: str,
        mode: Mode,
        runner: PagedRunner,
        requests: PagedRequests,
        missing: Mapping[Offer, str],
    ) -> None:
        self.runner = runner
        self.requests = requests
        super().__init__(name, mode, runner.statics, requests.pages, missing, runner.graphs)

    def runner_name(self, mode: Mode) -> str | None:
        """Return the runner's name for batches of its mode, or of both that pieces are for."""
        decodes_too = self.runner.pieces and mode is Mode.DECODE
        return super().runner_name(self.mode if decodes_too else mode)

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
            return self.eagerly(ran.output, batch.live_tokens, ran.tokens)
        query, given = self.runner.tokens_per_request, self.given(batch)
        bucket, live = ran.tokens // query, batch.live_tokens
        # Padded tokens of pieces do not attend: attention runs eagerly, over the live ones.
        attending = (live, batch.live_requests) if self.runner.pieces else (bucket * query, bucket)
        replay = self.replay_of(
            *(bucket, live // query, live, ran.output),
            reads=self._reads(*attending),
            given=given,
            padding=self.padding(self.contract, given, batch, bucket, query),
        )
        return Forward(ran.output, replay)

    def eagerly(self, output: Output, live: int, end: int | None = None) -> Forward:
        """Return what a forward gave that is no replay on trial, padded from `live` tokens on."""
        slots = {name: self.statics()[name][live:end].clone() for name in SLOTS}
        return Forward(output, None, padding=slots)

    def target(self, batch: ForwardBatch, mode: Mode) -> Ran:
        """Let the engine run a batch of the target's; it is to be told what that sampled."""
        told = self.requests.place(batch, self.settle)
        run = partial(self.runner.run, told, verifies=mode is Mode.TARGET_VERIFY)
        ran = self.counted(run)
        self.requests.ran = Settling(ran, self.requests.asked(batch))
        return ran

    def settle(self, settling: Settling) -> None:
        """Tell the engine what the requests of a batch sampled since, as the world has it."""
        known, requests = self.requests.world.running(), self.requests
        sampled, rejected = list[Sequence[int]](), list[int]()
        for asked in settling.asked:
            one, request = known.get(asked.serial), requests.held.get(asked.serial)
            if one is None or request is None:  # It left, and the engine is told so next.
                sampled.append(())
                rejected.append(0)
                continue
            sampled.append(one.tokens[request.num_tokens :])
            rejected.append(max(asked.end - one.owner.length, 0))
        self.runner.settle(settling.ran.batch, settling.ran.starts, sampled, rejected)

    def padding(
        self,
        rows: Sequence[PaddingRow],
        given: Mapping[str, Tensor],
        batch: ForwardBatch,
        bucket: int,
        query: int,
    ) -> dict[str, tuple[int, Tensor]]:
        """Return what padding of some rows must hold, where the release at hand promises it."""
        kept = [row for row in rows if row.promised(self.runner)]
        return padding_of(kept, self.statics(), given, batch, bucket, query)

    def given(self, batch: ForwardBatch) -> dict[str, Tensor]:
        """Return what a batch brings for static inputs, by their names, in the engine's slots."""
        asked, requests = self.requests.asked(batch), self.requests
        made = partial(torch.tensor, device=batch.positions.device)
        starts = [0, *accumulate(one.end - one.begin for one in asked)]
        found = {
            "input_ids": batch.input_ids.to(torch.int32),
            "positions": batch.positions,
            "seq_lens": made([one.end for one in asked], dtype=torch.int32),
            "query_start_loc": made(starts, dtype=torch.int32),
        }
        for kind in Kind:
            slots = [requests.slots_of(one.serial, kind, one.begin, one.end) for one in asked]
            found[f"slot_mapping.{kind}"] = made([slot for of_one in slots for slot in of_one])
            found[f"block_table.{kind}"] = self._blocks(batch, kind)
        if "is_padding" in self.statics():
            found["is_padding"] = made([False] * batch.live_tokens)
        return found

    def _blocks(self, batch: ForwardBatch, kind: Kind) -> Tensor:
        """Return what the rows of a batch in a block table must hold: as they do where it is open.

        That is behind a request's blocks, and below its window in a release that clears nothing
        there.
        """
        rows = self.statics()[f"block_table.{kind}"][: batch.live_requests].clone()
        window, size = self.runner.model.config.window, self.requests.pages.size
        for row, one in enumerate(self.requests.asked(batch)):
            blocks = torch.tensor(self.requests.blocks_of(one.serial, kind), dtype=rows.dtype)
            below = max(one.begin - window + 1, 0) // size if kind is Kind.SWA else 0
            blocks[:below] = 0 if self.runner.clears_below_windows else rows[row, :below]
            rows[row, : len(blocks)] = blocks
        return rows

    def _reads(self, tokens: int, requests: int) -> Reads:
        """Return the world's slots that each token is to read by static inputs of requests."""
        held, config, pages = self.statics(), self.runner.model.config, self.requests.pages
        found = dict[str, list[list[int]]]()
        for kind in Kind:
            slots = listed_slots(
                tokens,
                held["query_start_loc"][: requests + 1],
                held["seq_lens"][:requests],
                held[f"block_table.{kind}"][:requests],
                config.max_context,
                config.window if kind is Kind.SWA else None,
                pages.size,
            )
            found[kind] = [pages.ours(kind, row) for row in slots]
        return found

    def static_buffers(self, mode: Mode) -> Mapping[str, Tensor]:
        """Return every static buffer that a replay reads, by name, whatever the mode.

        A prefill of as many tokens as a decode has is replayed by the same graph.
        """
        return self.statics()

    def ownership_changed(self) -> None:
        """Free what the world's allocator took; a forward takes the blocks that it needs."""
        self.requests.follow()

    def slot_named(self, name: str, value: int) -> tuple[Kind, int] | None:
        """Return the world's slot that a value of a static input names; None if it names none."""
        what, _, group = name.partition(".")
        slots_of_one = {"slot_mapping": 1, "block_table": self.requests.pages.size}
        if what not in slots_of_one or value < 0:
            return None
        (slot,) = self.requests.pages.ours(Kind(group), [value * slots_of_one[what]])
        return None if slot < 0 else (Kind(group), slot)

    def padded_inputs(self) -> Mapping[str, PaddedInput]:
        """Return the static inputs of tokens and requests that have a padded tail, by name."""
        statics, query = self.statics(), self.runner.tokens_per_request
        if self.runner.pieces:  # Those of tokens alone have one.
            return {name: PaddedTokens(statics[name], name) for name in ("input_ids", "positions")}
        return {
            name: PaddedInput(statics[name], name, count)
            for name, count in (("input_ids", query), ("positions", query), ("seq_lens", 1))
        }
