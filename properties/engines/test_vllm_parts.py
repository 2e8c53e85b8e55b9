"""Parts of vLLM's adapter that need no engine: paged keys, its fault class, its refusals."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from paritybit.harness.checks.of_steps.slot_ownership import misheld, right_cells, wrong_cells
from paritybit.harness.checks.property import judge
from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.engines import fetch as engines
from paritybit.harness.engines import statics
from paritybit.harness.engines.adapters.packages import PACKAGES, VLLM
from paritybit.harness.engines.adapters.table import ADAPTERS
from paritybit.harness.engines.adapters.vllm_faults import FAULTS
from paritybit.harness.engines.faults import faults_shown
from paritybit.harness.engines.trial import Answer, Settings, planned
from paritybit.harness.errors import MalformedError
from paritybit.harness.lockstep.observation import Observation
from paritybit.harness.lockstep.scheduler import Scheduler
from paritybit.harness.schedules.schedule import Admit, Verify
from paritybit.reference.batch import Mode, Span
from paritybit.reference.config import PRESETS, Kind, Role, draft_config
from paritybit.reference.pool import HybridKVPool, KVPools, PoolSizes
from paritybit.subjects.engines.paged.keys import listed_keys
from paritybit.subjects.engines.paged.pages import PairedPages
from paritybit.subjects.engines.shared.bags import Bag
from paritybit.subjects.engines.shared.missing import UndeclaredError
from paritybit.subjects.engines.shared.padded import PaddingRow, padding_of
from paritybit.subjects.engines.vllm.contract import CONTRACT
from paritybit.subjects.engines.vllm.engine import ownership
from paritybit.subjects.protocol import Offer
from paritybit.subjects.runners import RUNNERS

from paritybit.__main__ import main
from properties.support.harness.command_line import MALFORMED
from properties.support.harness.observations import FREE, arena_of, observation

BLOCK = 4
TABLE = torch.tensor([[3, 1, 7], [2, 5, 0]], dtype=torch.int32)


def keys(starts: list[int], lengths: list[int], window: int | None, drafts: int = 1) -> Any:
    """Return the slots that each token of four lists, and of them those that it sees."""
    slots, begin, end, seen = listed_keys(
        4, torch.tensor(starts), torch.tensor(lengths), TABLE, 12, window, drafts, BLOCK
    )
    rows = list(zip(begin.tolist(), end.tolist(), strict=True))
    return (
        [slots[first:last].tolist() for first, last in rows],
        [seen[first:last].tolist() for first, last in rows],
    )


def test_a_token_lists_the_blocks_of_its_request_up_to_itself() -> None:
    listed, _ = keys([0, 2, 3], [6, 2], None)
    assert listed[0] == [12, 13, 14, 15, 4]
    assert listed[1] == [12, 13, 14, 15, 4, 5]
    assert listed[2] == [8, 9]


def test_a_token_lists_its_window_alone() -> None:
    listed, _ = keys([0, 2, 3], [6, 2], 3)
    assert listed[:3] == [[14, 15, 4], [15, 4, 5], [8, 9]]


def test_a_token_of_no_request_lists_no_key() -> None:
    listed, _ = keys([0, 1, 1], [6, 0], None)
    assert listed[1:] == [[], [], []]


def test_drafts_that_are_verified_at_once_list_one_another_and_see_those_before() -> None:
    listed, seen = keys([0, 2, 4], [4, 2], None, drafts=2)
    assert listed[0] == listed[1] == [12, 13, 14, 15]
    assert seen[0] == [True, True, True, False]
    assert seen[1] == [True] * 4


@pytest.fixture
def paired() -> PairedPages:
    """Return pages of a world, of which one request has pages 2 and 1, its blocks 5 and 4."""
    sizes = PoolSizes(full_slots=3 * BLOCK, swa_slots=3 * BLOCK, page_size=BLOCK, rows=2)
    config = PRESETS["gpt_oss"].tiny
    pool = HybridKVPool(config, sizes, torch.float32, torch.device("cpu"))
    shape = (6, BLOCK, config.full.kv_heads, config.full.head_dim)
    made = PairedPages(
        (pool,), [(torch.zeros(shape), torch.zeros(shape)) for _ in config.layers], 6
    )
    for kind in Kind:
        made.pair(kind, [(2, 1)], [[5, 4]])
    return made


def test_kv_goes_through_the_pairs_of_pages_and_blocks_and_back(paired: PairedPages) -> None:
    before = paired.pools[0].storage.clone()
    paired.write_kv()
    assert torch.equal(paired.caches[0][0][5], paired.pools[0].cache(0)[0][2 * BLOCK : 3 * BLOCK])
    paired.pools[0].storage.zero_()
    paired.read_kv()
    assert torch.equal(paired.pools[0].storage, before)


def test_a_slot_of_the_engine_is_one_of_the_world_or_none(paired: PairedPages) -> None:
    assert paired.ours(Kind.FULL, [5 * BLOCK + 1, 4 * BLOCK, 1, -1, 99]) == [
        *(2 * BLOCK + 1, BLOCK, 1, -1, -1),
    ]


def test_a_page_that_left_the_window_on_either_side_has_no_counterpart(
    paired: PairedPages,
) -> None:
    paired.pair(Kind.SWA, [(None, 1)], [[5, 4]])
    assert paired.ours(Kind.SWA, [5 * BLOCK]) == [-1]
    paired.pair(Kind.SWA, [(2, 1)], [[0, 4]])
    assert paired.ours(Kind.SWA, [4 * BLOCK]) == [BLOCK]


def stored(slot: int, *kinds: Kind) -> Observation:
    """Return a padded replay whose tail of slots holds one, and which wrote slots of nobody."""
    found = observation()
    assert found.replay is not None and found.eager.batch is not None
    live = found.eager.batch.out_cache_loc
    padded = found.replay.bucket - len(live)
    held = {name: torch.cat([live, torch.full((padded,), slot)]) for name in SLOTS}
    used = {name: torch.full_like(values, FREE) for name, values in held.items()}
    for kind in kinds:
        arena_of(found.graph, Role.TARGET, kind)[:, :, FREE] += 1.0
    given = dict.fromkeys(SLOTS, live)
    return replace(
        found,
        static=held,
        replay=replace(found.replay, given=given),
        extra={**found.extra, statics.RUN: used},
    )


SLOTS = ("slot_mapping.full", "slot_mapping.swa")


def shown_by(found: Observation) -> set[str]:
    """Return the fault classes that a step's violations show."""
    violations = judge(PROPERTIES.values(), found)
    names = {violation.property for violation in violations}
    return {fault for name in names for fault in faults_shown(name, found, FAULTS)}


