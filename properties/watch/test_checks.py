"""Each check, on a toy engine whose connector is installed by another distribution.

A fault is a change to one engine. Each test runs the same requests with and without it.
"""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from paritybit.watch import bits, journal
from paritybit.watch.checks import CHECKS
from paritybit.watch.settings import Settings
from properties.support.watching import lines_in


def serve(engine: Any) -> None:
    """Serve a few requests: buckets full and padded, shared prefixes, contexts beyond windows."""
    one = engine.add("one", [3, 1, 4, 1, 5])
    engine.decode()
    two = engine.add("two", [9, 2, 6, 5, 3, 5])
    three = engine.add("three", [8, 9, 7])
    for _ in range(3):
        engine.decode()
    engine.finish(one, keep=6)
    four = engine.add("four", [3, 1, 4, 1, 5, 11, 12])
    five = engine.add("five", [2, 7, 1])
    for _ in range(2):
        engine.decode()
    engine.finish(five)
    six = engine.add("six", [7, 7, 7, 7, 7, 7])
    engine.finish(three)
    for _ in range(3):
        engine.decode()
    for request in (two, four, six):
        engine.finish(request)
    seven = engine.add("seven", [13, 1, 4, 1, 5])
    engine.decode()
    engine.offload(seven, keep=5)
    eight = engine.add("eight", [6, 6, 6])
    nine = engine.add("nine", [13, 1, 4, 1, 5, 9, 2])
    ten = engine.add("ten", [23, 1, 4, 1, 5, 9, 2])
    for _ in range(3):
        engine.decode()
    for request in (eight, nine, ten):
        engine.finish(request)


