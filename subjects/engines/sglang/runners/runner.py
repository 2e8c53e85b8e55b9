"""What every runner of the engine needs around it: a pool, a backend, a model, its batches."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from paritybit.reference.batch import ForwardBatch
from paritybit.reference.config import Role
from paritybit.reference.model import Model, Output
from paritybit.reference.ops import Ops
from paritybit.subjects.engines.sglang.host.host import Host
from paritybit.subjects.engines.sglang.memory.pool import SglangPool
from paritybit.subjects.engines.sglang.model.attention import OurArithmetic, keep_whole
from paritybit.subjects.engines.sglang.model.decoder import Decoder
from paritybit.subjects.engines.shared.graphs import whole
from paritybit.subjects.engines.shared.loading import attribute, named
from paritybit.subjects.engines.shared.missing import PartMissingError
from paritybit.subjects.engines.shared.tensors import Reissued
from torch import Tensor

REISSUED = ("out_cache_loc", "req_pool_indices", "seq_lens", "positions")
"""Tensors of a batch that are given the addresses of the last batch's, as an allocator may do."""


class SglangRunner:
    """One of the engine's runners. `own_kernels` keeps its Triton attention.

    `places` are where its class may lie.
    """

    name: ClassVar[str]
    places: ClassVar[tuple[str, ...]]

    def __init__(
        self, host: Host, model: Model, pool: SglangPool, ops: Ops, *, own_kernels: bool
    ) -> None:
        engine, window = host.engine, model.config.window
        self.host = host
        self.pool = pool
        self.batches = engine.part("srt.model_executor.forward_batch_info:ForwardBatch")
        self.modes = engine.part("srt.model_executor.forward_batch_info:ForwardMode")
        self.hidden_modes = engine.part("srt.model_executor.forward_batch_info:CaptureHiddenMode")
        self.model = Decoder(engine, model, ops, window, pool.states)
        self.model_runner = host.model_runner(
            model,
            {
                "model": self.model,
                "req_to_token_pool": pool.requests,
                "token_to_kv_pool": pool.kv,
                "token_to_kv_pool_allocator": pool.allocator,
                "attention_layers": self.model.model.attention,
                "mha_companion_layers": [None] * len(self.model.model.attention),
                **self.declared(),
            },
        )
        self.model_runner.set("kv_index_translator", translator(host, pool))
        self.backend = engine.part("srt.layers.attention.triton_backend:TritonAttnBackend")(
            self.model_runner
        )
        self.arithmetic = OurArithmetic(ops, model.config)
        if own_kernels:
            keep_whole(self.backend, whole)
        else:
            self.arithmetic.install(self.backend)
            self.model.model.entering = partial(setattr, self.arithmetic, "layer")
        self.prepare()
        with self.context():
            self.runner = self.build()

    def build(self) -> Any:
        """Build the engine's runner, which captures its graphs."""
        return self.runner_type()(self.made_from())

    def declared(self) -> dict[str, Any]:
        """Return what the engine's model runner is told for this runner alone."""
        return {}

    def made_from(self) -> Any:
        """Return what the engine's runner is built from."""
        return self.model_runner

    def runner_type(self) -> Any:
        """Return the engine's class of the runner."""
        return self.host.engine.part(*self.places)

    def prepare(self) -> None:
        """Bring about what the engine's runner needs to be built."""
        self.model_runner.set("attn_backend", self.backend)

    def batch(
        self,
        batch: ForwardBatch,
        rows: Tensor,
        loc: Tensor,
        *,
        extend: bool,
        runner: Any = None,
        scheduled: Any = None,
        **other: Any,
    ) -> Any:
        """Return the engine's batch for one of ours, over its own request rows and slots.

        It is built by the engine's own code from a batch of its scheduler, if one is given. Its
        KV ids are those of a model's `runner`, the target's unless given. Fields named in `other`
        have other values than those that follow from our batch.
        """
        if scheduled is not None:
            return self.reissue(self.built(batch, scheduled))
        prefix = [span.begin for span in batch.spans]
        counts = [span.end - span.begin for span in batch.spans]
        device = loc.device
        values = {
            "forward_mode": self.modes.EXTEND if extend else self.modes.DECODE,
            "batch_size": batch.live_requests,
            "input_ids": batch.input_ids,
            "req_pool_indices": rows,
            "seq_lens": batch.seq_lens,
            "out_cache_loc": loc,
            "out_cache_loc_swa": self.pool.translate(loc),
            "seq_lens_sum": int(batch.seq_lens_cpu.sum()),
            "orig_seq_lens": batch.seq_lens,
            "seq_lens_cpu": batch.seq_lens_cpu,
            "mamba_track_indices": batch.mamba_track_indices,
            "mamba_track_mask": batch.mamba_track_mask,
            "positions": batch.positions,
            "mrope_positions": batch.mrope_positions,
            "req_to_token_pool": self.pool.requests,
            "token_to_kv_pool": self.pool.kv,
            "attn_backend": self.backend,
            "spec_algorithm": self.model_runner.spec_algorithm,
            "capture_hidden_mode": self.hidden_modes.NULL,
            "num_token_non_padded": batch.num_token_non_padded,
            "num_token_non_padded_cpu": batch.live_tokens,
            "global_num_token_non_padded_cpu": batch.live_tokens,
            "global_forward_mode": self.modes.EXTEND if extend else self.modes.DECODE,
        }
        if extend:
            values |= {
                "extend_num_tokens": batch.live_tokens,
                "extend_seq_lens": torch.tensor(counts, dtype=torch.int32, device=device),
                "extend_prefix_lens": torch.tensor(prefix, dtype=torch.int32, device=device),
                "extend_start_loc": torch.zeros(1, dtype=torch.int32, device=device),
                "extend_prefix_lens_cpu": prefix,
                "extend_seq_lens_cpu": counts,
            }
        made = self.reissue(self.known_fields(values | self.adds(batch) | other))
        self.bind(made, runner)
        return made

    def built(self, batch: ForwardBatch, scheduled: Any) -> Any:
        """Return the forward batch that the engine's own code makes of its scheduler's batch.

        Ours in it are the states that requests have beside KV, which its scheduler knows nothing
        of, and multimodal positions: no request has an image.
        """
        whole = getattr(scheduled, "get_model_worker_batch", lambda: scheduled)()
        init_new = named(self.batches.init_new, return_hidden_states_before_norm=False)
        made = init_new(whole, self.model_runner)
        made.mamba_track_indices = batch.mamba_track_indices
        made.mamba_track_mask = batch.mamba_track_mask
        made.mrope_positions = batch.mrope_positions
        return made

    def reissue(self, made: Any) -> Any:
        """Move the tensors of an engine's batch to where those of the last batch lay; return it."""
        for name in REISSUED:
            held = getattr(made, name, None)
            if isinstance(held, Tensor):
                setattr(made, name, self.reissued.copy(name, held))
        return made

    @cached_property
    def reissued(self) -> Reissued:
        """The memory that one batch after the other lies in."""
        return Reissued()

    def adds(self, batch: ForwardBatch) -> dict[str, Any]:
        """Return what the engine's batch has for this runner alone, or otherwise than others."""
        return {}

    def known_fields(self, values: Mapping[str, Any]) -> Any:
        """Return an engine's batch of those values whose fields it has."""
        known = {field.name for field in fields(self.batches)}
        return self.batches(**{name: value for name, value in values.items() if name in known})

    def bind(self, batch: Any, runner: Any = None) -> None:
        """Plan a batch's KV ids of a model's runner, where the engine does so beforehand."""
        ids = (runner or self.model_runner).kv_index_translator
        if hasattr(ids, "own_plan"):
            ids.own_plan(batch).bind(batch, ids, cols=None)

    def eagerly(self, batch: Any) -> Output:
        """Run a batch without a graph, as the engine's model runner does; return what it gives."""
        loc = getattr(batch, "out_cache_loc_swa", None)
        if loc is not None:
            attribute(self.pool.kv, "set_swa_loc")
            self.pool.preset(loc)
        elif self.pool.can_preset:
            attribute(batch, "out_cache_loc_swa")
        with self.context():
            self.backend.init_forward_metadata(batch)
            return output_of(self.model.forward(batch.input_ids, batch.positions, batch))

    @contextmanager
    def context(self, backend: Any = None) -> Iterator[None]:
        """Enter the engine's forward context of a backend, the target's, where it has such."""
        try:
            module = self.host.engine.module("srt.model_executor.forward_context")
        except PartMissingError:
            module = None
        if module is None:
            yield
            return
        with module.forward_context(module.ForwardContext(attn_backend=backend or self.backend)):
            yield

    def statics(self) -> Mapping[str, Tensor]:
        """Return every static buffer that a replay reads."""
        return {}


def translator(host: Host, pool: SglangPool, role: Role = Role.TARGET) -> Any:
    """Return the engine's converter of a model's KV ids, or None in an engine without one."""
    try:
        made = host.engine.part("srt.mem_cache.kv_index_translator:KVIndexTranslator")
    except PartMissingError:
        return None
    return made(
        req_to_token=pool.requests.req_to_token,
        token_to_kv_pool_allocator=pool.allocator,
        token_to_kv_pool=pool.storages[role],
        page_size=pool.sizes.page_size,
        device=pool.device,
    )


def output_of(given: Any) -> Output:
    """Return what one of the engine's forwards gave, by the reference's names."""
    named = {"logits": given.next_token_logits, "hidden": given.hidden_states}
    return {name: values for name, values in named.items() if values is not None}


@contextmanager
def uncompiled(model: Any, *settings: Any, **named: Any) -> Iterator[Any]:
    """Stand for the engine's compiler of a model."""
    yield model.forward
