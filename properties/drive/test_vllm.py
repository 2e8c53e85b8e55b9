"""What a whole vLLM is served with on a CPU, and the arithmetic that stands in for its kernels."""

import os
import sys
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from paritybit.harness.errors import CannotRunError

from paritybit.connectors.sharing import Share
from paritybit.drive.adapters import Environment
from paritybit.drive.answers import Answer
from paritybit.drive.script import Part, Planned, Sampling
from paritybit.drive.vllm import host
from paritybit.drive.vllm.adapter import ADAPTER, TABLE
from paritybit.drive.vllm.answers import VllmGrammar
from paritybit.drive.vllm.attention import (
    attend,
    attend_compressed,
    corrected,
    flash,
    store,
    store_compressed,
)
from paritybit.drive.vllm.host import copy_in_turns
from paritybit.drive.vllm.serving import Vllm, likely, preempt
from paritybit.drive.vllm.settings import EXPERTS, VllmServed
from paritybit.drive.vllm.shortage import INTERVAL, LATEST, preempt_often
from paritybit.drive.vllm.stand_ins import Generator, noted

PAGE, HEADS, WIDTH = 4, 2, 8


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int) -> torch.Tensor:
    """Attend with the last len(q) positions of a row to its keys, [positions, heads, width]."""
    scores = torch.einsum("thd,lhd->thl", q, k)
    place = torch.arange(len(k) - len(q), len(k))[:, None] - torch.arange(len(k))
    hidden = (place < 0) | ((place > window) if window >= 0 else torch.zeros_like(place).bool())
    weights = scores.masked_fill(hidden[:, None], -torch.inf).softmax(-1)
    return torch.einsum("thl,lhd->thd", weights, v)


