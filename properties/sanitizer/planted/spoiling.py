"""Faults that are planted in an engine of sglang that has started, in its process.

Each static input of a graph runner is got wrong in three ways after the engine has filled it, and
is bound again after the capture, as it was or in another dtype. What the engine's window, slot map
and allocator do is got wrong too.
"""

import gc
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.sglang.graphs import AXES, backend_of, bucket_of, graphs_of

ATTENTION = "attention."
"""How the names of inputs begin that the attention backend fills as it plans."""

OTHER_DTYPE = {torch.int32: torch.int64, torch.int64: torch.int32, torch.bool: torch.uint8}
"""What an index drifts to; floating point becomes half as wide."""


def stale_tail(held: Tensor, before: Tensor, axis: int, live: int) -> None:
    """Leave what padded rows held."""
    rest = held.shape[axis] - live
    held.narrow(axis, live, rest).copy_(before.narrow(axis, live, rest))


def stale_head(held: Tensor, before: Tensor, axis: int, live: int) -> None:
    """Leave what the first live row held."""
    held.narrow(axis, 0, 1).copy_(before.narrow(axis, 0, 1))


def wrong_head(held: Tensor, before: Tensor, axis: int, live: int) -> None:
    """Give the first live row another value."""
    first = held.narrow(axis, 0, 1)
    first.copy_(~first if first.dtype is torch.bool else first + 1)


CHANGES: Mapping[str, Callable[[Tensor, Tensor, int, int], None]] = {
    "tail not reset": stale_tail,
    "first row stale": stale_head,
    "first row wrong": wrong_head,
}

REBINDINGS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "bound again after the capture": Tensor.clone,
    "of another dtype after the capture": lambda held: held.to(
        OTHER_DTYPE.get(held.dtype, torch.bfloat16)
    ),
}


@dataclass
class Spoiled:
    """How often a fault changed something, and after how many replays the right value was back."""

    changed: int = 0
    undone: int = 0


