"""The static inputs and outputs of a graph runner.

A runner keeps its inputs in `buffers`, its graphs in `graphs` or in a backend's `_graphs`, by the
size of the batch or a key that has it. An input has as many entries per row in each graph as in
the largest. What the batch gives to an input is the attribute of the same name of the engine's
ForwardBatch, or of the draft's input.

The runner of a CPU keeps its inputs itself, and compiles a function in place of each graph. A batch
that is as large as a function's is given to it as it is, and only a smaller one fills the inputs.
"""

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor

from paritybit.connectors.hooking import guarded
from paritybit.connectors.sglang.lists import attending
from paritybit.connectors.sglang.pools import Pool
from paritybit.connectors.sglang.rows import Rows
from paritybit.connectors.sglang.sources import source_of
from paritybit.watch.facts import StaticInput

AXES = {"mrope_positions": 1}
"""The axis of an input along which it is padded, where that is not the first."""

TOKENS = ("input_ids", "positions", "mrope_positions", "out_cache_loc", "out_cache_loc_swa")
ROWS = ("req_pool_indices", "seq_lens", "seq_lens_cpu")
DRAFT = ("positions", "out_cache_loc", *ROWS, "topk_p", "topk_index", "hidden_states")

ACCEPTED = ("extend_seq_lens", "num_accept_tokens", "num_correct_drafts")

OF_A_CPU, FROZEN = "CPUGraphRunner", "FrozenKVMTPCudaGraphRunner"

REFRESHED = {
    OF_A_CPU: (*TOKENS, *ROWS, "encoder_lens"),
    "CudaGraphRunner": (*TOKENS, *ROWS, "encoder_lens"),
    "DecodeCudaGraphRunner": (*TOKENS, *ROWS, "encoder_lens"),
    "PrefillCudaGraphRunner": TOKENS,
    "PiecewiseCudaGraphRunner": TOKENS,
    "BreakableCudaGraphRunner": TOKENS,
    "EAGLEDraftCudaGraphRunner": DRAFT,
    FROZEN: (*ROWS, "positions", "hidden_states", "bonus_tokens"),
    "EAGLEDraftExtendCudaGraphRunner": (*TOKENS, *ROWS, "hidden_states", *ACCEPTED),
}
"""Per kind of runner, the inputs that the batch must give to it before each replay."""

OF_BACKENDS = (
    "kv_indptr",
    "window_kv_indptr",
    "qo_indptr",
    "cuda_graph_kv_indices",
    "cuda_graph_window_kv_indices",
    "cuda_graph_num_kv_splits",
    "cuda_graph_window_num_kv_splits",
    "cuda_graph_window_kv_offsets",
)
"""Inputs that attention backends keep, where they have them."""

TAKEN = frozenset({"forward_batch", "pp_proxy_tensors", "split_forward_count"})
"""What the method of a model runner takes that runs a batch, besides others."""

SLID = "cuda_graph_swa_out_cache_loc"
"""The input of a backend that has the slots of `out_cache_loc` in the sliding sub-pool."""


@dataclasses.dataclass(frozen=True)
class Shape:
    """The live rows of a replay and those of its graph."""

    live: int
    bucket: int


def graphs_of(runner: Any) -> Mapping[Any, Any]:
    """Return the whole graphs that a runner captured, by key."""
    found: dict[Any, Any] = {}
    for holder, name in ((runner, "graphs"), (getattr(runner, "backend", None), "_graphs")):
        graphs = getattr(holder, name, None)
        if isinstance(graphs, dict):
            found.update(graphs)
    return found


def follow_functions(runner: Any, replay: Callable[..., Any]) -> None:
    """Give each call of a function that a runner compiled in place of a graph to `replay`."""
    if type(runner).__name__ == OF_A_CPU:
        for key, function in runner.graphs.items():
            runner.graphs[key] = followed(function, replay)


def followed(function: Callable[..., Any], replay: Callable[..., Any]) -> Callable[..., Any]:
    """Return a compiled function that gives each call to `replay`, which wraps one of a graph."""
    hook = guarded(replay)

    def run(graph: Any, *arguments: Any, **named: Any) -> Any:
        return function(*arguments, **named)

    def called(*arguments: Any, **named: Any) -> Any:
        return hook(run, called, *arguments, **named)

    return called


