"""The sanitizer keeps nothing alive, waits for nothing, and its own errors make nothing known."""

import functools
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from paritybit.connectors import hooking
from paritybit.watch import between, memory, reading, watcher
from paritybit.watch.facts import Forward, Group, Layer, Replay, Row
from paritybit.watch.ledger import Ledger, Names
from paritybit.watch.replays.causes import explain
from paritybit.watch.replays.influence import LiveReads, Replacement, changed
from paritybit.watch.replays.rerun import BarredError, Rerun, SavedSlots, rewritten
from paritybit.watch.replays.values import ValueSeed
from properties.support.watching import Scene, row
from properties.watch.test_checks import found, lines, serve

SLOTS, OTHERS = [3, 4, 5, 6, 7, 8], [20, 21]
TOKENS, LATER = [5, 6, 7, 8, 9, 10], [11, 12, 13, 14, 15, 16]


def fail(*_: object, **__: object) -> None:
    """Fail as a defect of the sanitizer does."""
    raise KeyError("a defect")


def begin_fails(scene: Scene, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reading, "owned", fail)
    scene.forward("b", LATER[:5], 0, SLOTS)


def end_fails(scene: Scene, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reading, "note", fail)
    scene.forward("b", LATER[:5], 0, SLOTS)


def settling_fails(scene: Scene, patch: pytest.MonkeyPatch) -> None:
    """The first group's changes are lost while they are applied, and the second's are not."""
    patch.setattr(between.Changes, "_free", fail)
    scene.forward("b", LATER[:5], 0, SLOTS)


def connector_fails(scene: Scene, patch: pytest.MonkeyPatch) -> None:
    """The engine goes on: it computes the forward that the connector began."""
    patch.setattr(hooking, "of_process", lambda: scene.journal)

    def compute() -> None:
        scene.write(SLOTS[:5])

    def watched(original: Callable[[], None]) -> None:
        scene.watcher.begin(Forward("extend", (row("b", LATER[:5], 0, SLOTS),)))
        raise KeyError("a defect")

    hooking.guarded(watched)(compute)
    assert not scene.watcher.watching


def connector_reports_no_end(scene: Scene, patch: pytest.MonkeyPatch) -> None:
    scene.watcher.begin(Forward("extend", (row("b", LATER[:5], 0, SLOTS),)))
    scene.write(SLOTS[:5])


def allocation_fails(scene: Scene, patch: pytest.MonkeyPatch) -> None:
    """The slots are freed and allocated again, and the ledgers only get to know the first."""
    for group in ("full", "swa"):
        scene.watcher.freed(group, torch.tensor(SLOTS))
    patch.setattr(between.Changes, "note", fail)
    scene.watcher.allocated("full", torch.tensor(SLOTS))
    scene.forward("b", LATER[:5], 0, SLOTS)


FAILURES = [
    *(begin_fails, end_fails, settling_fails, connector_fails, connector_reports_no_end),
    allocation_fails,
]


@pytest.mark.parametrize("failure", FAILURES)
def test_after_an_error_of_the_sanitizer_only_what_is_new_is_judged(
    scene: Scene, failure: Callable[[Scene, pytest.MonkeyPatch], None]
) -> None:
    """Whatever happened meanwhile: slots that were written, freed or given to other requests."""
    scene.forward("a", TOKENS[:5], 0, SLOTS)
    for group in ("full", "swa"):
        scene.watcher.freed(group, torch.tensor(SLOTS))
        scene.watcher.allocated(group, torch.tensor(SLOTS))
    with pytest.MonkeyPatch.context() as patch:
        failure(scene, patch)
    for group in ("full", "swa"):
        scene.watcher.freed(group, torch.tensor(OTHERS))
    scene.forward("b", LATER, 5, SLOTS)
    for group in ("full", "swa"):
        scene.watcher.freed(group, torch.tensor(SLOTS))
    scene.forward("c", [1, 2], 0, OTHERS)
    assert scene.lines("finding") == []
    assert scene.lines("undecided")
    scene.forward("c", TOKENS[:5], 0, [30, 31, 32, 33, 34])
    scene.forward("d", [1], 0, [40], stray=[30])
    scene.watcher.freed("full", torch.tensor([40, 40]))
    checks = {line["check"] for line in scene.lines("finding")}
    assert checks == {"stray write", "double free"}


def test_an_engine_that_is_watched_dies_when_it_is_dropped(toy: ModuleType, tmp_path: Path) -> None:
    engine = toy.Engine()
    serve(engine)
    parts = [engine, *engine.kv.values(), *engine.graphs.values(), *engine.allocators.values()]
    parts += [engine.add("last", [1, 2, 3]), engine.watcher]
    engine.decode()
    held = [weakref.ref(part) for part in parts]
    del engine, parts
    gc.collect()
    assert [reference() for reference in held] == [None] * len(held)
    assert found(tmp_path) == {}
    assert lines(tmp_path)


def test_kv_that_was_released_is_not_read(scene: Scene) -> None:
    scene.forward("a", TOKENS[:3], 0, SLOTS)
    scene.groups.clear()
    gc.collect()
    scene.forward("a", TOKENS[:4], 3, SLOTS)
    (line,) = scene.lines("undecided")
    assert "the engine released the memory" in line["what"]
    assert scene.lines("finding") == []