def test_padded_tokens_that_store_by_stale_slots_show_the_slot_tail() -> None:
    assert shown_by(stored(FREE, Kind.FULL)) == {"slot_tail"}


@pytest.mark.parametrize(("slot", "shows"), [(FREE, {"slot_tail"}), (-1, set[str]())])
def test_a_prefill_that_is_padded_and_yet_runs_eagerly_shows_the_slot_tail_too(
    slot: int, shows: set[str]
) -> None:
    held = {name: torch.tensor([slot, slot]) for name in SLOTS}
    eagerly = replace(
        stored(-1, Kind.FULL),
        replay=None,
        facts=None,
        static={},
        padding=held,
        expected_graph=False,
    )
    assert shown_by(eagerly) == shows


@pytest.mark.parametrize(
    "found", [stored(-1, Kind.FULL), stored(FREE)], ids=["reset", "nothing written"]
)
def test_what_stale_slots_do_not_explain_shows_no_fault_class(found: Observation) -> None:
    assert shown_by(found) == set()


@pytest.mark.parametrize(
    ("expected", "replayed", "shows"),
    [(5, 1, {"attention_captured"}), (5, 3, set[str]()), (1, 0, set[str]())],
)
def test_one_graph_in_place_of_several_shows_that_attention_is_in_it(
    expected: int, replayed: int, shows: set[str]
) -> None:
    found = stored(-1)
    assert found.facts is not None
    facts = replace(found.facts, graphs_expected=expected, graphs_replayed=replayed)
    assert shown_by(replace(found, facts=facts)) == shows
    fault = FAULTS["attention_captured"]
    assert fault.lives(replace(found, facts=facts)) == (expected > 1)
    assert not fault.lives(replace(found, facts=None))


