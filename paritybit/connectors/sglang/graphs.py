"""The static inputs and outputs of a graph runner.

A runner keeps its inputs in `buffers`, and its graphs in `graphs` or in `_graphs` of its backend,
by a key that contains the batch size. An input has the same number of entries per row in all
graphs. The value for an input is the argument of the same name that the runner is called with, or
the attribute of that name in the engine's ForwardBatch, or in the draft's input.

The graph runner for CPUs keeps its inputs itself, and compiles a function in place of each graph.
It passes a batch of a captured size to the function directly. Only a smaller batch fills the
inputs.
"""

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor

from paritybit.connectors.hooking import guarded
from paritybit.connectors.repeated import attribute, tensors
from paritybit.connectors.sglang.lists import attending
from paritybit.connectors.sglang.pools import Pool
from paritybit.connectors.sglang.rows import Rows
from paritybit.watch.facts import StaticInput

AXES = {"mrope_positions": 1}
"""The axis along which an input is padded, if that is not the first axis."""

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
"""For each kind of runner, the inputs that the batch must fill before each replay."""

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
"""Inputs that an attention backend may keep."""

BATCH, TAKEN = "forward_batch", frozenset({"pp_proxy_tensors", "split_forward_count"})
"""The first parameter of the model runner's method that runs a batch, and some others."""

SLID = "cuda_graph_swa_out_cache_loc"
"""The input of a backend with the slots of `out_cache_loc` in the sliding sub-pool."""


@dataclasses.dataclass(frozen=True)
class Shape:
    """The numbers of live rows of a replay and of rows of its graph."""

    live: int
    bucket: int


def graphs_of(runner: Any) -> Mapping[Any, Any]:
    """Return the graphs of whole models that a runner captured, by key."""
    found: dict[Any, Any] = {}
    for holder, name in ((runner, "graphs"), (getattr(runner, "backend", None), "_graphs")):
        graphs = getattr(holder, name, None)
        if isinstance(graphs, dict):
            found.update(graphs)
    return found


def key_of(runner: Any, graph: Any) -> Any:
    """Return the key of a graph of a runner, or None if the runner has no such graph."""
    return next((key for key, known in graphs_of(runner).items() if known is graph), None)


def follow_functions(runner: Any, replay: Callable[..., Any]) -> None:
    """Pass each call of a function that a runner compiled in place of a graph to `replay`."""
    if type(runner).__name__ == OF_A_CPU:
        for key, function in runner.graphs.items():
            runner.graphs[key] = followed(function, replay)


