"""The engine's runners of decodes over its own pool: built, captured and replayed by its code."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from reference.batch import ForwardBatch
from reference.model import Model
from reference.ops import Ops
from subjects.engines.sglang.attention import OurArithmetic, keep_whole
from subjects.engines.sglang.decoder import Decoder
from subjects.engines.sglang.graphs import whole
from subjects.engines.sglang.host import Host
from subjects.engines.sglang.loading import PartMissingError
from subjects.engines.sglang.pool import ReleasedPool


@dataclass(frozen=True)
class Reads:
    """The slots that each row of a replay was told to read, by its index lists."""

    full: list[list[int]]
    window: list[list[int]]


class ReleasedRunner:
    """One of the engine's runners. `own_kernels` keeps its Triton attention.

    `places` are where its class may lie; `graphs` is whether it replays a graph.
    """

    name: ClassVar[str]
    places: ClassVar[tuple[str, ...]]
    graphs: ClassVar[bool] = True

    def __init__(
        self, host: Host, model: Model, pool: ReleasedPool, ops: Ops, *, own_kernels: bool
    ) -> None:
        engine, window = host.engine, model.config.window
        self.host = host
        self.pool = pool
        self.batches = engine.part("srt.model_executor.forward_batch_info:ForwardBatch")
        self.modes = engine.part("srt.model_executor.forward_batch_info:ForwardMode")
        self.hidden_modes = engine.part("srt.model_executor.forward_batch_info:CaptureHiddenMode")
        self.model = Decoder(engine, model, ops, window)
        self.model_runner = host.model_runner(
            model,
            {
                "model": self.model,
                "req_to_token_pool": pool.requests,
                "token_to_kv_pool": pool.kv,
                "token_to_kv_pool_allocator": pool.allocator,
            },
        )
        self.model_runner.set("kv_index_translator", translator(host, pool))
        self.backend = engine.part("srt.layers.attention.triton_backend:TritonAttnBackend")(
            self.model_runner
        )
        self.arithmetic = OurArithmetic(ops, pool, model.config)
        if own_kernels:
            keep_whole(self.backend, whole)
        else:
            self.arithmetic.install(self.backend)
            self.model.entering = partial(setattr, self.arithmetic, "layer")
        self.prepare()
        with self._context():
            self.runner = self.runner_type()(self.made_from())

    def made_from(self) -> Any:
        """Return what the engine's runner is built from."""
        return self.model_runner

    def runner_type(self) -> Any:
        """Return the engine's class of the runner."""
        return self.host.engine.part(*self.places)

    def prepare(self) -> None:
        """Bring about what the engine's runner needs to be built."""
        self.model_runner.set("attn_backend", self.backend)

    def batch(self, batch: ForwardBatch, rows: Tensor, loc: Tensor, *, extend: bool) -> Any:
        """Return the engine's batch for one of ours, over its own request rows and slots."""
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
        known = {each.name for each in fields(self.batches)}
        made = self.batches(**{name: value for name, value in values.items() if name in known})
        self.bind(made)
        return made

    def bind(self, batch: Any) -> None:
        """Plan a batch's KV ids, where the engine does so beforehand."""
        ids = self.model_runner.kv_index_translator
        if hasattr(ids, "own_plan"):
            ids.own_plan(batch).bind(batch, ids, cols=None)

    def extend(self, batch: Any) -> Tensor:
        """Run a prefill eagerly, as the engine's model runner does; return its logits."""
        self.arithmetic.batch = batch
        self._preset(batch)
        with self._context():
            self.backend.init_forward_metadata(batch)
            output = self.model.forward(batch.input_ids, batch.positions, batch)
        found: Tensor = output.next_token_logits
        return found

    def _preset(self, batch: Any) -> None:
        """Preset the SWA write location where the engine's batch carries one."""
        loc = getattr(batch, "out_cache_loc_swa", None)
        if loc is not None and hasattr(self.pool.kv, "set_swa_loc"):
            self.pool.kv.set_swa_loc(loc)

    @contextmanager
    def _context(self) -> Iterator[None]:
        """Enter the engine's forward context, where it has one."""
        try:
            module = self.host.engine.module("srt.model_executor.forward_context")
        except PartMissingError:
            yield
            return
        with module.forward_context(module.ForwardContext(attn_backend=self.backend)):
            yield

    def statics(self) -> Mapping[str, Tensor]:
        """Return every static buffer that a replay reads."""
        return {}


class ReplayingRunner(ReleasedRunner, ABC):
    """A runner of decodes."""

    def replay(self, batch: Any) -> Tensor:
        """Run a decode through the engine's captured graph; return its live rows' logits."""
        execute = getattr(self.runner, "execute", None) or self.runner.replay
        output = execute(batch)
        found: Tensor = output.next_token_logits
        return found

    @property
    @abstractmethod
    def bucket(self) -> int:
        """The captured size of the last replay."""

    @abstractmethod
    def inputs(self) -> Mapping[str, Tensor]:
        """Return the runner's static input buffers, by name."""

    @abstractmethod
    def statics(self) -> Mapping[str, Tensor]:
        """Return every static buffer that a replay reads: the runner's and the backend's."""

    @abstractmethod
    def reads(self, rows: int) -> Reads:
        """Return what the first `rows` rows were told to read by the last replay's index lists."""


