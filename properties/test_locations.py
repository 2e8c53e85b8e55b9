"""Write locations of the subject: translation by era, what each graph holds of it, the memo.

What each runner's graphs hold, and where each masks or tells a site, is written here by hand.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from harness.checks.expectations import affected_runners, detected_by, unaffected_reason
from harness.checks.play import Lockstep
from harness.lockstep.config import SUBJECT_LOGGER, TrialConfig
from harness.lockstep.observation import Observation
from harness.lockstep.pair import Pair
from harness.schedules.generate import schedules
from harness.schedules.schedule import (
    Admit,
    Decode,
    Draft,
    DraftExtend,
    Evict,
    Extend,
    Finish,
    Idle,
    Resume,
    Retract,
    Schedule,
    Step,
    Verify,
)
from reference.batch import ForwardBatch, Mode
from reference.config import PRESETS, Kind, Role
from reference.pool import HybridKVPool, PoolSizes
from subjects.bugs.catalogue import BUGS
from subjects.pool import TRANSLATE, SubjectPool
from subjects.runners import RUNNERS, engine_runners
from subjects.toggles import LocationScheme

CONFIG = PRESETS["gpt_oss"].tiny


@pytest.fixture(scope="module", autouse=True)
def inference() -> Iterator[None]:
    """Live in inference mode, as the harness does."""
    with torch.inference_mode():
        yield


@cache
def storage_pool(device: str) -> HybridKVPool:
    """Return a pool whose full slot f, but for slots 5 and 6, is mapped to SWA slot 70 - f."""
    pool = HybridKVPool(CONFIG, PoolSizes(), torch.float32, torch.device(device))
    mapping = pool.full_to_swa_index_mapping
    mapping[1:70] = torch.arange(69, 0, -1, device=device)
    mapping[5:7] = 0
    return pool


def subject_pool(scheme: LocationScheme, device: str) -> SubjectPool:
    """Return the engine's view of that pool."""
    return SubjectPool(
        storage_pool(device), TrialConfig(device=device).ops(), scheme, SUBJECT_LOGGER
    )


def locs(device: str, *values: int) -> Tensor:
    """Return full slots as a batch holds them."""
    return torch.tensor(values, device=device)


@pytest.mark.parametrize("scheme", LocationScheme)
def test_a_translation_is_int32_and_maps_minus_one_to_itself_and_unmapped_to_zero(
    scheme: LocationScheme, device: str
) -> None:
    translated = subject_pool(scheme, device).translate_loc_from_full_to_swa(
        locs(device, 1, 69, -1, 5, 0, 33)
    )
    assert translated.dtype is torch.int32
    assert translated.tolist() == [69, 1, -1, 0, 0, 37]


@pytest.mark.parametrize("layer", range(len(CONFIG.layers)))
@pytest.mark.parametrize("scheme", LocationScheme)
def test_kv_is_stored_at_the_full_slot_or_at_its_swa_slot(
    scheme: LocationScheme, layer: int, device: str
) -> None:
    kind = CONFIG.layers[layer]
    assert stored_slots(subject_pool(scheme, device), layer, locs(device, 3, 30)) == (
        {3, 30} if kind is Kind.FULL else {67, 40}
    )


@pytest.mark.parametrize("layer", range(len(CONFIG.layers)))
def test_a_preset_location_stands_in_for_the_translation_on_swa_layers(
    layer: int, device: str
) -> None:
    pool = subject_pool(LocationScheme.PRESET, device)
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


LAYERS = {"gemma3": (5, 1), "gpt_oss": (2, 2), "mimo": (3, 2)}
"""SWA and full layers of each preset's target; its draft has one of each."""

TRANSLATED: Mapping[str, tuple[str, str, str]] = {
    "decode": ("each layer", "none", "one"),
    "target_verify": ("each layer", "none", "one"),
    "cpu_graph": ("each layer", "each layer", "one"),
    "eagle_draft": ("two", "two", "two"),
    "eagle_draft_extend": ("one", "one", "one"),
    "frozen_kv_mtp": ("none", "none", "none"),
    "piecewise": ("none", "none", "none"),
    "breakable": ("none", "none", "none"),
}
"""How many full-to-SWA translations a graph of a runner holds, era by era.

Only who has a static SWA location has a fast path in the era of that name. A draft is two
forwards of a model with one SWA layer; a prefill stores between its graphs.
"""

STORED = {
    "decode": "each layer",
    "target_verify": "each layer",
    "cpu_graph": "each layer",
    "eagle_draft": "four",
    "eagle_draft_extend": "two",
    "frozen_kv_mtp": "none",
    "piecewise": "none",
    "breakable": "none",
}
"""How often a graph stores K and V."""

ATTENDED = STORED | {"frozen_kv_mtp": "four"}
"""How often a graph attends."""