@dataclass
class Target:
    """A graph runner of the engine, its static inputs and those of its backend by name.

    `sizes` are its buckets: of tokens if it pads `by_tokens`, else of rows.
    """

    runner: Any
    inputs: dict[str, Tensor] = field(init=False)
    sizes: list[int] = field(init=False)
    by_tokens: bool = field(init=False)

    def __post_init__(self) -> None:
        runner = self.runner
        self.by_tokens = hasattr(runner, "capture_num_tokens") and not hasattr(runner, "capture_bs")
        sizes = [*filter(None, map(bucket_of, graphs_of(runner)))]
        self.sizes = sorted(getattr(runner, "capture_num_tokens", None) or sizes or [1])
        backend = vars(backend_of(runner)) if backend_of(runner) is not None else {}
        self.inputs = {
            name: value
            for values in holders(runner)
            for name, value in values.items()
            if isinstance(value, Tensor)
        }
        mask = getattr(backend.get("_verify_mask"), "buffer", None)
        if isinstance(mask, Tensor):
            self.inputs[f"{ATTENTION}cuda_graph_custom_mask"] = mask
        self.inputs |= {
            ATTENTION + name: value for name, value in backend.items() if isinstance(value, Tensor)
        }

    @property
    def filler(self) -> str:
        """The method that fills the inputs. It may run before the replay does."""
        own = vars(type(self.runner))
        return next((name for name in ("load_batch", "prepare_replay") if name in own), "execute")

    @property
    def planner(self) -> tuple[Any, str]:
        """The attention backend, and its method that plans a batch for this runner."""
        backend = backend_of(self.runner)
        if backend is None:
            return self.runner.model_runner.attn_backend, "init_forward_metadata"
        return backend, "init_forward_metadata_out_graph"

    def fills(self, batch: Any) -> bool:
        """Whether a batch fills the inputs. A compiled function takes one of its size as it is."""
        return self.filler != "prepare_replay" or batch.batch_size not in self.sizes

    def spoil(self, name: str, change: str, counted: Spoiled) -> None:
        """Get an input wrong whenever it is filled but the first time.

        Index lists are planned from inputs that are already wrong. An engine that raises is judged
        only if such a forward ended before.
        """
        held, axis = self.inputs[name], AXES.get(name, 0)
        length = held.shape[axis]
        each = max(1, length // self.sizes[-1])
        state: dict[str, Any] = {}
        early = not (self.by_tokens or name.startswith(ATTENTION))
        fill = getattr(self.runner, self.filler)

        def filled(batch: Any, *rest: Any, **named: Any) -> Any:
            if "right" in state:
                counted.undone += torch.equal(held, state.pop("right"))
            if state.get("ran") and self.fills(batch):
                rows = len(batch.input_ids) if self.by_tokens else int(batch.batch_size)
                size = next((size for size in self.sizes if size >= rows), rows)
                live, end = (min(number * each, length) for number in (rows, size))
                state.update(before=held.clone(), live=live, end=end)
            given = fill(batch, *rest, **named)
            spoil()  # Where nothing was planned, as if that was done before.
            state["ran"] = True
            return given

        def spoil() -> None:
            if "before" in state:
                right, before, end = held.clone(), state.pop("before"), state["end"]
                used = held.narrow(axis, 0, end)  # What lies behind the bucket is not read.
                CHANGES[change](used, before.narrow(axis, 0, end), axis, state["live"])
                if not torch.equal(held, right):
                    counted.changed += 1
                    state["right"] = right

        setattr(self.runner, self.filler, filled)
        if self.by_tokens:
            return
        backend, name_of_plan = self.planner
        plan = getattr(backend, name_of_plan)

        def planned(*arguments: Any, **named: Any) -> Any:
            if early:
                spoil()
            given = plan(*arguments, **named)
            if not early:
                spoil()
            return given

        setattr(backend, name_of_plan, planned)

    def bind_again(self, name: str, change: str, counted: Spoiled) -> None:
        """Let a runner hold another tensor than its graphs were captured with."""
        held = self.inputs[name]
        other = REBINDINGS[change](held)
        for values in holders(self.runner):
            for key, value in [*values.items()]:
                if value is held:
                    values[key] = other
                    counted.changed += 1

    def plant(self, fault: str, counted: Spoiled) -> None:
        """Plant a fault by its name. Raises KeyError for an input that the runner lacks."""
        name, _, change = fault.rpartition(": ")
        if change in CHANGES:
            self.spoil(name, change, counted)
        elif change in REBINDINGS:
            self.bind_again(name, change, counted)
        else:
            {**CODE, **STATES}[fault](self.runner, counted)

    def faults(self) -> Iterator[str]:
        """Yield the names of all faults of this runner."""
        for name in self.inputs:
            yield from (f"{name}: {change}" for change in (*CHANGES, *REBINDINGS))
        yield from CODE
        model_runner = getattr(self.runner, "model_runner", None)
        table = getattr(model_runner, "req_to_token_pool", None)
        yield from STATES if hasattr(table, "mamba_pool") else ()


def holders(runner: Any) -> Iterator[dict[Any, Any]]:
    """Yield what a runner keeps its static inputs in, as dictionaries by name."""
    registry = getattr(runner, "buffer_registry", None)
    slots = getattr(registry, "_slots", {}).values()
    yield from (vars(one) for one in (runner, getattr(runner, "buffers", None), *slots) if one)
    yield getattr(runner, "_prefill_static_buffers", None) or {}


def target(kind: str, *, draft: bool) -> Target:
    """Return the runner of the class `kind` that the target or the draft model has."""
    for value in gc.get_objects():
        if type(value).__name__ == kind and bool(value.model_runner.is_draft_worker) == draft:
            return Target(value)
    raise LookupError(f"the engine has no {kind}")


def replace(owner: Any, names: Sequence[str], other: Callable[..., Any], counted: Spoiled) -> None:
    """Let `other` be called in the place of each method that there is, with that first."""
    for name in names:
        if hasattr(owner, name):
            setattr(owner, name, partial(_counting, counted, other, getattr(owner, name)))


def _counting(counted: Spoiled, other: Callable[..., Any], *given: Any, **named: Any) -> Any:
    counted.changed += 1
    return other(*given, **named)


ALLOCATES = ("alloc", "alloc_extend", "alloc_decode")
EVICTS = ("free_swa", "free_swa_segment")
FREES = ("free", "free_segment")
"""What the host code of a release may allocate, evict and free by."""


def short_window(runner: Any, counted: Spoiled) -> None:
    """Let the window of every attention backend be one key short."""
    backends = [backend_of(runner), runner.model_runner.attn_backend]
    backends += [part for one in backends for part in getattr(one, "attn_backends", ())]
    for one in {id(backend): backend for backend in backends}.values():
        if getattr(one, "sliding_window_size", None):
            one.sliding_window_size -= 1
            counted.changed += 1


def moved_map(runner: Any, counted: Spoiled) -> None:
    """Translate the first location to the next one's slot, of what is freed and what is written."""
    replace(runner.model_runner.token_to_kv_pool, TRANSLATES, next_slot, counted)
    backend, _ = Target(runner).planner
    translator = getattr(backend, "kv_index_translator", None)
    if translator is not None:
        replace(translator, WRITES, next_slot, counted)


TRANSLATES, WRITES = ("translate_loc_from_full_to_swa",), ("write_ids",)


def next_slot(translate: Any, *locations: Any, **named: Any) -> Any:
    """Translate the first location to the next one's slot."""
    found = translate(*locations, **named)
    if not isinstance(found, Tensor):
        return found
    found = found.clone()
    if len(found) > 1:
        found[0] = found[1]
    return found


def leaves_one(free: Any, loc: Tensor, *rest: Any, **named: Any) -> None:
    """Free all slots but the last."""
    free(loc[:-1], *rest, **named)


def frees_nothing(free: Any, loc: Tensor, *rest: Any, **named: Any) -> None:
    """Free no slot."""


def frees_again(free: Any, loc: Tensor, *rest: Any, **named: Any) -> None:
    """Free all slots, and the last once more."""
    free(loc, *rest, **named)
    free(loc[-1:], *rest, **named)


def warns(execute: Any, *batch: Any, **named: Any) -> Any:
    """Warn as a module of the engine does."""
    logging.getLogger("sglang.srt.mem_cache").warning("SWA locations were never set")
    return execute(*batch, **named)


def gives_reserved(alloc: Any, *arguments: Any, **named: Any) -> Any:
    """Give the reserved slot in the place of the first."""
    found = alloc(*arguments, **named)
    if isinstance(found, Tensor) and len(found):
        found = found.clone()
        found[0] = 0
    return found


def faulty(
    owner: Callable[[Any], Any], names: Sequence[str], other: Callable[..., Any]
) -> Callable[[Any, Spoiled], None]:
    """Return what plants a fault in methods of the part of the engine that `owner` returns."""
    return lambda runner, counted: replace(owner(runner), names, other, counted)


def allocator(runner: Any) -> Any:
    """Return the allocator of a runner's engine."""
    return runner.model_runner.token_to_kv_pool_allocator


def full(runner: Any) -> Any:
    """Return the allocator of layers without a window."""
    return getattr(allocator(runner), "full_attn_allocator", allocator(runner))


CODE: Mapping[str, Callable[[Any, Spoiled], None]] = {
    "window one key short": short_window,
    "slot map off by one": moved_map,
    "eviction leaves a slot": faulty(allocator, EVICTS, leaves_one),
    "eviction frees nothing": faulty(allocator, EVICTS, frees_nothing),
    "free leaves a slot": faulty(full, FREES, leaves_one),
    "the reserved slot is given": faulty(allocator, ALLOCATES, gives_reserved),
    "a slot is freed twice": faulty(full, FREES, frees_again),
    "a warning at each replay": faulty(lambda runner: runner, ("execute",), warns),
}
"""Faults of the engine's window, slot map, allocator and log, by name."""


def table(runner: Any) -> Any:
    """Return the table of requests of a runner's engine."""
    return runner.model_runner.req_to_token_pool


def leaves_copy(copy: Any, source: Tensor, target: Tensor) -> None:
    """Copy nothing."""


STATES: Mapping[str, Callable[[Any, Spoiled], None]] = {
    "the first row has the state of the next": faulty(table, ("get_mamba_indices",), next_slot),
    "a reused state is not copied": faulty(
        lambda runner: table(runner).mamba_pool, ("copy_from",), leaves_copy
    ),
    "a new state is given while another request has it": faulty(
        lambda runner: table(runner).mamba_allocator,
        ("_do_alloc",),
        lambda alloc, count: alloc(count) - 1,
    ),
}
"""Faults of the states of recurrent layers, by name."""
