"""An engine of stand-ins is followed from its first batch to the sanitizer's journal."""

import functools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paritybit.connectors.sglang import sampling
from paritybit.connectors.sglang.engine import SglangEngine
from paritybit.watch.facts import RowValues
from paritybit.watch.journal import Journal
from paritybit.watch.settings import Settings
from properties.connectors import parts
from properties.connectors.parts import hooked

PROMPT = [5, 6, 7, 8, 9, 10]


class Toy:
    """An engine that prefills one request and decodes it. `fault` runs within each forward."""

    def __init__(self, folder: Path) -> None:
        self.journal = Journal(folder / "process-1.jsonl")
        self.expected: list[str] = []
        """What the journal is to say is undecided."""
        self.engine = SglangEngine("0", self.journal, Settings(str(folder)))
        self.pool = parts.SlidingPool()
        self.table = torch.zeros(4, 32, dtype=torch.int32)
        self.allocator = parts.Part(
            full_attn_allocator=parts.TokenAllocator(parts.SIZE),
            swa_attn_allocator=parts.TokenAllocator(parts.SIZE),
        )
        config = SimpleNamespace(vocab_size=100, context_len=64, attention_chunk_size=None)
        self.runner = parts.Part(
            is_draft_worker=False,
            token_to_kv_pool=self.pool,
            token_to_kv_pool_allocator=self.allocator,
            req_to_token_pool=parts.Part(req_to_token=self.table, free_slots=[2, 3, 4]),
            sliding_window_size=parts.WINDOW,
            model_config=config,
            server_args=SimpleNamespace(tp_size=1, page_size=1),
            model=self,
            attn_backend=parts.TritonAttnBackend(self.pool, self.table),
        )
        self.engine.hook = lambda kind, name, method: None
        self.engine.hook_lists = lambda runner: None  # type: ignore[method-assign]
        self.request = parts.request("a", 1, PROMPT, [])
        self.table[1, :32] = torch.arange(20, 52)
        self.fault: Callable[[], None] = lambda: None
        self.model: Callable[[Any], Any] = self.eagerly
        self.given: dict[str, Any] = {}
        """More arguments of each forward."""
        hooked(self.engine.model_runner, lambda runner: None, self.runner)

    @property
    def undecided(self) -> list[str]:
        """What the journal says is undecided."""
        said = [json.loads(text) for text in self.journal.said]
        return [fields["what"] for kind, fields in said if kind == "undecided"]

    def run(self, batch: Any) -> Any:
        """Run one batch of the scheduler."""
        scheduled = SimpleNamespace(reqs=[self.request])
        given = self.forward, self.runner, batch
        run = functools.partial(hooked, self.engine.forward, *given, **self.given)
        return hooked(self.engine.batch, lambda *_: run(), self, scheduled)

    def forward(self, runner: Any, batch: Any, pp_proxy_tensors: Any = None) -> Any:
        """Run the model as ModelRunner.forward does."""
        return self.model(batch)

    def eagerly(self, batch: Any) -> str:
        """Run the model: K and V of a token are its location and some number."""
        build = lambda backend, batch: backend.init_forward_metadata(batch)  # noqa: E731
        hooked(self.engine.metadata, build, self.runner.attn_backend, batch)
        self.write(batch.out_cache_loc)
        self.fault()
        return "logits"

    def write(self, locations: torch.Tensor, values: torch.Tensor | None = None) -> None:
        """Write the KV of some locations: random values by default."""
        values = locations + torch.rand(len(locations)) if values is None else values
        self.pool.full_kv_pool.write(locations, values)
        self.pool.swa_kv_pool.write(self.pool.full_to_swa_index_mapping[locations], values)

    def prefill(self) -> None:
        """Prefill the prompt and append a token."""
        batch = parts.extend([1], [0], [6], [20, 21, 22, 23, 24, 25])
        batch.input_ids = torch.tensor(PROMPT)
        self.run(batch)
        self.request.output_ids.append(11)

    def decode(self) -> None:
        """Decode one token."""
        length = len(PROMPT) + len(self.request.output_ids)
        self.run(parts.decode([1], [length], self.request.output_ids[-1:], [19 + length]))
        self.request.output_ids.append(11 + length)

    def idle(self, held: torch.Tensor, locked: int = 0, counted: int = 6, **more: Any) -> None:
        """Let nothing be free while the prefix cache holds some locations."""
        for allocator in (self.allocator.full_attn_allocator, self.allocator.swa_attn_allocator):
            allocator.free_pages = allocator.free_pages[:0]
        cache = SimpleNamespace(
            all_values_flatten=lambda: held,
            full_protected_size=lambda: locked,
            full_evictable_size=lambda: counted,
            swa_protected_size=lambda: 0,
            swa_evictable_size=lambda: len(held),
        )
        scheduler = {"is_fully_idle": lambda: True, "tree_cache": cache, **more}
        hooked(self.engine.idle, lambda scheduler: None, SimpleNamespace(**scheduler))

    @property
    def found(self) -> set[str]:
        """The checks that found something."""
        return {key.split(" | ")[0] for key in self.journal.findings}


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[Toy]:
    toy = Toy(tmp_path)
    yield toy
    if toy.journal.file is not None:
        toy.journal.file.close()
    assert toy.undecided == toy.expected


