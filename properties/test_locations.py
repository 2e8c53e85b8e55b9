"""Write locations and key lists of the subject: translation by era, the memo, the window.

What the lists must hold is computed here once more in plain Python.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from harness.arms import Arms
from harness.generate import schedules
from harness.lockstep import Lockstep
from harness.schedule import (
    Admit,
    Decode,
    Evict,
    Extend,
    Finish,
    Idle,
    Resume,
    Retract,
    Schedule,
    Step,
)
from harness.trace import Trace
from harness.trial import SUBJECT_LOGGER, Trial
from reference.batch import ForwardBatch, Mode, Span, Tables, prepare
from reference.config import PRESETS, Kind
from reference.pool import HybridKVPool, PoolSizes
from subjects.behaviour import Era, Invalidation
from subjects.buffers import BufferPool
from subjects.bugs import BUGS
from subjects.metadata import KeyLists, StaticMetadata, extend_lists
from subjects.pool import TRANSLATE, SubjectPool

CONFIG = PRESETS["gpt_oss"].tiny
BS = 6


@pytest.fixture(scope="module", autouse=True)
def inference() -> Iterator[None]:
    """Live in inference mode, as the harness does."""
    with torch.inference_mode():
        yield


@cache
def storage_pool(device: str) -> HybridKVPool:
    """Return a pool whose full slot f, but for slots 5 and 6, is mapped to SWA slot 70 - f.

    Cell (row, position) of its request table holds a slot of its own kind, row 0 zeros.
    """
    pool = HybridKVPool(CONFIG, PoolSizes(), torch.float32, torch.device(device))
    mapping = pool.full_to_swa_index_mapping
    mapping[1:70] = torch.arange(69, 0, -1, device=device)
    mapping[5:7] = 0
    row, position = torch.meshgrid(
        torch.arange(1, 17), torch.arange(CONFIG.max_context), indexing="ij"
    )
    pool.req_to_token[1:] = ((row * 31 + position * 7) % 69 + 1).to(device, torch.int32)
    return pool


def subject_pool(era: Era, device: str) -> SubjectPool:
    """Return the engine's view of that pool."""
    return SubjectPool(storage_pool(device), Trial(device=device).ops(), era, SUBJECT_LOGGER)


def locs(device: str, *values: int) -> Tensor:
    """Return full slots as a batch holds them."""
    return torch.tensor(values, device=device)


@pytest.mark.parametrize("era", Era)
def test_a_translation_is_int32_and_maps_minus_one_to_itself_and_unmapped_to_zero(
    era: Era, device: str
) -> None:
    translated = subject_pool(era, device).translate_loc_from_full_to_swa(
        locs(device, 1, 69, -1, 5, 0, 33)
    )
    assert translated.dtype is torch.int32
    assert translated.tolist() == [69, 1, -1, 0, 0, 37]


@pytest.mark.parametrize("layer", range(len(CONFIG.layers)))
@pytest.mark.parametrize("era", Era)
def test_kv_is_stored_at_the_full_slot_or_at_its_swa_slot(
    era: Era, layer: int, device: str
) -> None:
    kind = CONFIG.layers[layer]
    assert stored_slots(subject_pool(era, device), layer, locs(device, 3, 30)) == (
        {3, 30} if kind is Kind.FULL else {67, 40}
    )


@pytest.mark.parametrize("layer", range(len(CONFIG.layers)))
def test_a_preset_location_stands_in_for_the_translation_on_swa_layers(
    layer: int, device: str
) -> None:
    pool = subject_pool(Era.PRESET, device)
    pool.set_swa_loc(locs(device, 50, 51).int())
    pool.ops.log = []
    slots = stored_slots(pool, layer, locs(device, 3, 30))
    assert slots == ({3, 30} if CONFIG.layers[layer] is Kind.FULL else {50, 51})
    assert pool.ops.log == ["store_kv"]


def stored_slots(pool: SubjectPool, layer: int, loc: Tensor) -> set[int]:
    """Return the slots of `layer` that a store of a value no pool holds has changed."""
    cache = pool.pool.cache(layer)
    before = cache.clone()
    rows = torch.full((loc.shape[0], *cache.shape[2:]), 1e6, device=cache.device)
    pool.set_kv_buffer(layer, loc, rows, -rows)
    changed = (cache != before).flatten(2).any(-1)
    assert torch.equal(changed[0], changed[1])
    cache.copy_(before)
    return set(changed[0].nonzero().flatten().tolist())


