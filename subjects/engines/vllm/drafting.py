"""The engine's drafter as the harness takes it: batches that catch up, and those that propose."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from inspect import signature
from itertools import product
from typing import Any

import torch
from torch import Tensor

from reference.batch import ForwardBatch, Mode
from reference.config import SPECULATION, Role
from reference.speculative import chain_of, keep_candidates, likeliest
from subjects.engines.shared.engine import NeverReplays
from subjects.engines.shared.padded import PaddedInput, PaddingRow, padding_of
from subjects.engines.shared.tensors import given_back
from subjects.engines.vllm.contract import promised
from subjects.engines.vllm.drafter import DraftingRunner, Verified
from subjects.engines.vllm.engine import SLOTS, VllmEngine
from subjects.engines.vllm.settings import BLOCK
from subjects.protocol import Forward, Offer, Replay, ReplayFacts

WIDTH = SPECULATION.draft_tokens
"""Tokens of a request that the target verifies, of which the drafter catches up at once."""

UNSEEN = {
    Offer.READS: "lengths advance from forward to forward in its graph, and rejected tokens stand"
    " among the others: what each row reads is judged by what it gives"
}
"""What drafters do not offer besides, and why."""


def marks_rows(runner: DraftingRunner) -> bool:
    """Whether rows that are nobody's are -1 in the drafter's map of requests: their slots are too.

    It is so since batches of no request at all are told apart.
    """
    copied = getattr(runner.runner.speculator, "_copy_request_inputs", None)
    return copied is not None and "dummy_run" in signature(copied).parameters


BOTH = (
    PaddingRow("drafter.query_start_loc", lambda tokens: tokens, of_requests=True),
    PaddingRow("drafter.idx_mapping", lambda tokens: -1, False, marks_rows, True),
)

CATCHES_UP = (
    *BOTH,
    PaddingRow("drafter.seq_lens", lambda tokens: 0, of_requests=True),
    PaddingRow("drafter.last_token_indices", lambda tokens: 0, of_requests=True),
)
"""The contract of the drafter's own static buffers where it catches up, beside the target's."""

DRAFTS = (
    *BOTH,
    *(PaddingRow(name, lambda tokens: -1) for name in SLOTS),
    PaddingRow("drafter.seq_lens", lambda tokens: SPECULATION.forwards - 1, True, of_requests=True),
)
"""The same where it proposes: a padded row, of no tokens, grows with each forward but the first."""


class DraftingEngine(VllmEngine):
    """The engine's drafter. Prefills and decodes of the target run beside it, by its own code.

    So does what catches up where what proposes is on trial. A draft begins with the last token
    that was accepted, which the drafter runs once more: no target's forward stands before it.
    """

    runner: DraftingRunner
    eager_modes = frozenset({Mode.DRAFT_EXTEND})

    def facts(self, replay: Replay) -> ReplayFacts:
        """Return what the replay that just ran relied on: of graphs, those on trial are counted."""
        return replace(super().facts(replay), graphs_replayed=len(self.runner.replayed))

    def forward(self, batch: ForwardBatch | None, mode: Mode) -> Forward:
        """Run one forward, of the runner's mode by replay where it can.

        RuntimeError is raised for an idle one.
        """
        if batch is None:
            raise RuntimeError(self.missing[Offer.IDLE_REPLAY])
        if mode not in {Mode.DRAFT, Mode.DRAFT_EXTEND}:
            return self.eagerly(self.target(batch, mode).output, batch.live_tokens)
        if mode is Mode.DRAFT or batch.longest <= WIDTH:
            return self._drafted(batch)
        # A prompt to catch up on is a batch of its own, as its prefill is.
        found = list[Forward]()
        for span in batch.spans:
            found.append(self._drafted(replace(batch, spans=(span,))))
            self.read_kv()  # The next one is placed over the world's KV.
        output, padding = joined(one.output for one in found), joined(one.padding for one in found)
        return Forward(output, None, padding=padding)

    def _drafted(self, batch: ForwardBatch) -> Forward:
        drafts, verified = batch.mode is Mode.DRAFT, self._verified_for(batch)
        told = self.requests.place(verified, self._settle)
        targets = list(self._targets(batch, verified))
        run = partial(self.runner.propose, told, targets, SPECULATION.steps if drafts else 1)
        stored = SPECULATION.forwards if drafts else 0
        with given_back(*self._nobodys(targets, stored)):
            tokens, hidden, logits = self.counted(run)
        ops = self.runner.ops
        if drafts:
            output = chain_of(ops, tokens, logits)
            table = self.requests.world.pools.state.draft_table
            keep_candidates(ops, table, batch.req_pool_indices, output)
        else:
            output = likeliest(ops, {"logits": logits[0], "hidden": hidden[0]})
            output["topk_index"][:, :1] = tokens
        if batch.mode is not self.mode or not self.runner.replayed:
            return self.eagerly(output, verified.live_tokens)
        live, query = (batch, 1) if drafts else (verified, WIDTH)
        bucket, given = self.runner.replayed[-1] // query, self._brought(batch, verified, targets)
        rows = DRAFTS if drafts else (*CATCHES_UP, *promised(self.runner))
        kept = [row for row in rows if row.promised(self.runner)]
        padding = padding_of(kept, self.statics(), given, live, bucket, query)
        sizes = bucket, batch.live_requests, batch.live_requests
        return Forward(output, self.replay_of(*sizes, output, given=given, padding=padding))

    @staticmethod
    def _accepted(batch: ForwardBatch) -> list[int]:
        """Return how many tokens of each request the drafter is to have caught up with."""
        return [span.begin if batch.mode is Mode.DRAFT else span.end for span in batch.spans]

    def _verified_for(self, batch: ForwardBatch) -> ForwardBatch:
        """Return what the target is to have verified before a batch, as many tokens of each.

        Those behind the batch's were rejected; some before it run once more where there is no room
        behind. A prompt is taken as it is.
        """
        spans = []
        for span, end in zip(batch.spans, self._accepted(batch), strict=True):
            begin = min(span.begin, end - 1)
            if end - begin > WIDTH:
                spans.append(span)
                continue
            begin = min(begin, self.requests.max_context - WIDTH)
            spans.append(replace(span, begin=begin, end=begin + WIDTH, tree=((0, -1),) * WIDTH))
        places = [place for span in spans for place in range(span.begin, span.end)]
        return replace(batch, spans=tuple(spans), positions=batch.positions.new_tensor(places))

    def _targets(self, batch: ForwardBatch, verified: ForwardBatch) -> Iterator[Verified]:
        """Yield what the target made of each request, by the world's tables."""
        running, states = self.requests.world.running(), self.requests.world.hidden_states()
        of_requests = zip(batch.spans, self._accepted(batch), self._asked(verified), strict=True)
        for span, end, (serial, begin, last) in of_requests:
            known, hidden = running[serial], states[span.token_row, begin:end]
            tokens = known.tokens[begin : end + 1]
            yield Verified(serial, begin, known.owner.length, tokens, hidden, last - end)

    def _nobodys(self, targets: Sequence[Verified], stored: int) -> Iterator[tuple[Tensor, Any]]:
        """Yield K and V of each draft layer, with the places that rejected tokens alone store at.

        That is behind those of so many drafts. Nobody reads them before they are written anew.
        """
        kinds = self.runner.models[Role.DRAFT].config.layers
        for one, (kind, cache) in product(
            targets, zip(kinds, self.requests.pages.caches[-len(kinds) :], strict=True)
        ):
            ends = one.end + stored, one.end + one.rejected
            places = torch.tensor(
                self.requests.slots_of(one.serial, kind, *ends), dtype=torch.int64
            )
            yield from ((plane, (places // BLOCK, places % BLOCK)) for plane in cache)

    def _brought(
        self, batch: ForwardBatch, verified: ForwardBatch, targets: Sequence[Verified]
    ) -> dict[str, Tensor]:
        """Return what static inputs hold once a batch has run: of drafts, the last forward's."""
        held, statics, ends = self._given(verified), self.statics(), [one.end for one in targets]
        del held["input_ids"]  # The engine's own are of a target that ran; ours did before.
        own, values = held, {"idx_mapping": self.runner.rows_of(targets)}
        if batch.mode is Mode.DRAFT:
            ends = [end + SPECULATION.forwards for end in ends]
            pairs = zip(batch.spans, ends, strict=True)
            last = tuple(replace(span, begin=end - 1, end=end) for span, end in pairs)
            own = self._given(replace(batch, spans=last))
            tables = {name: held[name] for name in held if name.startswith("block_table")}
            held = {**tables, **{name: own[name] for name in SLOTS}}
        else:
            lasts = [row * WIDTH + len(one.hidden) - 1 for row, one in enumerate(targets)]
            values["last_token_indices"] = lasts
        values["positions"] = [end - 1 for end in ends]
        named = {f"drafter.{name}": own[name] for name in ("seq_lens", "query_start_loc")}
        named |= {f"drafter.{name}": torch.tensor(found) for name, found in values.items()}
        return held | {name: v.to(statics[name]) for name, v in named.items() if name in statics}

    def padded_inputs(self) -> Mapping[str, PaddedInput]:
        """Return the static inputs of tokens and requests that have a padded tail, by name."""
        statics, width = self.statics(), 1 if self.mode is Mode.DRAFT else WIDTH
        return {
            f"drafter.{name}": PaddedInput(statics[f"drafter.{name}"], name, width)
            for name in ("input_ids", "positions")
        }


class EagerDraftingEngine(NeverReplays, DraftingEngine):
    """The drafter in the engine's own eager mode: its runner has captured nothing."""

    eager_modes = frozenset({Mode.DRAFT, Mode.DRAFT_EXTEND})


def joined(parts: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return tensors joined name by name, of each name those that there are."""
    held = list(parts)
    names = dict.fromkeys(name for one in held for name in one)
    return {name: torch.cat([one[name] for one in held if name in one]) for name in names}
