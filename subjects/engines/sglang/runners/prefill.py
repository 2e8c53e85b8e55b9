"""The engine's runners of prefills over its own pool: built, captured and replayed by its code.

Between their graphs attention runs eagerly, on the live tokens of the batch under way.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from paritybit.reference.batch import Mode
from paritybit.reference.config import Kind
from paritybit.reference.model import Output
from paritybit.subjects.engines.sglang.padded import registry_of
from paritybit.subjects.engines.sglang.runners.decode import ReplayingRunner, RowSlots, listed
from paritybit.subjects.engines.sglang.runners.tensors import tensors_of
from paritybit.subjects.engines.shared.loading import attribute
from paritybit.subjects.engines.shared.missing import PartMissingError, RunnerLackingError
from paritybit.subjects.graphs.pieces import installed, splitting
from torch import Tensor

ANY_PADDING = {"_MAX_PREFILL_CUDA_GRAPH_PADDING_FACTOR": 1 << 20}
"""What lets an engine replay a batch however much of it is padding; it costs time alone."""


class PrefillRunner(ReplayingRunner):
    """A prefill runner. `backend_name` is what engines with one class for all call its graphs."""

    mode = Mode.EXTEND
    backend_name: ClassVar[str]

    def prepare(self) -> None:
        """Choose the kind of graphs; let every batch that a captured size holds be replayed.

        Raises RunnerLackingError where the engine's own list of kinds has no such one.
        """
        super().prepare()
        try:
            kinds = self.host.engine.part("srt.model_executor.cuda_graph_config:Backend").ALL
        except PartMissingError:  # An engine with a class for each kind.
            kinds = (self.backend_name,)
        if self.backend_name not in kinds:
            listed = ", ".join(kinds)
            raise RunnerLackingError(
                f"the engine's own list of prefill graphs has {listed} but not {self.backend_name}"
            )
        graphs = self.host.arguments.cuda_graph_config.prefill
        graphs.set("backend", self.backend_name)
        graphs.set("tc_compiler", "eager")
        self.model_runner.set("_pp_kwargs", lambda tensors: {})
        found = self.runner_type()
        module = self.host.engine.module(found.__module__.partition(".")[2])
        for name, value in ANY_PADDING.items():
            if hasattr(module, name):
                setattr(module, name, value)

    def replay(self, batch: Any) -> Output:
        """Run a prefill through the engine's graphs; return what its live rows give."""
        with self.context():
            return super().replay(batch)

    @property
    def carries_states(self) -> bool:
        """Whether what recurrent states add reaches the graph: by embeddings, which are static."""
        return super().carries_states and self.model.has_embeddings

    def live_size(self, batch: Any) -> int:
        """Return how many tokens of a bucket are live."""
        return len(batch.input_ids)

    @property
    def bucket(self) -> int:
        """The captured size of the last replay, in tokens."""
        live = self.runner.raw_num_tokens
        return int(min(size for size in self.runner.capture_num_tokens if size >= live))

    def inputs(self) -> Mapping[str, Tensor]:
        """Return the runner's static input buffers, by name."""
        registry = registry_of(self.runner)
        if registry is not None:
            slots = attribute(registry, "_slots")
            return {name: slot.buffer for name, slot in slots.items()}
        return tensors_of(self.runner.buffers)

    def statics(self) -> Mapping[str, Tensor]:
        """Return every static buffer that a replay reads: inputs, and facts of requests."""
        facts = self.facts() or {
            name: held
            for name, held in tensors_of(self.runner).items()
            if name.startswith("static_")
        }
        return {**self.inputs(), **facts}

    def facts(self) -> dict[str, Tensor]:
        """Return the static facts of requests, which later releases hold in a dictionary.

        It is known by what it holds, whatever it is called.
        """
        held = (one for one in vars(self.runner).values() if isinstance(one, dict) and one)
        found = (one for one in held if all(map(is_fact, one.items())))
        return next(found, {})

    def given(self, batch: Any) -> Mapping[str, Tensor]:
        """Return what a batch brings, and facts of its requests, in the dtypes of the static ones.

        Request rows are not among them: here they are no input of tokens, and have no padding.
        """
        brought = {
            name: value.to(held.dtype)
            for name, held in self.facts().items()
            if isinstance(value := getattr(batch, name, None), Tensor)
            and name != "req_pool_indices"
        }
        return {**super().given(batch), **brought}

    def reads(self, batch: Any) -> RowSlots:
        """Return the slots that each live token reads.

        Those of its request's prefix are the last replay's index lists; the new tokens before
        it, and itself, are handed to attention beside them.
        """
        planned, window = self.backend.forward_metadata, self.model.weights.config.window
        return {
            Kind.FULL: token_reads(
                batch, planned.kv_indptr, planned.kv_indices, batch.out_cache_loc, None
            ),
            Kind.SWA: token_reads(
                batch,
                planned.window_kv_indptr,
                planned.window_kv_indices,
                self.pool.translate(batch.out_cache_loc),
                window,
            ),
        }


