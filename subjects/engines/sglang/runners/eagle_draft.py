"""The engine's EAGLE draft runner: several forwards of the draft model in one graph."""

from collections.abc import Mapping
from typing import Any, ClassVar

from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.config import SPECULATION, Kind, Role
from paritybit.reference.model import Output
from paritybit.subjects.engines.sglang.runners.candidates import Candidates, proposed, watched
from paritybit.subjects.engines.sglang.runners.decode import RowSlots, listed
from paritybit.subjects.engines.sglang.runners.drafting import DraftingRunner
from paritybit.subjects.engines.shared.loading import named, taking
from torch import Tensor

STARTS = (("topk_p",), ("topk_index",), ("hidden_states",), ("bonus_tokens", "verified_id"))
"""The arguments that the engine's input of a draft must take: each by its names, by release."""


class ProposingRunner(DraftingRunner):
    """A runner that proposes tokens, whose forwards are the engine's `draft_forward`.

    `candidates` are, by requests of a graph, all that it finds: static, as its output.
    `forwards` counts those of the draft model since a draft began.
    """

    input_places: ClassVar[tuple[str, ...]]
    draft_backend: Any

    def proposing_worker(self, values: Mapping[str, Any]) -> Any:
        """Return a stand-in for the engine's worker; what its drafts find is kept."""
        self.candidates: dict[int, Candidates] = {}
        made = self.worker(values)
        draft = made.draft_forward

        def draft_forward(batch: Any, *rest: Any, **settings: Any) -> Any:
            self.forwards = 0
            with watched(draft.__func__) as found:
                result = draft(batch, *rest, **settings)
            self.candidates[found[-1].scores[0].shape[0]] = found[-1]
            return result

        made.draft_forward = draft_forward
        return made

    def speculative_input(self, batch: ForwardBatch, **other: Any) -> Any:
        """Return where drafting starts, as the engine has it.

        The bonus tokens may be any, since what their forward would give is given with the batch.
        They differ from batch to batch, so that a row that keeps an earlier batch's is seen.
        """
        spec = batch.spec_info
        values: dict[str, Any] = {
            name: spec[name] for name in ("topk_p", "topk_index", "hidden_states")
        }
        bonus = spec["topk_index"][:, 0] + batch.seq_lens
        bonus = bonus % self.models[Role.DRAFT].config.vocab
        values |= {"bonus_tokens": bonus, "num_tokens_per_req": SPECULATION.topk, **other}
        kind = taking(self.host.engine.part(*self.input_places), *STARTS)
        made = named(kind, **values)()
        made.positions = batch.positions
        return made

    def proposals(self, given: Any, batch: ForwardBatch) -> Output:
        """Replay one of the engine's batches; return what our batch's requests are proposed."""
        self.brought = self.given(given)
        with self.context(self.draft_backend):
            tree = self.executed(given)
        return proposed(self.candidates[self.bucket], tree[:3], batch.live_requests)


class EagleDraftRunner(ProposingRunner):
    """The runner of drafts with KV of their own."""

    name = "eagle_draft"
    mode = Mode.DRAFT
    places = ("srt.speculative.eagle_draft_cuda_graph_runner:EAGLEDraftCudaGraphRunner",)
    methods = ("draft_forward",)
    unpopulated = frozenset({"input_ids", "mrope_positions", "extend_seq_lens"})
    input_places = ("srt.speculative.eagle_info:EagleDraftInput",)

    def made_from(self) -> Any:
        """Return a stand-in for the worker that the runner serves."""
        made = self.host.engine.part(
            "srt.layers.attention.triton_backend:TritonMultiStepDraftBackend"
        )
        self.draft_backend = made(self.drafting, SPECULATION.topk, SPECULATION.steps)
        for backend in self.draft_backend.attn_backends:
            self.computed_by_us(backend, self.drafting.model)
        self.drafting.set("draft_attn_backend", self.draft_backend)
        values = self.worker_values(self.drafting)
        return self.proposing_worker(values | {"draft_attn_backend": self.draft_backend})

    @property
    def backends(self) -> Mapping[str, Any]:
        """The attention backend of the graphs, and that of each step."""
        steps = enumerate(self.draft_backend.attn_backends)
        return {"attention": self.draft_backend} | {
            f"attention.{step}": backend for step, backend in steps
        }

    def drafted(self, batch: ForwardBatch, rows: Tensor, loc: Tensor) -> Output:
        """Run a batch by replay; return what its requests are proposed."""
        given = self.batch(
            batch,
            rows,
            loc,
            extend=False,
            runner=self.drafting,
            token_to_kv_pool=self.pool.storages[Role.DRAFT],
            attn_backend=self.draft_backend,
            spec_algorithm=self.algorithm,
            spec_info=self.speculative_input(batch),
        )
        return self.proposals(given, batch)

    def row_slots(self, batch: ForwardBatch) -> RowSlots:
        """Return the slots that every branch was told to read, forward after forward."""
        held, rows = self.draft_backend, self.bucket * SPECULATION.topk
        lists = {Kind.FULL: (held.kv_indptr, held.cuda_graph_kv_indices)}
        if self.models[Role.DRAFT].config.layers_of(Kind.SWA):
            lists[Kind.SWA] = held.window_kv_indptr, held.cuda_graph_window_kv_indices
        return {
            kind: [
                slots
                for step in range(SPECULATION.forwards)
                for slots in listed(ends[step], indices[step], rows)
            ]
            for kind, (ends, indices) in lists.items()
        }