def agree(lengths: list[int], counts: list[int], window: int) -> None:
    """Compare rows of such lengths and numbers of queries, and a padded row after them."""
    generator = torch.Generator().manual_seed(sum(lengths) + window)
    blocks = torch.randperm(32, generator=generator) + 1
    table = torch.zeros(len(lengths) + 1, 8, dtype=torch.int32)
    cache = torch.full((40, PAGE, HEADS, 2 * WIDTH), torch.nan)
    cache[0] = 0  # The null block.
    rows = []
    for row, length in enumerate(lengths):
        mine = blocks[row * 8 : row * 8 + 8]
        table[row] = mine
        kv = torch.randn(length, HEADS, 2 * WIDTH, generator=generator)
        places = torch.arange(length)
        slots = mine[places // PAGE] * PAGE + places % PAGE
        k, v = cache.split(WIDTH, dim=-1)
        store(kv[..., :WIDTH], kv[..., WIDTH:], k, v, slots)
        rows.append(kv)
    q = torch.randn(sum(counts) + 1, HEADS, WIDTH, generator=generator)
    out = torch.zeros_like(q)
    starts = torch.tensor([0, *counts, 0]).cumsum(0)
    k, v = cache.split(WIDTH, dim=-1)
    attend(
        q, k, v, out, starts, torch.tensor([*lengths, 0]), 1.0, (window, 0), table, max_seqlen_q=1
    )  # fmt: skip
    for row, (first, last) in enumerate(pairwise(starts[: len(counts) + 1])):
        kv = rows[row]
        right = dense(q[first:last], kv[..., :WIDTH], kv[..., WIDTH:], window)
        assert torch.allclose(out[first:last], right, atol=1e-5)
    assert not out[-1].any()


def test_attention_reads_the_blocks_of_each_row() -> None:
    for window in (-1, 1, 3, 5):
        agree([1, 7, 13], [1, 1, 1], window)
        agree([5, 9, 4, 16], [5, 2, 1, 7], window)


def test_compressed_kv_is_a_key_and_in_part_a_value_of_all_heads() -> None:
    torch.manual_seed(0)
    latent, key, q = torch.randn(5, WIDTH), torch.randn(5, 4), torch.randn(2, HEADS, WIDTH + 4)
    cache, table = torch.full((4, PAGE, WIDTH + 4), torch.nan), torch.tensor([[3, 1], [0, 0]])
    slots = torch.tensor([12, 13, 14, 15, 4])
    padded = torch.cat((latent, latent[:1])), torch.cat((key, key[:1]))
    store_compressed(*padded, cache, torch.cat((slots, torch.tensor([-1]))), scale=None)
    assert int(cache.isfinite().all(-1).sum()) == len(slots)
    cache[0] = 0  # The null block.
    out = torch.ones(2, HEADS, WIDTH)
    buffer, lengths = cache[:, :, None], torch.tensor([5, 0])
    attend_compressed(
        q, buffer, buffer[..., :WIDTH], out, out, table, lengths, out, 1, 1.0, PAGE, is_mla=True
    )
    keys, values = (
        one[:, None].expand(-1, HEADS, -1) for one in (torch.cat((latent, key), -1), latent)
    )
    assert torch.allclose(out[:1], dense(q[:1], keys, values, -1), atol=1e-5)
    assert not out[1].any()


@pytest.mark.parametrize("by_slot", [False, True])
def test_quantised_kv_is_multiplied_by_its_scales(by_slot: bool) -> None:
    torch.manual_seed(0)
    k, v = torch.randn(2, 3, HEADS, WIDTH)
    q, by = torch.randn(1, HEADS, WIDTH), (torch.tensor(0.5), torch.tensor(2.0))
    caches = torch.zeros(2, 2, PAGE, HEADS, WIDTH + 4 * by_slot).to(torch.float8_e4m3fn)
    k_cache, v_cache = caches
    mine = k_cache[..., :WIDTH], v_cache[..., :WIDTH]
    store(k, v, mine[0], mine[1], torch.tensor([4, 5, 6]), "fp8", *by)
    names = ("k_scale_cache", "v_scale_cache") if by_slot else ("k_descale", "v_descale")
    shape = (2, PAGE, HEADS) if by_slot else (1, HEADS)
    given = (one.expand(shape) for one in by)
    scales: dict[str, Any] = dict(zip(names, given, strict=True))
    out, table = torch.zeros_like(q), torch.tensor([[1]])
    starts, lengths = torch.tensor([0, 1]), torch.tensor([3])
    attend(q, k_cache, v_cache, out, starts, lengths, 1.0, (-1, -1), table, **scales)
    keys, values = (
        (one / scale).to(k_cache.dtype).float() * scale
        for one, scale in zip((k, v), by, strict=True)
    )
    assert torch.allclose(out, dense(q, keys, values, -1), atol=1e-5)
    assert not torch.allclose(out, dense(q, k, v, -1), atol=1e-5)  # Some bits are lost.


@pytest.mark.parametrize("interleave", [1, 2])
@pytest.mark.parametrize("rows", [[(0, 3), (1, 1), (5, 2), (8, 1)], [(1, 1), (7, 1), (12, 1)]])
def test_ranks_that_share_a_context_attend_to_all_of_it(
    rows: list[tuple[int, int]], interleave: int
) -> None:
    """As the engine merges them: the outputs of the ranks, and then that of the new tokens."""
    generator = torch.Generator().manual_seed(len(rows) + interleave)
    shares = [Share(rank, 2, interleave) for rank in (0, 1)]
    caches = [torch.full((20, PAGE, 1, 2 * WIDTH), torch.nan) for _ in shares]
    table = torch.arange(1, 2 * len(rows) + 1).view(-1, 2)
    whole, new = list[torch.Tensor](), list[torch.Tensor]()
    for blocks, (cached, count) in zip(table, rows, strict=True):
        kv = torch.randn(cached + count, 1, 2 * WIDTH, generator=generator)
        for share, cache in zip(shares, caches, strict=True):
            slots = share.slots(blocks, torch.arange(cached), PAGE)
            store(*kv[:cached].split(WIDTH, -1), *cache.split(WIDTH, -1), slots)
        whole, new = [*whole, kv], [*new, kv[cached:]]
    q = torch.randn(sum(count for _, count in rows), HEADS, WIDTH, generator=generator)
    starts = torch.tensor([0, *(count for _, count in rows)]).cumsum(0)
    ends = torch.tensor([cached for cached, _ in rows])
    asked: dict[str, Any] = {
        "cu_seqlens_q": starts, "softmax_scale": 1.0, "window_size": (-1, -1),
        "return_softmax_lse": True,
    }  # fmt: skip
    parts, weights = list[torch.Tensor](), list[torch.Tensor]()
    for share, cache in zip(shares, caches, strict=True):
        given = *cache.split(WIDTH, -1), torch.empty_like(q)
        lengths = share.counts(ends)
        asked_here = {"causal": False, "block_table": table, "seqused_k": lengths, **asked}
        made, weight = flash(q, *given, **asked_here)
        parts, weights = [*parts, made], [*weights, weight.t()]
    both, total = torch.stack(weights), torch.empty_like(weights[0])
    for rank, part in enumerate(parts):
        corrected(part, part, both, total, rank)
    given = *torch.cat(new).split(WIDTH, -1), torch.empty_like(q)
    made, weight = flash(q, *given, causal=True, cu_seqlens_k=starts, **asked)
    share_of_new = (weight.t() - total).sigmoid()[..., None]
    found = sum(parts) * (1 - share_of_new) + made * share_of_new
    for kv, (first, last) in zip(whole, pairwise(starts), strict=True):
        keys, values = kv.expand(-1, HEADS, -1).split(WIDTH, -1)
        right = dense(q[first:last], keys, values, -1)
        assert torch.allclose(found[first:last], right, atol=1e-5)


@pytest.mark.parametrize("starts", [[0, 2, 3, 9, 3], [0, 2, 3, 4, 9], [0, 2, 3, 1, 3]])
@pytest.mark.parametrize("window", [-1, 3])
def test_stale_starts_of_padded_rows_raise_nothing(starts: list[int], window: int) -> None:
    """A kernel reads whatever is there. The check of inputs reports it."""
    cache = torch.randn(8, PAGE, HEADS, WIDTH, generator=torch.Generator().manual_seed(0))
    table = torch.tensor([[1, 2], [3, 4], [5, 5], [6, 6]], dtype=torch.int32)
    q, found = torch.ones(4, HEADS, WIDTH), []
    for given, lengths in ((starts, [5, 3, 2, 2]), ([0, 2, 3, 3, 3], [5, 3, 0, 0])):
        found.append(torch.zeros_like(q))
        attend(
            q, cache, cache, found[-1], torch.tensor(given), torch.tensor(lengths), 1.0,
            (window, 0), table,
        )  # fmt: skip
    first = min(starts[3], 3)  # The first query that a padded row overwrites.
    assert torch.equal(found[0][:first], found[1][:first])


def test_a_process_finds_its_packages_and_a_gpu_needs_compiled_code(tmp_path: Path) -> None:
    dependencies = tmp_path / "transformers", tmp_path / "dependencies-vllm"
    engine = Environment("vllm 0", tmp_path / "engine", dependencies)
    folders = ADAPTER.variables(engine, VllmServed())["PYTHONPATH"].split(os.pathsep)
    assert {*map(str, dependencies), str(tmp_path / "engine")} <= {*folders}
    with pytest.raises(CannotRunError, match="no compiled code"):
        ADAPTER.variables(engine, VllmServed(device="cuda"))
    (tmp_path / "engine/vllm").mkdir(parents=True)
    (tmp_path / "engine/vllm/_C_stable_libtorch.abi3.so").touch()
    ADAPTER.variables(engine, VllmServed(device="cuda"))


def test_the_thread_of_the_simple_connector_copies_in_turns() -> None:
    """It lists the event of a copy once the bytes are there, which takes a turn."""

    class Worker:
        def get_finished(self) -> list[int]:
            return [*events]

    backend: Any = SimpleNamespace(threading=None, queue=None)
    memory: Any = SimpleNamespace(_batch_memcpy=None)
    copy_in_turns(backend, memory, cast("Any", SimpleNamespace(SimpleCPUOffloadWorker=Worker)))
    device, target, events = torch.arange(4.0), torch.zeros(2), list[int]()

    def loop() -> None:
        while (places := items.get()) is not None:
            lists = [
                [at + 4 * place for place in given] for at, given in zip(bases, places, strict=True)
            ]
            given = torch.tensor([*lists, [4] * len(places[0])])
            backend.copy_blocks(given)
            events.append(len(events))

    def copy(given: torch.Tensor) -> None:
        memory._batch_memcpy[0](*(row.data_ptr() for row in given), given.shape[1], "others")

    memory.copy_blocks = copy
    bases, items = (target.data_ptr(), device.data_ptr()), backend.queue.SimpleQueue()
    thread = backend.threading.Thread(target=loop, daemon=True)
    thread.start()
    worker, seen = Worker(), list[list[float]]()
    items.put(([0, 1], [3, 2]))
    while not events:
        seen.append(target.tolist())
        assert len(seen) < 100
        worker.get_finished()
    assert len(seen) > 1
    assert all(one == [0, 0] for one in seen)
    assert target.tolist() == [3, 2]
    items.put(None)
    thread.join()


def test_a_job_that_the_engine_waits_for_is_done_with_all_before_it() -> None:
    class Handler:
        def __init__(self) -> None:
            self.copied, self._transfer_events = list[int](), dict[int, Any]()

        def transfer_async(self, number: int) -> None:
            self.copied.append(number)
            self._transfer_events[number] = None

        def wait(self, jobs: set[int]) -> None:
            for number in jobs:
                self._transfer_events[number].synchronize()

    handler = Handler()
    late = host.LateHandler(handler, host.HANDLERS[0])
    for number in range(4):
        late.transfer_async(number)
    assert not handler.copied
    late.wait({2})  # The engine's own code waits for the event.
    assert handler.copied == [0, 1, 2]


@pytest.mark.parametrize("ended", [False, True])
def test_half_of_the_blocks_of_ended_requests_are_the_next_ones(
    monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    class Queue(list[int]):
        append_n = list.extend

        def prepend_n(self, blocks: list[int]) -> None:
            self[:0] = blocks

    class Manager:
        def free(self, number: int) -> None:
            queue.append_n([number])

    module: Any = SimpleNamespace(FreeKVCacheBlockQueue=Queue, KVCacheManager=Manager)
    for name in ("utils", "manager"):
        monkeypatch.setitem(sys.modules, f"vllm.v1.core.kv_cache_{name}", module)
    monkeypatch.setattr(host, "CHANCE", Random(1))
    host.reuse_soon()
    queue = Queue([-1])
    for number in range(32):
        (Manager().free if ended else lambda one: queue.append_n([one]))(number)
    assert {*queue} == {*range(-1, 32)}
    assert 8 < queue.index(-1) < 24 if ended else queue.index(-1) == 0


@pytest.mark.parametrize(("share", "groups"), [(0.0, 1), (1.0, 1), (1.0, 2)])
def test_a_load_fails_or_some_of_its_blocks_and_the_engine_hears_of_it(
    monkeypatch: pytest.MonkeyPatch, share: float, groups: int
) -> None:
    class Connector:
        connector_worker = SimpleNamespace(_load_jobs={3: "a", 4: "b"})

        def get_transfer_results(self) -> Any:
            over = late.get_finished()
            done = {self.connector_worker._load_jobs.pop(one.job_id) for one in over}
            return SimpleNamespace(finished_recving=done, failed_recving=set())

    class Handler:
        def __init__(self) -> None:
            self.copied, self._transfer_events = list[int](), dict[int, Any]()

        def transfer_async(self, number: int, *_: object) -> None:
            self.copied.append(number)
            copied.add(number)

        def get_finished(self) -> list[Any]:
            done, self.copied = self.copied, []
            return [SimpleNamespace(job_id=number) for number in done]

    def result(number: int, success: bool) -> SimpleNamespace:
        return SimpleNamespace(job_id=number, success=success)

    monkeypatch.setitem(
        sys.modules, host.OFFLOADING, cast("Any", SimpleNamespace(OffloadingConnector=Connector))
    )
    monkeypatch.setitem(
        sys.modules, "vllm.v1.kv_offload.base", cast("Any", SimpleNamespace(TransferResult=result))
    )
    monkeypatch.setattr(host, "LOADS", share)
    monkeypatch.setattr(host.LateHandler, "failing", False)
    late = host.LateHandler(Handler(), host.HANDLERS[1])
    host.fail_loads()
    found, failed, blocks, copied = set[str](), set[str](), set[int](), set[int]()
    monkeypatch.setattr(host, "CHANCE", Random(1))
    for number in (3, 4):
        device = SimpleNamespace(group_sizes=[3] + [0] * (groups - 1), block_ids=[number, 8, 9])
        late.transfer_async(number, None, device)
    for _ in range(3 * host.LATEST):
        results: Any = Connector().get_transfer_results()
        found |= results.finished_recving
        failed |= results.failed_recving
        blocks |= Connector().get_block_ids_with_load_errors()  # type: ignore[attr-defined]
    assert found == {"a", "b"}
    by_block = share > 0 and groups == 1
    assert failed == (set() if not share else {"b"} if by_block else {"a", "b"})
    assert (0 < len(blocks) < 3 and blocks < {3, 8, 9}) if by_block else not blocks
    assert copied == ({3, 4} if not share else {3} if by_block else set())
    assert not host.failed


def test_jobs_with_files_are_late_and_fail_as_their_files_do() -> None:
    files, done = host.LateFiles(), list[int]()

    def fail() -> None:
        raise FileNotFoundError

    for number in range(3):
        files.enqueue_store(number, 1, [partial(done.append, number)])
    files.enqueue_load(3, 1, [fail])
    assert not done
    over = list[Any]()
    for _ in range(5 * host.LATEST):
        assert len(over) <= len(done) + 1
        over += files.get_finished()
    assert sorted(over) == [(0, True, 0.0), (1, True, 0.0), (2, True, 0.0), (3, False, 0.0)]
    files.enqueue_store(4, 1, [partial(done.append, 4)])
    files.wait_idle()
    assert sorted(done) == [0, 1, 2, 4]


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_file_is_lost_or_cut_just_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, share: float
) -> None:
    monkeypatch.setattr(host, "FAILING", share)
    found = set[tuple[int, ...]]()

    def sizes(paths: list[str], *_: object) -> None:
        files = map(Path, paths)
        found.add(tuple(one.stat().st_size if one.exists() else -1 for one in files))

    paths = [tmp_path / name for name in "ab"]
    for _ in range(40):
        for path in paths:
            path.write_bytes(b"block")
        host.spoiling(sizes)([*map(str, paths)])
    lost, cut = {(-1, 5), (5, -1)}, {min(one) for one in found} & {*range(5)}
    assert (lost <= found, bool(cut), (5, 5) in found) == (share > 0, share > 0, share == 0)


def test_loads_fail_by_block_in_an_engine_with_one_kv_group() -> None:
    kinds = [{*VllmServed(offload=True, failing=True, seed=seed).shape.kinds} for seed in (0, 1)]
    assert [len(one) for one in kinds] == [2, 1]


@pytest.mark.parametrize(
    ("step", "listed", "right"),
    [
        ({7: (-2.0, 5), 1: (-0.5, 1), 2: (-0.9, 2)}, [], True),
        ({1: (-0.5, 1), 2: (-0.9, 2)}, [], True),
        ({7: (-2.0, 2), 1: (-0.5, 1), 2: (-0.9, 2)}, [], False),  # Two tokens have a rank.
        ({1: (-0.7, 1), 3: (-0.9, 3)}, [], False),  # One lacks.
        ({7: (-2.0, 5), 8: (-0.5, 1), 9: (-3.0, 2)}, [8, 9], True),
        ({9: (-2.0, 5), 8: (-0.5, 1)}, [8, 9], True),
        ({7: (-2.0, 5), 1: (-0.5, 1), 2: (-0.9, 2)}, [8, 9], False),
    ],
)
def test_tokens_have_the_ranks_of_their_likelihoods_or_are_listed(
    step: dict[int, tuple[float, int]], listed: list[int], right: bool
) -> None:
    given = {
        token: SimpleNamespace(logprob=value, rank=rank) for token, (value, rank) in step.items()
    }
    most = 0 if listed else 2
    answer = Answer([0], 1, likeliest=most, others=listed)
    assert bool([*likely(given, answer, best=False).wrong(most, listed)]) != right


def test_a_grammar_accepts_the_first_tokens_that_are_allowed() -> None:
    grammar = VllmGrammar("1")
    assert not grammar.accept_tokens("a", [5, 6, 8])
    assert grammar.tokens == [5, 6]
    assert grammar.validate_tokens([7, 4, 4]) == [7, 4]
    masks = torch.zeros(2, 8, dtype=torch.int32)
    grammar.fill_bitmask(masks, 1)
    allowed = [bit for bit in range(32) if int(masks[1, 7]) >> bit & 1]
    assert allowed == list(range(3, 32, 4))


def test_prompts_have_two_tokens_if_a_graph_takes_one_for_a_decode() -> None:
    def shortest(model: str, **more: Any) -> int:
        served = VllmServed(model=model, **more)
        waves = [*islice(served.requests(), 4), served.company()]
        requests = [one for wave in waves if wave is not None for one in wave.requests]
        return min(one.length for one in requests if one.follows is None)

    assert (shortest("gemma4"), shortest("lfm2")) == (1, 2)
    assert shortest("lfm2", runner=2) == shortest("lfm2", graphs="breakable") == 1


@pytest.mark.parametrize("page_size", [16, 32])
def test_no_prompt_in_files_ends_the_engine(page_size: int) -> None:
    """See `docs/findings.md`. A fork would share the files."""
    served = VllmServed(files=True, page_size=page_size)
    requests = [one for wave in islice(served.requests(), 8) for one in wave.requests]
    assert not any(one.length % page_size == 1 or one.follows for one in requests)
    assert served.company() is None


def test_salts_are_given_with_files_only_if_adapters_are() -> None:
    def spaces(adapters: int) -> set[int | None]:
        served = VllmServed(files=True, adapters=adapters)
        return {one.space for wave in islice(served.requests(), 16) for one in wave.requests}

    assert spaces(0) == {None} < spaces(3)


def test_a_hit_ends_inside_of_a_block_if_there_are_states(tmp_path: Path) -> None:
    served = VllmServed(model="lfm2", page_size=32)
    assert served.arguments(tmp_path)["prefix_match_unit"] == 16


@pytest.mark.parametrize("split", [False, True])
def test_tensor_parallel_ranks_may_split_prompts_instead(tmp_path: Path, split: bool) -> None:
    given = VllmServed(model="deepseek_v2", runner=2, tp=2, split=split).arguments(tmp_path)
    sizes = given["tensor_parallel_size"], given.get("prefill_context_parallel_size", 1)
    assert sizes == ((1, 2) if split else (2, 1))


@pytest.mark.parametrize("model", ["gemma4", "lfm2"])
def test_data_parallel_ranks_have_experts_in_common(model: str) -> None:
    config = VllmServed(model=model, dp=2).shape.config
    assert config["num_experts"] == EXPERTS
    assert "num_experts" not in VllmServed(model=model).shape.config


def test_rows_with_states_set_no_window_which_their_model_lacks() -> None:
    rows = [row for seed in range(3) for row in TABLE.on("cpu").array.rows(seed)]
    assert {row.settings.get("window") for row in rows if row.settings.get("model")} == {None}


def test_kv_of_a_request_moves_while_it_waits_for_it_or_a_connector_copies_or_holds_it() -> None:
    engine, names = Vllm(VllmServed(offload=True)), "abcdefhij"
    status = {name: SimpleNamespace(name="RUNNING") for name in names}
    status["a"] = SimpleNamespace(name="WAITING_FOR_REMOTE_KVS")
    status["i"] = SimpleNamespace(name="PREEMPTED")
    pulls = {"j": {"do_remote_prefill": True}, "f": {"do_remote_prefill": False}}
    jobs = {name: SimpleNamespace(transfer_jobs=jobs) for name, jobs in (("b", {1}), ("c", set()))}
    stores = {name: SimpleNamespace(store_events=one) for name, one in (("d", {1}), ("e", set()))}
    parts = [
        SimpleNamespace(connector_scheduler=SimpleNamespace(_req_status=jobs)),
        SimpleNamespace(
            scheduler_manager=SimpleNamespace(_reqs_to_store=stores, _pending_cpu_hits={"h": ()})
        ),
    ]
    engine._core = SimpleNamespace(
        scheduler=SimpleNamespace(
            connector=SimpleNamespace(_connectors=parts),
            requests={
                name: SimpleNamespace(status=one, kv_transfer_params=pulls.get(name))
                for name, one in status.items()
            },
        )
    )
    assert [name for name in (*names, "g") if engine.moves(name)] == ["a", "b", "d", *"hij"]


@pytest.mark.parametrize("right", [True, False])
def test_an_answer_is_compared_with_the_output_of_its_request(right: bool) -> None:
    engine, answer, made = Vllm(VllmServed()), Answer([7], 1, text=""), list[int]()
    engine._outputs = SimpleNamespace(add_request=lambda *_: None)
    engine._core = SimpleNamespace(
        preprocess_add_request=lambda _: (SimpleNamespace(output_token_ids=made), 0),
        add_request=lambda *_: made.append(4),
    )
    engine._arrive(SimpleNamespace(request_id="a"), answer)
    answer.tokens = [4 if right else 5]
    assert any(answer.wrong()) != right


@pytest.mark.parametrize(
    ("greedy", "adapter", "found"), [(True, 1, 1), (True, None, 0), (False, 1, 0)]
)
def test_a_greedy_token_is_the_likeliest_if_it_comes_back_in_a_prompt(
    greedy: bool, adapter: int | None, found: int
) -> None:
    engine, ranks = Vllm(VllmServed()), {3: (2, -1.2), 4: (1, -0.1)}
    first = Planned("a", (Part("a", 2),), 1, adapter=1)
    engine._answers["check"] = later = Answer([7, 8, 3, 5], 1, Sampling(likelihoods=1), text="")
    mine = Answer([7, 8], 1, tokens=[3], greedy=greedy)
    engine._relate(first, mine)
    engine._relate(replace(first, name="check", follows="a", adapter=adapter), later)
    later.likeliest = 1
    step = {token: SimpleNamespace(rank=at, logprob=one) for token, (at, one) in ranks.items()}
    sure = {token: SimpleNamespace(rank=1, logprob=-0.1) for token in (8, 5)}
    made = SimpleNamespace(token_ids=[6], text="", logprobs=[{6: sure[5]}], finish_reason="length")
    prompt = [None, {8: sure[8]}, step, {5: sure[5]}]
    output = SimpleNamespace(
        outputs=[made], request_id="check", prompt_logprobs=prompt, finished=False
    )
    processed = SimpleNamespace(reqs_to_abort=[], request_outputs=[output])
    engine._outputs = SimpleNamespace(process_outputs=lambda _: processed)
    engine._core = SimpleNamespace(abort_requests=lambda _: None)
    engine._hear([])
    assert sum("likelier" in text for text in later.wrong()) == found


def test_the_pool_is_full_for_a_running_request_that_needs_a_block_and_then_has_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Pool:
        def get_num_free_blocks(self) -> int:
            return 9

    class Manager:
        block_pool = Pool()

        def new_step_starts(self) -> None: ...

        def free(self, request: Any) -> None: ...

        def allocate_slots(self, request: Any) -> str | None:
            return "blocks" if request.needs <= self.block_pool.get_num_free_blocks() else None

    module = SimpleNamespace(KVCacheManager=Manager)
    name = "vllm.v1.core.kv_cache_manager"
    monkeypatch.setitem(sys.modules, name, cast("Any", module))
    preempt_often()
    given = [
        SimpleNamespace(status=SimpleNamespace(name=name), needs=needs)
        for name, needs in (("WAITING", 1), ("RUNNING", 0), ("RUNNING", 1))
    ]
    refused = list[tuple[int, SimpleNamespace]]()
    for step in range(3 * INTERVAL):
        Manager().new_step_starts()
        for one in given * (LATEST + 1):
            if Manager().allocate_slots(one) is None:
                refused.append((step + 1, one))
    assert refused == [(INTERVAL * at, given[2]) for at in (1, 2, 3)]


@pytest.mark.parametrize("status", ["RUNNING", "PREEMPTED", "FINISHED_STOPPED"])
def test_a_preempted_request_may_lose_its_last_cached_blocks(
    status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    evicted = list[set[int]]()
    blocks = [SimpleNamespace(block_id=at, ref_cnt=1) for at in range(4)]

    class Manager:
        block_pool = SimpleNamespace(evict_blocks=evicted.append)

        def new_step_starts(self) -> None: ...

        def allocate_slots(self, request: Any) -> None: ...

        def get_blocks(self, request_id: str) -> Any:
            return SimpleNamespace(blocks=(blocks,))

        def free(self, request: Any) -> None:
            for one in blocks[1:]:  # Another request has the first one, too.
                one.ref_cnt = 0

    module: Any = SimpleNamespace(KVCacheManager=Manager)
    monkeypatch.setitem(sys.modules, "vllm.v1.core.kv_cache_manager", module)
    preempt_often()
    for _ in range(64):
        for one in blocks:
            one.ref_cnt = 1
        Manager().free(SimpleNamespace(request_id="a", status=SimpleNamespace(name=status)))
    lost = {frozenset(one) for one in evicted}
    every = {frozenset(range(first, 4)) for first in range(1, 5)} - {frozenset()}
    assert lost - {frozenset()} == (set() if status.startswith("FINISHED") else every)


def test_half_of_the_rows_preempt_often_but_none_with_states_or_one_copy_of_kv() -> None:
    often = [VllmServed(seed=seed).retracts for seed in range(8)]
    assert often == [False, False, True, True] * 2
    others: list[dict[str, Any]] = [{"model": "lfm2"}, {"files": True}, {"apart": True}]
    assert not any(VllmServed(seed=3, **one).retracts for one in others)


def test_a_generator_of_a_cpu_goes_back_by_one_draw() -> None:
    one = Generator().manual_seed(3)
    draw = noted(lambda probs, generators: probs.exponential_(generator=generators[0]))
    first, second = (draw(torch.empty(8), {0: one}).clone() for _ in range(2))
    assert not torch.equal(first, second)
    one.set_offset(one.get_offset() - 4)  # As the engine does.
    assert torch.equal(draw(torch.empty(8), {0: one}), second)


@pytest.mark.parametrize(("rests", "deferred"), [(True, []), (False, []), (True, [1])])
def test_a_preemption_empties_no_cache_only_while_something_holds_blocks(
    rests: bool, deferred: list[int]
) -> None:
    def retract() -> bool:
        raise RuntimeError("requests wait for remote KV")

    raises = pytest.raises(RuntimeError) if rests and not deferred else nullcontext()
    with raises:
        preempt(SimpleNamespace(deferred_frees=deferred), retract, lambda: rests)