def followed(function: Callable[..., Any], replay: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that passes each of its calls to `replay`, as the replay of a graph."""
    hook = guarded(replay)

    def run(graph: Any, *arguments: Any, **named: Any) -> Any:
        return function(*arguments, **named)

    def called(*arguments: Any, **named: Any) -> Any:
        return hook(run, called, *arguments, **named)

    return called


class Returning:
    """A replay that can be repeated. `value` is the last result."""

    def __init__(self, run: Callable[[], Any]) -> None:
        self.run, self.value = run, None

    def __call__(self) -> Any:
        """Run the replay, and return its result."""
        self.value = self.run()
        return self.value


def outputs_of(runner: Any, key: Any, shape: Shape, run: Returning) -> dict[str, Tensor]:
    """Return the live part of a graph's outputs, by name."""
    return {
        name: tensor[: len(tensor) // shape.bucket * shape.live]
        for name, tensor in parts_of(output_of(runner, key, run), shape)
    }


def padding_of(runner: Any, key: Any, shape: Shape, run: Returning) -> list[Tensor]:
    """Return the padded parts of a graph's outputs."""
    return [
        tensor[len(tensor) // shape.bucket * shape.live :]
        for _, tensor in parts_of(output_of(runner, key, run), shape)
    ]


def output_of(runner: Any, key: Any, run: Returning) -> Any:
    """Return the outputs of a graph, with their padding. None if they are unknown.

    A compiled function returns its outputs. Other graphs write them to the same tensors as at
    their capture.
    """
    if type(runner).__name__ == OF_A_CPU:
        return run.value
    for holder, name in (
        (runner, "output_buffers"),
        (getattr(runner, "backend", None), "_outputs"),
    ):
        outputs = getattr(holder, name, None)
        if isinstance(outputs, dict) and key in outputs:
            return outputs[key]
    return None


def parts_of(output: Any, shape: Shape) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in an output that have rows of a batch, with their names."""
    for name, tensor in tensors(output):
        if tensor.ndim and len(tensor) and len(tensor) % shape.bucket == 0:
            yield name, tensor


@functools.cache
def runs_batches(kind: type) -> str | None:
    """Return the name of the method that runs a prepared batch, or None if it is unknown.

    The method is private, so it is recognised by its parameters and not by its name. Its first one
    is the batch. A method that gets an output first may run the batch again.
    """
    private = {
        name: [*inspect.signature(held).parameters][1:]
        for name, held in inspect.getmembers(kind, inspect.isfunction)
        if name.startswith("_")
    }
    found = [
        name for name, taken in private.items() if taken[:1] == [BATCH] and set(taken) >= TAKEN
    ]
    return found[0] if len(found) == 1 else None


def eager(
    watching: Any, model_runner: Any, batch: Any, kind: str
) -> Callable[[], dict[str, Tensor]] | None:
    """Return a function that runs a batch without its graph, or None if there is none.

    `watching` is the connector's engine. It does not observe this run.
    """
    name = runs_batches(model_runner.__class__) if kind == "decode" else None
    if name is None:
        return None
    return functools.partial(eagerly, watching, getattr(model_runner, name), model_runner, batch)


def eagerly(
    watching: Any, run: Callable[..., Any], model_runner: Any, batch: Any
) -> dict[str, Tensor]:
    """Run a batch of a model without its graphs, and return its outputs by name.

    Afterwards, the state that an eager forward leaves behind is restored.
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
        kept.enter_context(adapters_anew(model_runner, batch))
        output = run(batch, **{name: arguments[name] for name in arguments if name in known})
    return dict(tensors(output.logits_output))


@contextlib.contextmanager
def adapters_anew(model_runner: Any, batch: Any) -> Iterator[None]:
    """Prepare the adapters of a batch for a forward without a graph, and restore what it had."""
    manager = getattr(model_runner, "lora_manager", None)
    if manager is None or getattr(batch, "lora_ids", None) is None:
        yield
        return
    backend = manager.lora_backend
    with contextlib.ExitStack() as kept:
        for name, value in list(vars(backend).items()):
            kept.enter_context(attribute(backend, name, value))
        for name in ("max_bs_in_cuda_graph", "max_bs_in_decode_cuda_graph"):
            if hasattr(manager, name):
                kept.enter_context(attribute(manager, name, 0))
        manager.prepare_lora_batch(batch)
        yield


def bucket_of(key: Any) -> int | None:
    """Return the size in the key of a graph, or None.

    A key is a number, an object with an attribute `size`, or a text that ends with the number.
    """
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
    arguments: Mapping[str, Any] | None = None,
) -> list[StaticInput]:
    """Return the static inputs of a runner. With `batch` None, they are described as at capture.

    `ranges` are the values that padding may have, by name. `implied` are the expected values of
    inputs that are known independently of the batch. `arguments` are those of the runner.
    """
    buffers, backend = getattr(runner, "buffers", runner), backend_of(runner)
    largest = max(filter(None, map(bucket_of, graphs_of(runner))), default=bucket)
    found: list[StaticInput] = []
    held = functools.partial(given_to, batch=batch, runner=runner, arguments=arguments)

    writes = {} if pool is None else slots_to_write(pool)

    def add(name: str, tensor: Tensor, given: Tensor | None) -> None:
        axis = AXES.get(name, 0)
        length = tensor.shape[axis] if tensor.ndim else 1
        size = length * bucket // largest
        if given is not None and not (length % largest == 0 and fits(given, tensor, axis, size)):
            given = None
        static = StaticInput(name, tensor, length, length, axis)
        static.writes = writes.get(name)
        if pool is not None and static.writes is not None and static.writes == pool.sliding:
            static.dtype = pool.dtype_of_windows
        if given is not None:
            static.expected = implied.get(name, given)  # Draft runners pad the batch itself.
            static.live, static.size = static.expected.shape[axis], size
            static.valid = ranges.get(name)
        found.append(static)

    of_requests = getattr(runner, "_prefill_static_buffers", None) or {}
    for name, tensor in {**of_requests, **vars(buffers)}.items():
        if isinstance(tensor, Tensor) and name != "next_token_logits_buffer":
            add(name, tensor, held(name))
    for name in OF_BACKENDS:
        if isinstance(getattr(backend, name, None), Tensor):
            add(name, getattr(backend, name), None)
    if isinstance(getattr(backend, SLID, None), Tensor):
        locations = implied.get("out_cache_loc", held("out_cache_loc"))
        slid = None
        if locations is not None and pool is not None and pool.sliding is not None:
            slid = pool.mapping[locations.long()]
        add(SLID, getattr(backend, SLID), slid)
    return found


def slots_to_write(pool: Pool) -> dict[str, str]:
    """Return the group of each input that holds slots to write, by the name of the input."""
    full = next((name for name in pool.groups if name != pool.sliding), None)
    found = {"out_cache_loc": full, "out_cache_loc_swa": pool.sliding, SLID: pool.sliding}
    return {name: group for name, group in found.items() if group is not None}


def fits(given: Tensor, tensor: Tensor, axis: int, size: int) -> bool:
    """Return whether values of a batch can be the live part of an input."""
    if given.ndim != tensor.ndim or given.shape[axis] > size:
        return False
    others = [number for number in range(given.ndim) if number != axis]
    return all(given.shape[number] == tensor.shape[number] for number in others)


def given_to(
    name: str, batch: Any, runner: Any, arguments: Mapping[str, Any] | None = None
) -> Tensor | None:
    """Return the value for an input of a runner, or None if the runner need not fill it.

    A runner is called with an argument in order to fill the input of this name.
    """
    kind = type(runner).__name__
    if kind == OF_A_CPU and batch is not None and batch.batch_size in runner.graphs:
        return None
    found = [(arguments or {}).get(name)]
    if name in REFRESHED.get(kind, ()):
        found += [getattr(held, name, None) for held in (batch, getattr(batch, "spec_info", None))]
    return next((one for one in found if isinstance(one, Tensor) and one.ndim), None)


def live(runner: Any, batch: Any, found: Rows) -> int:
    """Return the number of live rows of a replay, or of tokens for graphs sized by tokens.

    `found` has the rows of the forward, because a runner may have padded the batch.
    """
    if type(runner).__name__ == FROZEN:
        return len(found.rows) // int(runner.topk)
    by_tokens = hasattr(runner, "capture_num_tokens") and not hasattr(runner, "capture_bs")
    return len(batch.input_ids) if by_tokens else int(batch.batch_size)


def rows_of(runner: Any, bucket: int) -> int:
    """Return the number of rows in a graph's index lists. Some have one row per draft branch."""
    return bucket * int(runner.topk) if type(runner).__name__ == FROZEN else bucket


def backend_of(runner: Any) -> Any:
    """Return the attention backend whose index lists the graphs of a runner read."""
    for name in ("attn_backend", "draft_attn_backend", "draft_extend_attn_backend"):
        backend = getattr(runner, name, None)
        if backend is not None:
            return attending(backend)
    return None