@pytest.mark.parametrize("era", Era)
@pytest.mark.parametrize("preset", PRESETS)
def test_each_graph_holds_the_translations_of_its_era(preset: str, era: Era, device: str) -> None:
    """One for each SWA layer, none on the fast path, one for all layers with the memo."""
    arms = Arms(Trial(preset=preset, era=era, device=device, buckets=(1, 4)))
    swa_layers = arms.config.layers.count(Kind.SWA)
    wanted = {Era.PER_LAYER: swa_layers, Era.PRESET: 0, Era.MEMO: 1}[era]
    graphs = arms.subject.runner.graphs
    assert graphs.keys() == {1, 4}
    for graph in graphs.values():
        assert graph.operations.count(TRANSLATE) == wanted
        assert graph.operations.count("store_kv") == len(arms.config.layers)


def test_a_capture_that_finds_the_memo_of_its_warm_up_holds_no_translation(device: str) -> None:
    """The harmful case of the memo, which the invalidation at the top of a run prevents."""
    arms = Arms(Trial(device=device).with_bug("loc_memo_capture"))
    graphs = arms.subject.runner.graphs
    assert len(graphs) > 0
    assert [graph.operations.count(TRANSLATE) for graph in graphs.values()] == [0] * len(graphs)


def test_a_preset_location_stays_until_it_is_set_again(device: str) -> None:
    """Captures leave the static buffer, replays keep it, an eager forward sets its own."""
    arms = Arms(Trial(era=Era.PRESET, device=device))
    pool, runner = arms.subject.engine.pool, arms.subject.runner
    captured = pool.state.swa_loc
    assert captured is not None
    assert captured.data_ptr() == runner.inputs.buffers["out_cache_loc_swa"].data_ptr()
    assert captured.shape == (min(arms.trial.buckets),)
    run(arms, Idle())
    pool.invalidate_loc_cache()
    assert pool.state.swa_loc is captured
    prefill = run(arms, Admit(3, chunk=3))
    eager = pool.state.swa_loc
    assert eager is not None and prefill is not None
    assert eager.tolist() == list(prefill.spans[0].swa_slots)
    run(arms, Decode((0,)))
    assert pool.state.swa_loc is eager
    pool.set_swa_loc(None)
    assert pool.state.swa_loc is None


def run(arms: Arms, step: Step) -> ForwardBatch | None:
    """Run one step in the graph world; return its batch, None for an idle step."""
    work = arms.graph.plan(step)
    assert work is not None
    forward = arms.subject.forward(work.batch)
    if work.batch is not None:
        arms.graph.sample(work.batch, forward.logits)
    return work.batch


def memo(device: str) -> SubjectPool:
    """Return a pool that memoises, its memo empty."""
    return subject_pool(Era.MEMO, device)


def test_the_memo_warns_at_each_true_change(device: str, caplog: pytest.LogCaptureFixture) -> None:
    """Two tensors taking turns warn each time, though every value is right."""
    pool, first, second = memo(device), locs(device, 1, 2), locs(device, 3, 4, 7)
    for turn in range(3):
        assert pool.translate_loc_from_full_to_swa(first).tolist() == [69, 68]
        assert pool.translate_loc_from_full_to_swa(second).tolist() == [67, 66, 63]
        assert len(caplog.messages) == 1 + 2 * turn
    assert "from 2 elements to 3 without invalidate_loc_cache()" in caplog.messages[0]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_the_memo_is_silent_while_its_tensor_stays(
    device: str, caplog: pytest.LogCaptureFixture
) -> None:
    pool, loc = memo(device), locs(device, 1, 2)
    pool.ops.log = []
    first = pool.translate_loc_from_full_to_swa(loc)
    assert pool.translate_loc_from_full_to_swa(loc) is first
    assert pool.ops.log == [TRANSLATE]
    assert caplog.messages == []


def test_the_memo_is_silent_after_an_invalidation(
    device: str, caplog: pytest.LogCaptureFixture
) -> None:
    pool, first, second = memo(device), locs(device, 1, 2), locs(device, 3, 4)
    pool.translate_loc_from_full_to_swa(first)
    pool.invalidate_loc_cache()
    assert pool.translate_loc_from_full_to_swa(second).tolist() == [67, 66]
    assert caplog.messages == []