@pytest.mark.parametrize("setting", ["dcp_size", "attn_cp_size"])
def test_ranks_whose_part_of_a_context_is_not_known_are_not_watched(toy: Toy, setting: str) -> None:
    vars(toy.runner.server_args)[setting] = 2
    toy.prefill()
    toy.write(torch.tensor([21]))
    toy.decode()
    assert toy.found == set()
    toy.expected = [f"{setting}=2 is not watched"]


@pytest.mark.parametrize(("mode", "apart"), [("null", False), ("decode", True)])
def test_requests_begin_in_another_engine_only_if_the_mode_says_so(
    toy: Toy, mode: str, apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SglangEngine, "backends", ("mooncake",))
    given = {"disaggregation_mode": mode, "disaggregation_transfer_backend": "mooncake"}
    vars(toy.runner.server_args).update(given)
    toy.prefill()
    assert toy.engine.apart is apart


def test_a_right_engine_is_watched_and_nothing_is_found(toy: Toy) -> None:
    toy.prefill()
    for _ in range(4):
        toy.decode()
    counts = toy.journal.counts
    assert not toy.journal.findings
    assert (counts["forwards: extend"], counts["forwards: decode"]) == (1, 4)
    assert counts["reads"] == sum(range(6, 10)) + 4 * 4
    assert '"window": 4' in next(text for text in toy.journal.said if '"scope"' in text)


def test_a_window_of_the_backend_that_is_not_the_model_s_is_found(toy: Toy) -> None:
    toy.runner.attn_backend.sliding_window_size -= 1
    toy.prefill()
    toy.decode()
    assert toy.found == {"wrong list"}


def test_a_write_that_nobody_owns_is_found(toy: Toy) -> None:
    toy.prefill()
    toy.fault = functools.partial(toy.write, torch.tensor([22]))
    toy.decode()
    assert "stray write" in toy.found


@pytest.mark.parametrize("name", ["positions", "input_ids", "seq_lens", "mrope_positions"])
def test_an_input_other_than_the_requests_imply_is_found(toy: Toy, name: str) -> None:
    toy.prefill()
    batch = parts.decode([1], [7], [11], [26])
    batch.positions, batch.mrope_positions = torch.tensor([6]), torch.full((3, 1), 6)
    getattr(batch, name)[0] += name != "seq_lens"
    if name == "seq_lens":
        batch.positions += 1
    toy.run(batch)
    assert toy.found == {"stale input"}


