"""What every speculative runner of the engine needs: a target, and a draft model beside it.

The draft model shares the request table and the slot numbers with the target. What of the
engine's draft worker the runners ask for is held by a stand-in, whose methods are the engine's.
"""

from abc import abstractmethod
from collections.abc import Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any, ClassVar

import torch
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.config import SPECULATION, Kind, Role
from paritybit.reference.model import Model, Output
from paritybit.reference.ops import Ops
from paritybit.subjects.engines.sglang.host.host import Host
from paritybit.subjects.engines.sglang.memory.pool import SglangPool
from paritybit.subjects.engines.sglang.model.attention import OurArithmetic
from paritybit.subjects.engines.sglang.model.draft_decoder import DraftDecoder
from paritybit.subjects.engines.sglang.runners.decode import ReplayingRunner, RowSlots
from paritybit.subjects.engines.sglang.runners.runner import translator
from paritybit.subjects.engines.sglang.runners.tensors import tensors_of
from paritybit.subjects.engines.sglang.runners.verify import SETTINGS
from torch import Tensor


class DraftingRunner(ReplayingRunner):
    """A runner of a draft model. `role` says whose KV that reads, `worker_places` whose it is.

    `unpopulated` are static inputs that no batch brings; `brought` is what the last one did.

    The target's prefills and decodes, and drafts that catch up, run eagerly beside it.
    """

    mode: ClassVar[Mode]
    role: ClassVar[Role] = Role.DRAFT
    worker_places: ClassVar[tuple[str, ...]] = (
        "srt.speculative.eagle_worker:EAGLEWorker",
        "srt.speculative.eagle_worker_v2:EagleDraftWorker",
    )
    methods: ClassVar[tuple[str, ...]] = ()
    unpopulated: frozenset[str] = frozenset()
    brought: Mapping[str, Tensor] = MappingProxyType({})

    def __init__(
        self,
        host: Host,
        models: Mapping[Role, Model],
        pool: SglangPool,
        ops: Ops,
    ) -> None:
        for name, value in SETTINGS.items():
            host.set(name, value)
        self.models = models
        self.ops = ops
        super().__init__(host, models[Role.TARGET], pool, ops, own_kernels=False)

    def prepare(self) -> None:
        """Build the draft model, its attention and what holds both."""
        super().prepare()
        part = self.host.engine.part
        self.algorithm = part("srt.speculative.spec_info:SpeculativeAlgorithm").EAGLE
        self.drafting = self.draft_model_runner(Role.DRAFT, {})
        triton = part("srt.layers.attention.triton_backend:TritonAttnBackend")
        self.catching_backend = self.computed_by_us(triton(self.drafting), self.drafting.model)

    def draft_model_runner(self, role: Role, borrowed: Mapping[int, int]) -> Any:
        """Return a runner of the draft model over the KV of a model, for the engine to ask."""
        draft, config = self.models[Role.DRAFT], self.models[Role.DRAFT].config
        windows = bool(config.layers_of(Kind.SWA))
        model = DraftDecoder(self.host.engine, draft, self.ops, config.window, borrowed)
        made = self.host.model_runner(
            draft,
            {
                "model": model,
                "req_to_token_pool": self.pool.requests,
                "token_to_kv_pool": self.pool.storages[role],
                "token_to_kv_pool_allocator": self.pool.allocator,
                "sliding_window_size": config.window if windows else None,
                "is_draft_worker": True,
                "spec_algorithm": self.algorithm,
                "forward": lambda batch, **settings: ran(
                    model.forward(batch.input_ids, batch.positions, batch)
                ),
            },
        )
        made.set("kv_index_translator", translator(self.host, self.pool, role))
        return made

    def computed_by_us(self, backend: Any, model: DraftDecoder) -> Any:
        """Let a backend of a draft model have our arithmetic; return it."""
        arithmetic = OurArithmetic(self.ops, self.models[Role.DRAFT].config)
        arithmetic.install(backend)
        entered = model.model.entering

        def entering(layer: int) -> None:
            entered(layer)
            arithmetic.layer = layer

        model.model.entering = entering
        return backend

    def worker(self, values: Mapping[str, Any]) -> Any:
        """Return a stand-in for the engine's draft worker, with its own `methods` of it."""
        own = self.host.engine.part(*self.worker_places)
        made = type("Worker", (), {name: getattr(own, name) for name in self.methods})()
        vars(made).update(values)
        return made

    def worker_values(self, model_runner: Any) -> dict[str, Any]:
        """Return what the engine's draft workers hold, in either generation of them."""
        first = self.worker_places[0].rpartition(":")[2]
        named = self.host.engine.part(*self.worker_places).__name__
        runners = ("model_runner", "draft_model_runner") if named == first else ("draft_runner",)
        return dict.fromkeys(runners, model_runner) | {
            "device": self.host.device,
            "server_args": self.host.arguments,
            "model_config": model_runner.model_config,
            "target_worker": SimpleNamespace(model_runner=self.model_runner),
            "speculative_algorithm": self.algorithm,
            "speculative_num_steps": SPECULATION.steps,
            "speculative_num_draft_tokens": SPECULATION.draft_tokens,
            "topk": SPECULATION.topk,
            "hot_token_id": None,
            "eagle_use_aux_hidden_state": False,
            "seed_dsa_topk_from_draft_extend": False,
            "index_share_for_mtp_iteration": False,
        }

    @property
    def bucket(self) -> int:
        """The captured size of the last replay, in requests."""
        return int(self.runner.bs)

    def inputs(self) -> Mapping[str, Tensor]:
        """Return the runner's static input buffers, by name."""
        return tensors_of(self.runner.buffers)

    def statics(self) -> Mapping[str, Tensor]:
        """Return every static buffer that a replay reads: the runner's and its backends'."""
        return {**self.inputs(), **self.held.statics()}

    def takes(self, batch: ForwardBatch) -> bool:
        """Whether the runner has a graph for a batch of its mode."""
        return True

    def given(self, batch: Any) -> Mapping[str, Tensor]:
        """Return copies of what an engine's batch brings for static inputs, by name."""
        return {
            name: value.clone()
            for name in sorted(self.inputs().keys() - self.unpopulated)
            for holder in (batch.spec_info, batch)
            if isinstance(value := getattr(holder, name, None), Tensor)
        }

    def executed(self, batch: Any, **named_so: Any) -> Any:
        """Let the engine's runner replay a batch: see `ReplayingRunner`.

        Raises RuntimeError where it declines one that it has a graph for.
        """
        if not self.can_run(batch):
            raise RuntimeError(
                f"the engine's {self.name} runner rejects a batch that it has a graph for"
            )
        return super().executed(batch, **named_so)

    @abstractmethod
    def drafted(self, batch: ForwardBatch, rows: Tensor, loc: Tensor) -> Output:
        """Run a batch of the runner's mode by replay; return what its live requests give."""

    @abstractmethod
    def row_slots(self, batch: ForwardBatch) -> RowSlots:
        """Return the engine's slots that the last replay's lists give: live rows, then padded."""

    def reads(self, batch: Any) -> RowSlots:
        """Raise RuntimeError: which rows are live is our batch's to say; see `row_slots`."""
        raise RuntimeError("the batch determines which rows are live")

    def caught_up(self, batch: ForwardBatch, rows: Tensor, loc: Tensor) -> Output:
        """Let the draft model catch up eagerly, as after a prefill; return what it gives."""
        backend = self.catching_backend
        hidden = SimpleNamespace(hidden_states=batch.spec_info["hidden_states"])
        given = self.catching_batch(batch, rows, loc, spec_info=hidden)
        with self.context(backend):
            backend.init_forward_metadata(given)
            output = self.drafting.model.forward(given.input_ids, given.positions, given)
        return self.likeliest(output)

    def catching_batch(self, batch: ForwardBatch, rows: Tensor, loc: Tensor, **other: Any) -> Any:
        """Return the engine's batch for a draft model that catches up; see `batch`."""
        return self.batch(
            batch,
            rows,
            loc,
            extend=True,
            runner=self.drafting,
            token_to_kv_pool=self.pool.storages[Role.DRAFT],
            attn_backend=self.catching_backend,
            spec_algorithm=self.algorithm,
            **other,
        )

    def likeliest(self, given: Any) -> Output:
        """Return what a forward that catches up gave, by the reference's names.

        Where that has no likeliest tokens, the engine's worker finds them afterwards.
        """
        found = {"logits": given.next_token_logits, "hidden": given.hidden_states}
        if getattr(given, "topk_p", None) is not None:
            return found | {"topk_p": given.topk_p, "topk_index": given.topk_index}
        best = self.host.engine.part("srt.utils.common:fast_topk", "srt.utils:fast_topk")
        values, index = best(torch.softmax(found["logits"], dim=-1), SPECULATION.topk, dim=-1)
        return found | {"topk_p": values, "topk_index": index}


def ran(output: Any) -> Any:
    """Return what the engine's model runner gives for a forward's output."""
    return SimpleNamespace(logits_output=output)