def test_a_tensor_rewritten_in_place_gets_its_old_translation_silently(
    device: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The hazard of the memo: a static buffer keeps its key. An invalidation mends it."""
    pool, loc = memo(device), locs(device, 1, 2)
    pool.translate_loc_from_full_to_swa(loc)
    loc.add_(10)
    assert pool.translate_loc_from_full_to_swa(loc).tolist() == [69, 68]
    pool.invalidate_loc_cache()
    assert pool.translate_loc_from_full_to_swa(loc).tolist() == [59, 58]
    assert caplog.messages == []


def test_the_memo_knows_a_tensor_by_its_address_and_element_count(
    device: str, caplog: pytest.LogCaptureFixture
) -> None:
    pool, loc = memo(device), locs(device, 1, 2, 3)
    pool.translate_loc_from_full_to_swa(loc)
    assert pool.state.cached_key == (loc.data_ptr(), 3)
    pool.translate_loc_from_full_to_swa(loc[:])
    assert caplog.messages == []
    pool.translate_loc_from_full_to_swa(loc[:2])
    assert len(caplog.messages) == 1
    pool.translate_loc_from_full_to_swa(loc[1:])
    assert len(caplog.messages) == 2


@pytest.mark.parametrize("era", [Era.PER_LAYER, Era.PRESET])
def test_without_a_memo_every_translation_is_made_anew(
    era: Era, device: str, caplog: pytest.LogCaptureFixture
) -> None:
    pool, loc = subject_pool(era, device), locs(device, 1, 2)
    assert pool.translate_loc_from_full_to_swa(loc).tolist() == [69, 68]
    loc.add_(10)
    assert pool.translate_loc_from_full_to_swa(loc).tolist() == [59, 58]
    assert pool.translate_loc_from_full_to_swa(locs(device, 7)).tolist() == [63]
    assert caplog.messages == []


def seen(position: int, window: int) -> list[int]:
    """Return the positions that a query sees through a window, from the definition."""
    return [key for key in range(CONFIG.max_context) if position - window < key <= position]


@dataclass(frozen=True)
class Listed:
    """Key lists on the host: per row of a forward, the full and the SWA slots it reads."""

    full: list[list[int]]
    swa: list[list[int]]


def expected_lists(queries: list[tuple[int, int]], pool: HybridKVPool) -> Listed:
    """Return the lists of queries (row, position), in plain Python."""
    table, mapping = pool.req_to_token.tolist(), pool.full_to_swa_index_mapping.tolist()
    return Listed(
        [[table[row][key] for key in seen(position, position + 1)] for row, position in queries],
        [
            [mapping[table[row][key]] for key in seen(position, CONFIG.window)]
            for row, position in queries
        ],
    )


def listed(lists: KeyLists) -> Listed:
    """Return key lists of the subject on the host, split by their bounds."""

    def split(indptr: Tensor, indices: Tensor) -> list[list[int]]:
        bounds, slots = indptr.tolist(), indices.tolist()
        return [slots[begin:end] for begin, end in pairwise(bounds)]

    return Listed(
        split(lists.kv_indptr, lists.kv_indices),
        split(lists.window_kv_indptr, lists.window_kv_indices),
    )


@cache
def static_metadata(device: str) -> StaticMetadata:
    """Return static lists that every example writes over: their tails are stale."""
    return StaticMetadata(CONFIG, BS, BufferPool(torch.device(device)))


def write_lists(queries: list[tuple[int, int]], era: Era, device: str) -> Listed:
    """Write the static lists of rows whose last key is at a position; return what they hold."""
    metadata = static_metadata(device)
    rows = torch.tensor([row for row, _ in queries], device=device)
    lengths = torch.tensor([position + 1 for _, position in queries], dtype=torch.int32)
    metadata.write(rows, lengths.to(device), lengths, subject_pool(era, device), Invalidation())
    return listed(metadata.lists(len(queries)))


@pytest.mark.parametrize("era", Era)
@given(
    live=st.lists(
        st.tuples(st.integers(1, 16), st.integers(0, CONFIG.max_context - 1)), max_size=BS
    ),
    bs=st.integers(1, BS),
)
def test_static_lists_are_those_listed_in_plain_python(
    device: str, era: Era, live: list[tuple[int, int]], bs: int
) -> None:
    """Padded rows list row 0's one key: slot 0."""
    queries = live + [(0, 0)] * (bs - len(live))
    found = write_lists(queries, era, device)
    assert found == expected_lists(queries, storage_pool(device))
    assert found.swa[len(live) :] == found.full[len(live) :] == [[0]] * (bs - len(live))


def test_a_query_sees_exactly_the_window(device: str) -> None:
    """Itself included: its SWA list holds W keys from position W - 1 on, and all keys before."""
    window, pool = CONFIG.window, storage_pool(device)
    table, mapping = pool.req_to_token.tolist(), pool.full_to_swa_index_mapping.tolist()
    for position in range(CONFIG.max_context):
        (swa,) = write_lists([(3, position)], Era.MEMO, device).swa
        assert len(swa) == min(window, position + 1)
        assert swa[-1] == mapping[table[3][position]]
        assert swa[0] == mapping[table[3][max(0, position - window + 1)]]


def table_span(pool: HybridKVPool, row: int, begin: int, end: int) -> Span:
    """Return the tokens begin .. end-1 of a row at the slots that the tables hold already."""
    full = pool.req_to_token[row, begin:end].long()
    swa = pool.full_to_swa_index_mapping[full]
    return Span(row, 0, begin, end, full.tolist(), swa.tolist(), 0, 0, 0)


@pytest.mark.parametrize("era", Era)
@given(
    spans=st.lists(
        st.tuples(st.integers(1, 16), st.integers(0, 40), st.integers(1, 8)),
        min_size=1,
        max_size=4,
        unique_by=lambda span: span[0],
    )
)
def test_extend_lists_are_those_listed_in_plain_python(
    device: str, era: Era, spans: list[tuple[int, int, int]]
) -> None:
    """One row per token, which sees its prefix and itself."""
    pool = storage_pool(device)
    tokens = torch.zeros((1, CONFIG.max_context), dtype=torch.int64, device=device)
    tables = Tables(pool.req_to_token, pool.full_to_swa_index_mapping)
    parts = [table_span(pool, row, begin, begin + count) for row, begin, count in spans]
    batch = prepare(Mode.EXTEND, parts, tokens, tables)
    queries = [(span.row, each) for span in parts for each in range(span.begin, span.end)]
    lists = extend_lists(batch, CONFIG, subject_pool(era, device), Invalidation())
    assert listed(lists) == expected_lists(queries, pool)


STEPS: tuple[Step, ...] = (
    Admit(5, chunk=5),
    Idle(),
    Admit(CONFIG.window + 3, chunk=4),
    Idle(),
    Extend(0, tokens=20),
    Decode((0,)),
    Decode((0, 1)),
    Idle(),
    Idle(),
    Decode((1, 0)),
    Evict(1),
    Retract(0),
    Idle(),
    Resume(0),
    Decode((0, 1)),
    Finish(0),
    Decode((0,)),
    Admit(2, chunk=2),
    Decode((0, 1)),
)

PATHS = {"eager": 5, "replay": 11}
"""How many forwards these steps ask for, by path."""


def loud_steps(lockstep: Lockstep, schedule: Schedule) -> tuple[Counter[str], Counter[str]]:
    """Play a schedule; return how many forwards, and how many warnings, each path had."""
    forwards, warnings = Counter[str](), Counter[str]()

    def observe(place: int, step: Step, trace: Trace | None, violated: frozenset[str]) -> None:
        if trace is not None:
            path = "eager" if trace.replay is None else "replay"
            forwards[path] += 1
            warnings[path] += len(trace.warnings)

    lockstep.play(schedule, observe)
    return forwards, +warnings


@pytest.mark.parametrize("era", Era)
@pytest.mark.parametrize("preset", PRESETS)
def test_a_clean_subject_logs_nothing(preset: str, era: Era, device: str) -> None:
    """Neither when its graphs are captured nor in any step."""
    lockstep = quiet_lockstep(Trial(preset=preset, era=era, device=device))
    assert lockstep.capture_warnings == ()
    forwards, warnings = loud_steps(lockstep, Schedule(STEPS))
    assert forwards == PATHS
    assert warnings == {}


@cache
def quiet_lockstep(trial: Trial) -> Lockstep:
    """Return a lockstep that watches the log alone."""
    return Lockstep(trial, {"log_hygiene"})


MASKED = ["loc_memo_warning.entry", "loc_memo_warning.before_window"]


def test_the_catalogue_has_these_masked_bugs() -> None:
    assert [name for name, bug in BUGS.items() if bug.masked_by] == MASKED


@pytest.mark.parametrize("name", MASKED)
@given(schedule=schedules(CONFIG, 8))
@settings(max_examples=10)
def test_a_masked_site_warns_in_no_step(device: str, name: str, schedule: Schedule) -> None:
    _, warnings = loud_steps(quiet_lockstep(Trial(device=device).with_bug(name)), schedule)
    assert warnings == {}


@pytest.mark.parametrize("name", MASKED)
def test_a_masked_site_warns_on_no_path(device: str, name: str) -> None:
    trial = Trial(device=device).with_bug(name)
    forwards, warnings = loud_steps(quiet_lockstep(trial), Schedule(STEPS))
    assert forwards == PATHS
    assert warnings == {}


def test_without_before_window_each_capture_but_the_first_warns(device: str) -> None:
    """A capture has no entry: the key that the bucket before it left is still there."""
    trial = Trial(device=device).with_bug("loc_memo_warning.before_window")
    assert len(quiet_lockstep(trial).capture_warnings) == len(trial.buckets) - 1


def test_without_entry_no_capture_warns(device: str) -> None:
    trial = Trial(device=device).with_bug("loc_memo_warning.entry")
    assert quiet_lockstep(trial).capture_warnings == ()


def test_without_after_window_each_eager_forward_warns_once_and_no_replay(device: str) -> None:
    """A replay translates after the window too, but not in Python."""
    trial = Trial(device=device).with_bug("loc_memo_warning.after_window")
    lockstep = quiet_lockstep(trial)
    assert lockstep.capture_warnings == ()
    forwards, warnings = loud_steps(lockstep, Schedule(STEPS))
    assert warnings == {"eager": forwards["eager"]}
    assert forwards["replay"] > 0
