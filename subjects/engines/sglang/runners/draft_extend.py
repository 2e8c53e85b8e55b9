"""The engine's draft-extend runner: a draft model that catches up, captured and replayed.

An engine's graph has room for as many tokens of each request. Where its requests bring fewer,
it packs them, or it runs as many of each and takes what follows from the accepted ones: the
others lie in slots that no request of ours has.
"""

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

import torch
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.config import SPECULATION, Kind, Role
from paritybit.reference.model import Output
from paritybit.subjects.engines.sglang.runners.decode import RowSlots
from paritybit.subjects.engines.sglang.runners.drafting import DraftingRunner
from paritybit.subjects.engines.shared.loading import named, taking
from torch import Tensor

INPUTS = (
    "srt.speculative.eagle_info:EagleDraftExtendInput",
    "srt.speculative.eagle_info:EagleDraftInput",
)
"""The engine's input of such a forward."""

CAUGHT_UP = (
    ("hidden_states",),
    ("num_accept_tokens", "num_accepted_tokens", "accept_length"),
)
"""The arguments that such an input must take: each by its names, by release."""

WIDTHS = ("captured_req_width", "num_tokens_per_bs")
"""What the engine may call the tokens of a request."""


class EagleDraftExtendRunner(DraftingRunner):
    """The runner of a draft model that catches up with what was accepted."""

    name = "eagle_draft_extend"
    mode = Mode.DRAFT_EXTEND
    unpopulated = frozenset({"mrope_positions"})
    places = (
        "srt.speculative.eagle_draft_extend_cuda_graph_runner:EAGLEDraftExtendCudaGraphRunner",
    )

    def made_from(self) -> Any:
        """Return a stand-in for the worker that the runner serves."""
        self.drafting.set("attn_backend", self.catching_backend)
        values = self.worker_values(self.drafting)
        return self.worker(values | {"draft_extend_attn_backend": self.catching_backend})

    @property
    def width(self) -> int:
        """Tokens of each request that a graph has room for."""
        return int(
            next(getattr(self.runner, name) for name in WIDTHS if hasattr(self.runner, name))
        )

    @property
    def uniform(self) -> bool:
        """Whether each request brings as many tokens, accepted or not."""
        return "V2" in self.runner.forward_mode.name

    @property
    def backends(self) -> Mapping[str, Any]:
        """The attention backend of the graphs."""
        return {"attention": self.catching_backend}

    def takes(self, batch: ForwardBatch) -> bool:
        """Whether no request brings more tokens than there is room for."""
        return batch.longest <= min(self.width, SPECULATION.extend_tokens)

    def places_of(self, batch: ForwardBatch) -> list[int]:
        """Return where the tokens of a batch lie among those that the runner is given."""
        counts = [span.end - span.begin for span in batch.spans]
        if not self.uniform:
            return list(range(sum(counts)))
        return [
            request * self.width + place
            for request, count in enumerate(counts)
            for place in range(count)
        ]

    def drafted(self, batch: ForwardBatch, rows: Tensor, loc: Tensor) -> Output:
        """Run a batch by replay; return what its requests' last tokens give."""
        given = self._uniform(batch, rows, loc) if self.uniform else self._packed(batch, rows, loc)
        self.brought = self.given(given)
        counts = batch.spec_info["num_accept_tokens"]
        first = torch.arange(batch.live_requests, device=loc.device) * self.width
        last = first + counts.to(torch.int64) - 1
        with self.context(self.catching_backend):
            output = self.executed(given, select_index=last)
        if self.uniform and output.next_token_logits.shape[0] != batch.live_requests:
            output.next_token_logits = output.next_token_logits[last]
            output.hidden_states = output.hidden_states[last]
            output.topk_p = None
        return self.likeliest(output)

    def _packed(self, batch: ForwardBatch, rows: Tensor, loc: Tensor) -> Any:
        """Return the engine's batch of accepted tokens, one request's after another's."""
        counts = [span.end - span.begin for span in batch.spans]
        hidden = batch.spec_info["hidden_states"]
        return self._given(batch, rows, loc, counts=counts, hidden_states=hidden)

    def _uniform(self, batch: ForwardBatch, rows: Tensor, loc: Tensor) -> Any:
        """Return the engine's batch, tokens that were not accepted among the others."""
        width, requests = self.width, batch.live_requests
        places = torch.tensor(self.places_of(batch), device=loc.device)
        begins = torch.tensor([span.begin for span in batch.spans], device=loc.device)
        turn = torch.arange(width, device=loc.device)
        slots = self.pool.scratch[: requests * width].clone()
        tokens = torch.zeros_like(slots)
        hidden = batch.spec_info["hidden_states"]
        states = hidden.new_zeros((requests * width, hidden.shape[-1]))
        for every, live in ((slots, loc), (tokens, batch.input_ids), (states, hidden)):
            every[places] = live
        ends = begins + width
        return self._given(
            batch,
            rows,
            slots,
            counts=[width] * requests,
            hidden_states=states,
            input_ids=tokens,
            positions=(begins[:, None] + turn).flatten(),
            seq_lens=ends,
            orig_seq_lens=ends,
            seq_lens_cpu=ends.cpu(),
            seq_lens_sum=int(ends.sum()),
            num_token_non_padded_cpu=requests * width,
            extend_num_tokens=requests * width,
        )

    def _given(
        self,
        batch: ForwardBatch,
        rows: Tensor,
        loc: Tensor,
        *,
        counts: list[int],
        hidden_states: Tensor,
        **other: Any,
    ) -> Any:
        accepted = batch.spec_info["num_accept_tokens"]
        made = taking(self.host.engine.part(*INPUTS), *CAUGHT_UP)
        values = {"hidden_states": hidden_states, "num_tokens_per_req": self.width}
        values |= dict.fromkeys(("num_accept_tokens", "num_accepted_tokens"), accepted)
        values |= dict.fromkeys(("num_correct_drafts", "num_accepted_drafts"), accepted - 1)
        return self.catching_batch(
            batch,
            rows,
            loc,
            forward_mode=self.runner.forward_mode,
            extend_seq_lens=torch.tensor(counts, dtype=torch.int32, device=loc.device),
            extend_seq_lens_cpu=counts,
            spec_info=named(made, **values)(),
            **other,
        )

    def row_slots(self, batch: ForwardBatch) -> RowSlots:
        """Return the slots that live tokens were told to read, then those of padded requests.

        Tokens of live requests that were not accepted are left out.
        """
        live = self.places_of(batch)
        first = batch.live_requests * self.width if self.uniform else len(live)
        rows = [*live, *range(first, self.bucket * self.width)]
        backend, stored = self.catching_backend, self.runner.buffers.out_cache_loc
        tokens = self.bucket * self.width
        new = {Kind.FULL: stored[:tokens]}
        listed = {Kind.FULL: (backend.kv_indptr, backend.cuda_graph_kv_indices)}
        if self.models[Role.DRAFT].config.layers_of(Kind.SWA):
            new[Kind.SWA] = backend.cuda_graph_swa_out_cache_loc[:tokens]
            listed[Kind.SWA] = backend.window_kv_indptr, backend.cuda_graph_window_kv_indices
        starts = backend.qo_indptr[: self.bucket + 1]
        return {
            kind: listed_slots(rows, starts, *listed[kind], new[kind], self._seen_back(kind))
            for kind in new
        }

    def _seen_back(self, kind: Kind) -> int | None:
        """Return how many keys a token sees on layers of a kind, None if all."""
        return self.models[Role.DRAFT].config.window if kind is Kind.SWA else None


def listed_slots(
    rows: list[int],
    starts: Tensor,
    indptr: Tensor,
    indices: Tensor,
    new: Tensor,
    window: int | None,
) -> list[list[int]]:
    """Return the slots that some tokens read: a prefix that is listed, and new ones.

    It is for the host what `attention.listed_keys` is for the device.
    """
    first, ends = starts.tolist(), indptr.tolist()
    prefixes, stored = indices.tolist(), new.tolist()
    found = []
    for row in rows:
        request = min(bisect_right(first, row), len(first) - 1) - 1
        seen = prefixes[ends[request] : ends[request + 1]] + stored[first[request] : row + 1]
        found.append(seen if window is None else seen[-window:])
    return found
