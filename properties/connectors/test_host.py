"""KV on the host and in files: its copies, and the slots of the host while nothing runs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

import pytest
import torch

from paritybit.connectors.following import HOST
from paritybit.connectors.hooking import maybe
from paritybit.connectors.sglang import host
from paritybit.connectors.sglang.engine import SglangEngine
from paritybit.connectors.sglang.host import NO_ROOM, QUEUES, UNDER_WAY, at_rest, slots_of
from paritybit.drive.sglang.late import DEFAULT, InStream, LateEvent, LateStream
from paritybit.watch.facts import At, Forward, Row
from paritybit.watch.facts import Copy as CopyOf
from paritybit.watch.weak import ByObject
from properties.connectors.parts import Part, hooked, kept
from properties.support.watching import Scene

SIZE = 8


class RustCache(Part):
    """A prefix cache whose tree is not in Python."""

    @property
    def root_node(self) -> Any:
        """Fail as such a tree does."""
        raise NotImplementedError


def a_pool(free: list[int], **more: Any) -> Part:
    """Return a host pool with these free slots, of which it keeps the last one apart."""
    parts = torch.tensor(free[:-1], dtype=torch.int64), [torch.tensor(free[-1:])]
    return Part(size=SIZE, free_slots=parts[0], release_slots=parts[1], **more)


def components(*values: list[int] | None, locks: int = 0) -> Part:
    """Return a node of the prefix cache, with host slots for each component."""
    slots = [None if value is None else torch.tensor(value) for value in values]
    parts = [Part(host_value=value, host_lock_ref=locks) for value in slots]
    return Part(children={}, component_data=parts)


def python(free: list[int], locks: int = 0) -> Part:
    """Return a prefix cache with several host pools."""
    entries = {"kv": a_pool(free), "swa": a_pool([*range(1, SIZE)])}
    group = Part(entry_map={name: Part(host_pool=pool) for name, pool in entries.items()})
    root = components(None, None)
    root.children = {0: components([0, 1], [0], locks=locks), 1: components([2], None)}
    return Part(root_node=root, host_pool_group=group)


def rust(free: list[int], locks: int = 0) -> Part:
    """Return a prefix cache whose pool marks the slots 0, 1 and 2 as allocated."""
    del locks
    used = torch.arange(SIZE) < 3
    group = Part(entry_map={"kv": Part(host_pool=a_pool(free, slot_used=used))})
    return RustCache(host_pool_group=group)


RIGHT = [7, 6, 5, 4, 3]
FAULTS = {
    "none": (RIGHT, 0, []),
    "a free that is dropped": (RIGHT[:-1], 0, ["neither free nor in the prefix cache"]),
    "a slot that is freed while it is cached": ([*RIGHT, 2], 0, ["free and in the prefix cache"]),
    "a slot that is freed twice": ([*RIGHT, 3], 0, ["slot 3 (host kv) is free twice"]),
    "a node that stays locked": (RIGHT, 1, ["of the prefix cache are locked (host kv)"]),
}


@pytest.mark.parametrize("made", [python, rust])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_leak_on_the_host_is_found(
    made: Callable[[list[int], int], Part], fault: str, tmp_path: Path
) -> None:
    free, locks, texts = FAULTS[fault]
    if made is rust and locks:
        pytest.skip("the locks of a tree that is not in Python are not known")
    scene = Scene(tmp_path)
    slots = slots_of(made(free, locks), ByObject())
    scene.watcher.idle({}, hosts={name: one for name, one in slots.items() if "kv" in name})
    found = [line["text"] for line in scene.lines("finding")]
    assert [text in line for text, line in zip(texts, found, strict=True)] == [True] * len(texts)
    scene.close()


FILLERS = "back_up", "fetch", "fetch beside"


@pytest.mark.parametrize("filled", ["", *FILLERS])
@pytest.mark.parametrize("made", [python, rust])
def test_slots_of_the_host_that_nothing_filled_are_not_in_the_prefix_cache(
    made: Callable[[list[int], int], Part], filled: str, copies: "Copies"
) -> None:
    """A tree that is not in Python does not say which slots it holds."""
    cache, engine, slots = made([7, 6, 5, 4], 0), copies.engine, torch.tensor([0, 1, 2, 3])
    pool = maybe(cache, "host_pool_group").entry_map["kv"].host_pool
    pool.slot_used = torch.arange(SIZE) < 4
    hooked(engine.handed_out, lambda *_: slots, kept(pool))
    given = slots if filled else slots[:3]
    anchor = Part(anchor_entry=Part(host_pool=pool if filled == "fetch" else copies.host))
    anchor.entry_map = {"swa": Part(host_pool=pool)}
    beside = Part(name="swa", host_indices=given if filled == "fetch beside" else None)
    operation = Part(id=7, host_indices=given, pool_transfers=[beside])
    if filled.startswith("fetch"):
        hooked(engine.fetch, lambda *_: None, Part(mem_pool_host=anchor), operation)
    else:
        hooked(engine.back_up, lambda *_: None, pool, copies.pool, given, given)
    held = slots_of(cache, engine.unfilled)["host kv"].cached.tolist()
    lost = made is rust and not filled
    assert held == ([0, 1, 2] if lost or made is python else [0, 1, 2, 3])


@pytest.mark.parametrize("made", [python, rust])
@pytest.mark.parametrize("left", [-1, 0, 2])
def test_a_lock_on_the_host_that_nobody_releases_is_found(
    made: Callable[[list[int], int], Part], left: int, copies: "Copies"
) -> None:
    """A tree that is not in Python does not say which nodes are locked."""
    cache, engine = made(RIGHT, 0), copies.engine
    for _ in range(3 + max(left, 0)):
        hooked(engine.locks, lambda *_: None, cache)
    for _ in range(3 - min(left, 0)):
        hooked(engine.unlocks, lambda *_: None, cache)
    cache.cache_controller = copies.controller
    assert engine.on_host(cache)["host kv"].locked == left
    engine.flushed(cache)
    assert engine.on_host(cache)["host kv"].locked == 0


@pytest.mark.parametrize("cached", [True, False])
def test_without_a_cache_on_the_host_only_retracted_requests_have_slots_there(
    cached: bool, copies: "Copies"
) -> None:
    """None of these is left while nothing runs, whether a tree in Rust tells what it has or not."""
    cache = rust(RIGHT)
    cache.cache_controller, copies.engine.cached_on_host = copies.controller, cached
    found = copies.engine.on_host(cache)
    assert found["host kv"].cached.tolist() == [0, 1, 2] * cached


def test_allocations_without_room_on_the_host_are_counted(copies: "Copies") -> None:
    for found in (None, torch.tensor([1, 2]), None):
        hooked(copies.engine.handed_out, lambda *_, it=found: it, copies.host)
    assert copies.scene.journal.counts[f"{NO_ROOM} full"] == 2


TOKENS, SLOTS, PLACES = [5, 6, 7, 8], [3, 4, 5, 6], [4, 5, 6, 7]
PAGE = 2


class Counter(Part):
    """Counts the layers for which a forward waits, as LayerDoneCounter."""

    def wait_until(self, threshold: int) -> None:
        """Wait for a layer."""
        self.waits.append(threshold)
        self.loaded[threshold].wait()


class LayeredPool(Part):
    """A pool that waits only for some layers before attention gets them."""

    def get_key_buffer(self, layer_id: int) -> None:
        """Return nothing for a layer."""
        if layer_id - self.start_layer in self.waits:
            self.layer_transfer_counter.wait_until(layer_id - self.start_layer)
        self.full_kv_pool.get_key_buffer(layer_id - self.start_layer)

    def get_value_buffer(self, layer_id: int) -> None:
        """Return nothing for a layer."""
        self.get_key_buffer(layer_id)

    def get_kv_buffer(self, layer_id: int) -> None:
        """Return nothing for a layer."""
        self.get_key_buffer(layer_id)


class InnerPool(Part):
    """The pool that a hybrid one gets its layers from."""

    def get_key_buffer(self, layer_id: int) -> None:
        """Return nothing for a layer."""

    get_value_buffer = get_kv_buffer = get_key_buffer


class Copies:
    """A connector, and a controller whose copies to and from a host pool end when a test says."""

    def __init__(self, folder: Path) -> None:
        self.scene = Scene(folder)
        self.engine = SglangEngine("0", self.scene.journal, self.scene.settings)
        self.engine.watcher = self.scene.watcher
        inner: Any = type("Hooked", (InnerPool,), {})
        self.pool, self.host = kept(inner()), kept(Part(page_size=PAGE, size=SIZE))
        self.engine.names[self.pool] = "full"
        self.host.device_pool = self.pool
        self.engine.follow_hosts(Part(token_to_kv_pool_host=self.host))
        counter: Any = type("Hooked", (Counter,), {})
        self.counter = kept(counter(producer_index=-1, consumer_index=-1, num_layers=2, waits=[]))
        self.counter.loaded = LateEvent(), LateEvent()
        self.controller = Part(
            ack_write_queue=[],
            ack_load_queue=[],
            layer_done_counter=self.counter,
            mem_pool_host=self.host,
            prefetch_sync_queue=Queue(),
            ack_prefetch_queue=Queue(),
        )

    def start_writing(self, slots: list[int], places: list[int]) -> Part:
        """Submit a copy to the host. Returns the event at its end."""

        def start_writing(controller: Any) -> None:
            given = self.host, self.pool, torch.tensor(places), torch.tensor(slots)
            hooked(self.engine.back_up, lambda *_: None, *given)
            controller.ack_write_queue.append(Part(finish_event=done))

        done = Part(over=False)
        done.query = lambda: done.over
        hooked(self.engine.submit, start_writing, self.controller)
        return done

    def start_loading(self, places: list[int], slots: list[int], *, early: bool = False) -> None:
        """Submit a copy from the host, whose bytes are there when the next forward needs them.

        `early`: the event for each layer comes before what is copied to it.
        """

        def start_loading(controller: Any) -> None:
            self.counter.producer_index += 1
            for layer in range(2):
                given = self.host, self.pool, torch.tensor(places), torch.tensor(slots), layer
                if early:
                    self.counter.loaded[layer].record()
                hooked(self.engine.load_back, lambda *_: None, *given)
                if not early:
                    self.counter.loaded[layer].record()
            controller.ack_load_queue.append(Part(finish_event=Part(query=lambda: False)))

        hooked(self.engine.submit, start_loading, self.controller)
        for tensor in self.scene.groups[0].layers[0].tensors:
            tensor[slots] = tensor[SLOTS[: len(slots)]].clone()

    def take(self) -> None:
        """Take the notes of the ends of copies, as the prefix cache does."""
        self.controller.ack_write_queue.clear()
        hooked(self.engine.completes, lambda *_: None, Part(cache_controller=self.controller))

    def written(self) -> None:
        """Compute a request, and copy it to the host."""
        self.scene.forward("a", TOKENS, 0, {"full": SLOTS})
        self.start_writing(SLOTS, PLACES).over = True
        self.take()

    def move_page(self, place: int, key: str, *, there: bool = False) -> None:
        """Copy a page of the host to a file, or skip it because the file is there."""
        page, storage = torch.zeros(1), Part(exists=lambda _: there)
        hooked(self.engine.page_read, lambda *_: page, self.host, torch.tensor(place))
        hooked(self.engine.file_written, lambda *_: True, storage, key, page)

    def fetch_page(self, key: str, place: int) -> None:
        """Copy a file to a page of the host."""
        page = torch.zeros(1)
        hooked(self.engine.file_read, lambda *_: page, Part(), key)
        hooked(self.engine.page_filled, lambda *_: None, self.host, torch.tensor(place), page)

    def read(self, slots: list[int], tokens: list[int], layers: Sequence[int] = (0, 1)) -> None:
        """Read slots of the pool as the beginning of a request, and wait for these layers first."""
        kind: Any = type("Hooked", (LayeredPool,), {})
        pool = kind(layer_transfer_counter=self.counter, start_layer=3, waits=layers)
        pool.full_kv_pool = self.pool
        self.engine.awaited(pool)
        tokens, slots = [*tokens, 1], [*slots, 30]
        row = Row("b", tokens, len(tokens) - 1, 1, {"full": torch.tensor(slots)})
        self.scene.watcher.begin(Forward("extend", (row,)))
        for layer in range(2):
            pool.get_kv_buffer(3 + layer)
        self.scene.write([30], "full")
        self.engine.arrived()
        self.scene.watcher.end()


@pytest.fixture
def copies(tmp_path: Path) -> Iterator[Copies]:
    """Return copies of a connector, whose journal is closed afterwards."""
    made = Copies(tmp_path)
    yield made
    made.scene.close()


@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize("taken", [False, True])
def test_a_copy_to_the_host_ends_when_the_cache_takes_its_note(
    over: bool, taken: bool, copies: Copies
) -> None:
    copies.scene.forward("a", TOKENS, 0, {"full": SLOTS})
    copies.start_writing(SLOTS, PLACES).over = over
    if taken:
        copies.take()
    copies.scene.forward("b", [1, 2], 0, {"full": [SLOTS[1], 20]})
    assert copies.scene.checks() == ["copy under way"] * (not (over and taken)) * (1 + taken)


@pytest.mark.parametrize("waits", [False, True])
def test_a_copy_from_the_host_ends_when_a_forward_waits_for_it(waits: bool, copies: Copies) -> None:
    copies.written()
    copies.start_loading(PLACES, [20, 21, 22, 23])
    copies.counter.consumer_index = 0 if waits else -1
    copies.read([20, 21, 22, 23], TOKENS)
    assert copies.scene.checks() == ([] if waits else ["copy under way"])


@pytest.mark.parametrize("layers", [(0, 1), (1,), (0,), ()])
def test_each_layer_waits_for_its_part_of_a_copy(layers: tuple[int, ...], copies: Copies) -> None:
    copies.written()
    copies.start_loading(PLACES, [20, 21, 22, 23])
    copies.counter.consumer_index = 0
    copies.read([20, 21, 22, 23], TOKENS, layers)
    assert copies.scene.checks() == ([] if layers == (0, 1) else ["copy under way"])


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the current stream say what it waits for."""
    monkeypatch.setattr(torch.cpu, "current_stream", LateStream.current)
    for name, empty in (("all", []), ("marks", {}), ("host", {})):
        monkeypatch.setattr(LateStream, name, empty)
    monkeypatch.setattr(DEFAULT, "known", {})


