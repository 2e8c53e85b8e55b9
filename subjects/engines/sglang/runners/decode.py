"""The engine's runners of decodes over its own pool: built, captured and replayed by its code."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch
from paritybit.reference.batch import Mode
from paritybit.reference.config import Kind
from paritybit.reference.model import Output
from paritybit.subjects.engines.sglang.padded import HOLDS
from paritybit.subjects.engines.sglang.runners.held import HeldByBackends
from paritybit.subjects.engines.sglang.runners.runner import SglangRunner, output_of, uncompiled
from paritybit.subjects.engines.sglang.runners.tensors import tensors_of
from paritybit.subjects.engines.shared.loading import attribute, named
from torch import Tensor

UNPOPULATED = frozenset({"num_token_non_padded"})
"""Static inputs that replays leave as they were captured: the settings that they serve are off."""

BACKEND_LOCATIONS = "attention.cuda_graph_swa_out_cache_loc"
"""What the static SWA write locations are called here, where an attention backend holds them.

The engine may call them otherwise.
"""

RowSlots = Mapping[Kind, list[list[int]]]
"""Per sub-pool, the engine's slots that each row is to read."""


class ReplayingRunner(SglangRunner, ABC):
    """A runner of batches of one mode, so many tokens of every request where those are as many."""

    mode: ClassVar[Mode] = Mode.DECODE
    tokens_per_request: ClassVar[int] = 1
    locations = BACKEND_LOCATIONS
    """What the static SWA write locations are called by the engine."""

    def find_locations(self, stored: Sequence[Tensor]) -> None:
        """Find the static SWA write locations by what the store was given during capture.

        A static input whose name is known is not looked at: its name says what it is. If none of
        the others is what the store was given, those tensors are looked at that were taken for a
        batch's.
        """
        statics, held = self.statics(), self.held.all()
        if BACKEND_LOCATIONS in statics:
            return
        of_batches = {name: held[name] for name in self.held.of_batches & held.keys()}
        for names in (statics, of_batches):
            for name, one in names.items():
                if name not in HOLDS and any(lies_in(one, part) for part in stored):
                    self.locations = name
            if self.locations in names:
                self.held.of_batches.discard(self.locations)
                return

    @property
    def backends(self) -> Mapping[str, Any]:
        """The attention backends whose tensors graphs read, by what they are called here."""
        return {"attention": self.backend}

    @cached_property
    def held(self) -> HeldByBackends:
        """What the attention backends hold."""
        return HeldByBackends(lambda: self.backends)

    def build(self) -> Any:
        """Build the engine's runner, watched as it captures its graphs."""
        with self.held.watched():
            return super().build()

    def by_names_here(self, held: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return static inputs with the SWA write locations by the name that they have here."""
        known = {self.locations: BACKEND_LOCATIONS}
        return {known.get(name, name): one for name, one in held.items()}

    def replay(self, batch: Any) -> Output:
        """Run a batch through the engine's captured graph; return what its live rows give."""
        return output_of(self.executed(batch))

    def executed(self, batch: Any, **named_so: Any) -> Any:
        """Let the engine's runner replay a batch, told what else it takes; return what it gives."""
        return named(attribute(self.runner, "execute", "replay"), **named_so)(batch)

    @property
    def carries_states(self) -> bool:
        """Whether what recurrent states add reaches the graph. Asked right after capture."""
        return "mamba_track_indices" in self.inputs()

    def can_run(self, batch: Any) -> bool:
        """Whether the engine would replay this batch: its runner is asked, as it is on a server."""
        return bool(attribute(self.runner, "can_run_graph", "can_run")(batch))

    def live_size(self, batch: Any) -> int:
        """Return how much of a bucket is live, in its own unit."""
        return int(batch.batch_size)

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

    def given(self, batch: Any) -> Mapping[str, Tensor]:
        """Return what a batch brings for the static inputs that the last replay read, by name."""
        found = {
            name: getattr(batch, name, None) for name in sorted(self.inputs().keys() - UNPOPULATED)
        }
        if BACKEND_LOCATIONS in self.statics():
            found[BACKEND_LOCATIONS] = self.pool.translate(batch.out_cache_loc)
        return {name: one.clone() for name, one in found.items() if isinstance(one, Tensor)}

    @abstractmethod
    def reads(self, batch: Any) -> RowSlots:
        """Return the slots that the last replay's index lists give its rows to read.

        It was that of `batch`. There is a row for each token. The slots are the engine's.
        """


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
        return self.by_names_here(tensors_of(self.runner.buffers))

    def statics(self) -> Mapping[str, Tensor]:
        """Return every static buffer that a replay reads: the runner's and the backend's."""
        return {**self.inputs(), **self.by_names_here(self.held.statics())}

    def reads(self, batch: Any) -> RowSlots:
        """Return the slots that the last replay's index lists give its bucket's rows."""
        held, rows = self.backend, self.bucket
        return {
            Kind.FULL: listed(held.kv_indptr, held.cuda_graph_kv_indices, rows),
            Kind.SWA: listed(held.window_kv_indptr, held.cuda_graph_window_kv_indices, rows),
        }


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

    def replay(self, batch: Any) -> Output:
        """Run a decode; forget first what an eager forward preset, and note that it was set."""
        if self.pool.preset_locations is not None:
            self.left_behind = True
            self.pool.preset(None)
        with self.context():
            return super().replay(batch)

    def given(self, batch: Any) -> Mapping[str, Tensor]:
        """Return what a batch brings for static inputs: nothing if it is as large as its bucket.

        The captured function is then handed the batch's own tensors.
        """
        return {} if batch.batch_size == self.bucket else super().given(batch)

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

    def reads(self, batch: Any) -> RowSlots:
        """Return the slots that the last replay's index lists give its bucket's rows."""
        planned, rows = self.backend.forward_metadata, self.bucket
        return {
            Kind.FULL: listed(planned.kv_indptr, planned.kv_indices, rows),
            Kind.SWA: listed(planned.window_kv_indptr, planned.window_kv_indices, rows),
        }


def lies_in(held: Tensor, part: Tensor) -> bool:
    """Whether a tensor begins within the memory of another."""
    return held.data_ptr() <= part.data_ptr() < held.data_ptr() + held.nbytes


def listed(indptr: Tensor, indices: Tensor, rows: int) -> list[list[int]]:
    """Return each row's part of a list of indices."""
    ends, flat = indptr[: rows + 1].tolist(), indices.tolist()
    return [flat[ends[row] : ends[row + 1]] for row in range(rows)]
