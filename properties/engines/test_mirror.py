"""An engine's pool kept in step with a world: slots correspond, and KV is read through them."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paritybit.harness.checks.of_steps.slot_ownership import describe, flag
from paritybit.harness.lockstep.observation import StepEnd
from paritybit.harness.lockstep.scheduler import Scheduler
from paritybit.harness.schedules.buckets import BUCKETS, TOKEN_BUCKETS
from paritybit.harness.schedules.generate import schedules
from paritybit.harness.schedules.schedule import (
    Admit,
    Decode,
    Draft,
    DraftExtend,
    Evict,
    Finish,
    Resume,
    Retract,
    Schedule,
    Verify,
)
from paritybit.reference.allocator import Owner
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.config import PRESETS, SPECULATION, Kind, Role, draft_config
from paritybit.reference.model import Output
from paritybit.reference.pool import KVPools, PoolSizes, fill_with_garbage
from paritybit.subjects.engines.sglang.memory.mirror import Mirror
from paritybit.subjects.engines.sglang.memory.scheduling import Asked
from paritybit.subjects.engines.shared.paired import inverse, pair_slots
from paritybit.subjects.engines.shared.world import World
from paritybit.subjects.protocol import Offer
from torch import Tensor

CONFIG = PRESETS["gpt_oss"].tiny
CONFIGS = {Role.TARGET: CONFIG, Role.DRAFT: draft_config(CONFIG)}
MODES = frozenset({Mode.DECODE, Mode.TARGET_VERIFY, Mode.DRAFT_EXTEND, Mode.DRAFT})
SPARE = 4
BACK = 40


def test_slots_of_the_same_token_correspond_and_the_rest_in_order() -> None:
    assert pair_slots(6, 1, ours=[4, 2], theirs=[1, 5]) == (0, 2, 5, 3, 1, 4)


@given(st.data())
def test_a_pairing_of_slots_is_a_bijection_that_keeps_the_reserved_page(
    data: st.DataObject,
) -> None:
    count, reserved = data.draw(st.integers(4, 20)), data.draw(st.integers(1, 3))
    free = range(reserved, count)
    tokens = data.draw(st.integers(0, len(free)))
    sides = [data.draw(st.permutations(free))[:tokens] for _ in range(2)]
    paired = pair_slots(count, reserved, sides[0], sides[1])
    assert sorted(paired) == list(range(count))
    assert paired[:reserved] == tuple(range(reserved))
    assert [paired[slot] for slot in sides[0]] == list(sides[1])
    assert [inverse(paired)[slot] for slot in paired] == list(range(count))


@pytest.mark.parametrize("wrong", [[1, 1], [0, 1], [1, 6], [-1, 1]])
def test_slots_that_no_token_can_have_are_refused(wrong: list[int]) -> None:
    with pytest.raises(RuntimeError, match="slot"):
        pair_slots(6, 1, ours=[1, 2], theirs=wrong)


def test_an_engine_may_have_more_slots_than_have_counterparts() -> None:
    paired = pair_slots(4, 1, ours=[2], theirs=[6], total=7)
    assert paired == (0, 1, 6, 2)
    assert inverse(paired) == (0, 1, 3, -1, -1, -1, 2)


def test_slots_apart_have_no_counterpart_and_no_token() -> None:
    paired = pair_slots(4, 1, ours=[2], theirs=[5], apart=[1, 3])
    assert paired == (0, 2, 5, 4)
    assert inverse(paired) == (0, -1, 1, -1, 3, 2)
    with pytest.raises(RuntimeError, match="tokens have slots without an owner"):
        pair_slots(4, 1, ours=[2], theirs=[3], apart=[1, 3])


class ListPool:
    """An engine's pool made of lists, first in first out: the interface that a mirror needs.

    Of each sub-pool, SPARE slots after the reserved ones are apart. The last BACK slots of the
    SWA one are given out once the others are too few.
    """

    device = "cpu"
    configs = CONFIGS
    config = CONFIG

    def __init__(self, sizes: PoolSizes, ahead: int = 0) -> None:
        self.sizes = sizes
        self.ahead = ahead
        self.buffers = {
            role: [
                tuple(
                    torch.zeros(
                        self.slots(kind),
                        config.shape(kind).kv_heads,
                        config.shape(kind).head_dim,
                    )
                    for _ in "KV"
                )
                for kind in config.layers
            ]
            for role, config in CONFIGS.items()
        }
        self.clear()

    def clear(self) -> None:
        """Own nothing."""
        sizes = self.sizes
        self.available = {
            kind: list(range(sizes.page_size + SPARE, sizes.slots(kind) + SPARE + self.ahead))
            for kind in Kind
        }
        first = sizes.slots(Kind.SWA) + SPARE + self.ahead
        self.kept_back = list(range(first, first + BACK))
        self.rows = tuple(range(1, sizes.rows + 1))
        self.table = torch.zeros(sizes.rows + 1, CONFIG.max_context, dtype=torch.int64)
        self.requests = SimpleNamespace(free_slots=list(self.rows), req_to_token=self.table)
        self.swa_of: dict[int, int] = {}

    def slots(self, kind: Kind) -> int:
        """Return all slots of a sub-pool."""
        return self.sizes.slots(kind) + SPARE + self.ahead + (BACK if kind is Kind.SWA else 0)

    def make_room(self, tokens: int) -> None:
        """Give out what was kept back, if there are not as many slots free as tokens."""
        if self.kept_back and len(self.available[Kind.SWA]) < tokens:
            self.available[Kind.SWA] += self.kept_back
            self.kept_back = []

    def extend(self, rows: Sequence[int], held: Sequence[int], ends: Sequence[int]) -> None:
        """Give requests slots up to these ends."""
        for row, begin, end in zip(rows, held, ends, strict=True):
            for token in range(begin, end):
                full, swa = (self.available[kind].pop(0) for kind in (Kind.FULL, Kind.SWA))
                self.table[row, token], self.swa_of[full] = full, swa

    def held(self, row: int, begin: int, end: int) -> Tensor:
        """Return the full slots of some tokens."""
        return self.table[row, begin:end]

    def translate(self, loc: Tensor) -> Tensor:
        """Return the SWA slots of full slots."""
        return torch.tensor([self.swa_of[slot] for slot in loc.tolist()], dtype=torch.int32)

    def evict(self, row: int, begin: int, end: int) -> None:
        """Free the SWA slots of some tokens."""
        for slot in self.held(row, begin, end).tolist():
            self.available[Kind.SWA].append(self.swa_of.pop(slot))

    def shrink(self, row: int, begin: int, end: int) -> None:
        """Take back the slots of a request's last tokens."""
        self.evict(row, begin, end)
        self.available[Kind.FULL] += self.held(row, begin, end).tolist()

    @property
    def pages(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The full and the SWA pages, of one slot each, that requests may hold."""
        full, swa = (range(1 + SPARE, self.slots(kind)) for kind in Kind)
        return tuple(full), tuple(page for page in swa if page not in self.kept_back)

    def free_pages(self, kind: Kind) -> list[int]:
        """Return the free pages, of one slot each."""
        return self.available[kind]

    @property
    def mapping(self) -> Tensor:
        """The SWA slot of each full slot; the last is -1."""
        found = torch.zeros(self.slots(Kind.FULL) + 1, dtype=torch.int64)
        for full, swa in self.swa_of.items():
            found[full] = swa
        found[-1] = -1
        return found

    def apart(self, kind: Kind) -> list[int]:
        """Return the slots of a sub-pool that no request ever holds."""
        return list(range(self.sizes.page_size, self.sizes.page_size + SPARE))

    def keys_and_values(self, role: Role, layer: int) -> Any:
        """Return K and V of a layer of a model."""
        return self.buffers[role][layer]


class ListScheduling:
    """An engine's host code over a pool of lists. It keeps `longer` tokens than a window.

    With `own` it evicts by itself whatever leaves a window as it gives slots; else it does when it
    is told to.
    """

    def __init__(self, lists: ListPool, longer: int = 0, *, own: bool = False) -> None:
        self.lists = lists
        self.longer = longer
        self.own = own
        self.clear()

    def clear(self) -> None:
        """Know no request."""
        self.rows: dict[int, int] = {}
        self.tokens: dict[int, int] = {}
        self.lost: dict[int, int] = {}
        self.retracted: list[int] = []

    def row(self, serial: int) -> int:
        """Return a request's row."""
        return self.rows[serial]

    def evicted(self, serial: int) -> int:
        """Return how many tokens have lost their SWA slots."""
        return self.lost[serial]

    def reserved(self, serial: int) -> int:
        """Reserve no slots."""
        return 0

    def extend(self, asked: Sequence[Asked]) -> Any:
        """Give rows and slots."""
        for one in asked:
            if one.serial not in self.rows:
                self.rows[one.serial] = self.lists.requests.free_slots.pop(0)
                self.tokens[one.serial] = self.lost[one.serial] = 0
            assert len(one.tokens) == one.end - one.begin
            if self.own:
                self.evict(one.serial, one.begin, 0)
        self.draft([one for one in asked if one.end > self.tokens[one.serial]])
        return [one.serial for one in asked]

    decode = extend

    def draft(self, asked: Sequence[Asked]) -> None:
        """Give slots up to these ends."""
        rows = [self.rows[one.serial] for one in asked]
        held = [self.tokens[one.serial] for one in asked]
        self.lists.extend(rows, held, [one.end for one in asked])
        self.tokens |= {one.serial: one.end for one in asked}

    def drop(self, serial: int, begin: int, end: int) -> None:
        """Take back the slots of a request's last tokens."""
        self.lists.shrink(self.rows[serial], begin, end)
        self.tokens[serial] = begin

    def advance(self, serial: int, length: int) -> None:
        """Keep account of nothing: what is held is counted in slots."""
        assert length <= self.tokens[serial]

    def evict(self, serial: int, length: int, unseen: int) -> None:
        """Evict what left the window of a request of so many tokens, in whole pages."""
        size, lost = self.lists.sizes.page_size, self.lost[serial]
        unseen = length - CONFIG.window + 1 if self.own else unseen
        gone = (unseen - self.longer) // size * size
        if gone > lost:
            self.lists.evict(self.rows[serial], lost, gone)
            self.lost[serial] = gone

    def finish(self, serial: int) -> None:
        """Take back all that a request holds."""
        row, lost, tokens = self.rows.pop(serial), self.lost[serial], self.tokens[serial]
        self.lists.evict(row, lost, tokens)
        self.lists.available[Kind.FULL] += self.lists.held(row, 0, tokens).tolist()
        self.lists.requests.free_slots.append(row)

    def retract(self, serial: int) -> None:
        """Take back all that a request holds, which may come again."""
        self.retracted.append(serial)
        self.finish(serial)


class ReservingScheduling(ListScheduling):
    """An engine's host code that keeps the slots of rejected drafts for those to come."""

    def reserved(self, serial: int) -> int:
        """Return how many tokens have slots."""
        return self.tokens[serial]

    def drop(self, serial: int, begin: int, end: int) -> None:
        """Keep the slots."""

    def draft(self, asked: Sequence[Asked]) -> None:
        """Give the slots that no draft left behind."""
        super().draft([one for one in asked if one.end > self.tokens[one.serial]])


class MirroredWorld:
    """A world's scheduler, and a pool of lists kept in step with it.

    The engine keeps `longer` tokens than a window, and with `own` evicts by itself. For each row
    of one that has slots `ahead`, those of rejected drafts are kept.
    """

    def __init__(
        self,
        page_size: int,
        longer: int = 0,
        modes: frozenset[Mode] = MODES,
        *,
        own: bool = False,
        ahead: int = 0,
    ) -> None:
        sizes = PoolSizes(full_slots=80, swa_slots=72, page_size=page_size, rows=16)
        device = torch.device("cpu")
        self.pools = KVPools(CONFIG, CONFIGS[Role.DRAFT], sizes, torch.float32, device)
        self.lists = ListPool(sizes, ahead * sizes.rows)
        pool: Any = self.lists
        kind = ReservingScheduling if ahead else ListScheduling
        self.scheduling = kind(self.lists, longer, own=own)
        nothing: Any = dict
        world = World(self.pools, self.owners, nothing, self.retracted, nothing)
        self.mirror = Mirror(pool, world, self.scheduling)
        self.world = Scheduler(CONFIG, self.pools, 8, modes, self.follow, [Offer.IDLE_REPLAY])

    def owners(self) -> Sequence[Owner]:
        """Return the running requests of the world, which is made after the mirror."""
        return self.world.owners()

    def retracted(self) -> set[int]:
        """Return the requests that may come again."""
        return {request.serial for request in self.world.retracted}

    def follow(self) -> None:
        """Follow a change of ownership, as an engine under test does."""
        self.mirror.follow()

    def play(self, schedule: Schedule) -> None:
        """Play a schedule in which forwards change nothing; check each as it is placed."""
        self.world.reset(schedule.seed)
        self.mirror.reset()
        for _, step in schedule.flat():
            planned = self.world.plan(step)
            if planned is None or planned.batch is None:
                continue
            batch = planned.batch
            before = self.pools.storage.clone()
            rows, locs = self.mirror.place(batch)
            assert [placed.tolist() for placed in self.mirror.place(batch)] == [
                rows.tolist(),
                locs.tolist(),
            ]
            self.mirror.read_kv()
            assert torch.equal(self.pools.storage, before)
            self.check_tokens(self.world.owners())
            self.world.commit(batch, nothing_given(batch))
            self.mirror.write_kv()
            self.check_tokens(self.world.owners())

    def check_tokens(self, owners: Sequence[Owner]) -> None:
        """Check that K of every token lies where the engine's own tables say."""
        for owner in owners:
            held = self.mirror.held[owner.serial]
            for kind, pages in ((Kind.FULL, owner.full_pages), (Kind.SWA, owner.swa_pages)):
                assert held.tokens <= len(pages) * owner.page_size
                for role, config in CONFIGS.items():
                    layer = config.layers.index(kind)
                    ours = self.pools[role].cache(layer)[0]
                    theirs, size = self.lists.keys_and_values(role, layer)[0], owner.page_size
                    for token in range(held.tokens):
                        page = pages[token // size]
                        slot = int(self.lists.table[held.row, token])
                        if kind is Kind.SWA and slot not in self.lists.swa_of:
                            assert page is None or self.scheduling.own
                            continue
                        if page is None and self.scheduling.longer:
                            continue
                        assert page is not None
                        slot = self.lists.swa_of[slot] if kind is Kind.SWA else slot
                        assert torch.equal(ours[page * size + token % size], theirs[slot])


def nothing_given(batch: ForwardBatch) -> Output:
    """Return an output of zeros for a batch of any mode."""
    requests, topk = batch.live_requests, SPECULATION.topk
    verifies = batch.mode is Mode.TARGET_VERIFY
    rows_of_logits = batch.live_tokens if verifies else requests
    return {
        "logits": torch.zeros(rows_of_logits, CONFIG.vocab),
        "hidden": torch.zeros(batch.live_tokens, CONFIG.hidden),
        "topk_p": torch.zeros(requests, topk),
        "topk_index": torch.zeros(requests, topk, dtype=torch.int64),
        "scores": torch.zeros(requests, SPECULATION.candidates),
        "tokens": torch.zeros(requests, SPECULATION.candidates, dtype=torch.int64),
        "chosen": torch.zeros(requests, SPECULATION.forwards * topk, dtype=torch.int64),
    }


@pytest.mark.parametrize("mode", sorted(MODES))
@pytest.mark.parametrize("page_size", [1, 4])
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_every_token_s_kv_lies_where_the_engine_s_own_tables_say(
    page_size: int, mode: Mode, data: st.DataObject
) -> None:
    drawn = schedules(CONFIG, BUCKETS, TOKEN_BUCKETS, MODES, mode)
    MirroredWorld(page_size).play(data.draw(drawn))


@pytest.mark.parametrize(("longer", "own"), [(0, True), (3, True), (5, False)])
@pytest.mark.parametrize("page_size", [1, 4])
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_an_engine_may_evict_sooner_or_keep_longer_than_the_world(
    page_size: int, longer: int, own: bool, data: st.DataObject
) -> None:
    modes = frozenset({Mode.DECODE, Mode.TARGET_VERIFY})
    drawn = schedules(CONFIG, BUCKETS, TOKEN_BUCKETS, modes, Mode.DECODE)
    MirroredWorld(page_size, longer, modes, own=own).play(data.draw(drawn))


def test_slots_kept_back_are_given_out_where_an_engine_keeps_longer_than_the_world() -> None:
    made = MirroredWorld(1, longer=4)
    made.play(Schedule((Admit(13, 24), Evict(0), *(Admit(13, 24) for _ in range(5)))))
    assert not made.lists.kept_back
    made.play(Schedule((Admit(14, 24),)))
    assert made.lists.kept_back


def test_an_engine_that_evicts_what_a_window_still_needs_is_named() -> None:
    made = MirroredWorld(1, longer=-1, own=True)
    first = 12 - CONFIG.window + 1
    said = (
        f"freed the SWA slots of the first {first + 1} tokens of request 0, but its window begins"
        f" at token {first}"
    )
    with pytest.raises(RuntimeError, match=said):
        made.play(Schedule((Admit(12, 24), Decode((0,)))))


def test_a_request_is_finished_or_retracted_by_the_engine_as_it_is_in_the_world() -> None:
    made = MirroredWorld(page_size=1)
    made.play(Schedule((Admit(3, 8), Admit(4, 8), Decode((0, 1)), Retract(0), Finish(0))))
    assert made.scheduling.retracted == [0]
    assert not made.scheduling.rows
    made.play(Schedule((Admit(3, 8), Retract(0), Resume(0), Decode((0,)))))
    assert made.scheduling.tokens == {0: 5}


def test_a_batch_placed_again_after_its_drafts_were_dropped_is_given_slots_again() -> None:
    made = MirroredWorld(page_size=1)
    made.play(Schedule((Admit(3, 8), DraftExtend((0,)), Draft((0,)), Draft((0,)))))
    assert made.mirror.held[0].tokens == 3


@pytest.mark.parametrize(("page_size", "kept"), [(1, 6), (4, 8)])
def test_of_rejected_drafts_the_pages_that_hold_nothing_else_are_free_again(
    page_size: int, kept: int
) -> None:
    made = MirroredWorld(page_size)
    made.play(Schedule((Admit(5, 8),)))
    free = {kind: len(slots) for kind, slots in made.lists.available.items()}
    made.play(Schedule((Admit(5, 8), Verify((0,), 0))))
    (owner,) = made.world.owners()
    assert owner.length == 6
    assert made.mirror.held[owner.serial].tokens == kept
    found = {kind: len(slots) for kind, slots in made.lists.available.items()}
    assert found == {kind: count - (kept - 5) for kind, count in free.items()}


def spoilt_row(lists: ListPool) -> None:
    """Let the engine forget that its last row was taken back."""
    lists.requests.free_slots.pop()


def spoilt_table(lists: ListPool) -> None:
    """Let the second token of the first request name the slot of its third."""
    lists.table[1, 1] = lists.table[1, 2]


def spoilt_mapping(lists: ListPool) -> None:
    """Leave a slot that is free mapped."""
    lists.swa_of[lists.available[Kind.FULL][0]] = 5


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda lists: None, None),
        (
            lambda lists: lists.available[Kind.SWA].pop(),
            "swa page 13 is held by nobody and appears 0 times",
        ),
        (lambda lists: lists.available[Kind.SWA].append(99), "swa page 99 is held by nobody"),
        (lambda lists: lists.available[Kind.FULL].append(6), "full page 6 is held by request"),
        (spoilt_row, "row 2 is held by nobody and appears 0 times in the free list"),
        (spoilt_table, "full page 6 is held by nobody and appears 0 times in the free list"),
        (spoilt_mapping, "full slot 14 is mapped to SWA slot 5; expected 0"),
    ],
)
def test_what_an_engine_s_own_tables_hold_wrongly_is_named(
    spoil: Callable[[ListPool], Any], said: str | None
) -> None:
    made = MirroredWorld(page_size=1)
    made.play(Schedule((Admit(3, 8), Admit(4, 8), Decode((0, 1)), Evict(1), Finish(1))))
    spoil(made.lists)
    sizes = made.lists.sizes
    end = StepEnd(4, sizes, made.world.ownership(), made.mirror.ownership())
    assert bool(flag(end)) == (said is not None)
    if said is not None:
        assert describe(end)[0].startswith(f"in the graph run, {said}")