def pad(toy: Toy) -> None:
    """Pad the ids of the batch under way, as data-parallel attention does."""
    toy.engine.now.batch.input_ids = torch.nn.functional.pad(toy.engine.now.batch.input_ids, (0, 2))


def test_a_forward_without_ids_is_watched(toy: Toy, tmp_path: Path) -> None:
    toy.engine.settings = Settings(str(tmp_path), key="secret")
    toy.engine.rank = lambda: {"pp": (1, 3)}  # type: ignore[method-assign]
    toy.prefill()
    batch = parts.decode([1], [7], [11], [26])
    batch.input_ids = None
    toy.run(batch)
    assert toy.journal.counts["forwards: decode"] == 1


def test_a_stage_reports_what_its_model_gets_and_returns(toy: Toy, tmp_path: Path) -> None:
    toy.engine.settings = Settings(str(tmp_path), key="secret")
    toy.engine.rank = lambda: {"pp": (1, 3)}  # type: ignore[method-assign]
    states = torch.randn(8, 4)
    toy.fault = lambda: pad(toy)
    got, sent = (parts.Part(tensors={"hidden_states": one}) for one in (states, states * 2))
    eagerly = toy.eagerly
    toy.model = lambda batch: eagerly(batch) and parts.Part(logits_output=sent)
    toy.given = {"pp_proxy_tensors": got}
    toy.prefill()
    toy.journal.settle()
    lines = toy.journal.path.read_text().splitlines()
    ((*_, exchanged),) = next(one["given"] for one in map(json.loads, lines) if "given" in one)
    hashes = [exchanged[way]["hidden_states"] for way in ("received", "sent")]
    assert [[len(row) for row in one] for one in hashes] == [[6], [6]]
    assert hashes[0] != hashes[1]