@pytest.mark.usefixtures("streams")
@pytest.mark.parametrize("waits", ["", "the stream", "the host", "the scheduler", "an earlier one"])
@pytest.mark.parametrize("way", ["to the host", "from the host"])
def test_a_copy_waits_for_the_forward_that_uses_its_slots(
    way: str, waits: str, copies: Copies
) -> None:
    stream, engine = LateStream(), copies.engine
    copies.written()
    engine.copies_kv = True
    if waits == "an earlier one":
        stream.wait_stream(DEFAULT)
    elif waits == "the scheduler":
        engine.scheduling = DEFAULT
    row = Row("a", [*TOKENS, 9], len(TOKENS), 1, {"full": torch.tensor([*SLOTS, 20])})
    copies.scene.watcher.begin(Forward("decode", (row,)))
    copies.scene.write([20], "full")
    copies.scene.watcher.end(engine.until(None))
    if waits == "the host":
        LateEvent.of(DEFAULT).synchronize()
    elif waits == "the stream":
        stream.wait_stream(DEFAULT)
    with InStream(stream):
        if way == "to the host":
            copies.start_writing([20, 21], PLACES[:2])
        else:
            copies.start_loading(PLACES[:2], SLOTS[:2])
    assert copies.scene.checks() == ["copy under way"] * (not waits.startswith("the "))