def test_padding_that_is_not_what_the_engine_promises_violates_live_inputs() -> None:
    found = stored(-1)
    assert found.replay is not None
    promised = {"slot_mapping.full": (len(found.eager.spans), torch.tensor([-1]))}
    kept = replace(found, replay=replace(found.replay, padding=promised))
    assert "live_inputs" not in {one.property for one in judge(PROPERTIES.values(), kept)}
    held = kept.static["slot_mapping.full"]
    held[len(found.eager.spans)] = FREE
    (message,) = [
        one.message for one in judge(PROPERTIES.values(), kept) if one.property == "live_inputs"
    ]
    assert f"is {FREE}, padding needs -1" in message


def test_the_contract_says_where_padding_begins_and_what_it_holds() -> None:
    statics_held = {
        **{name: torch.zeros(6, dtype=torch.int64) for name in SLOTS},
        "seq_lens": torch.zeros(4, dtype=torch.int32),
        "query_start_loc": torch.zeros(5, dtype=torch.int32),
        "block_table.full": torch.zeros((4, 2), dtype=torch.int32),
    }

    class Clearing:
        """Stands for block tables of a release that clears padded rows."""

        def gather_block_tables(self, idx_mapping: Any, num_reqs_padded: int) -> None:
            """Do nothing."""

    class Keeping:
        """Stands for block tables of a release that does not."""

        def gather_block_tables(self, idx_mapping: Any) -> None:
            """Do nothing."""

    held = SimpleNamespace(block_tables=Clearing())
    runner: Any = SimpleNamespace(runner=held, pieces=False, marks_padding=False)

    def promised() -> list[PaddingRow]:
        """Return what the release of the runner promises."""
        rows = [row for row in CONTRACT if row.promised(runner)]
        return [row for row in rows if row.name != "block_table.swa"]

    given = {
        "slot_mapping.full": torch.zeros(3),
        "slot_mapping.swa": torch.zeros(3),
        "seq_lens": torch.zeros(3),
        "query_start_loc": torch.zeros(4),
    }
    batch: Any = SimpleNamespace(live_requests=3, live_tokens=3)
    found = {
        name: (at, right.tolist())
        for name, (at, right) in padding_of(promised(), statics_held, given, batch, 4, 1).items()
    }
    assert found == {
        "slot_mapping.full": (3, [-1, -1, -1]),
        "slot_mapping.swa": (3, [-1, -1, -1]),
        "seq_lens": (3, [0]),
        "query_start_loc": (4, [3]),
        "block_table.full": (3, [[0, 0]]),
    }
    runner.pieces = True
    assert "block_table.full" not in {row.name for row in promised()}
    runner.pieces = False
    runner.runner.block_tables = Keeping()
    assert "block_table.full" not in {row.name for row in promised()}
    assert {row.name for row in CONTRACT} > found.keys()


def test_blocks_and_rows_are_held_once_or_free_once_and_a_leak_or_a_double_free_is_seen() -> None:
    def listed(*ids: int) -> Any:
        """Return a list of free blocks."""
        last = SimpleNamespace(block_id=-1, next_free_block=None)
        for block in reversed(ids):
            last = SimpleNamespace(block_id=block, next_free_block=last)
        return SimpleNamespace(
            free_block_queue=SimpleNamespace(
                fake_free_list_head=SimpleNamespace(next_free_block=last)
            )
        )

    held = {Kind.FULL: [1, 2], Kind.SWA: [0, 3]}
    requests: Any = SimpleNamespace(
        finished={"request-9"},
        preempted=set(),
        reached={4: 20},
        blocks=6,
        pages=SimpleNamespace(size=16),
        blocks_of=lambda serial, kind: held[kind],
    )
    tables = [
        SimpleNamespace(gpu=torch.tensor([[0, 0], held[kind]], dtype=torch.int32)) for kind in Kind
    ]
    states = SimpleNamespace(
        req_id_to_index={"request-4": 1, "request-9": 0}, free_indices=list[int]()
    )
    block_tables = SimpleNamespace(block_tables=tables)
    runner: Any = SimpleNamespace(
        rows=[0, 1], runner=SimpleNamespace(req_states=states, block_tables=block_tables)
    )
    sizes = PoolSizes(full_slots=80, swa_slots=80, page_size=16, rows=2)

    def found(*free: int) -> list[str]:
        """Return what is wrong with these blocks free."""
        requests.manager = SimpleNamespace(block_pool=listed(*free))
        world = ownership(requests, runner)
        wrong = misheld(world)
        if wrong_cells([world], torch.from_numpy(right_cells(world, sizes))[None]).any():
            wrong.append("a table is wrong")
        return wrong

    assert found(4, 5) == []
    assert "full page 5 is held by nobody and appears 0 times in the free list" in found(4)
    assert "full page 2 is held by request 4 and appears 1 times in the free list" in found(4, 5, 2)
    assert "swa page 0 is held by nobody and appears 1 times in the free list" in found(4, 5, 0)
    states.req_id_to_index.pop("request-9")
    assert found(4, 5) == ["row 0 is held by nobody and appears 0 times in the free list"]
    states.free_indices.append(0)
    tables[1].gpu[1, 1] = 4
    assert found(4, 5) == ["a table is wrong"]
    requests.reached, states.req_id_to_index, states.free_indices = {}, {}, [1, 0]
    assert found(1, 2, 3, 4, 5) == []