def lines(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of this process's journal."""
    current = journal.of_process(Settings(str(folder)))
    assert current is not None
    current.end()
    return lines_in(folder)


def found(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the findings of a journal by check. Nothing in it may be undecided."""
    written = lines(folder)
    assert [line for line in written if line["kind"] == "undecided"] == []
    findings: dict[str, list[dict[str, Any]]] = {}
    for line in written:
        if line["kind"] == "finding":
            findings.setdefault(line["check"], []).append(line)
    return findings


def test_a_right_engine_is_clean_and_all_of_it_is_watched(toy: ModuleType, tmp_path: Path) -> None:
    engine = toy.Engine()
    serve(engine)
    assert found(tmp_path) == {}
    counts = [line for line in lines(tmp_path) if line["kind"] == "counts"][-1]["counts"]
    assert counts["forwards"] == 23
    assert counts["replays"] == 13
    assert counts["padded_replays"] == 11
    assert counts["copies begun"] == counts["copies finished"] == 2
    assert counts["copied_reads"] > 10
    assert counts["reads"] > 100
    assert counts["shared_reads"] > 10
    for relation in (
        *("unrepeatable replay", "padding leak"),
        *("graph and eager differ", "wrong read"),
    ):
        assert counts[f"tried: {relation}"] > 5
    nothing = {name for name in CHECKS if not counts[f"tried: {name}"]}
    assert nothing == {"kernel race", "stale input", "wrong row"}  # It gives no right values.
    assert counts["tried: uninitialised read"] == counts["reads"]


def test_watching_changes_no_token(toy: ModuleType) -> None:
    watched, alone = toy.Engine(), object.__new__(toy.Engine)
    toy.Engine.__init__.__closure__[0].cell_contents(alone)
    for engine in (watched, alone):
        serve(engine)
    for name, kv in watched.kv.items():
        assert torch.equal(kv[:, 1:], alone.kv[name][:, 1:])  # Padding writes slot 0.


def stale_tail(engine: Any) -> None:
    """The padding of `loc_swa` keeps what the last batch wrote there."""
    for graph in engine.graphs.values():
        fill = graph.fill

        def wrong(batch: Any, graph: Any = graph, fill: Any = fill) -> None:
            kept = graph.static["loc_swa"].clone()
            fill(batch)
            rows = len(batch["ids"])
            graph.static["loc_swa"][rows:] = kept[rows:]

        graph.fill = wrong


def lost_write(engine: Any) -> None:
    """A prefill does not write its second token."""
    run = engine.model

    def wrong(batch: Any) -> Any:
        if len(batch["ids"]) in {3, 5, 6}:
            batch["loc_full"] = batch["loc_full"].clone()
            batch["loc_full"][1] = 0
        return run(batch)

    engine.model = wrong


def long_match(engine: Any) -> None:
    """The prefix cache ignores the last token that it compares."""
    match = engine.match

    def wrong(tokens: list[int]) -> int:
        length: int = match(tokens)
        longer = [p for p in engine.prefixes if len(p) == length + 1 and length + 1 < len(tokens)]
        if not longer:
            return length
        engine.prefixes.setdefault(tuple(tokens[: length + 1]), engine.prefixes[longer[0]])
        return length + 1

    engine.match = wrong


def overwritten(engine: Any) -> None:
    """Someone overwrites a running request's slot between two forwards."""
    obtain = engine.obtain

    def wrong(requests: list[Any]) -> None:
        obtain(requests)
        if len(engine.running) == 3:
            engine.kv["full"][1][engine.running[0].slots["full"][2]] = 7.0

    engine.obtain = wrong


def short_lists(engine: Any) -> None:
    """The lists of the full group drop the first key beyond six."""
    entries = engine.entries

    def wrong(name: str, slots: list[int]) -> Any:
        return entries(name, slots[1:] if name == "full" and len(slots) > 6 else slots)

    engine.entries = wrong


def early_free(engine: Any) -> None:
    """The first slot of each request is freed when it starts to decode."""
    decode = engine.decode

    def wrong() -> None:
        for request in engine.running:
            if len(request.tokens) == 7:
                allocator = engine.allocators["full"]
                allocator.free([request.slots["full"][0]])
                allocator.free_slots.append(allocator.free_slots.pop(0))
        decode()

    engine.decode = wrong


def freed_again(engine: Any) -> None:
    """A finished request frees its last slot twice."""
    finish = engine.finish

    def wrong(request: Any, keep: int = 0) -> None:
        finish(request, keep)
        engine.allocators["swa"].free([request.slots["swa"][-1]])

    engine.finish = wrong


def never_freed(engine: Any) -> None:
    """A finished request frees all slots but its last."""
    free = engine.allocators["full"].free
    engine.allocators["full"].free = lambda slots: free(slots[:-1])


def counting(engine: Any) -> None:
    """A replay depends on how many there were."""
    run, calls = engine.model, []

    def wrong(batch: Any) -> Any:
        calls.append(1)
        return run({**batch, "positions": (batch["positions"] + len(calls)) % 32})

    engine.model = wrong


def leaking(engine: Any) -> None:
    """Each row sees the ids of all rows, padding too."""
    run = engine.model

    def wrong(batch: Any) -> Any:
        return run({**batch, "ids": (batch["ids"] + batch["ids"].sum()) % 64})

    engine.model = wrong


def unplaced(engine: Any) -> None:
    """The last token of each prompt gets the slot of the padding."""
    obtain = engine.obtain

    def wrong(requests: list[Any]) -> None:
        obtain(requests)
        for request in requests:
            if not request.cached:
                request.slots["swa"][-1] = 0

    engine.obtain = wrong


def baked(engine: Any) -> None:
    """Graphs captured other weights than eager uses."""
    for graph in engine.graphs.values():
        other: Any = object.__new__(type(engine))
        other.__dict__.update(engine.__dict__)
        other.weights = [weight * 0.5 for weight in engine.weights]
        graph.engine = other


def beyond_its_lists(engine: Any) -> None:
    """A row also sees the key before its window, which no list names."""
    run = engine.model

    def wrong(batch: Any) -> Any:
        logits = run(batch)
        for row, position in enumerate(batch["positions"].tolist()):
            for request in engine.running:
                mine = request.slots["swa"]
                if position >= 4 and int(batch["loc_swa"][row]) in mine[position:]:
                    logits[row] += engine.kv["swa"][1, mine[position - 4]].sum()
        return logits

    engine.model = wrong


def ignored_layer(engine: Any) -> None:
    """Queries of sliding layers are zero, so that their keys do not matter."""
    engine.weights[1][0] = 0.0


def moved(engine: Any) -> None:
    """A static input is allocated again."""
    static = engine.graphs[4].static
    static["ids"] = static["ids"].clone()


def narrowed(engine: Any) -> None:
    """A static input becomes narrower."""
    static = engine.graphs[4].static
    static["positions"] = static["positions"].to(torch.int32)


def early_release(engine: Any) -> None:
    """Slots are freed when their copy to the host begins."""
    start = engine.start

    def wrong(one: Any) -> None:
        start(one)
        if one.stores:
            for group, slots in one.slots.items():
                engine.allocators[group].free(slots)
            one.slots = {group: slots.copy() for group, slots in one.slots.items()}

    engine.start = wrong
    finished = engine.finished

    def once(one: Any) -> None:
        allocators, engine.allocators = engine.allocators, {}
        one.stores, stores = False, one.stores
        finished(one)
        one.stores, engine.allocators = stores, allocators

    engine.finished = once


def read_early(engine: Any) -> None:
    """A request does not wait for its load, which takes two forwards more."""
    wait = engine.wait

    def wrong(one: Any) -> None:
        for other in [*engine.transfers]:
            if other is not one:
                wait(other)

    engine.wait = wrong


def recycled(engine: Any) -> None:
    """A place on the host is handed out again while it is copied from."""
    start = engine.start

    def wrong(one: Any) -> None:
        start(one)
        if not one.stores:
            slots = {group: [mine[0]] for group, mine in engine.running[0].slots.items()}
            again = type(one)(99, "other", slots, one.places[:1], stores=True)
            start(again)
            engine.wait(one)
            engine.transfers.remove(again)

    engine.start = wrong


def swallowed(engine: Any) -> None:
    """A load fails, and the engine takes what it should have brought."""
    start, finished = engine.start, engine.finished

    def fails(one: Any) -> None:
        one.failed = not one.stores
        start(one)

    def ends(one: Any) -> None:
        finished(one)
        one.failed = False

    engine.start, engine.finished = fails, ends


def endless(engine: Any) -> None:
    """The engine forgets the copies under way."""
    offload = engine.offload

    def wrong(request: Any, keep: int) -> None:
        offload(request, keep)
        engine.transfers.clear()

    engine.offload = wrong


def short_keys(engine: Any) -> None:
    """A key on the host leaves out the first token."""
    engine.key = lambda tokens: tuple(tokens[1:])


FAULTS: list[tuple[Callable[[Any], None], str]] = [
    (stale_tail, "stray write"),
    (stale_tail, "corrupted read"),
    (lost_write, "unwritten slot"),
    (lost_write, "uninitialised read"),
    (long_match, "wrong owner"),
    (overwritten, "corrupted read"),
    (short_lists, "wrong list"),
    (early_free, "freed in use"),
    (freed_again, "double free"),
    (never_freed, "leak"),
    (counting, "unrepeatable replay"),
    (leaking, "padding leak"),
    (baked, "graph and eager differ"),
    (beyond_its_lists, "wrong read"),
    (ignored_layer, "wrong read"),
    (moved, "moved address"),
    (narrowed, "changed dtype"),
    (early_release, "copy under way"),
    (read_early, "copy under way"),
    (recycled, "copy under way"),
    (swallowed, "uninitialised read"),
    (endless, "leak"),
    (short_keys, "wrong owner"),
]


@pytest.mark.parametrize(("fault", "check"), FAULTS)
@pytest.mark.parametrize("large", [False, True])
def test_a_fault_fires_its_check(
    toy: ModuleType,
    tmp_path: Path,
    fault: Callable[[Any], None],
    check: str,
    large: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A large pool is scanned once per forward, and few of its replays run again."""
    if large:
        monkeypatch.setattr(bits, "LARGEST_COPY", 0)
    engine = toy.Engine()
    fault(engine)
    for _ in range(6 if large and check == "wrong read" else 1):
        serve(engine)
    assert check in found(tmp_path)


def test_a_stray_write_names_the_tail_that_explains_it_and_so_does_who_reads_it(
    toy: ModuleType, tmp_path: Path
) -> None:
    engine = toy.Engine()
    stale_tail(engine)
    serve(engine)
    findings = found(tmp_path)
    for finding in findings["stray write"]:
        assert finding["cause"]["input"] == "loc_swa"
        assert finding["cause"]["source"] == "toyengine:60"
        assert finding["layer"] == "swa"
        assert finding["replay"] == "decode"
    assert {f["cause"]["input"] for f in findings["corrupted read"]} == {"loc_swa"}
    assert set(findings) == {"stray write", "corrupted read"}


def test_a_row_that_reads_the_slot_of_padding_is_no_padding_leak(
    toy: ModuleType, tmp_path: Path
) -> None:
    engine = toy.Engine()
    unplaced(engine)
    serve(engine)
    findings = found(tmp_path)
    assert "uninitialised read" in findings and "padding leak" not in findings


def test_every_check_has_a_fault_that_fires_it() -> None:
    elsewhere = {"stale input", "wrong row", "engine error", "kernel race"}
    assert {check for _, check in FAULTS} | elsewhere == set(CHECKS)