@pytest.mark.parametrize("scene", [{"every": 1000}], indirect=True)
def test_what_is_noted_in_a_skipped_forward_waits_for_no_device(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors of the device `meta` have no values that could be waited for."""
    monkeypatch.setattr(scene.watcher, "settle", fail)
    slots, other = torch.arange(4, device="meta"), torch.arange(4, device="meta")
    scene.watcher.freed("full", slots)
    scene.watcher.allocated("full", slots)
    scene.watcher.copied("full", slots, other)
    scene.watcher.store("host", "full", slots, other)
    scene.watcher.load("host", "full", slots, other)
    scene.watcher.forget("full", None)
    scene.watcher.skipped({"full": slots, "swa": slots})
    scene.watcher.skipped(None)
    assert len(scene.watcher.changes["full"].noted) == 8
    assert not any("undecided" in text for text in scene.journal.said)
    for changes in scene.watcher.changes.values():
        changes.noted.clear()
    monkeypatch.undo()


def test_the_code_of_the_engine_never_allocates_from_the_sanitizer_s_own_memory(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    used, places = list[str](), dict[str, list[str]]()

    monkeypatch.setattr(memory, "_POOLS", {0: SimpleNamespace(id="our pool")})
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(memory, "_BEGIN", lambda index, pool: used.append(pool))
    monkeypatch.setattr(memory, "_END", lambda index, pool: used.remove(pool))
    monkeypatch.setattr(memory, "_RELEASE", lambda index, pool: None)

    def engine(place: str, inner: Callable[[], None] = lambda: None) -> None:
        places[place] = [*used]
        inner()
        assert used == []

    def hook(original: Callable[..., None], *given: object) -> None:
        places["hook"] = [*used]
        original(*given)
        scene.watcher.begin(Forward("decode", ()))
        scene.watcher.end()
        places["end of the hook"] = [*used]

    monkeypatch.setattr(reading, "hashes", lambda *_: places.update(watcher=[*used]) or [])
    hooked = functools.partial(hooking.guarded(hook), engine)
    hooked("engine", lambda: hooked("engine within"))

    def before(_: str) -> None:
        places["before"] = [*used]

    def after(result: None) -> None:
        places["after"] = [*used]

    for method in (before, after):
        hooking.guarded(method)(engine, f"engine {method.__name__}")
    ours = {place for place, pools in places.items() if pools == ["our pool"]}
    assert ours == {"hook", "watcher", "end of the hook", "before", "after"}
    assert {place for place in places if not places[place]} == {
        *("engine", "engine within", "engine before", "engine after")
    }
    assert used == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_nothing_is_allocated_from_the_pool_of_the_engine_on_a_gpu(tmp_path: Path) -> None:
    def allocated() -> int:
        parts = torch.cuda.memory_snapshot()
        return sum(p["allocated_size"] for p in parts if tuple(p["segment_pool_id"]) == (0, 0))

    scene = Scene(tmp_path)
    held = [tuple(one.cuda() for one in group.layers[0].tensors) for group in scene.groups]
    names = [group.name for group in scene.groups]
    groups = [Group(n, (Layer("0", kv),)) for n, kv in zip(names, held, strict=True)]
    before = allocated()
    watched = watcher.Watcher(
        groups, engine="pretended", release="1", journal=scene.journal, settings=scene.settings
    )
    slots = {name: torch.tensor(SLOTS) for name in names}
    for _ in range(3):
        watched.begin(Forward("extend", (Row("a", TOKENS, 0, len(TOKENS), slots),)))
        for tensor in (tensor for kv in held for tensor in kv):
            tensor[torch.tensor(SLOTS, device="cuda")] += 1
        watched.end()
    torch.cuda.synchronize()
    assert allocated() == before
    scene.close()


@pytest.mark.parametrize("scene", [{"every": 1000}], indirect=True)
def test_a_forward_is_checked_when_too_much_was_noted(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "MOST_NOTED", 3)
    scene.journal.passes[""] = 1  # The first one is checked.
    dues = list[bool]()
    for _ in range(5):
        dues.append(scene.watcher.due())
        if not dues[-1]:
            scene.watcher.skipped({"full": torch.tensor([3])})
        else:
            scene.run(Forward("decode", ()))
    assert dues == [False, False, False, True, False]


def other_content(rerun: Rerun, ledger: Ledger, slots: torch.Tensor) -> None:
    change = Replacement("kv", slots, [0], ValueSeed(0))
    with changed(rerun, LiveReads(Forward("decode", ()), {"kv": slots}), [change]):
        pass


EXPERIMENTS: dict[str, Callable[[Rerun, Ledger, torch.Tensor], object]] = {
    "poison": lambda rerun, ledger, slots: explain(rerun, ledger, slots, []),
    "inversion": rewritten,
    "rewind": lambda rerun, *_: rerun.rewind(),
    "repetition": lambda rerun, *_: rerun.run(),
    "eager": lambda rerun, *_: rerun.run_eagerly(),
    "other content": other_content,
    "slots": lambda _, ledger, slots: SavedSlots.of(ledger, slots).inverted().restore(),
}


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_no_experiment_changes_slots_once_the_engine_may_copy_them(experiment: str) -> None:
    kv, reasons, runs = torch.randn(8, 2), list[str | None]([None]), list[int]()
    ledger, slots = Ledger(Group("kv", (Layer("layer 0", (kv,)),)), Names()), torch.tensor([1, 2])
    replay = Replay(
        *("a graph", "decode", 1, 2, ()),
        run=lambda: runs.append(0),
        outputs=lambda: {"logits": kv[:1]},
        eager=lambda: runs.append(1) or {},  # type: ignore[func-returns-value]
    )
    rerun = Rerun(replay, {"kv": slots}, {"kv": ledger}, lambda: reasons[-1])
    rerun.ran(None)
    assert rerun.possible
    reasons.append("another thread copies KV")
    assert not rerun.possible
    before = kv.clone()
    with pytest.raises((BarredError, RuntimeError)):
        EXPERIMENTS[experiment](rerun, ledger, slots)
    assert torch.equal(kv, before)
    assert runs == []