def is_fact(held: tuple[Any, Any]) -> bool:
    """Whether an item of a dictionary is a tensor by its name: outputs are held by their size."""
    return isinstance(held[0], str) and isinstance(held[1], Tensor)


def token_reads(
    batch: Any, indptr: Tensor, indices: Tensor, new: Tensor, window: int | None
) -> list[list[int]]:
    """Return the slots that each token of a prefill reads: its last `window`, or all of them."""
    found, slots, first = list[list[int]](), new.tolist(), 0
    prefixes = listed(indptr, indices, batch.batch_size)
    for prefix, count in zip(prefixes, batch.extend_seq_lens_cpu, strict=True):
        for token in range(first, first + count):
            seen = prefix + slots[first : token + 1]
            found.append(seen if window is None else seen[-window:])
        first += count
    return found


class PiecewiseRunner(PrefillRunner):
    """The runner of prefill by pieces between attentions; its compiler is stood in for."""

    name = "piecewise"
    backend_name = "tc_piecewise"
    places = (
        "srt.model_executor.piecewise_cuda_graph_runner:PiecewiseCudaGraphRunner",
        "srt.model_executor.runner.prefill_cuda_graph_runner:PrefillCudaGraphRunner",
    )

    def prepare(self) -> None:
        """Let the model be captured in pieces, uncompiled, split at the engine's attention."""
        super().prepare()
        engine = self.host.engine
        attention = engine.module("srt.layers.radix_attention")
        name = "unified_attention_with_output"
        call = getattr(attention, name, None)  # Without it, the engine has no pieces to build.
        if call is not None and not hasattr(call, "__wrapped__"):
            setattr(attention, name, splitting(call))
        install = installed(
            engine.part(
                "srt.compilation.piecewise_context_manager:is_in_piecewise_cuda_graph",
                "srt.model_executor.runner_backend_utils.tc_piecewise_cuda_graph"
                ":is_in_tc_piecewise_cuda_graph",
            ),
            engine.part(
                "srt.compilation.piecewise_context_manager:is_in_pcg_torch_compile",
                "srt.compilation.compile_phase:is_in_torch_compile_warmup",
            ),
        )
        for module in (
            "srt.model_executor.piecewise_cuda_graph_runner",
            "srt.model_executor.runner_backend.tc_piecewise_cuda_graph_backend",
        ):
            try:
                engine.fill(module, {"install_torch_compiled": install})
            except PartMissingError:
                continue


class BreakableRunner(PrefillRunner):
    """The runner of prefill by segments broken at attention."""

    name = "breakable"
    backend_name = "breakable"
    places = (
        "srt.model_executor.breakable_cuda_graph_runner:BreakableCudaGraphRunner",
        "srt.model_executor.runner.prefill_cuda_graph_runner:PrefillCudaGraphRunner",
    )

    def prepare(self) -> None:
        """Hold what lies between two graphs: what would give its memory back is compiled."""
        super().prepare()
        for module in (
            "srt.model_executor.breakable_cuda_graph.breakable_cuda_graph",
            "srt.model_executor.runner_backend_utils.breakable_cuda_graph.breakable_cuda_graph",
        ):
            try:
                self.host.engine.fill(module, {"_weak_ref_if_tensor": lambda held: held})
            except PartMissingError:
                continue
