"""A drafter over KV in blocks: batches in which it catches up, and those in which it proposes.

It runs behind a forward of the target, which verifies as many tokens of each request: with what
that gave it catches up, the tokens that were rejected among the others, then it proposes a chain.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, ClassVar

import torch
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.config import SPECULATION, Role
from paritybit.reference.speculative import chain_of, keep_candidates, likeliest
from paritybit.subjects.engines.paged.engine import SLOTS, TABLES, PagedEngine
from paritybit.subjects.engines.paged.runner import PagedDrafter, Verified
from paritybit.subjects.engines.shared.padded import PaddedInput, PaddingRow
from paritybit.subjects.engines.shared.tensors import given_back
from paritybit.subjects.protocol import Forward, Offer, Replay, ReplayFacts
from torch import Tensor

WIDTH = SPECULATION.draft_tokens
"""Tokens of a request that the target verifies, of which the drafter catches up at once."""


class PagedDraftingEngine(PagedEngine):
    """An engine's drafter. Prefills and decodes of the target run beside it, by its own code.

    So does what catches up where what proposes is on trial. A draft begins with the last token
    that was accepted, which the drafter runs once more: no target's forward stands before it.
    `contracts` is what padding holds, the drafter's own inputs' too, by what a batch does.
    """

    runner: PagedDrafter
    eager_modes = frozenset({Mode.DRAFT_EXTEND})
    modes_without_graphs = frozenset({Mode.DRAFT, Mode.DRAFT_EXTEND})
    contracts: ClassVar[Mapping[Mode, Sequence[PaddingRow]]] = {}

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
        told = self.requests.place(verified, self.settle)
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
        padding = self.padding(self.contracts[batch.mode], given, live, bucket, query)
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
            begin = min(begin, self.requests.config.max_context - WIDTH)
            spans.append(span._replace(begin=begin, end=begin + WIDTH, tree=((0, -1),) * WIDTH))
        places = [place for span in spans for place in range(span.begin, span.end)]
        return replace(batch, spans=tuple(spans), positions=batch.positions.new_tensor(places))

    def _targets(self, batch: ForwardBatch, verified: ForwardBatch) -> Iterator[Verified]:
        """Yield what the target made of each request, by the world's tables."""
        running, states = self.requests.world.running(), self.requests.world.hidden_states()
        ends, asked = self._accepted(batch), self.requests.asked(verified)
        for span, end, one in zip(batch.spans, ends, asked, strict=True):
            known, hidden = running[one.serial], states[span.token_row, one.begin : end]
            tokens, length = known.tokens[one.begin : end + 1], known.owner.length
            yield Verified(one.serial, one.begin, length, tokens, hidden, one.end - end)

    def _nobodys(self, targets: Sequence[Verified], stored: int) -> Iterator[tuple[Tensor, Any]]:
        """Yield K and V of each draft layer, with the places that rejected tokens alone store at.

        That is behind those of so many drafts. Nobody reads them before they are written anew.
        """
        kinds, pages = self.runner.models[Role.DRAFT].config.layers, self.requests.pages
        layers = zip(kinds, pages.caches[-len(kinds) :], strict=True)
        for one, (kind, cache) in product(targets, layers):
            ends = one.end + stored, one.end + one.rejected
            slots = self.requests.slots_of(one.serial, kind, *ends)
            places = torch.tensor(slots, dtype=torch.int64)
            yield from ((plane, (places // pages.size, places % pages.size)) for plane in cache)

    def _brought(
        self, batch: ForwardBatch, verified: ForwardBatch, targets: Sequence[Verified]
    ) -> dict[str, Tensor]:
        """Return what static inputs hold once a batch has run: of drafts, the last forward's."""
        held, statics, ends = self.given(verified), self.statics(), [one.end for one in targets]
        del held["input_ids"]  # The engine's own are of a target that ran; ours did before.
        own, values = held, {"idx_mapping": self.runner.rows_of(targets)}
        if batch.mode is Mode.DRAFT:
            ends = [end + SPECULATION.forwards for end in ends]
            pairs = zip(batch.spans, ends, strict=True)
            last = tuple(span._replace(begin=end - 1, end=end) for span, end in pairs)
            own = self.given(replace(batch, spans=last))
            held = {name: held[name] for name in TABLES} | {name: own[name] for name in SLOTS}
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


def joined(parts: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return tensors joined name by name, of each name those that there are."""
    held = list(parts)
    names = dict.fromkeys(name for one in held for name in one)
    return {name: torch.cat([one[name] for one in held if name in one]) for name in names}
