"""The toy engine's connector, as another distribution would ship it."""

import atexit
import importlib
from collections.abc import Callable
from typing import Any

import torch

from paritybit.watch.facts import (
    At,
    Copy,
    Forward,
    Group,
    HostSlots,
    IndexList,
    Layer,
    Replay,
    Row,
    StaticInput,
)
from paritybit.watch.journal import of_process
from paritybit.watch.settings import active
from paritybit.watch.watcher import Watcher

toyengine: Any = importlib.import_module("toyengine")

VALID = {"ids": (0, toyengine.VOCABULARY), "positions": (0, toyengine.MOST)}


def connect() -> None:
    """Watch every engine that this process makes."""
    journal, settings = of_process(), active()
    assert journal is not None and settings is not None
    atexit.register(journal.end)
    init = toyengine.Engine.__init__

    def made(engine: Any, *args: Any, **kwargs: Any) -> None:
        init(engine, *args, **kwargs)
        groups = [
            Group(name, (Layer(name, (kv[0], kv[1])),), toyengine.WINDOW if name == "swa" else None)
            for name, kv in engine.kv.items()
        ]
        watcher = Watcher(groups, engine="toy", release="1", journal=journal, settings=settings)
        watch(engine, watcher)

    toyengine.Engine.__init__ = made


def watch(engine: Any, watcher: Watcher) -> None:
    """Report an engine's forwards, replays and allocations to a watcher."""
    engine.watcher = watcher
    for bucket, graph in engine.graphs.items():
        watcher.captured(bucket, "decode", statics(graph, 0))
        graph.replay = replays(engine, graph, graph.replay)
    for name, allocator in engine.allocators.items():
        alloc, free = allocator.alloc, allocator.free

        def allocated(name: str = name, alloc: Any = alloc) -> int:
            slot: int = alloc()
            watcher.allocated(name, torch.tensor([slot]))
            return slot

        def freed(slots: list[int], name: str = name, free: Any = free) -> None:
            watcher.freed(name, torch.tensor(slots))
            free(slots)

        allocator.alloc, allocator.free = allocated, freed
    engine.forward = forwards(engine, watcher, engine.forward)
    finish = engine.finish

    def finished(request: Any, keep: int = 0) -> None:
        finish(request, keep)
        if not (engine.running or engine.transfers):
            slots = {
                name: (allocator.free_slots, sorted(engine.cached(name)))
                for name, allocator in engine.allocators.items()
            }
            kept = sorted({place for places in engine.on_host.values() for place in places})
            free, size = torch.tensor(engine.free_places), engine.host["full"].shape[1]
            watcher.idle(
                {n: (torch.tensor(f), torch.tensor(c)) for n, (f, c) in slots.items()},
                hosts={"the host": HostSlots(size, free, torch.tensor(kept).long(), pool="host")},
            )

    engine.finish = finished
    watch_copies(engine, watcher)


def watch_copies(engine: Any, watcher: Watcher) -> None:
    """Report an engine's copies to the host and back to a watcher."""
    start, copy, end = engine.start, engine.copy, engine.finished

    def parts(one: Any) -> list[Copy]:
        there, copies = At(torch.tensor(one.places), "host"), []
        for group, slots in one.slots.items():
            here = At(torch.tensor(slots))
            ends = (here, there) if one.stores else (there, here)
            copies.append(Copy(group, *ends, one.request))
        return copies

    def started(one: Any) -> None:
        watcher.begin_copies(f"{one.number}", parts(one))
        start(one)

    def copied(one: Any) -> None:
        copy(one)
        for part in parts(one):
            watcher.moved(part.group, part.source, part.target)

    def ended(one: Any) -> None:
        watcher.end_copies(f"{one.number}", one.failed)
        end(one)

    engine.start, engine.copy, engine.finished = started, copied, ended


def forwards(engine: Any, watcher: Watcher, run: Callable[..., None]) -> Callable[..., None]:
    """Return a `forward` that is watched."""

    def forward(kind: str, requests: list[Any]) -> None:
        rows = tuple(
            Row(
                r.name,
                r.tokens,
                r.cached,
                len(r.tokens) - r.cached,
                {name: torch.tensor(slots) for name, slots in r.slots.items()},
            )
            for r in requests
        )
        watcher.begin(Forward(kind, rows))
        try:
            run(kind, requests)
        except BaseException:
            watcher.abandon()
            raise
        watcher.end()

    return forward


def statics(graph: Any, rows: int) -> list[StaticInput]:
    """Return the static inputs of a graph."""
    return [
        StaticInput(name, value, rows, graph.bucket, valid=VALID.get(name), source="toyengine:60")
        for name, value in graph.static.items()
    ]


def replays(engine: Any, graph: Any, run: Callable[[int], Any]) -> Callable[[int], Any]:
    """Return a `replay` that is watched."""

    def replay(rows: int) -> Any:
        watcher = engine.watcher
        lists = [
            IndexList(
                name,
                name,
                graph.static[f"entries_{name}"].flatten(),
                torch.arange(graph.bucket) * toyengine.MOST,
                graph.static[f"counts_{name}"],
            )
            for name in engine.kv
        ]
        watcher.judge_lists(lists)
        live = {name: value[:rows] for name, value in graph.static.items()}
        return watcher.replay(
            Replay(
                graph=graph.bucket,
                kind="decode",
                rows=rows,
                bucket=graph.bucket,
                inputs=statics(graph, rows),
                run=lambda: run(rows),
                outputs=lambda: {"logits": graph.logits[:rows]},
                eager=lambda: {"logits": engine.model(live)},
            )
        )

    return replay
