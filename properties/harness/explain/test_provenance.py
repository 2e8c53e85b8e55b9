"""Who wrote what last, and where two runs of ops first differ: on hand-made tensors and ops."""

import pytest
import torch
from paritybit.harness.explain.facts import FirstDifference, SlotTaken
from paritybit.harness.explain.first_difference import Side, first_difference, keys_of
from paritybit.harness.explain.ledgers import ForwardId, SlotLedger, StaticLedger
from paritybit.harness.explain.recorded import calls_of
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.reference.config import PRESETS, Kind, Role, draft_config
from paritybit.reference.ops import OpCall, Ops
from paritybit.reference.pool import LOC_DTYPE, KVPools
from torch import Tensor

CONFIG = PRESETS["gpt_oss"]
FIRST, SECOND = ForwardId(0, 3, "decode", (7, 9), (7, 9)), ForwardId(1, 5, "decode", (9,), (9,))


@pytest.fixture
def pools() -> KVPools:
    """A small pair of pools on the CPU."""
    sizes = TrialConfig().sizes
    return KVPools(CONFIG, draft_config(CONFIG), sizes, torch.float32, torch.device("cpu"))


def test_an_element_knows_who_wrote_it_last_and_how() -> None:
    buffer = torch.zeros(6, dtype=torch.int32)
    ledger = StaticLedger([buffer[:4], buffer])
    assert [write.how for write in ledger.of(buffer)] == ["capture"] * 6
    with ledger.during(FIRST):
        torch._foreach_zero_([buffer])
        torch._foreach_copy_([buffer[:3]], [torch.ones(3, dtype=torch.int64)])
    with ledger.during(SECOND, equalizing=True):
        buffer.view(2, 3)[:, 1].fill_(5)
    assert [(write.forward_id.step, write.how) for write in ledger.of(buffer)] == [
        (3, "copied"),
        (5, "equalized"),
        (3, "copied"),
        (3, "reset"),
        (5, "equalized"),
        (3, "reset"),
    ]
    assert [write.forward_id.step for write in ledger.of(buffer[4:])] == [5, 3]


def store(
    pools: KVPools, layer: int, loc: Tensor, value: float, role: Role = Role.TARGET
) -> OpCall:
    """Return a store into one layer's cache, of rows that all hold `value`."""
    cache = pools[role].cache(layer)
    rows = torch.full((len(loc), *cache.shape[2:]), value)
    kind = pools[role].config.layers[layer]
    ops = Ops()
    with calls_of(ops) as calls:
        ops.store_kv(cache.clone(), loc, LOC_DTYPE[kind], rows, rows)
    name, inputs, result = calls[0].name, calls[0].inputs, calls[0].result
    return OpCall(name, (cache, *inputs[1:]), result)


def locations(*slots: int, kind: Kind) -> Tensor:
    """Return store locations of a kind of layer."""
    return torch.tensor(slots, dtype=LOC_DTYPE[kind])


SWA = CONFIG.layers_of(Kind.SWA)[0]


def test_a_slot_knows_the_row_that_wrote_it_last(pools: KVPools) -> None:
    ledger = SlotLedger(pools)
    ledger.follow(FIRST, [store(pools, SWA, locations(4, 5, 0, kind=Kind.SWA), 1.0)])
    ledger.follow(SECOND, [store(pools, SWA, locations(6, 5, kind=Kind.SWA), 1.0)])
    found = [ledger.of("target", "swa", slot) for slot in (4, 5, 6, 0)]
    assert [write and (write.step, write.row, write.request) for write in found] == [
        (3, 0, 7),
        (5, 1, None),
        (5, 0, 9),
        (3, 2, None),
    ]
    assert ledger.of("target", "swa", 7) is None
    assert ledger.of("draft", "swa", 4) is None
    assert ledger.of("target", "full", 4) is None


def swa_store(pools: KVPools, *slots: int, value: float = 1.0) -> list[OpCall]:
    """Return a run that stores once, into the first SWA layer."""
    return [store(pools, SWA, locations(*slots, kind=Kind.SWA), value)]


def differ(
    pools: KVPools, left: list[OpCall], right: list[OpCall]
) -> tuple[FirstDifference, SlotTaken | None]:
    """Return the first difference of two runs, which there is."""
    found = first_difference(side(pools, left), side(pools, right))
    assert found is not None
    return found.difference, found.taken


def test_a_padded_row_that_overwrites_a_slot(pools: KVPools) -> None:
    """The last row for a slot wins. The right slot of a padded row is not known."""
    wrong = swa_store(pools, 4, 4)
    wrong[0].inputs[3][1], wrong[0].inputs[4][1] = 2.0, 2.0
    found, taken = differ(pools, swa_store(pools, 4), wrong)
    assert (found.op, found.kind, found.layer) == ("store_kv", "swa", SWA)
    assert (found.tensor, found.slot, found.head, found.element) == ("K", 4, 0, 0)
    assert (found.eager_bits, found.graph_bits) == ("0x3f800000", "0x40000000")
    assert taken == SlotTaken("target", "swa", 1, None, 4, None)


def test_a_run_that_stores_more_often_is_not_compared_at_slots_of_another_layer(
    pools: KVPools,
) -> None:
    """The last full slot is beyond all SWA slots."""
    full, last = CONFIG.layers_of(Kind.FULL)[0], pools.sizes.full_slots
    assert last > pools[Role.TARGET].cache(SWA).shape[1]
    (first,) = swa_store(pools, 4)
    right = [first, store(pools, full, locations(last, kind=Kind.FULL), 1.0)]
    again = side(pools, [first, first, right[1]])
    assert first_difference(side(pools, right), again) is None
    found, _ = differ(pools, right, [first, *swa_store(pools, 5, value=2.0), right[1]])
    assert (found.layer, found.slot) == (SWA, 5)


def side(pools: KVPools, calls: list[OpCall]) -> Side:
    """Return a run of ops over pools that hold zeros."""
    return Side(pools, torch.zeros_like(pools.storage), calls)


def attention(pools: KVPools, slots: list[int], mask: list[bool] | None, result: float) -> OpCall:
    """Return an attention of two rows, of two keys and of the rest, that gave `result`."""
    inputs = (
        torch.zeros(2, 4, 16),
        pools[Role.TARGET].cache(SWA),
        torch.tensor([0, 2]),
        torch.tensor([2, len(slots)]),
        torch.tensor(slots),
        len(slots),
        *((torch.tensor(mask), torch.tensor([0, 2])) if mask is not None else ()),
    )
    return OpCall("attention", inputs, torch.full((2, 4, 16), result))


def test_the_keys_of_a_row_are_those_that_its_mask_leaves(pools: KVPools) -> None:
    call = attention(pools, [5, 6, 7, 8, 9], None, 0.0)
    assert [keys_of(call, row) for row in (0, 1)] == [[5, 6], [7, 8, 9]]
    masked = attention(pools, [5, 6, 7, 8, 9], [True, False, False, True, True], 0.0)
    assert [keys_of(masked, row) for row in (0, 1)] == [[5], [8, 9]]


def test_the_first_key_that_differs(pools: KVPools) -> None:
    right = attention(pools, [5, 6, 7, 8, 9], None, 0.0)
    wrong = attention(pools, [5, 6, 7, 3, 9], None, 0.0)
    wrong.result[1, 2, 3] = 1.0
    found, taken = differ(pools, [right], [wrong])
    assert (found.op, found.row, found.head, found.element) == ("attention", 1, 2, 3)
    assert taken == SlotTaken("target", "swa", 1, 1, 3, 8)