class Returning:
    """A replay that may be run again. `value` is what it returned last."""

    def __init__(self, run: Callable[[], Any]) -> None:
        self.run, self.value = run, None

    def __call__(self) -> Any:
        """Run it, and return what it returns."""
        self.value = self.run()
        return self.value


def outputs_of(runner: Any, key: Any, shape: Shape, run: Returning) -> dict[str, Tensor]:
    """Return the live part of what a graph computed, by name.

    A compiled function returns it. Other graphs leave it where they did when they were captured.
    """
    if type(runner).__name__ == OF_A_CPU:
        return live_parts(run.value, shape)
    for holder, name in (
        (runner, "output_buffers"),
        (getattr(runner, "backend", None), "_outputs"),
    ):
        outputs = getattr(holder, name, None)
        if isinstance(outputs, dict) and key in outputs:
            return live_parts(outputs[key], shape)
    return {}


def live_parts(output: Any, shape: Shape) -> dict[str, Tensor]:
    """Return the live part of each tensor in an output, by name."""
    return {
        name: tensor[: len(tensor) // shape.bucket * shape.live]
        for name, tensor in tensors(output, "")
        if tensor.ndim and len(tensor) and len(tensor) % shape.bucket == 0
    }


@functools.cache
def runs_batches(kind: type) -> str | None:
    """Return the method that runs a batch which `forward` has prepared, None if it is not known.

    It is private, so it is told by what it takes, not by its name.
    """
    found = [
        name
        for name, held in inspect.getmembers(kind, inspect.isfunction)
        if name.startswith("_") and set(inspect.signature(held).parameters) >= TAKEN
    ]
    return found[0] if len(found) == 1 else None


def eager(
    watching: Any, model_runner: Any, batch: Any, kind: str
) -> Callable[[], dict[str, Tensor]] | None:
    """Return what runs a batch of a kind of forward without its graph, None where nothing does.

    What is `watching` the engine is not told of it.
    """
    name = runs_batches(model_runner.__class__) if kind == "decode" else None
    if name is None:
        return None
    return functools.partial(eagerly, watching, getattr(model_runner, name), model_runner, batch)


def eagerly(
    watching: Any, run: Callable[..., Any], model_runner: Any, batch: Any
) -> dict[str, Tensor]:
    """Run a batch of a model without its graphs, and return what it computed, by name.

    What an eager forward leaves behind for later ones is put back.
    """
    arguments = {"skip_attn_backend_init": False, "pp_proxy_tensors": None}
    known = inspect.signature(run).parameters
    with contextlib.ExitStack() as kept:
        for name in ("now", "requests"):
            kept.enter_context(attribute(watching, name, None))
        for name in ("graph_runner", "decode_cuda_graph_runner"):
            if hasattr(model_runner, name):
                kept.enter_context(attribute(model_runner, name, None))
        for owner, name in (
            (attending(model_runner.attn_backend), "forward_metadata"),
            (model_runner.token_to_kv_pool, "swa_loc"),
        ):
            if hasattr(owner, name):
                kept.enter_context(attribute(owner, name, getattr(owner, name)))
        output = run(batch, **{name: arguments[name] for name in arguments if name in known})
    return dict(tensors(output.logits_output, ""))


@contextlib.contextmanager
def attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Give an attribute another value, and its own back afterwards."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def tensors(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in an output: a tensor, a sequence, or an object with attributes."""
    if isinstance(value, Tensor):
        yield name or "output", value
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from tensors(item, f"{name}[{number}]" if name else f"output[{number}]")
    elif dataclasses.is_dataclass(value):
        for attribute, item in vars(value).items():
            if isinstance(item, Tensor):
                yield attribute, item


def bucket_of(key: Any) -> int | None:
    """Return the size in a graph's key: a number, something with `size`, or text ending in it."""
    size = getattr(key, "size", key)
    if isinstance(size, str):
        size = size.rpartition("_")[2]
        return int(size) if size.isdigit() else None
    return size if isinstance(size, int) else None


def inputs_of(
    runner: Any,
    batch: Any,
    bucket: int,
    ranges: Mapping[str, tuple[int, int]],
    pool: Pool | None,
    implied: Mapping[str, Tensor],
) -> list[StaticInput]:
    """Return the static inputs of a runner. `batch` None gives them as at capture.

    `ranges` are the values that padding may hold, by name. `implied` are the right values of
    inputs for which they are known otherwise than from the batch.
    """
    buffers, backend = getattr(runner, "buffers", runner), backend_of(runner)
    largest = max(filter(None, map(bucket_of, graphs_of(runner))), default=bucket)
    found = []

    writes = {} if pool is None else slots_to_write(pool)

    def add(name: str, tensor: Tensor, given: Tensor | None, owners: tuple[type, ...]) -> None:
        axis = AXES.get(name, 0)
        length = tensor.shape[axis] if tensor.ndim else 1
        size = length * bucket // largest
        if given is not None and not (length % largest == 0 and fits(given, tensor, axis, size)):
            given = None
        static = StaticInput(name, tensor, length, length, axis, source=source_of(name, *owners))
        static.writes = writes.get(name)
        if pool is not None and static.writes is not None and static.writes == pool.sliding:
            static.dtype = pool.dtype_of_windows
        if given is not None:
            static.expected = implied.get(name, given)  # Runners of drafts pad the batch itself.
            static.live, static.size = static.expected.shape[axis], size
            static.valid = ranges.get(name)
        found.append(static)

    of_requests = getattr(runner, "_prefill_static_buffers", None) or {}
    for name, tensor in {**of_requests, **vars(buffers)}.items():
        if isinstance(tensor, Tensor) and name != "next_token_logits_buffer":
            add(name, tensor, given_to(name, batch, runner), (type(buffers), type(runner)))
    for name in OF_BACKENDS:
        if isinstance(getattr(backend, name, None), Tensor):
            add(name, getattr(backend, name), None, (type(backend),))
    if isinstance(getattr(backend, SLID, None), Tensor):
        locations = implied.get("out_cache_loc", given_to("out_cache_loc", batch, runner))
        slid = None
        if locations is not None and pool is not None and pool.sliding is not None:
            slid = pool.mapping[locations.long()]
        add(SLID, getattr(backend, SLID), slid, (type(backend),))
    return found


def slots_to_write(pool: Pool) -> dict[str, str]:
    """Return, by the name of an input that holds slots to write, their group."""
    full = next((name for name in pool.groups if name != pool.sliding), None)
    found = {"out_cache_loc": full, "out_cache_loc_swa": pool.sliding, SLID: pool.sliding}
    return {name: group for name, group in found.items() if group is not None}


def fits(given: Tensor, tensor: Tensor, axis: int, size: int) -> bool:
    """Whether a batch's values can be the live part of an input."""
    if given.ndim != tensor.ndim or given.shape[axis] > size:
        return False
    others = [number for number in range(given.ndim) if number != axis]
    return all(given.shape[number] == tensor.shape[number] for number in others)


def given_to(name: str, batch: Any, runner: Any) -> Tensor | None:
    """Return what the batch gives to an input of a runner, or None if it need not."""
    kind = type(runner).__name__
    if kind == OF_A_CPU and batch is not None and batch.batch_size in runner.graphs:
        return None
    if name in REFRESHED.get(kind, ()):
        for holder in (batch, getattr(batch, "spec_info", None)):
            value = getattr(holder, name, None)
            if isinstance(value, Tensor) and value.ndim:
                return value
    return None


def live(runner: Any, batch: Any, found: Rows) -> int:
    """Return the live rows of a replay, or its tokens if the runner's graphs go by tokens.

    `found` has the rows of the forward; a runner may have padded the batch itself.
    """
    if type(runner).__name__ == FROZEN:
        return len(found.rows) // int(runner.topk)
    by_tokens = hasattr(runner, "capture_num_tokens") and not hasattr(runner, "capture_bs")
    return len(batch.input_ids) if by_tokens else int(batch.batch_size)


def rows_of(runner: Any, bucket: int) -> int:
    """Return how many rows of lists a graph has: some have one per branch of a draft."""
    return bucket * int(runner.topk) if type(runner).__name__ == FROZEN else bucket


def backend_of(runner: Any) -> Any:
    """Return the attention backend whose lists a runner's graphs read."""
    for name in ("attn_backend", "draft_attn_backend", "draft_extend_attn_backend"):
        backend = getattr(runner, name, None)
        if backend is not None:
            return attending(backend)
    return None