class DecodeRunner(ReplayingRunner):
    """The runner that replays one graph for a batch of decodes."""

    name = "decode"
    places = (
        "srt.model_executor.runner.decode_cuda_graph_runner:DecodeCudaGraphRunner",
        "srt.model_executor.cuda_graph_runner:CudaGraphRunner",
    )

    @property
    def bucket(self) -> int:
        """The captured size of the last replay."""
        return int(self.runner.bs)

    def inputs(self) -> Mapping[str, Tensor]:
        """Return the runner's static input buffers, by name."""
        return tensors_of(self.runner.buffers)

    def statics(self) -> Mapping[str, Tensor]:
        """Return every static buffer that a replay reads: the runner's and the backend's."""
        held = {f"attention.{name}": each for name, each in tensors_of(self.backend).items()}
        held.pop("attention.req_to_token", None)
        return {**self.inputs(), **held}

    def reads(self, rows: int) -> Reads:
        """Return what the first `rows` rows were told to read by the last replay's index lists."""
        return Reads(
            listed(self.backend.kv_indptr, self.backend.cuda_graph_kv_indices, rows),
            listed(self.backend.window_kv_indptr, self.backend.cuda_graph_window_kv_indices, rows),
        )


class CpuGraphRunner(ReplayingRunner):
    """The runner of a CPU, which compiles a function per size; here that function runs as it is.

    Its attention backend is the Triton one: what a CPU's own backend is asked at capture is
    answered here; the sum of lengths, which that one never reads, is made true, and the SWA
    locations, which it finds afresh, are. `left_behind` is set
    when a batch is replayed while the SWA locations of an eager forward are still preset.
    """

    name = "cpu_graph"
    left_behind = False
    places = ("srt.model_executor.cpu_graph_runner:CPUGraphRunner",)
    graphs = False

    def prepare(self) -> None:
        """Let the backend answer for a CPU's own, and the model run uncompiled."""
        super().prepare()
        eager = self.backend.init_forward_metadata

        def planned(batch: Any) -> None:
            batch.seq_lens_sum = int(batch.seq_lens.sum())
            self.bind(batch)
            eager(batch)

        self.backend.init_forward_metadata = planned
        self.backend.init_cpu_graph_state = lambda *sizes: None
        self.backend.get_cpu_graph_seq_len_fill_value = lambda: 1
        self.backend.init_forward_metadata_capture_cpu_graph = self._plan_capture
        self.host.engine.fill("srt.model_executor.cpu_graph_runner", {"patch_model": uncompiled})

    def replay(self, batch: Any) -> Tensor:
        """Run a decode; forget first what an eager forward preset, and note that it was set."""
        if getattr(self.pool.kv, "swa_loc", None) is not None:
            self.left_behind = True
            self.pool.kv.set_swa_loc(None)
        with self._context():
            return super().replay(batch)

    def _plan_capture(
        self, size: int, tokens: int, rows: Tensor, lengths: Tensor, *rest: Any
    ) -> None:
        nothing = torch.zeros(size, dtype=torch.int64, device=rows.device)
        batch = self.batches(
            forward_mode=self.modes.DECODE,
            batch_size=size,
            input_ids=nothing,
            req_pool_indices=rows,
            seq_lens=lengths,
            out_cache_loc=nothing,
            seq_lens_sum=size,
        )
        self.backend.init_forward_metadata(batch)

    @property
    def bucket(self) -> int:
        """The captured size of the last replay."""
        return len(self.backend.forward_metadata.kv_indptr) - 1

    def inputs(self) -> Mapping[str, Tensor]:
        """Return the runner's static input buffers, by name."""
        return tensors_of(self.runner)

    def statics(self) -> Mapping[str, Tensor]:
        """Return every static buffer that a replay reads."""
        return self.inputs()

    def reads(self, rows: int) -> Reads:
        """Return what the first `rows` rows were told to read by the last replay's index lists."""
        planned = self.backend.forward_metadata
        return Reads(
            listed(planned.kv_indptr, planned.kv_indices, rows),
            listed(planned.window_kv_indptr, planned.window_kv_indices, rows),
        )


@contextmanager
def uncompiled(model: Any, *settings: Any, **named: Any) -> Iterator[Any]:
    """Stand for the engine's compiler of a model."""
    yield model.forward


def translator(host: Host, pool: ReleasedPool) -> Any:
    """Return the engine's converter of KV ids, or None in an engine without one."""
    try:
        made = host.engine.part("srt.mem_cache.kv_index_translator:KVIndexTranslator")
    except PartMissingError:
        return None
    return made(
        req_to_token=pool.requests.req_to_token,
        token_to_kv_pool_allocator=pool.allocator,
        token_to_kv_pool=pool.kv,
        page_size=pool.sizes.page_size,
        device=pool.device,
    )


def listed(indptr: Tensor, indices: Tensor, rows: int) -> list[list[int]]:
    """Return each row's part of a list of indices."""
    ends, flat = indptr[: rows + 1].tolist(), indices.tolist()
    return [flat[ends[row] : ends[row + 1]] for row in range(rows)]


def tensors_of(holder: Any) -> dict[str, Tensor]:
    """Return the tensors that an object holds directly, by name."""
    names = [each.name for each in fields(holder)] if is_dataclass(holder) else vars(holder)
    return {
        name: value for name in names if isinstance(value := getattr(holder, name), torch.Tensor)
    }
