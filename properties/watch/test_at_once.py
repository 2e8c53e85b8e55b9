"""What the watcher does for many rows, changes or tensors at once, it does as for one at a time."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from paritybit.watch import bits, chains
from paritybit.watch.between import FREED, Changes, SlotCopy
from paritybit.watch.checks import wrong_list
from paritybit.watch.facts import Forward, Group, IndexList, Layer, Row
from paritybit.watch.ledger import Ledger, Names, SlotCall
from paritybit.watch.observations import GivenList
from paritybit.watch.stacks import Stack
from properties.support.watching import Scene

SLOTS = 64
SEEDS = range(8)


def ledger(page: int = 1, window: int | None = None) -> Ledger:
    layer = Layer("0", (torch.zeros(SLOTS, 2),))
    return Ledger(Group("kv", (layer,), window=window, page_size=page), Names())


def row_of(chance: random.Random, page: int, window: int | None, number: int) -> Row:
    """Return a row whose pages begin at multiples of the page, some of which may be missing."""
    cached, computed = chance.randrange(12), chance.randrange(1, 5)
    first = chance.sample(range(SLOTS // page), -(-(cached + computed + 4) // page))
    slots = torch.tensor([one * page + at for one in first for at in range(page)])
    for _ in range(chance.choice((0, 0, 1, 4))):
        slots[chance.randrange(len(slots))] = -1
    tokens = [chance.randrange(9) for _ in range(cached + computed)]
    return Row(f"r{number}", tokens, cached, computed, {"kv": slots}, window=window)


def list_of(chance: random.Random, forward: Forward, mine: Ledger) -> IndexList:
    """Return an index list that is right, or wrong in one way."""
    page, exact = mine.group.page_size, chance.random() < 0.5
    step, computed = chance.choice(((0, None), (0, 0), (1, 1), (2, 1), (0, 2)))
    empty = torch.tensor([], dtype=torch.int64)
    given = IndexList(
        *("list", "kv", empty, empty, empty), computed, step, exact, page,
        window=chance.choice((None, None, 3)),
    )  # fmt: skip
    entries, offsets, counts = list[int](), list[int](), list[int]()
    for row in forward.rows:
        needed, last = wrong_list.span(GivenList(1, forward, mine, given), row)
        first = needed // page
        first = first if exact or not first else chance.randrange(first + 1)
        slots = row.slots["kv"].tolist()
        pages = [slots[at * page : (at + 1) * page] for at in range(first, -(-last // page))]
        offsets.append(len(entries))
        entries += [next((s - at for at, s in enumerate(p) if s >= 0), 0) // page for p in pages]
        counts.append(len(pages))
        entries += [0] * chance.choice((0, 0, 3))  # A table is wider than its rows.
    at = chance.randrange(len(counts))
    match chance.randrange(6):
        case 0 if entries:
            entries[chance.randrange(len(entries))] += 1
        case 1:
            counts[at] += chance.choice((-1, 1))
        case 2:
            offsets[at] += chance.choice((-1, 1, 5))
        case 3 if entries:
            del entries[-1]
    return replace(
        given,
        entries=torch.tensor(entries, dtype=torch.int64),
        offsets=torch.tensor(offsets),
        counts=torch.tensor(counts),
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_lists_are_right_if_no_row_has_a_fault(seed: int) -> None:
    chance, seen = random.Random(seed), set[bool]()
    for _ in range(150):
        mine = ledger(chance.choice((1, 1, 4)), chance.choice((None, None, 5)))
        own, page = chance.choice((None, None, 4)), mine.group.page_size
        forward = Forward("decode", tuple(row_of(chance, page, own, n) for n in range(3)))
        given = list_of(chance, forward, mine)
        if bool((given.offsets < 0).any()):
            continue
        lists = GivenList(1, forward, mine, given)
        parts = [*zip(given.offsets.tolist(), given.counts.tolist(), strict=True)]
        used = max((offset + count for offset, count in parts if count > 0), default=0)
        entries = given.entries[:used].numpy()
        faults = [
            wrong_list.fault(lists, row, entries, *part)
            for row, part in zip(forward.rows, parts, strict=True)
        ]
        right = wrong_list.right(lists, entries, parts)
        assert right == (not any(faults)), (given, faults)
        seen.add(right)
    assert seen == {True, False}


def freed_alone(column: list[int], changes: list[tuple[int, list[int]]], page: int) -> list[Any]:
    """Free slots one after another. Returns each slot, its freeing before, and this one."""
    found = []
    for call, slots in changes:
        for first in slots:
            if first < 0 or first >= SLOTS or first % page:
                continue
            for slot in range(first, first + page):
                found.append((slot, column[slot], call))
                column[slot] = call
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_slots_are_freed_as_one_after_another(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(20):
        page = chance.choice((1, 4))
        mine = ledger(page)
        mine.freed[:] = torch.tensor([chance.randrange(-3, 4) for _ in range(SLOTS)])
        column, changes, given = mine.freed.tolist(), Changes(mine), []
        for number in range(chance.randrange(1, 5)):
            slots = [chance.randrange(-1, SLOTS + 2) for _ in range(chance.randrange(1, 12))]
            call = SlotCall(number, Stack((f"e.py:{number} in free",)))
            changes.note(FREED, torch.tensor(slots), call)
            given.append((mine.last_calls[FREED], slots))
        wanted = freed_alone(column, given, page)
        (freeing,) = changes.apply(lambda *_: None)
        columns = freeing.slots, freeing.before, freeing.call
        found = zip(*(one.tolist() for one in columns), strict=True)
        assert sorted(found) == sorted(wanted)
        assert mine.freed.tolist() == column


def test_the_first_difference_of_two_lists_is_found() -> None:
    chance = random.Random(0)
    for _ in range(3000):
        one: list[int | None] = [chance.choice((1, 2, None)) for _ in range(chance.randrange(40))]
        other = one[: chance.randrange(41)] + [1] * chance.randrange(4)
        for _ in range(chance.randrange(3)):
            if other:
                other[chance.randrange(len(other))] = 3
        pairs = [a == b for a, b in zip(one, other, strict=False)]
        assert chains.first_difference(one, other) == [*pairs, False].index(False)


DTYPES = (
    *(torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float8_e4m3fn),
    *(torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
)


@pytest.mark.parametrize("seed", SEEDS)
def test_tensors_are_copied_with_any_dtype_and_strides(seed: int) -> None:
    chance, given = random.Random(seed), list[torch.Tensor]()
    for _ in range(chance.randrange(1, 12)):
        sizes = [chance.randrange(4) for _ in range(chance.randrange(4))]
        one = torch.randint(0, 2, sizes).to(chance.choice(DTYPES))
        if len(sizes) > 1:
            one = chance.choice((one, one.transpose(0, 1), one[::2], one[:, 1:]))
        if chance.random() < 0.2:
            one = one[None].expand(3, *one.shape)
        given.append(one)
    for one, copy in zip(given, bits.copied(given), strict=True):
        assert (copy.dtype, copy.shape) == (one.dtype, one.shape)
        assert copy.tolist() == one.tolist()
        assert copy.data_ptr() != one.data_ptr() or not one.numel()


def test_slots_stay_as_they_were_given(scene: Scene) -> None:
    slots = torch.tensor([3, 4])
    copy = SlotCopy(slots)
    scene.watcher.begin(Forward("warm-up", (), {"full": slots, "swa": slots}))
    slots.fill_(9)
    scene.write([3, 4])
    scene.watcher.end()
    assert copy.slots.tolist() == [3, 4]
    assert scene.lines("finding") == []
