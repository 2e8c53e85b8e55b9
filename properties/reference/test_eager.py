"""The eager path against itself. The property dense_agreement compares it with the oracle."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch
from paritybit.harness.lockstep.bits import bits
from paritybit.harness.lockstep.config import DTYPES, TrialConfig
from paritybit.harness.lockstep.pair import DRAFT_SEED
from paritybit.reference.allocator import PageAllocation, PageAllocator
from paritybit.reference.batch import Mode, RequestSpan, prepare
from paritybit.reference.config import PRESETS, Kind, Role, draft_config
from paritybit.reference.eager import EagerDecoder
from paritybit.reference.model import Decoder, Output
from paritybit.reference.pool import KVPools
from torch import Tensor

REQUESTS = 3

of_every_preset = pytest.mark.parametrize(
    ("preset", "dtype", "page_size"),
    [("gemma3", "bfloat16", 4), ("gpt_oss", "float32", 4), ("mimo", "float32", 1)],
)


@cache
def models(preset: str, dtype: str, device: str) -> tuple[Decoder, Decoder]:
    """Return a target and its draft model."""
    config, place = PRESETS[preset], torch.device(device)
    draft = Decoder(draft_config(config), DTYPES[dtype], place, DRAFT_SEED)
    return Decoder(config, DTYPES[dtype], place), draft


@dataclass
class BenchRequest:
    """A request of the bench: its tokens are row `serial` of the token table."""

    serial: int
    allocation: PageAllocation
    length: int = 0


class Bench:
    """Requests of the same tokens on pools of a seed's bytes and order, without a scheduler."""

    def __init__(self, preset: str, dtype: str, page_size: int, device: str, seed: int = 0) -> None:
        self.trial = TrialConfig(preset=preset, dtype=dtype, page_size=page_size, device=device)
        self.config = PRESETS[preset]
        place = torch.device(device)
        self.model, self.draft_model = models(preset, dtype, device)
        sizes, draft = self.trial.sizes, self.draft_model.config
        self.pools = KVPools(self.config, draft, sizes, DTYPES[dtype], place)
        self.pools.reset(seed)
        self.allocator = PageAllocator(self.pools[Role.TARGET])
        self.allocator.clear(seed)
        self.decoder = EagerDecoder(self.trial.ops(), self.model, self.draft_model, self.pools)
        drawn = torch.Generator().manual_seed(1)
        shape = REQUESTS, self.config.max_context
        self.tokens = torch.randint(self.config.vocab, shape, generator=drawn).to(place)
        self.hidden_states = torch.zeros(
            (*shape, self.config.hidden), dtype=DTYPES[dtype], device=place
        )
        self.requests = [self._admit(serial) for serial in range(REQUESTS)]

    def _admit(self, serial: int) -> BenchRequest:
        allocation = self.allocator.alloc_row()
        assert allocation is not None
        return BenchRequest(serial, allocation)

    def span(self, request: BenchRequest, begin: int, end: int) -> RequestSpan:
        """Return tokens of a request as a span, with slots for all of them."""
        short = max(0, end - max(begin, request.length))
        assert self.allocator.extend(request.allocation, end - short, short) is not None
        return RequestSpan(
            row=request.allocation.row,
            token_row=request.serial,
            begin=begin,
            end=end,
            full_slots=self.allocator.full_slots(request.allocation, begin, end),
            swa_slots=self.allocator.swa_slots(request.allocation, begin, end),
            track_index=request.allocation.state_slot,
        )

    def run(self, mode: Mode, spans: Sequence[RequestSpan]) -> Output:
        """Run a forward over some spans."""
        tables = self.pools.tables
        return self.decoder.forward(prepare(mode, spans, self.tokens, self.hidden_states, tables))

    def forward(self, mode: Mode, counts: Sequence[int]) -> Tensor:
        """Run the next tokens of each request that has a count; return their logits."""
        spans = []
        for request, count in zip(self.requests, counts, strict=True):
            if count:
                spans.append(self.span(request, request.length, request.length + count))
                request.length += count
        output = self.run(mode, spans)
        ends = np.cumsum([span.end - span.begin for span in spans])
        for span, end in zip(spans, ends.tolist(), strict=True):
            rows = output["hidden"][end - (span.end - span.begin) : end]
            self.hidden_states[span.token_row, span.begin : span.end] = rows
        return output["logits"]

    def prefill(self, *counts: int) -> Tensor:
        """Extend each request by a count of tokens."""
        return self.forward(Mode.EXTEND, counts)

    def decode(self) -> Tensor:
        """Decode one token of each request."""
        return self.forward(Mode.DECODE, [1] * REQUESTS)

    def fill_unowned(self, value: float) -> None:
        """Fill every slot of which no live token is the owner, slot 0 too, and every state."""
        for _, kind, arena in self.pools.layout.arenas_of(self.pools.storage):
            unowned = torch.ones(arena.shape[2], dtype=torch.bool)
            for request in self.requests:
                unowned[self.slots(request, kind)] = False
            arena[:, :, unowned.to(arena.device)] = value
        states = self.pools.layout.states_of(self.pools.storage)
        states[:, 1:] = value
        for slot in {*range(len(states))} - {r.allocation.state_slot for r in self.requests}:
            states[slot] = value

    def state(self, serial: int) -> Tensor:
        """Return the bits of a request's recurrent state, [H]."""
        slot = self.requests[serial].allocation.state_slot
        return bits(self.pools.layout.states_of(self.pools.storage)[slot, 0])

    def slots(self, request: BenchRequest, kind: Kind) -> list[int]:
        """Return the slots of a sub-pool that hold a request's tokens, in their order."""
        if kind is Kind.FULL:
            return self.allocator.full_slots(request.allocation, 0, request.length)
        pages, size = request.allocation.swa_pages, self.trial.page_size
        kept = [token for token in range(request.length) if pages[token // size] is not None]
        return [self.allocator.swa_slots(request.allocation, t, t + 1)[0] for t in kept]

    def kv(self, serial: int, kind: Kind) -> Tensor:
        """Return the bits of the K and V of a request's tokens on all layers of a kind."""
        request = self.requests[serial]
        return bits(self.pools[Role.TARGET].arena[kind][:, :, self.slots(request, kind)])


def same_bits(left: Bench, right: Bench) -> bool:
    """Whether all requests have the same KV and state, whatever their slots are."""
    found = [
        *(torch.equal(left.state(serial), right.state(serial)) for serial in range(REQUESTS)),
    ]
    found += [
        torch.equal(left.kv(serial, kind), right.kv(serial, kind))
        for serial in range(REQUESTS)
        for kind in Kind
    ]
    assert all(len(left.slots(request, kind)) > 0 for request in left.requests for kind in Kind)
    return all(found)


@of_every_preset
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


@of_every_preset
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


@of_every_preset
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