COUNTS = {"none": 0, "one": 1, "two": 2, "four": 4}

ENGINES = ("decode", "frozen_kv_mtp", "cpu_graph")
"""Runners whose line-ups have all runners between them."""


@cache
def arms_of(engine: str, preset: str, scheme: LocationScheme, device: str) -> Pair:
    """Return the arms of a right build, two sizes captured."""
    return Pair(
        TrialConfig(
            engine, preset, scheme=scheme, device=device, buckets=(1, 4), token_buckets=(4, 16)
        )
    )


def test_the_line_ups_have_every_runner() -> None:
    found = {each.name for name in ENGINES for each in engine_runners(name)}
    assert found == RUNNERS.keys() == TRANSLATED.keys() == STORED.keys()


@pytest.mark.parametrize("scheme", LocationScheme)
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("engine", ENGINES)
def test_each_graph_holds_the_translations_of_its_era(
    engine: str, preset: str, scheme: LocationScheme, device: str
) -> None:
    """And says so, and stores and attends as often as its model has layers."""
    swa_layers, full_layers = LAYERS[preset]
    for runner in arms_of(engine, preset, scheme, device).subject.runners.values():
        assert len(runner.buckets) == 2
        wanted = (COUNTS | {"each layer": swa_layers})[
            TRANSLATED[runner.name][[*LocationScheme].index(scheme)]
        ]
        counts = COUNTS | {"each layer": swa_layers + full_layers}
        for bucket in runner.buckets:
            operations = Counter(runner.operations(bucket))
            assert operations[TRANSLATE] == wanted == runner.translations(scheme), runner.name
            assert operations["store_kv"] == counts[STORED[runner.name]], runner.name
            assert operations["attention"] == counts[ATTENDED[runner.name]], runner.name


@pytest.mark.parametrize("runner", affected_runners(BUGS["loc_memo_capture"]))
def test_a_capture_that_finds_the_memo_of_its_warm_up_holds_no_translation(
    runner: str, device: str
) -> None:
    """The harmful case of the memo, which the invalidation at the top of a run prevents."""
    pair = Pair(TrialConfig(runner, device=device, buckets=(1, 4)).with_bug("loc_memo_capture"))
    for each in pair.subject.runners.values():
        for bucket in each.buckets:
            wanted = 0 if each.name == runner else each.translations(LocationScheme.MEMO)
            assert each.operations(bucket).count(TRANSLATE) == wanted, each.name


def test_the_catalogue_names_the_runners_whose_capture_the_memo_can_spoil() -> None:
    """Those that translate once: a draft misses the memo with each slice, the others hold none."""
    assert set(affected_runners(BUGS["loc_memo_capture"])) == {
        "decode",
        "target_verify",
        "eagle_draft_extend",
    }


def test_a_preset_location_stays_until_it_is_set_again(device: str) -> None:
    """Captures leave a static buffer, full graphs keep what is there, prefills set their own."""
    pair = arms_of("decode", "gpt_oss", LocationScheme.PRESET, device)
    pair.reset(seed=0)
    runners = {each.name: each for each in pair.subject.runners.values()}
    pool = pair.subject.engine.pools[Role.TARGET]
    static = {name: each.inputs.buffers.get("out_cache_loc_swa") for name, each in runners.items()}
    assert {name for name, each in static.items() if each is not None} == {
        "decode",
        "target_verify",
        "piecewise",
    }
    captured = pool.state.swa_loc
    verify, prefill = static["target_verify"], static["piecewise"]
    assert captured is not None and verify is not None and prefill is not None
    assert captured.data_ptr() == verify.data_ptr()
    assert captured.shape == (4,), "four drafts of the smallest bucket, the last one captured"
    for place, _ in enumerate(pair.graph.idle_modes):
        run(pair, Idle(place))
    pool.invalidate_loc_cache()
    assert pool.state.swa_loc is captured
    run(pair, Admit(5, chunk=5))
    replayed = pool.state.swa_loc
    assert replayed is not None
    assert (replayed.data_ptr(), replayed.shape) == (prefill.data_ptr(), (16,))
    long = run(pair, Admit(17, chunk=17))
    eager = pool.state.swa_loc
    assert eager is not None and long is not None
    assert eager.tolist() == list(long.spans[0].swa_slots)
    run(pair, Decode((0, 1)))
    run(pair, Verify((0, 1), accept=0))
    assert pool.state.swa_loc is eager
    assert pair.subject.engine.pools[Role.DRAFT].state.swa_loc is None
    pool.set_swa_loc(None)
    assert pool.state.swa_loc is None