def test_a_setting_that_nobody_declared_names_itself() -> None:
    asked = set[str]()
    made = Bag({"cache_dtype": "auto"}, asked, "cache")
    assert made.cache_dtype == "auto"
    with pytest.raises(UndeclaredError, match=r"asked for cache\.block_size"):
        _ = made.block_size
    assert asked == {"cache.block_size"}


def test_every_runner_is_driven_or_says_why_not() -> None:
    for adapter in ADAPTERS.values():
        assert set(adapter.runners) | set(adapter.undriven) == set(RUNNERS)
        assert not set(adapter.runners) & set(adapter.undriven)
    assert ADAPTERS.keys() == PACKAGES.keys()


def test_what_is_not_driven_is_undecided_where_it_is_asked_for() -> None:
    engine = engines.Found("vllm", Path("nowhere"), "vllm")
    answer = Answer()
    assert (
        planned(answer, engine, Settings("cpu", runners=("frozen_kv_mtp",)), lambda name: []) == []
    )
    assert [entry["runner"] for entry in answer.undecided] == ["frozen_kv_mtp"]
    assert "not driven" in answer.undecided[0]["reason"]


def test_an_engine_is_known_by_its_name_or_by_its_folder(tmp_path: Path) -> None:
    assert engines.package_of("vllm==0.33.0") is VLLM
    (tmp_path / "vllm" / "v1").mkdir(parents=True)
    assert engines.package_of(str(tmp_path)) is VLLM
    with pytest.raises(MalformedError, match="vllm==VERSION"):
        engines.package_of("vllm")


def test_a_release_of_an_unknown_engine_is_malformed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["engine", "nobody==1.0"]) == MALFORMED
    assert "sglang, vllm" in capsys.readouterr().err


def test_an_engine_without_branches_or_sections_is_given_chains_and_plain_positions() -> None:
    config = PRESETS["gpt_oss"].tiny
    sizes = PoolSizes(full_slots=40, swa_slots=40, page_size=1, rows=4)
    found = {}
    for lacks in (frozenset[Offer](), frozenset({Offer.TREES, Offer.SECTIONS})):
        pools = KVPools(config, draft_config(config), sizes, torch.float32, torch.device("cpu"))
        world = Scheduler(config, pools, 4, frozenset({Mode.TARGET_VERIFY}), lacks=lacks)
        world.reset(0)
        spans = list[Span]()
        for _ in range(2):  # The first request's sections do not run apart in any engine.
            admitted = world.plan(Admit(3, 3))
            assert admitted is not None and admitted.batch is not None
            spans += admitted.spans
            rows = len(admitted.batch.positions)
            logits, hidden = torch.zeros(1, config.vocab), torch.zeros(rows, config.hidden)
            world.commit(admitted.batch, {"logits": logits, "hidden": hidden})
        verified = world.plan(Verify((0,), 0))
        assert verified is not None
        parents = [parent for _, parent in verified.spans[0].tree]
        found[bool(lacks)] = parents, [span.mrope_delta for span in spans]
    assert found[True] == ([-1, 0, 1, 2], [0, 0])
    assert found[False][0] != found[True][0]
    assert found[False][1] == [0, 1]
