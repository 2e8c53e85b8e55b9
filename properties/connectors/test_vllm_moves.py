"""KV of vLLM in LMCache and in files below the host, and KV that one engine offers to another."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from properties.connectors.parts import Part, hooked
from properties.connectors.parts_vllm import PAGE, Served, a_request, output
from properties.connectors.test_vllm import prefilled
from properties.support.watching import lines_in


def none(*_: object, **__: object) -> None:
    """Do nothing."""


FILE, ABSENT, SHORT, MEMORY = "file", "absent", "short", "memory"


def of_blocks(blocks: Sequence[int]) -> Tensor:
    """Return the slots of blocks."""
    return (torch.tensor(blocks)[:, None] * PAGE + torch.arange(PAGE)).flatten()


@pytest.mark.parametrize(
    ("stored", "kept", "cached", "found"),
    [
        ([1, 3], MEMORY, 0, set[str]()),
        ([1, 3], FILE, 0, set[str]()),
        ([3, 1], FILE, 0, {"wrong owner"}),
        ([1, 3], ABSENT, 0, {"uninitialised read"}),
        ([1, 3], SHORT, 0, {"uninitialised read"}),
        ([1, 3], MEMORY, 8, {"uninitialised read"}),  # The engine leaves out what it has.
    ],
)
def test_a_chunk_of_lmcache_has_what_was_stored_by_its_key(
    tmp_path: Path, stored: list[int], kept: str, cached: int, found: set[str]
) -> None:
    served, path = prefilled(Served(tmp_path)), tmp_path / "chunk"
    engine, cache = served.engine, Part(config=Part(chunk_size=2 * PAGE))
    engine.cache = lambda: cache
    memory, buffer = Part(data_ptr=100), bytearray(16)
    chunk, backend = Part(data_ptr=100), Part(_key_to_path=str)
    held = served.cache[stored].clone()
    there = {"slot_mapping": of_blocks(stored)}
    hooked(engine.collects, none, Part(), memory, 0, 8, **there)
    if kept != MEMORY:
        put = Part(__self__=backend)
        hooked(engine.queues, none, Part(), "put", put, key=path, memory_obj=memory)
        hooked(engine.writes, none, backend, path, memory)
        if kept != ABSENT:
            path.write_bytes(buffer[8 * (kept == SHORT) :])
        chunk.data_ptr = torch.frombuffer(buffer, dtype=torch.uint8).data_ptr()
        hooked(engine.reads, none, backend, path, memoryview(buffer), str(path))
    served.scheduler.requests["b"] = a_request(*range(10, 15))
    again = output({"b": 1}, new={"b": ([5, 7], [6, 8])}, hit=4)
    again.has_sync_kv_loads = True

    def load() -> None:
        served.cache[[5, 6]] = held
        where = {"slot_mapping": of_blocks([5, 6]), "vllm_cached_tokens": cached}
        hooked(engine.restores, none, Part(), chunk, 0, 8, **where)
        hooked(engine.awaits, none, Part())

    served.run(again, [[5, 7], [6, 8]], 4, [14], "b", copies={"before": load})
    assert served.found() == found


def test_memory_is_not_filled_again_while_it_is_written_to_a_file(tmp_path: Path) -> None:
    served, memory = prefilled(Served(tmp_path)), Part(data_ptr=100)
    engine, cache = served.engine, Part(config=Part(chunk_size=2 * PAGE))
    engine.cache = lambda: cache
    put = Part(__self__=Part(_key_to_path=str))
    there = {"slot_mapping": of_blocks([1, 3])}
    hooked(engine.collects, none, Part(), memory, 0, 8, **there)
    hooked(engine.queues, none, Part(), "put", put, key="file", memory_obj=memory)
    hooked(engine.collects, none, Part(), memory, 0, 8, **there)
    assert served.found() == {"copy under way"}


@pytest.mark.parametrize(
    ("locked", "lost", "writes", "found"),
    [
        (0, 0, [], set[str]()),
        (1, 0, [], {"leak"}),
        (0, 8, [], {"leak"}),
        (1, 8, ["key"], set[str]()),
    ],
)
def test_a_chunk_that_stays_locked_or_has_no_key_is_a_leak(
    tmp_path: Path, locked: int, lost: int, writes: list[str], found: set[str]
) -> None:
    served = prefilled(Served(tmp_path))
    chunk = Part(get_physical_size=lambda: 8, can_evict=not locked)
    allocator = Part(pin_allocator=Part(total_allocated_size=8 + lost))
    memory = Part(hot_cache={"key": chunk}, memory_allocator=allocator)
    disk = Part(disk_worker=Part(put_tasks=writes))
    backends = {"LocalCPUBackend": memory, "LocalDiskBackend": disk}
    cache = Part(storage_manager=Part(storage_backends=backends))
    served.engine.cache = lambda: cache
    served.scheduler.requests.clear()
    hooked(served.engine.idle, none, served.scheduler)
    assert served.found() == found


class Pair:
    """An engine for prefill, with the prompt of request a, and one for decode."""

    def __init__(self, folder: Path) -> None:
        for name in ("prefill", "decode"):
            (folder / name).mkdir()
        self.prefill = prefilled(Served(folder / "prefill"))
        self.decode = Served(folder / "decode")
        for one in (self.prefill, self.decode):
            one.engine.pulls_kv = True

    def offer(self) -> dict[str, Any]:
        """Offer the blocks of request a. Returns the message."""
        told: dict[str, Any] = {"remote_block_ids": ([1], [3])}
        given = Part(), Part(request_id="a")
        hooked(self.prefill.engine.offers, lambda *_: (True, told), *given)
        return told

    def over(self, served: Served, **which: set[str]) -> None:
        """Let an engine see which transfers are over."""
        names = "finished_sending", "finished_recving", "failed_recving"
        found = Part(**{name: which.get(name, set()) for name in names})
        hooked(served.engine.arrives, lambda worker: found, Part())

    def pull(self, told: dict[str, Any], tokens: Sequence[int], theirs: Any = ([1], [3])) -> None:
        """Read the blocks into those of request b, which has these tokens."""
        engine, worker = self.decode.engine, Part(_physical_blocks_per_logical_kv_block=1)
        asked = a_request(*tokens)
        asked.kv_transfer_params = told
        self.decode.scheduler.requests["b"] = asked

        def read(worker: object, request_id: str) -> bool:
            hooked(engine.trims, lambda *_: (([5], [6]), theirs), Part())
            return True

        hooked(engine.pulls, read, worker, request_id="b")

    def go_on(self, number: int) -> None:
        """Compute the next token of request b, or the tokens after a transfer that failed."""
        again = output({"b": number}, new={"b": ([5, 7], [6, 8])}, hit=5 - number)
        tokens = list(range(15 - number, 15))
        self.decode.run(again, [[5, 7], [6, 8]], 5 - number, tokens, "b")


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (None, set[str]()),
        ("tokens", {"wrong owner"}),
        ("block", {"wrong owner"}),
        ("early", {"copy under way", "uninitialised read"}),
        ("failed", {"uninitialised read"}),
        ("changed", {"corrupted read"}),
        ("emptied", set[str]()),  # Only the other cache was.
    ],
)
def test_what_a_transfer_brings_was_computed_elsewhere_for_these_tokens(
    tmp_path: Path, fault: str | None, found: set[str]
) -> None:
    pair = Pair(tmp_path)
    if fault == "emptied":
        one = prefilled(pair.decode)
        hooked(one.engine.emptied, lambda *_: True, one.scheduler)
        assert one.found() == set()
    told = pair.offer()
    tokens = [99 if fault == "tokens" else 10, *range(11, 15)]
    pair.pull(told, tokens, ([3], [1]) if fault == "block" else ([1], [3]))
    if fault == "changed":
        pair.prefill.cache[1, 0] += 1
    pair.decode.cache[[5, 6]] = pair.prefill.cache[[3, 1] if fault == "block" else [1, 3]]
    if fault != "early":
        failed = {"b"} if fault == "failed" else set[str]()
        pair.over(pair.decode, finished_recving={"b"}, failed_recving=failed)
    pair.go_on(1)
    assert pair.decode.found() == found


@pytest.mark.parametrize("read", [False, True])
def test_offered_blocks_are_not_written_before_they_were_read(tmp_path: Path, read: bool) -> None:
    pair = Pair(tmp_path)
    pair.offer()
    if read:
        pair.over(pair.prefill, finished_sending={"a"})
    served = pair.prefill
    served.scheduler.requests["c"] = a_request(*range(20, 24))
    served.run(output({"c": 4}, new={"c": ([1], [3])}), [[1], [3]], 0, [*range(20, 24)], "c")
    assert served.found() == (set() if read else {"copy under way"})


@pytest.mark.parametrize("over", [False, True])
def test_no_transfer_runs_while_no_request_is_left(tmp_path: Path, over: bool) -> None:
    pair = Pair(tmp_path)
    pair.offer()
    if over:
        pair.over(pair.prefill, finished_sending={"a"})
    pair.prefill.scheduler.requests.clear()
    hooked(pair.prefill.engine.idle, none, pair.prefill.scheduler)
    assert pair.prefill.found() == (set() if over else {"leak"})


def test_an_engine_for_prefill_that_is_not_watched_leaves_no_verdict(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.pull({}, range(10, 15))
    pair.over(pair.decode, finished_recving={"b"})
    pair.decode.journal.end()
    lines = lines_in(tmp_path / "decode")
    assert [one["what"] for one in lines if one["kind"] == "undecided"] != []


class Below:
    """An engine that keeps request a on the host, and its blocks in files below."""

    def __init__(self, folder: Path) -> None:
        self.served = prefilled(Served(folder))
        self.kept = torch.zeros(8, *self.served.cache.shape[1:])
        names = ("one_g0/first", "one_g0/second", "two_g1/first")
        self.files = [folder / name for name in names]
        for one in {file.parent for file in self.files}:
            one.mkdir()
        self.tier = Part(file_mapper=Part(get_file_name=lambda key: str(self.files[key])))
        self.copied([1, 2, 3], [0, 1, 2], stores=True)
        self.begin(1, [0, 1, 2], [0, 1, 2], loads=False)

    def copied(self, blocks: list[int], chunks: list[int], *, stores: bool) -> None:
        """Copy blocks of both groups to the host, or back. The last one is of the second group."""
        handler = Part(gpu_to_cpu=stores, dst_tensors=[self.kept], src_tensors=[self.kept])
        device = Part(block_ids=blocks, group_sizes=(len(blocks) - 1, 1))
        ends = (device, Part(block_ids=torch.tensor(chunks)))
        if stores:
            self.kept[chunks] = self.served.cache[blocks]
        else:
            self.served.cache[blocks] = self.kept[chunks]
        ends, engine = ends if stores else ends[::-1], self.served.engine
        hooked(engine.submits, none, Part(), 7, *ends)
        hooked(engine.transfer, lambda *_: True, handler, 7, *ends)
        hooked(engine.finishes, lambda *_: [Part(job_id=7)], Part())

    def begin(self, number: int, keys: list[int], chunks: list[int], *, loads: bool) -> None:
        """Begin a job between files and blocks of the host."""
        job = Part(job_id=number, keys=keys, chunk_ids=chunks, is_promotion=loads)
        hooked(self.served.engine.goes_below, none, self.tier, job)

    def end(self, number: int) -> None:
        """Let the engine see that a job is over."""
        over = [Part(job_id=number)]
        hooked(self.served.engine.ends_below, lambda *_: over, self.tier)

    def write(self) -> None:
        """Write the files, of which one is there already."""

        def write(paths: list[str], *_: object) -> None:
            for path in paths:
                Path(path).write_bytes(b"block")

        given = [str(one) for one in self.files], None, [0, 5, 10], 5
        hooked(self.served.engine.writes_below, write, *given)
        self.end(1)

    def read(self, keys: list[int], chunks: list[int], counted: int | None = None) -> None:
        """Read files. If not all are whole, the engine counts so many."""
        paths = [self.files[key] for key in keys]
        places = [key for key in keys if self.files[key].exists()]
        self.kept[chunks[: len(places)]] = self.kept[places]
        error = OSError()
        error.num_succeeded = counted  # type: ignore[attr-defined]

        def read(*_: object) -> None:
            if any(not one.exists() or one.stat().st_size < 5 for one in paths):
                raise error

        given = [*map(str, paths)], None, [5 * one for one in chunks], 5
        with suppress(OSError):
            hooked(self.served.engine.reads_below, read, *given)

    def go_on(self) -> set[str]:
        """Decode a token after blocks that come from the host, and return what was found."""
        self.copied([5, 6], [5, 6], stores=False)
        self.served.scheduler.requests["b"] = a_request(*range(10, 15))
        again = output({"b": 1}, new={"b": ([5, 7], [6, 8])}, hit=4)
        self.served.run(again, [[5, 7], [6, 8]], 4, [14], "b")
        return self.served.found()


@pytest.mark.parametrize(
    ("keys", "lost", "counted", "over", "found"),
    [
        ([0, 2], None, None, True, set[str]()),
        ([1, 2], None, None, True, {"wrong owner", "uninitialised read"}),
        ([0, 2], None, None, False, {"copy under way"}),
        ([0, 2], b"", 1, True, {"uninitialised read"}),
        ([0, 2], b"bloc", 2, True, {"uninitialised read"}),  # The engine counts too many.
    ],
)
def test_a_block_from_a_file_has_what_was_written_by_its_key(
    tmp_path: Path,
    keys: list[int],
    lost: bytes | None,
    counted: int | None,
    over: bool,
    found: set[str],
) -> None:
    engine = Below(tmp_path)
    engine.write()
    if lost is not None:
        engine.files[2].write_bytes(lost)
        if not lost:
            engine.files[2].unlink()
    engine.begin(2, keys, [5, 6], loads=True)
    engine.read(keys, [5, 6], counted)
    if over:
        engine.end(2)
    assert engine.go_on() == found


@pytest.mark.parametrize("over", [False, True])
def test_a_block_of_the_host_is_not_filled_while_it_is_written_to_a_file(
    tmp_path: Path, over: bool
) -> None:
    engine = Below(tmp_path)
    if over:
        engine.write()
    engine.begin(2, [0, 2], [0, 2], loads=True)
    assert engine.served.found() == (set() if over else {"copy under way"})
