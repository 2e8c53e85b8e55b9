"""The eager path against itself and against the dense oracle: what both worlds may rest on."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from harness.bits import bits
from harness.end_checks import DENSE_BOUND
from harness.trial import DTYPES, Trial
from reference.allocator import Allocator, Holding
from reference.batch import TRACK_INTERVAL, ForwardBatch, Mode, Span, Tables, prepare
from reference.config import PRESETS, Kind
from reference.eager import EagerDecoder
from reference.model import Model
from reference.oracle import dense_logits, visible
from reference.pool import HybridKVPool

PAGE_SIZES = (1, 4)
REQUESTS = 3

VARIANTS = [
    pytest.param(preset, dtype, page_size, id=f"{preset}-{dtype}-page{page_size}")
    for preset in PRESETS
    for dtype in DTYPES
    for page_size in PAGE_SIZES
]

of_every_variant = pytest.mark.parametrize(("preset", "dtype", "page_size"), VARIANTS)


@pytest.fixture(scope="module", autouse=True)
def inference() -> Iterator[None]:
    """Live in inference mode, as the harness does."""
    with torch.inference_mode():
        yield


@dataclass
class Request:
    """A request of the bench: its tokens are row `serial` of the token table."""

    serial: int
    holding: Holding
    length: int = 0

    @property
    def mrope_delta(self) -> int:
        """Another for each request, as are the payloads below."""
        return self.serial + 1

    @property
    def track_index(self) -> int:
        """The state-tracking row."""
        return 2 * self.serial + 3

    @property
    def encoder_len(self) -> int:
        """The cross-attention length."""
        return 3 - self.serial


class Bench:
    """Requests of the same tokens on a pool of a seed's bytes and order, without a scheduler."""

    def __init__(self, preset: str, dtype: str, page_size: int, device: str, seed: int = 0) -> None:
        self.trial = Trial(preset=preset, dtype=dtype, page_size=page_size, device=device)
        self.config = PRESETS[preset].tiny
        place = torch.device(device)
        self.model = Model(self.config, DTYPES[dtype], place)
        self.pool = HybridKVPool(self.config, self.trial.sizes, DTYPES[dtype], place)
        self.pool.reset(seed)
        self.allocator = Allocator(self.pool)
        self.allocator.clear(seed)
        self.decoder = EagerDecoder(self.trial.ops(), self.model, self.pool)
        self.tables = Tables(self.pool.req_to_token, self.pool.full_to_swa_index_mapping)
        drawn = torch.Generator().manual_seed(1)
        shape = REQUESTS, self.config.max_context
        self.tokens = torch.randint(self.config.vocab, shape, generator=drawn).to(place)
        self.requests = [self._admit(serial) for serial in range(REQUESTS)]

    def _admit(self, serial: int) -> Request:
        holding = self.allocator.alloc_row()
        assert holding is not None
        return Request(serial, holding)

    def span(self, request: Request, count: int) -> Span:
        """Give a request slots for its next tokens, and return them as a span."""
        begin, end = request.length, request.length + count
        full = self.allocator.extend(request.holding, begin, count)
        assert full is not None
        request.length = end
        return Span(
            row=request.holding.row,
            token_row=request.serial,
            begin=begin,
            end=end,
            full_slots=full,
            swa_slots=self.allocator.swa_slots(request.holding, begin, end),
            mrope_delta=request.mrope_delta,
            track_index=request.track_index,
            encoder_len=request.encoder_len,
        )

    def forward(self, mode: Mode, counts: Sequence[int]) -> Tensor:
        """Run the next tokens of each request that has a count; return their logits."""
        spans = [self.span(r, n) for r, n in zip(self.requests, counts, strict=True) if n]
        batch: ForwardBatch = prepare(mode, spans, self.tokens, self.tables)
        return self.decoder.forward(batch)

    def prefill(self, *counts: int) -> Tensor:
        """Extend each request by a count of tokens."""
        return self.forward(Mode.EXTEND, counts)

    def decode(self) -> Tensor:
        """Decode one token of each request."""
        return self.forward(Mode.DECODE, [1] * REQUESTS)

    def evict_unseen(self) -> int:
        """Free what no later query can see, and fill what is free; return how many pages."""
        unseen = [max(0, each.length - self.config.window + 1) for each in self.requests]
        pairs = zip(self.requests, unseen, strict=True)
        pages = sum(self.allocator.evict(each.holding, tokens) for each, tokens in pairs)
        self.fill_unowned(torch.nan)
        return pages

    def fill_unowned(self, value: float) -> None:
        """Fill every slot of which no live token is the owner, slot 0 too."""
        for kind, arena in self.pool.arena.items():
            unowned = torch.ones(arena.shape[2], dtype=torch.bool)
            for each in self.requests:
                unowned[self.slots(each, kind)] = False
            arena[:, :, unowned.to(arena.device)] = value

    def slots(self, request: Request, kind: Kind) -> list[int]:
        """Return the slots of a sub-pool that hold a request's tokens, in their order."""
        if kind is Kind.FULL:
            return self.allocator.full_slots(request.holding, 0, request.length)
        pages, size = request.holding.swa_pages, self.trial.page_size
        kept = [token for token in range(request.length) if pages[token // size] is not None]
        return [self.allocator.swa_slots(request.holding, t, t + 1)[0] for t in kept]

    def kv(self, serial: int, kind: Kind) -> Tensor:
        """Return the bits of the K and V of a request's tokens on all layers of a kind."""
        request = self.requests[serial]
        return bits(self.pool.arena[kind][:, :, self.slots(request, kind)])

    def dense(self, serial: int, model: Model | None = None) -> Tensor:
        """Return the oracle's logits, float64 [2 W, vocab], of a request's first tokens."""
        request, length = self.requests[serial], 2 * self.config.window
        position = torch.arange(length)
        every = position % TRACK_INTERVAL == TRACK_INTERVAL - 1
        return dense_logits(
            model or self.model,
            self.tokens[serial, :length].cpu(),
            request.mrope_delta,
            torch.where(every, request.track_index, -1),
            request.encoder_len,
        )


def same_bits(left: Bench, right: Bench) -> bool:
    """Whether all requests have the same KV, whatever their slots are."""
    found = [
        torch.equal(left.kv(serial, kind), right.kv(serial, kind))
        for serial in range(REQUESTS)
        for kind in Kind
    ]
    assert all(len(left.slots(each, kind)) > 0 for each in left.requests for kind in Kind)
    return all(found)


@of_every_variant
def test_a_prefill_in_chunks_has_the_bits_of_a_whole_one(
    preset: str, dtype: str, page_size: int, device: str
) -> None:
    """Whatever the chunks are, whoever is prefilled beside, and wherever the slots are."""
    whole, chunked = (Bench(preset, dtype, page_size, device, seed) for seed in range(2))
    window = whole.config.window
    expected = whole.prefill(window + 5, window, 3)
    chunked.prefill(1, window - 1, 0)
    chunked.prefill(window, 0, 0)
    second = chunked.prefill(0, 1, 2)
    rest = chunked.prefill(4, 0, 1)
    found = torch.stack([rest[0], second[0], rest[1]])
    assert torch.equal(bits(found), bits(expected))
    assert same_bits(whole, chunked)


@of_every_variant
def test_decoding_has_the_bits_of_prefilling_the_same_tokens(
    preset: str, dtype: str, page_size: int, device: str
) -> None:
    whole, stepwise = (Bench(preset, dtype, page_size, device, seed) for seed in range(2))
    window = whole.config.window
    stepwise.prefill(1, 3, window)
    for _ in range(window):
        found = stepwise.decode()
    expected = whole.prefill(1 + window, 3 + window, 2 * window)
    assert torch.equal(bits(found), bits(expected))
    assert same_bits(whole, stepwise)


def off_by(found: Tensor, dense: Tensor) -> float:
    """Return the largest |eager - dense| / (1 + |dense|)."""
    return float(((found.cpu().double() - dense).abs() / (1 + dense.abs())).max())


@of_every_variant
def test_decoded_logits_agree_with_the_dense_oracle(
    preset: str, dtype: str, page_size: int, device: str
) -> None:
    """At every length from a third of the window to twice the window."""
    bench = Bench(preset, dtype, page_size, device)
    window, bound = bench.config.window, DENSE_BOUND[DTYPES[dtype]]
    dense = [bench.dense(serial) for serial in range(REQUESTS)]
    bench.prefill(2, 3, 4)
    compared: set[int] = set()
    while max(each.length for each in bench.requests) < 2 * window:
        logits = bench.decode()
        for request, row, wanted in zip(bench.requests, logits, dense, strict=True):
            assert off_by(row, wanted[request.length - 1]) <= bound
            compared.add(request.length)
    assert {window - 1, window, window + 1, 2 * window} <= compared


@of_every_variant
def test_prefilled_logits_agree_with_the_dense_oracle(
    preset: str, dtype: str, page_size: int, device: str
) -> None:
    bound, compared = DENSE_BOUND[DTYPES[dtype]], 0
    for lengths in ((-1, 0, 1), (1, 0, None)):
        bench = Bench(preset, dtype, page_size, device)
        window = bench.config.window
        counts = [2 * window if extra is None else window + extra for extra in lengths]
        for serial, row in enumerate(bench.prefill(*counts)):
            assert off_by(row, bench.dense(serial)[counts[serial] - 1]) <= bound
            compared += 1
    assert compared == 2 * REQUESTS


@pytest.mark.parametrize("shift", [-1, 1])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("preset", PRESETS)
def test_a_window_off_by_one_is_beyond_the_bound(
    preset: str, dtype: str, shift: int, device: str
) -> None:
    """Else the agreement would prove nothing. What fits the shorter window still agrees."""
    bench = Bench(preset, dtype, 1, device)
    window, bound = bench.config.window, DENSE_BOUND[DTYPES[dtype]]
    config = replace(bench.config, window=window + shift)
    shifted = Model(config, DTYPES[dtype], torch.device("cpu"))
    bench.prefill(*[window - 2] * REQUESTS)
    dense = torch.stack([bench.dense(serial, shifted) for serial in range(REQUESTS)])
    agrees = {}
    for length in range(window - 1, 2 * window + 1):
        agrees[length] = off_by(bench.decode(), dense[:, length - 1]) <= bound
    assert agrees == {length: length <= min(window, window + shift) for length in agrees}


def test_the_mask_of_a_window_of_three_is_this_table() -> None:
    """Query i sees the keys j with i - 3 < j <= i: itself and the two before."""
    table = [
        "x.....",
        "xx....",
        "xxx...",
        ".xxx..",
        "..xxx.",
        "...xxx",
    ]
    wanted = [[letter == "x" for letter in row] for row in table]
    assert visible(Kind.SWA, window=3, length=6).tolist() == wanted


def test_the_mask_of_full_attention_is_this_table() -> None:
    table = [
        "x...",
        "xx..",
        "xxx.",
        "xxxx",
    ]
    wanted = [[letter == "x" for letter in row] for row in table]
    assert visible(Kind.FULL, window=2, length=4).tolist() == wanted


@pytest.mark.parametrize("window", [1, 2, 5, 9])
def test_the_mask_of_a_window_is_its_definition(window: int) -> None:
    wanted = [[i - window < j <= i for j in range(8)] for i in range(8)]
    assert visible(Kind.SWA, window, 8).tolist() == wanted


@of_every_variant
def test_eviction_of_unseen_slots_changes_no_bit(
    preset: str, dtype: str, page_size: int, device: str
) -> None:
    """What is evicted, and what else nobody owns, is NaN: a read of it would show."""
    kept, evicting = (Bench(preset, dtype, page_size, device) for _ in range(2))
    window, pages = kept.config.window, 0
    counts = 1, window - 1, window
    assert torch.equal(bits(kept.prefill(*counts)), bits(evicting.prefill(*counts)))
    for _ in range(window):
        pages += evicting.evict_unseen()
        expected, found = kept.decode(), evicting.decode()
        assert torch.equal(bits(found), bits(expected))
    assert pages > 0
    for serial in range(REQUESTS):
        assert torch.equal(evicting.kv(serial, Kind.FULL), kept.kv(serial, Kind.FULL))


@of_every_variant
def test_slots_that_nobody_owns_are_never_read(
    preset: str, dtype: str, page_size: int, device: str
) -> None:
    """Slot 0 included. NaN there changes no bit, in a prefill, in chunks or in decoding."""
    plain, poisoned = (Bench(preset, dtype, page_size, device) for _ in range(2))
    window = plain.config.window
    for counts in ((window + 2, 1, 4), (1, 3, 0), (0, window, 1), *[None] * 4):
        poisoned.fill_unowned(torch.nan)
        expected, found = (
            bench.decode() if counts is None else bench.prefill(*counts)
            for bench in (plain, poisoned)
        )
        assert torch.equal(bits(found), bits(expected))
        assert bool(found.isfinite().all())
    assert same_bits(plain, poisoned)


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("kind", Kind)
def test_a_slot_that_is_read_shows_when_it_is_nan(kind: Kind, page_size: int, device: str) -> None:
    """The oldest key that a query sees, poisoned, makes its logits NaN and no other row's."""
    bench = Bench("gpt_oss", "float32", page_size, device)
    window = bench.config.window
    bench.prefill(window + 4, window + 4, window + 4)
    oldest = window + 4 - window + 1 if kind is Kind.SWA else 0
    slot = bench.slots(bench.requests[1], kind)[oldest]
    bench.pool.arena[kind][:, :, slot] = torch.nan
    assert bench.decode().isnan().any(-1).tolist() == [False, True, False]


@pytest.mark.parametrize("preset", PRESETS)
def test_the_reserved_slots_are_never_written(preset: str, device: str) -> None:
    bench = Bench(preset, "float32", 4, device)
    before = {kind: arena[:, :, :4].clone() for kind, arena in bench.pool.arena.items()}
    bench.prefill(bench.config.window + 1, 3, 1)
    for _ in range(6):
        bench.decode()
    for kind, arena in bench.pool.arena.items():
        assert torch.equal(bits(arena[:, :, :4]), bits(before[kind]))