def test_a_compiled_decode_has_no_preset_location(device: str) -> None:
    """It drops the one that an eager prefill has left, and translates in each layer."""
    pair = arms_of("cpu_graph", "gpt_oss", LocationScheme.PRESET, device)
    pair.reset(seed=0)
    pool = pair.subject.engine.pools[Role.TARGET]
    run(pair, Admit(3, chunk=3))
    assert pool.state.swa_loc is not None
    run(pair, Decode((0,)))
    assert pool.state.swa_loc is None


def run(pair: Pair, step: Step) -> ForwardBatch | None:
    """Run one step in the graph world; return its batch, None for an idle step."""
    work = pair.graph.plan(step)
    assert work is not None
    forward = pair.subject.forward(work)
    if work.batch is not None:
        pair.graph.commit(work.batch, forward.output)
    return work.batch


def memo(device: str) -> SubjectPool:
    """Return a pool that memoises, its memo empty."""
    return subject_pool(LocationScheme.MEMO, device)


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


@pytest.mark.parametrize("scheme", [LocationScheme.PER_LAYER, LocationScheme.PRESET])
def test_without_a_memo_every_translation_is_made_anew(
    scheme: LocationScheme, device: str, caplog: pytest.LogCaptureFixture
) -> None:
    pool, loc = subject_pool(scheme, device), locs(device, 1, 2)
    assert pool.translate_loc_from_full_to_swa(loc).tolist() == [69, 68]
    loc.add_(10)
    assert pool.translate_loc_from_full_to_swa(loc).tolist() == [59, 58]
    assert pool.translate_loc_from_full_to_swa(locs(device, 7)).tolist() == [63]
    assert caplog.messages == []


STEPS: tuple[Step, ...] = (
    Admit(5, chunk=5),
    Idle(0),
    Admit(CONFIG.window + 3, chunk=4),
    Idle(1),
    Extend(0, tokens=20),
    Idle(2),
    Idle(2),
    Decode((0,)),
    Decode((0, 1)),
    DraftExtend((0, 1)),  # too long for a graph
    Idle(3),
    Draft((0, 1)),
    Verify((0, 1), accept=1),
    DraftExtend((1, 0)),
    Draft((1,)),
    Verify((0,), accept=0),
    Decode((1, 0)),
    Evict(1),
    Retract(0),
    Idle(0),
    Resume(0),
    Decode((0, 1)),
    Finish(0),
    Admit(20, chunk=20),  # likewise
    DraftExtend((0, 1)),
    Idle(2),
    Draft((0, 1)),
    Decode((0, 1)),
)

By = dict[tuple[str, str], int]
"""How many forwards, by mode and path."""

SPECULATING: By = {
    ("extend", "replay"): 4,
    ("extend", "eager"): 1,
    ("decode", "replay"): 7,
    ("target_verify", "replay"): 3,
    ("draft_extend", "replay"): 2,
    ("draft_extend", "eager"): 2,
}

PATHS: Mapping[str, By] = {
    "decode": {**SPECULATING, ("draft", "replay"): 6},
    "frozen_kv_mtp": {**SPECULATING, ("frozen_draft", "replay"): 6},
    "cpu_graph": {("extend", "eager"): 5, ("decode", "replay"): 12},
}
"""What these steps ask for: an engine without speculation idles in decode alone."""


def paths_of(runner: str) -> By:
    """Return what the steps ask of the engine that a runner is tried in."""
    modes = {each.mode for each in engine_runners(runner)}
    drafting = "frozen_kv_mtp" if Mode.FROZEN_DRAFT in modes else "decode"
    return PATHS[drafting if len(modes) > 1 else "cpu_graph"]


def loud_steps(lockstep: Lockstep, schedule: Schedule) -> tuple[By, By]:
    """Play a schedule; return how many forwards, and how many warnings, each path had."""
    forwards, warnings = Counter[tuple[str, str]](), Counter[tuple[str, str]]()

    def observe(
        place: int, step: Step, observation: Observation | None, violated: frozenset[str]
    ) -> None:
        if observation is not None:
            path = str(observation.mode), "eager" if observation.replay is None else "replay"
            forwards[path] += 1
            warnings[path] += len(observation.warnings)

    lockstep.play(schedule, observe)
    return dict(forwards), dict(+warnings)


@cache
def quiet_lockstep(trial: TrialConfig) -> Lockstep:
    """Return a lockstep that watches the log alone."""
    return Lockstep(trial, {"log_hygiene"})


def small(runner: str, device: str, name: str | None = None) -> TrialConfig:
    """Return a trial of few captured sizes, which the steps pad and exceed, with a bug or none."""
    buckets = (2, 4) if name == "loc_memo_warning.before_window" else (4,)
    trial = TrialConfig(runner, device=device, buckets=buckets, token_buckets=(16,))
    return trial.with_bug(name) if name else trial