@pytest.mark.usefixtures("streams")
@pytest.mark.parametrize("early", [False, True])
def test_a_layer_is_ready_after_what_was_copied_to_it(early: bool, copies: Copies) -> None:
    copies.written()
    copies.counter.consumer_index = 0
    with InStream(LateStream()):
        copies.start_loading(PLACES, [20, 21, 22, 23], early=early)
    copies.read([20, 21, 22, 23], TOKENS)
    assert copies.scene.checks() == ["copy under way"] * early


@pytest.mark.parametrize("key", ["right", "wrong"])
def test_what_is_known_of_a_page_travels_with_its_key(key: str, copies: Copies) -> None:
    copies.written()
    copies.move_page(PLACES[0], "right")
    copies.move_page(PLACES[2], "wrong")
    copies.move_page(PLACES[2], "right", there=True)
    copies.fetch_page(key, 0)
    copies.start_loading([0, 1], [20, 21])
    copies.counter.consumer_index = 0
    copies.read([20, 21], TOKENS[:PAGE])
    found = copies.scene.checks()
    assert ("wrong owner" in found) == (key == "wrong")
    assert found == [] or key == "wrong"


@pytest.mark.parametrize("over", [False, True])
def test_a_storage_holds_the_slots_that_it_copies(over: bool, copies: Copies) -> None:
    copies.written()
    given = copies.controller, torch.tensor(PLACES)
    hooked(copies.engine.stores, lambda *_: 7, *given)
    if over:
        hooked(copies.engine.stored, lambda *_: None, copies.controller, Part(id=7))
    for what in ("freed", "handed out"):
        copies.engine.happened(what, copies.host, torch.tensor(PLACES))
    copies.start_writing([8, 9], PLACES[:2])
    copies.scene.forward("c", [1], 0, {"full": [40]})
    assert copies.scene.checks() == ([] if over else ["copy under way"] * 2)