def test_the_slots_of_a_draft_are_taken_back() -> None:
    made = MirroredWorld(page_size=1)
    made.play(Schedule((Admit(3, 8), DraftExtend((0,)), Draft((0,)))))
    (owner,) = made.world.owners()
    assert made.mirror.held[owner.serial].tokens == 3
    free = made.lists.available[Kind.FULL]
    assert len(free) == made.lists.sizes.full_slots - 3


def test_slots_reserved_for_drafts_are_held_and_have_no_counterpart() -> None:
    made = MirroredWorld(page_size=1, ahead=8)
    made.play(Schedule((Admit(3, 8), DraftExtend((0,)), Draft((0,)), Admit(4, 8))))
    owner, _ = made.world.owners()
    held, reserved = made.mirror.held[owner.serial], made.scheduling.reserved(owner.serial)
    assert held.tokens == 3 < reserved
    holder, _ = made.mirror.ownership().holders
    assert len(holder.full_pages) == reserved
    slots = made.lists.held(held.row, 0, reserved).tolist()
    assert made.mirror.ours(Kind.FULL, slots[3:]) == [-1] * (reserved - 3)
    assert -1 not in made.mirror.ours(Kind.FULL, slots[:3])
    made.play(Schedule((Admit(3, 8), DraftExtend((0,)), Draft((0,)), Decode((0,)), Draft((0,)))))