@pytest.mark.parametrize(
    ("engine", "preset", "scheme"),
    [
        (engine, preset, scheme)
        for turn, engine in enumerate(ENGINES)
        for preset, scheme in zip([*PRESETS, *PRESETS][turn:], LocationScheme, strict=False)
    ],
)
def test_a_clean_subject_logs_nothing(
    engine: str, preset: str, scheme: LocationScheme, device: str
) -> None:
    """Neither when its graphs are captured nor in any step."""
    lockstep = Lockstep(
        replace(small(engine, device), preset=preset, scheme=scheme), {"log_hygiene"}
    )
    assert lockstep.capture_warnings == ()
    assert loud_steps(lockstep, Schedule(STEPS)) == (paths_of(engine), {})


MASKED = ["loc_memo_warning.entry", "loc_memo_warning.before_window"]


def test_the_catalogue_has_these_masked_bugs() -> None:
    """And says of no runner that one of them harms it."""
    assert [name for name, bug in BUGS.items() if detected_by(bug) is None] == MASKED
    for name in MASKED:
        assert len({unaffected_reason(BUGS[name], runner) for runner in RUNNERS}) == 1
        assert affected_runners(BUGS[name]) == ()


@pytest.mark.parametrize("name", MASKED)
@pytest.mark.parametrize("runner", ["decode", "eagle_draft_extend"])
@given(data=st.data())
@settings(max_examples=5)
def test_a_masked_site_warns_in_no_step(
    device: str, runner: str, name: str, data: st.DataObject
) -> None:
    lockstep = quiet_lockstep(small(runner, device, name))
    schedule = data.draw(schedules(CONFIG, 4, lockstep.trial.modes, RUNNERS[runner].mode))
    _, warnings = loud_steps(lockstep, schedule)
    assert warnings == {}


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("name", MASKED)
def test_a_masked_site_warns_on_no_path(device: str, name: str, runner: str) -> None:
    lockstep = quiet_lockstep(small(runner, device, name))
    assert loud_steps(lockstep, Schedule(STEPS)) == (paths_of(runner), {})


CAPTURES = {
    "decode": 1,
    "target_verify": 2,
    "cpu_graph": 1,
    "eagle_draft": 1,
    "eagle_draft_extend": 2,
    "frozen_kv_mtp": 1,
    "piecewise": 0,
    "breakable": 0,
}
"""How many of two captures warn where nothing clears the memo before their own window.

A capture has no entry: it finds what the bucket before it has left, and the first one what
the runner before it has, in a pool they share. A capture that stores nothing leaves nothing;
one whose attention comes later translates nothing.
"""


@pytest.mark.parametrize("runner", RUNNERS)
def test_without_before_window_a_capture_warns_that_finds_a_key(device: str, runner: str) -> None:
    lockstep = quiet_lockstep(small(runner, device, "loc_memo_warning.before_window"))
    assert len(lockstep.capture_warnings) == CAPTURES[runner]


@pytest.mark.parametrize("runner", RUNNERS)
def test_without_entry_no_capture_warns(device: str, runner: str) -> None:
    lockstep = quiet_lockstep(small(runner, device, "loc_memo_warning.entry"))
    assert lockstep.capture_warnings == ()


EACH_PREFILL = {("extend", "replay"): 4, ("extend", "eager"): 1}

LOUD: Mapping[str, Mapping[str, By]] = {
    "loc_memo_warning.after_window": {
        "piecewise": EACH_PREFILL,
        "breakable": EACH_PREFILL,
        "cpu_graph": {("decode", "replay"): 12},
        "eagle_draft_extend": {("draft_extend", "eager"): 2},
    },
    "loc_memo_warning.entry+before_window": {
        "decode": {("decode", "replay"): 1},
        "target_verify": {("target_verify", "replay"): 1},
        "cpu_graph": {("decode", "replay"): 6},
        "eagle_draft": {("draft", "replay"): 2},
        "eagle_draft_extend": {("draft_extend", "replay"): 1},
        "frozen_kv_mtp": {("frozen_draft", "replay"): 2},
    },
}
"""Where a runner without these sites warns; one that is not named warns nowhere.

Without after_window: wherever Python translates the write location after the window's, so
not inside a full graph. Without entry and before_window: in an idle step that follows a
forward, or a capture, that left a key, with no allocation of its pool's in between.
"""


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("name", LOUD)
def test_a_site_that_is_not_masked_warns_where_python_translates(
    device: str, name: str, runner: str
) -> None:
    """And the catalogue says that it harms exactly the runners that warn."""
    lockstep = quiet_lockstep(small(runner, device, name))
    wanted = LOUD[name].get(runner, {})
    assert loud_steps(lockstep, Schedule(STEPS)) == (paths_of(runner), wanted)
    assert (unaffected_reason(BUGS[name], runner) is None) == bool(wanted)