@pytest.mark.parametrize("ends", ["copied", "failed", "left to another rank", "not"])
def test_a_storage_is_done_when_the_cache_gives_its_slots_up(ends: str, copies: Copies) -> None:
    """The engine also takes the note of a copy that failed, or that another rank makes."""

    def page_backup(*_: Any) -> None:
        if ends == "failed":
            raise OSError

    copies.written()
    copies.controller.backup_skip = ends == "left to another rank"
    given = copies.controller, torch.tensor(PLACES)
    hooked(copies.engine.stores, lambda *_: 7, *given)
    for noted in ({7: None}, {}):
        if not noted and ends in {"copied", "failed"}:
            with suppress(OSError):
                hooked(copies.engine.stored, page_backup, copies.controller, Part(id=7))
        cache = Part(cache_controller=copies.controller, ongoing_backup=noted)
        hooked(copies.engine.polled, lambda *_: None, cache)
    copies.engine.happened("freed", copies.host, torch.tensor(PLACES))
    copies.scene.forward("c", [1], 0, {"full": [40]})
    assert copies.scene.checks() == ["copy under way"] * (2 if ends == "not" else 0)
    assert copies.engine.backups == {}


def test_a_storage_may_be_done_before_the_call_for_it_is(copies: Copies) -> None:
    def page_backup() -> None:
        hooked(copies.engine.stored, lambda *_: None, copies.controller, Part(id=7))

    def write_storage(*_: Any) -> int:
        thread.start()
        thread.join(0.1)
        return 7

    thread = Thread(target=page_backup)
    copies.written()
    hooked(copies.engine.stores, write_storage, copies.controller, torch.tensor(PLACES))
    thread.join()
    copies.engine.happened("freed", copies.host, torch.tensor(PLACES))
    copies.scene.forward("c", [1], 0, {"full": [40]})
    assert copies.scene.checks() == []
    assert copies.engine.backups == {}


