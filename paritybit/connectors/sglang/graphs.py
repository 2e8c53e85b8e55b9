"""The static inputs and outputs of a graph runner.

A runner keeps its graphs by a key that contains the batch size. An input has the same number of
entries per row in all graphs. Its value is the argument of the same name, or the attribute of that
name in the engine's batch or in the draft's input.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.following import attributes, expected, implied_by, padding, tensors
from paritybit.connectors.hooking import maybe
from paritybit.connectors.sglang.attention import VERIFY, attending
from paritybit.connectors.sglang.pools import PREFILLS
from paritybit.watch.facts import Forward, StaticInput

AXES = {"mrope_positions": 1}
"""The axis along which an input is padded, if it is not the first."""

TOKENS = ("input_ids", "positions", "mrope_positions", "out_cache_loc", "out_cache_loc_swa")
ROWS = ("req_pool_indices", "seq_lens", "seq_lens_cpu")
DRAFT = ("positions", "out_cache_loc", *ROWS, "topk_p", "topk_index", "hidden_states")

ACCEPTED = ("extend_seq_lens", "num_accept_tokens", "num_correct_drafts")

REFRESHED = {
    "CudaGraphRunner": (*TOKENS, *ROWS, "encoder_lens"),
    "DecodeCudaGraphRunner": (*TOKENS, *ROWS, "encoder_lens"),
    "PrefillCudaGraphRunner": TOKENS,
    "PiecewiseCudaGraphRunner": TOKENS,
    "BreakableCudaGraphRunner": TOKENS,
    "EAGLEDraftCudaGraphRunner": DRAFT,
    "EAGLEDraftExtendCudaGraphRunner": (*TOKENS, *ROWS, "hidden_states", *ACCEPTED),
}
"""The inputs that the batch must fill before each replay, by kind of runner."""

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

COUNT = "num_token_non_padded"
"""The input with the number of tokens that are not padding."""

LOGITS = "next_token_logits_buffer"
"""An output among the inputs of a runner."""

SLID = "cuda_graph_swa_out_cache_loc"
"""The input of a backend with the slots of `out_cache_loc` in the sliding sub-pool."""


def graphs_of(runner: Any) -> Mapping[Any, Any]:
    """Return the graphs of whole models that a runner captured, by key.

    There are none if requests have different numbers of drafts: the keys then count tokens.
    """
    found: dict[Any, Any] = {}
    if maybe(runner, "ragged_verify_mode"):
        return found
    for holder, name in ((runner, "graphs"), (maybe(runner, "backend"), "_graphs")):
        graphs = maybe(holder, name)
        if isinstance(graphs, dict):
            found.update(graphs)
    return found


READY = "forward_metadata_ready"
"""The field of a batch that says that the metadata of attention were prepared."""


def outputs_of(
    runner: Any, key: Any, live: int, bucket: int
) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Return the outputs of a graph that have rows: live parts by name, and padded parts."""
    backend = maybe(runner, "backend")
    holders = maybe(runner, "output_buffers"), maybe(backend, "_outputs")
    output = next((one[key] for one in holders if isinstance(one, dict) and key in one), None)
    parts = [
        (name, tensor, len(tensor) // bucket * live)
        for name, tensor in tensors(output)
        if tensor.ndim and len(tensor) and len(tensor) % bucket == 0
    ]
    return {name: one[:end] for name, one, end in parts}, [one[end:] for _, one, end in parts]


def eager(watching: Any, now: Any) -> Callable[[], dict[str, Tensor]] | None:
    """Return a function that runs a batch without its graph, or None if there is none."""
    runner, kinds = now.model.runner, {"decode"}
    if hasattr(now.batch, READY):  # Else, what drafts need can only be prepared for the graph.
        kinds.add(VERIFY)
    if now.forward.kind not in kinds or now.call is None:
        return None
    if maybe(runner, "lora_manager") is not None:
        return None  # Adapters are prepared for the graph.

    def run() -> dict[str, Tensor]:
        names = "graph_runner", "decode_cuda_graph_runner"
        changes: list[tuple[Any, str, Any]] = [(runner, name, None) for name in names]
        if now.forward.kind == VERIFY:
            changes.append((now.batch, READY, False))
        without = attributes(*changes)
        again = attributes((watching, "eager", now))
        with as_after_the_first(watching, runner), without, again:
            return dict(tensors(now.call().logits_output))

    return run


@contextlib.contextmanager
def as_after_the_first(watching: Any, model_runner: Any) -> Iterator[None]:
    """Hide a further run from the connector. What the first run had set is put back afterwards."""
    backend, pool = attending(model_runner.attn_backend), model_runner.token_to_kv_pool
    set_by_it = ((backend, "forward_metadata"), (pool, "swa_loc"))
    kept = [(owner, name, maybe(owner, name)) for owner, name in set_by_it]
    with watching.hidden(), attributes((watching, "requests", None), *kept):
        yield


def bucket_of(key: Any) -> int | None:
    """Return the size in the key of a graph: a number, an object or a text. None if unknown."""
    size = getattr(key, "size", key)
    if isinstance(size, str):
        size = size.rpartition("_")[2]
        return int(size) if size.isdigit() else None
    return size if isinstance(size, int) else None


def inputs_of(
    runner: Any, bucket: int, now: Any = None, ranges: Mapping[str, tuple[int, int]] | None = None
) -> list[StaticInput]:
    """Return the static inputs of a runner for a forward, or as at capture."""
    buffers, backend = getattr(runner, "buffers", runner), backend_of(runner)
    of_requests = maybe(runner, "_prefill_static_buffers") or {}
    held = {name: one for name, one in {**of_requests, **vars(buffers)}.items() if name != LOGITS}
    held |= {name: maybe(backend, name) for name in (*OF_BACKENDS, SLID)}
    tensors = {name: one for name, one in held.items() if isinstance(one, Tensor)}
    found = list[StaticInput]()
    for name, tensor in tensors.items():
        length = tensor.shape[AXES.get(name, 0)] if tensor.ndim else 1
        found.append(StaticInput(name, tensor, length, length, AXES.get(name, 0)))
    if now is None:
        return found
    pool, largest = now.model.pool, max(filter(None, map(bucket_of, graphs_of(runner))))
    writes = {**dict.fromkeys(("out_cache_loc_swa", SLID), pool.sliding)}
    if pool.share.ranks == 1:
        writes["out_cache_loc"] = pool.located
    for static in found:
        static.writes = writes.get(static.name)
        if static.writes is not None and static.writes == pool.sliding:
            static.dtype = pool.dtype_of_windows
        given, size = given_to(static.name, runner, now), static.live * bucket // largest
        if given is None or static.live % largest:
            continue
        if fits(given, static.tensor, static.axis, size):
            # Draft runners pad the batch itself.
            static.expected = now.implied.get(static.name, given)
            if static.name == "input_ids":
                static.expected = without_images(given, static.tensor, runner)
            static.live, static.size = static.expected.shape[static.axis], size
            static.valid = (ranges or {}).get(static.name)
            implied_by([static], now.bases)
    return found


def tails_of(runner: Any, live: int, bucket: int) -> list[StaticInput]:
    """Return the lengths of padded rows, with the value that the runner fills them with.

    A padded row with the length of an earlier request attends to as many slots.
    """
    lengths = maybe(getattr(runner, "buffers", runner), "seq_lens")
    right = maybe(runner, "seq_len_fill_value")
    if right is None or not isinstance(lengths, Tensor):
        return []
    return padding("seq_lens", lengths[live:bucket], int(right), lengths)


def counted(runner: Any, batch: Any, forward: Forward) -> list[StaticInput]:
    """Return the number of tokens that are not padding, by which experts leave out the others.

    The engine counts them with expert parallelism only.
    """
    counts = (maybe(batch, f"{scope}num_token_non_padded") for scope in ("global_", ""))
    held = maybe(runner, f"buffers.{COUNT}")
    if forward.kind not in (*PREFILLS, "decode", "idle") or not isinstance(held, Tensor):
        return []
    if not any(isinstance(one, Tensor) for one in counts):
        return []
    live = sum(row.computed for row in forward.rows)
    return [expected(COUNT, held.flatten(), [live])]


def without_images(given: Tensor, held: Tensor, runner: Any) -> Tensor:
    """Return ids of a batch, and what a runner holds in place of those that stand for images.

    A model gets embeddings for these. No other id is larger than the vocabulary.
    """
    size = maybe(runner, "model_runner.model_config.vocab_size")
    return given if size is None else torch.where(given < size, given, held[: len(given)])


def fits(given: Tensor, tensor: Tensor, axis: int, size: int) -> bool:
    """Return whether values of a batch can be the live part of an input."""
    if given.ndim != tensor.ndim or given.shape[axis] > size:
        return False
    others = [number for number in range(given.ndim) if number != axis]
    return all(given.shape[number] == tensor.shape[number] for number in others)


def given_to(name: str, runner: Any, now: Any) -> Tensor | None:
    """Return the value for an input of a runner, or None if the runner need not fill it."""
    pool, found = now.model.pool, [now.arguments.get(name)]
    if name == SLID and pool.sliding is not None:
        locations = now.implied.get("out_cache_loc", given_to("out_cache_loc", runner, now))
        return None if locations is None else pool.mapping[locations.long()]
    if name in REFRESHED.get(type(runner).__name__, ()):
        holders = now.batch, maybe(now.batch, "spec_info")
        found += [maybe(holder, name) for holder in holders]
    return next((one for one in found if isinstance(one, Tensor) and one.ndim), None)


def backend_of(runner: Any) -> Any:
    """Return the attention backend whose index lists the graphs of a runner read."""
    for name in ("attn_backend", "draft_attn_backend", "draft_extend_attn_backend"):
        backend = maybe(runner, name)
        if backend is not None:
            return attending(backend)
    return None