def test_what_the_sampler_uses_is_judged(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = RowValues("top_ps", ["a"], torch.zeros(1), torch.ones(1))
    monkeypatch.setattr(sampling, "rows", lambda *_: [wrong])
    toy.request = type("Request", (), {**vars(toy.request), "sampling_params": None})()
    toy.prefill()
    batch = parts.decode([1], [7], [11], [26])
    batch.sampling_info = SimpleNamespace()
    toy.run(batch)
    assert toy.found == {"wrong row"}


@pytest.mark.parametrize(("computed", "awaited"), [(6, None), (7, 7)])
def test_a_token_that_is_sampled_after_a_chunk_is_not_awaited(
    toy: Toy, computed: int, awaited: int | None
) -> None:
    toy.request.output_ids.append(11)
    toy.engine.requests = [toy.request]
    row = SimpleNamespace(request="a", cached=0, computed=computed)
    forward = SimpleNamespace(kind="extend")
    now: Any = SimpleNamespace(forward=forward, rows=SimpleNamespace(rows=[row]))
    toy.engine.computed(now, torch.rand(1, 8))
    assert toy.engine.places == {"a": awaited}


def test_a_slot_that_is_freed_while_its_request_runs_is_found(toy: Toy) -> None:
    toy.prefill()
    allocator = toy.allocator.full_attn_allocator
    hooked(toy.engine.free, print, allocator, torch.tensor([23]))
    toy.decode()
    assert toy.found == {"freed in use"}


def test_what_is_collected_keeps_the_lines_that_freed_it(toy: Toy) -> None:
    """Slots are freed in another order than collected, some twice, and pages as numbers."""
    told = list[tuple[list[int], Any]]()
    allocations, allocator = toy.engine, toy.allocator.full_attn_allocator
    lines = iter(f"cache.py:{number}" for number in range(1, 9))
    toy.prefill()

    def freed(name: str, slots: torch.Tensor, source: str | None = None) -> None:
        told.append((slots[slots >= 0].tolist(), source))

    def free_group_end(allocator: Any, slots: list[int]) -> None:
        hooked(allocations.free, lambda *_: None, allocator, torch.tensor(slots))

    watcher: Any = allocations.watcher
    watcher.freed, watcher.here = freed, lambda: next(lines)
    allocator.is_not_in_free_group = False
    hooked(allocations.group, lambda allocator: None, allocator)
    for slots in ([21, 22], [23, 22]):
        for method in (allocations.collect, allocations.free):
            hooked(method, lambda *_: None, allocator, torch.tensor(slots))
    assert not told
    allocator.is_not_in_free_group = True
    free_group_end(allocator, [22, 21, 25, 23, 22])
    assert told == [([22, 23, 22], "cache.py:2"), ([21], "cache.py:1"), ([25], None)]
    hooked(allocations.free, lambda *_: None, allocator, torch.tensor([24, 26]))
    assert told[-1] == ([24, 26], None)
    swa = toy.allocator.swa_attn_allocator
    swa.page_size, toy.allocator.is_not_in_free_group = 2, False
    toy.pool.full_to_swa_index_mapping[24] = 17
    hooked(allocations.collect, lambda *_: None, toy.allocator, torch.tensor([24]))
    free_group_end(swa, [16])
    assert ([16], "cache.py:3") in told


@pytest.mark.parametrize(
    ("locked", "counted", "free", "sessions", "idle", "found"),
    [
        (0, 6, [1, 2, 3, 4], {}, True, set()),
        (2, 4, [1, 2, 3, 4], {}, True, {"slots are locked"}),
        (-1, 7, [1, 2, 3, 4], {}, True, {"slots are unlocked twice"}),
        (0, 6, [2, 3, 4], {}, True, {"rows are not free"}),
        (0, 6, [4, 1, 2, 3, 4], {}, True, {"rows are free twice"}),
        (0, 6, [2, 3, 4, 4], {}, True, {"rows are not free", "rows are free twice"}),
        (0, 6, [1, 2, 3, 4, 5], {}, True, {"free rows are not in the table"}),
        (2, 4, [2, 3, 4, 4], {"s": SimpleNamespace(streaming=True)}, True, set()),
        (2, 4, [1, 2, 3, 4], {"s": SimpleNamespace()}, True, {"slots are locked"}),
        (2, 4, [2, 3, 4, 4], {}, False, set()),
        (0, 5, [1, 2, 3, 4], {}, False, {"slots can never be evicted"}),
        (0, 7, [1, 2, 3, 4], {}, False, {"slots count as evictable and are not in the cache"}),
    ],
)
def test_what_the_engine_counts_wrongly_leaks(
    toy: Toy,
    locked: int,
    counted: int,
    free: list[int],
    sessions: dict[str, Any],
    idle: bool,
    found: set[str],
) -> None:
    """Locks and rows are judged when nothing runs, and the size of the cache at any time."""
    toy.prefill()
    table = toy.runner.req_to_token_pool
    assert (len(table.free_slots), toy.engine.all_rows) == (3, 4)
    table.free_slots = free
    open_ = SimpleNamespace(sessions=sessions)
    toy.idle(
        toy.table[1, :6], locked, counted, is_fully_idle=lambda: idle, session_controller=open_
    )
    what = {key.split(" | ")[-1] for key in toy.journal.findings}
    of = re.compile(" of the (request table|prefix cache)|(?<=in the )(request|prefix) ")
    assert {of.sub("", text) for text in what} == found


@pytest.mark.parametrize("right", [True, False])
def test_copies_to_the_host_and_back_are_followed(toy: Toy, right: bool) -> None:
    toy.prefill()
    pool, host = toy.pool.full_kv_pool, SimpleNamespace(size=8)
    tensors = [*pool.k_buffer, *pool.v_buffer]
    kept = [torch.zeros_like(tensor) for tensor in tensors]

    def out(host: Any, pool: Any, places: torch.Tensor, slots: torch.Tensor) -> None:
        for tensor, copy in zip(tensors, kept, strict=True):
            copy[places] = tensor[slots]

    def back(host: Any, pool: Any, places: torch.Tensor, slots: torch.Tensor) -> None:
        for tensor, copy in zip(tensors, kept, strict=True):
            tensor[slots] = copy[places]

    places, again = torch.tensor([3, 4]), torch.tensor([3, 4] if right else [4, 3])
    hooked(toy.engine.back_up, out, host, pool, places, torch.tensor([20, 21]))
    hooked(toy.engine.load_back, back, host, pool, again, torch.tensor([60, 61]))
    toy.pool.swa_kv_pool.write(torch.tensor([61, 62]), torch.tensor([1.0, 2.0]))
    toy.table[1, :2] = torch.tensor([60, 61])
    toy.decode()
    assert toy.found == (set() if right else {"wrong owner"})


class Graph:
    """A graph: the recorded writes of a runner's static locations."""

    def __init__(self, toy: Toy, buffers: parts.Buffers) -> None:
        self.toy, self.buffers = toy, buffers

    def replay(self) -> None:
        """Write the KV of all locations, those of padded rows too."""
        locations = self.buffers.out_cache_loc
        self.toy.write(locations, locations + 0.25 + self.buffers.input_ids * 0.001)


class Runner:
    """A graph runner with one graph for 4 rows."""

    def __init__(self, toy: Toy) -> None:
        self.buffers: Any = parts.Buffers()
        self.seq_len_fill_value = 1
        self.toy = toy
        self.graphs = {4: Graph(toy, self.buffers)}
        self.attn_backend = toy.runner.attn_backend
        self.model_runner = toy.runner

    def replay(self, batch: Any) -> str:
        """Populate the inputs and replay, as CudaGraphRunner does."""
        self.buffers.populate(batch)
        self.attn_backend.init_forward_metadata(batch)
        self.toy.fault()
        hooked(self.toy.engine.replay, Graph.replay, self.graphs[4])
        return "logits"


@pytest.mark.parametrize(
    ("name", "value", "check"),
    [
        ("out_cache_loc", 0, None),
        ("out_cache_loc", 23, "stray write"),
        ("seq_lens", 1, None),
        ("seq_lens", 3, "stale input"),
    ],
)
def test_a_replay_is_judged_with_its_static_inputs_and_their_padding(
    toy: Toy, name: str, value: int, check: str | None
) -> None:
    runner = Runner(toy)
    hooked(toy.engine.capture, lambda runner: None, runner)
    toy.prefill()

    def spoil() -> None:
        getattr(runner.buffers, name)[2] = value

    toy.fault = spoil
    toy.model = functools.partial(hooked, toy.engine.runner, Runner.replay, runner)
    toy.decode()
    counts = toy.journal.counts
    assert (counts["captures"], counts["replays"], counts["padded_replays"]) == (1, 1, 1)
    assert toy.found == ({check} if check else set())


def test_a_graph_whose_key_counts_tokens_is_not_judged(toy: Toy) -> None:
    """The numbers of drafts differ between requests, so the padding has another place."""
    runner: Any = Runner(toy)
    runner.ragged_verify_mode = True
    hooked(toy.engine.capture, lambda runner: None, runner)
    toy.prefill()
    toy.fault = lambda: runner.buffers.seq_lens.fill_(3)
    toy.model = functools.partial(hooked, toy.engine.runner, Runner.replay, runner)
    toy.decode()
    toy.expected = ["the index lists of a forward of kind decode"]
    assert toy.found == set()


def test_a_runner_without_a_model_leaves_a_verdict(toy: Toy) -> None:
    toy.prefill()
    target, toy.runner = toy.runner, parts.Part()
    batch = parts.decode([1], [7], [11], [26])
    batch.out_cache_loc, toy.model = None, lambda batch: "logits"
    toy.run(batch)
    assert target is toy.engine.target
    assert toy.found == set()