def test_a_storage_may_be_done_while_the_cache_is_asked(
    copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    def done(name: str) -> None:
        hooked(copies.engine.stored, lambda *_: None, copies.controller, Part(id=8))

    monkeypatch.setattr(copies.scene.watcher, "acknowledged", done)
    for number in (7, 8):
        given = copies.controller, torch.tensor(PLACES)
        hooked(copies.engine.stores, lambda *_, it=number: it, *given)
    for noted in ({7: None, 8: None}, {8: None}):
        cache = Part(cache_controller=copies.controller, ongoing_backup=noted)
        hooked(copies.engine.polled, lambda *_: None, cache)
    assert copies.engine.backups == {}


@pytest.mark.parametrize(("taken", "waits"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("what", ["slots", "places"])
def test_slots_may_be_freed_in_the_call_that_takes_the_note_of_their_copy(
    what: str, taken: bool, waits: bool, copies: Copies
) -> None:
    """The cache takes a note, waits for the copy and frees its slots in one call."""
    copies.scene.forward("a", TOKENS, 0, {"full": SLOTS})
    event = copies.start_writing(SLOTS, PLACES)

    def check_progress(cache: Part) -> None:
        if taken:
            copies.controller.ack_write_queue.clear()
        event.over = waits
        if what == "slots":
            copies.engine.freed(copies.pool, torch.tensor(SLOTS))
        else:
            copies.engine.happened("freed", copies.host, torch.tensor(PLACES))

    cache = Part(cache_controller=copies.controller)
    hooked(copies.engine.completes, check_progress, cache)
    copies.scene.forward("d", [1], 0, {"full": [41]})
    assert copies.scene.checks() == ["copy under way"] * ((not taken) + 2 * (not waits))


@pytest.mark.parametrize("waits", [False, True])
def test_a_retracted_request_is_copied_before_it_gives_up_its_slots(
    waits: bool, copies: Copies
) -> None:
    copies.scene.forward("a", TOKENS, 0, {"full": SLOTS})
    completion = Part(finish_event=Part(query=lambda: waits))

    def backs_up(cache: object) -> None:
        given = copies.host, copies.pool, torch.tensor(PLACES), torch.tensor(SLOTS)
        hooked(copies.engine.back_up, lambda *_: None, *given)
        hooked(copies.engine.completion_of, lambda *_: completion, Part(), [])

    hooked(copies.engine.retracts, backs_up, Part())
    copies.scene.forward("c", [1], 0, {"full": [40]})
    assert copies.scene.checks() == ([] if waits else ["copy under way"])


@pytest.mark.parametrize("freed", ["before", "after", "both"])
def test_slots_are_there_until_their_copy_is_submitted(freed: str, copies: Copies) -> None:
    copies.scene.forward("a", TOKENS, 0, {"full": SLOTS})
    queue = copies.controller.write_queue = list[Part]()

    def write(*_: Any) -> None:
        device, there = torch.tensor(SLOTS), torch.tensor(PLACES)
        queue.append(Part(host_indices=there, device_indices=device))

    def free() -> None:
        copies.scene.freed("full", SLOTS, "pool.py:7 in free", "engine.py:9 in evict")

    hooked(copies.engine.plans, write, copies.controller)
    copies.scene.forward("c", [1], 0, {"full": [40]})  # It may still be written, and so may others.
    if freed != "after":
        free()
        copies.scene.allocated("full", SLOTS, "pool.py:5 in take", "engine.py:8 in admit")
    copies.start_writing(SLOTS, PLACES).over = True
    copies.take()
    if freed != "before":
        free()
    copies.scene.forward("d", [1], 0, {"full": [41]})
    assert copies.scene.checks() == ([] if freed == "after" else ["copy under way"])


@pytest.mark.parametrize("ends", ["flushed", "submitted for a retraction", "not"])
def test_what_is_planned_ends_also_without_a_copy_of_its_own(ends: str, copies: Copies) -> None:
    copies.scene.forward("a", TOKENS, 0, {"full": SLOTS})
    queue = copies.controller.write_queue = list[Part]()

    def write(*_: Any) -> None:
        device, there = torch.tensor(SLOTS), torch.tensor(PLACES)
        queue.append(Part(host_indices=there, device_indices=device))

    hooked(copies.engine.plans, write, copies.controller)
    if ends == "flushed":
        hooked(copies.engine.emptied, lambda *_: True, Part(tree_cache=Part()))
    if ends == "submitted for a retraction":
        hooked(copies.engine.retracts, lambda *_: copies.start_writing(SLOTS, PLACES), Part())
    copies.scene.freed("full", SLOTS, "pool.py:7 in free", "engine.py:9 in evict")
    copies.scene.forward("d", [1], 0, {"full": [41]})
    assert copies.scene.checks() == ["copy under way"] * (ends == "not")
    assert len(copies.engine.planned) == (ends == "not")


@pytest.mark.parametrize("given_up", [None, 2, 4])
@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("windows", [False, True])
def test_a_storage_fills_slots_until_the_cache_takes_its_last_note(
    given_up: int | None, taken: bool, windows: bool, copies: Copies
) -> None:
    """The cache may take what is there, or give it back, while a thread still fills the rest."""
    operation = Part(id=7, host_indices=torch.tensor(PLACES))
    given = copies.controller, operation

    beside = Part(name="window", host_indices=torch.tensor([1, 2]))
    copies.engine.names[window := kept(Part())] = "swa"
    operation.pool_transfers_done = windows

    def fetch(*_: Any) -> None:
        storage = Part(registered_pools={"window": window})
        hooked(copies.engine.fetch_beside, lambda *_: None, storage, [beside])
        if given_up is not None:
            hooked(copies.engine.fetched, lambda *_: (given_up, []), *given)
        copies.start_writing([8, 9], PLACES[:2])
        copies.controller.ack_prefetch_queue.put(Part(operation=operation))

    hooked(copies.engine.fetch, fetch, *given)
    if taken:
        copies.controller.ack_prefetch_queue.get()
    cache = Part(cache_controller=copies.controller)
    hooked(copies.engine.polled, lambda *_: None, cache)
    copies.start_writing([10, 11], PLACES[2:])
    reused = CopyOf("swa", At(torch.tensor([30, 31])), At(torch.tensor([1, 2]), HOST))
    copies.scene.watcher.begin_copies("another", [reused])
    copies.scene.forward("c", [1], 0, {"full": [40]})
    late = (not taken and given_up != 4) + (not taken and (given_up is None or not windows))
    assert copies.scene.checks() == ["copy under way"] * ((given_up is None) + late)


def test_host_slots_are_not_judged_while_a_thread_holds_some(
    copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No queue has what a thread holds, for example after its request was aborted."""
    engine, cache, found = copies.engine, Part(cache_controller=copies.controller), list[Any]()
    monkeypatch.setattr(host, "slots_of", lambda *_: {"host kv": "slots"})
    operation = Part(id=7, host_indices=torch.tensor(PLACES))

    def fetch(*_: Any) -> None:
        found.append(engine.on_host(cache))

    hooked(engine.fetch, fetch, copies.controller, operation)
    found += [engine.on_host(cache), engine.on_host(cache)]
    assert found == [{}, {}, {"host kv": "slots"}]


@pytest.mark.parametrize("restored", ["as saved", "in another order", "of another request"])
def test_what_is_known_of_a_retracted_request_comes_back_with_it(
    restored: str, copies: Copies
) -> None:
    """Copies of two requests are held at a time, and one of a request that has ended is not."""
    copies.scene.forward("a", TOKENS, 0, {"full": SLOTS})
    copies.scene.forward("c", [1, 2], 0, {"full": [40, 41]})
    saved = []
    for slots in ([40, 41], SLOTS, [40]):
        layers = [[[torch.zeros(len(slots)), torch.zeros(len(slots))]]]
        hooked(copies.engine.save, lambda *_, it=layers: it, copies.pool, torch.tensor(slots))
        saved.append(layers)
    spans = sorted(span for _, span in copies.engine.saved.weak.values())
    assert spans == [(0, 2), (2, 6), (6, 7)]
    target = torch.tensor([20, 21, 22, 23])
    if restored == "in another order":
        target = target[[1, 0, 2, 3]]
    wrong = restored == "of another request"
    given = copies.pool, saved[0 if wrong else 1], target[:2] if wrong else target
    hooked(copies.engine.load, lambda *_: None, *given)
    for tensor in copies.scene.groups[0].layers[0].tensors:
        tensor[target] = tensor[SLOTS].clone()
    copies.read([20, 21, 22, 23][: len(given[2])], TOKENS[: len(given[2])])
    assert ("wrong owner" in copies.scene.checks()) == (restored != "as saved")
    del saved[1], layers, given
    hooked(copies.engine.save, lambda *_: [torch.zeros(3)], copies.pool, torch.tensor(SLOTS[:3]))
    assert sorted(span for _, span in copies.engine.saved.weak.values())[0] == (0, 2)


@pytest.mark.parametrize("made", [python, rust])
@pytest.mark.parametrize("kept", [0, 1])
def test_all_slots_of_the_host_are_free_after_a_flush(
    made: Callable[[list[int], int], Part], kept: int, copies: Copies
) -> None:
    cache = made([*range(kept, SIZE)], 0)
    if made is python:
        cache.root_node.children.clear()
        cache.host_pool_group.entry_map["swa"].host_pool.release_slots.append(torch.tensor([0]))
    scheduler = Part(tree_cache=cache)
    hooked(copies.engine.emptied, lambda *_: True, scheduler)
    assert copies.scene.checks() == ["leak"] * kept


@pytest.mark.parametrize("busy", ["", "swa", *QUEUES, *UNDER_WAY])
def test_host_slots_are_judged_once_nothing_of_an_aborted_request_is_left(busy: str) -> None:
    """What an aborted fetch still has waits in a queue of the controller, by pool or not."""
    queues = {name: Queue[int]() for name in (*QUEUES, "swa")}
    if busy in queues:
        queues[busy].put(1)
    others = {"extra_host_mem_release_queues": {"swa": queues.pop("swa")}}
    copies = {name: {1: 1} if name == busy else {} for name in UNDER_WAY}
    cache = Part(cache_controller=Part(**queues, **others), **copies)
    assert at_rest(cache) == (busy == "")