def test_what_an_engine_writes_is_read_in_our_slots() -> None:
    made = MirroredWorld(page_size=1)
    made.play(Schedule((Admit(3, 8), Admit(5, 8), Decode((0, 1)))))
    (owner, _) = made.world.owners()
    row = made.mirror.held[owner.serial].row
    layer = CONFIG.layers.index(Kind.FULL)
    made.lists.keys_and_values(Role.TARGET, layer)[0][int(made.lists.table[row, 2])] = 7.5
    before = made.pools.storage.clone()
    made.mirror.read_kv()
    cache = made.pools[Role.TARGET].cache(layer)
    assert bool((cache[0, owner.full_pages[2]] == 7.5).all())
    assert int((made.pools.storage != before).sum()) == cache[0, 0].numel()


def test_slots_that_nobody_owns_get_the_bytes_of_their_counterparts() -> None:
    made = MirroredWorld(page_size=1)
    made.play(Schedule((Admit(3, 8),)))
    fill_with_garbage(made.pools.storage, seed=5)
    expected = made.pools.storage.clone()
    made.mirror.write_kv()
    made.pools.storage.zero_()
    made.mirror.read_kv()
    for places in made.pools.sections_of(expected).values():
        places.zero_()  # The engine has no state beside KV: the world's storage is its only one.
    assert torch.equal(made.pools.storage, expected)
