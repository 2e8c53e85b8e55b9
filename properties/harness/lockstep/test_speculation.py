"""Speculation as the scheduler sees it: what is drafted, accepted, evicted and given back.

Sides are played eagerly; what they make of a path is held against the dense oracle.
"""

from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import cycle

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from paritybit.harness.checks.schedule_properties.dense_agreement import DENSE_BOUND
from paritybit.harness.lockstep.bits import bits
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.pair import DRAFT_SEED
from paritybit.harness.lockstep.requests import Request
from paritybit.harness.lockstep.scheduler import Scheduler
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
    Step,
    Verify,
)
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.config import PRESETS, SPECULATION, Kind, Role, draft_config
from paritybit.reference.eager import EagerDecoder
from paritybit.reference.model import Model, Output
from paritybit.reference.oracle import dense_draft_logits, dense_logits
from paritybit.reference.pool import KVPools, PoolSizes
from paritybit.reference.speculative import Tree, accepted_path
from paritybit.reference.state_pool import Section
from torch import Tensor

from properties.support.harness.wild_steps import WILD_STEPS, made_up
from properties.support.subjects.trees import SHAPES, path_to

pytestmark = pytest.mark.usefixtures("captures_when_needed")

TOPK, NODES = SPECULATION.topk, SPECULATION.draft_tokens
EAGLE = frozenset(Mode) - {Mode.FROZEN_DRAFT}
FROZEN = frozenset(Mode) - {Mode.DRAFT}
WHOLE = 100
"""More tokens than any prompt has."""


@cache
def models(preset: str, device: str) -> tuple[Model, Model]:
    """Return a target and its draft model, which no test changes."""
    config, place = PRESETS[preset], torch.device(device)
    draft = Model(draft_config(config), torch.float32, place, DRAFT_SEED)
    return Model(config, torch.float32, place), draft


class Play:
    """One run, played eagerly."""

    def __init__(
        self,
        device: str,
        page_size: int = 1,
        modes: frozenset[Mode] = EAGLE,
        preset: str = "gpt_oss",
        slots: int = 80,
    ) -> None:
        self.config = PRESETS[preset]
        self.size = page_size
        place = torch.device(device)
        self.model, self.draft = models(preset, device)
        sizes = PoolSizes(slots, slots, page_size)
        self.pools = KVPools(self.config, self.draft.config, sizes, torch.float32, place)
        ops = TrialConfig(device=device).ops()
        self.decoder = EagerDecoder(ops, self.model, self.draft, self.pools)
        self.side = Scheduler(self.config, self.pools, 8, modes)

    def __call__(self, *steps: Step) -> Output:
        """Play steps, each of which must ask for a forward if it can; return the last output."""
        output: Output | None = None
        for step in steps:
            work = self.side.plan(step)
            if work is not None and work.batch is not None:
                output = self.decoder.forward(work.batch)
                self.side.commit(work.batch, output)
            else:
                assert isinstance(step, Evict | Finish | Retract), step
        assert output is not None or isinstance(steps[-1], Evict | Finish | Retract)
        return output or {}

    def planned(self, step: Step) -> ForwardBatch:
        """Plan a step; return its batch."""
        work = self.side.plan(step)
        assert work is not None and work.batch is not None
        return work.batch

    def runs_forward(self, step: Step) -> bool:
        """Play a step; return whether it asked for a forward."""
        work = self.side.plan(step)
        if work is None or work.batch is None:
            return False
        self.side.commit(work.batch, self.decoder.forward(work.batch))
        return True

    def request(self, place: int = 0) -> Request:
        """Return a running request."""
        return self.side.running[place]

    def tokens(self, request: Request) -> list[int]:
        """Return all tokens of a request whose value is known."""
        found: list[int] = self.side.tokens[request.token_row, : request.known].tolist()
        return found

    def kv(self, request: Request, kind: Kind, role: Role = Role.TARGET) -> Tensor:
        """Return K and V of a request's tokens, in their order, of those not evicted."""
        full, swa = self.side.owned(request)
        return self.pools[role].arena[kind][:, :, full if kind is Kind.FULL else swa]

    def poison(self) -> None:
        """Fill every slot with NaN in which the pool's model has no KV of a request's token.

        Every state that is no running request's, too, and those of the last trees.
        """
        for role, kind, arena in self.pools.arenas_of(self.pools.storage):
            free = torch.ones(arena.shape[2], dtype=torch.bool)
            for request in self.side.running:
                run = request.length if role is Role.TARGET else request.drafted
                full, swa = self.side.owned(request)
                lost = len(full) - len(swa)
                free[full[:run] if kind is Kind.FULL else swa[: max(0, run - lost)]] = False
            arena[:, :, free.to(arena.device)] = torch.nan
        states = self.pools.state.sections[Section.RECURRENT]
        states[:, 1:] = torch.nan
        owned = {r.allocation.state_slot for r in self.side.running if r.allocation is not None}
        for slot in {*range(len(states))} - owned:
            states[slot] = torch.nan

    def dense(self, request: Request) -> Tensor:
        """Return the oracle's logits after the request's last token in the pool."""
        return dense_logits(
            self.model,
            torch.tensor(self.tokens(request)[: request.length]),
            request.mrope_delta,
            request.encoder_len,
            tracked=request.tracked,
        )[-1]

    def dense_draft(self, request: Request) -> Tensor:
        """Return the oracle's logits of the draft model after the tokens it has caught up on."""
        return dense_draft_logits(
            self.draft,
            torch.tensor(self.tokens(request)[1 : request.drafted + 1]),
            self.side.hidden_states[request.token_row, : request.drafted],
        )[-1]

    def free(self) -> tuple[list[int], list[int]]:
        """Return the free pages of both sub-pools, in the order of their return."""
        return list(self.side.allocator.free_full), list(self.side.allocator.free_swa)


def agree(found: Tensor, wanted: Tensor) -> bool:
    """Whether logits are the oracle's but for rounding."""
    error = (found.cpu().double() - wanted).abs() / (1 + wanted.abs())
    return bool((error <= DENSE_BOUND[torch.float32]).all())


PAGES = pytest.mark.parametrize("page_size", [1, 4], ids=["page1", "page4"])
EITHER = pytest.mark.parametrize(
    ("modes", "page_size"), [(EAGLE, 4), (FROZEN, 1)], ids=["eagle-page4", "frozen-page1"]
)
"""Where an engine and a page size matter, but not together."""
ENGINES = pytest.mark.parametrize("modes", [EAGLE, FROZEN], ids=["eagle", "frozen"])


VERIFIED = [shape for shape in SHAPES if shape != "two branches, the first longer"]
"""Shapes whose longest branch is the last: what is forced is as long as a tree allows."""


def planted(play: Play, request: Request, parents: Sequence[int]) -> Tree:
    """Give a request a tree of that shape to verify."""
    root = play.tokens(request)[request.length]
    drafts = ((17 + 23 * node, parent) for node, parent in enumerate(parents[1:]))
    request.tree = ((root, -1), *drafts)
    return request.tree


@pytest.mark.parametrize("accept", range(NODES))
def test_a_verified_request_is_as_if_it_had_decoded_the_tokens_accepted(
    accept: int, device: str
) -> None:
    """With every shape of tree, and with presets and page sizes in turn."""
    for page_size, preset, shape in zip(
        cycle((1, 4) if accept % 2 else (4, 1)), cycle(PRESETS), VERIFIED, strict=False
    ):
        check_verified(accept, SHAPES[shape], preset, page_size, device)


def check_verified(
    accept: int, parents: Sequence[int], preset: str, page_size: int, device: str
) -> None:
    """Verify a tree: tokens, KV, hidden states and pages, the next token, and nothing else."""
    play, plain = (Play(device, page_size, EAGLE, preset) for _ in range(2))
    window = play.config.window
    for side in (play, plain):
        side(Admit(5, WHOLE), Admit(window - 2, WHOLE))
    beside, request = play.request(0), play.request(1)
    other = [bits(play.kv(beside, kind)).clone() for kind in Kind]
    before = play.tokens(request)
    tree = planted(play, request, parents)
    output = play(Verify((1,), accept))
    greedy = output["logits"].argmax(-1).tolist()
    path = accepted_path(tree, greedy, accept)
    depth = max(len(path_to(parents, node)) for node in range(NODES)) - 1
    assert len(path) - 1 >= min(accept, depth)

    drafts = [tree[node][0] for node in path[1:]]
    assert play.tokens(request) == [*before, *drafts, greedy[path[-1]]]
    assert request.length == window - 2 + len(path)
    assert request.known == request.length + 1
    allocation = request.allocation
    assert allocation is not None
    pages = -(-request.length // page_size)
    assert len(allocation.full_pages) == len(allocation.swa_pages) == pages
    held = pages + -(-beside.length // page_size)
    assert [len(pages) for pages in play.free()] == [80 // page_size - held] * 2
    for kind, kv in zip(Kind, other, strict=True):
        assert torch.equal(bits(play.kv(beside, kind)), kv)

    decoded = plain.request(1)
    for position in range(decoded.length, request.length):
        plain.side.tokens[decoded.token_row, position] = play.tokens(request)[position]
        plain(Decode((1,)))
    assert decoded.length == request.length
    for kind in Kind:
        assert torch.allclose(play.kv(request, kind), plain.kv(decoded, kind), rtol=1e-3, atol=1e-4)
    hidden, wanted = (
        played.side.hidden_states[found.token_row, : found.length]
        for played, found in ((play, request), (plain, decoded))
    )
    assert torch.allclose(hidden, wanted, rtol=1e-3, atol=1e-4)
    play.poison()
    assert agree(play(Decode((1,)))["logits"][0], play.dense(request))


@EITHER
def test_what_a_draft_proposed_is_verified_with_the_root_the_request_stands_at(
    modes: frozenset[Mode], page_size: int, device: str
) -> None:
    """A round of speculation after another goes on where the dense oracle does."""
    play = Play(device, page_size, modes)
    play(Admit(3, WHOLE), Admit(play.config.window - 1, WHOLE))
    for round_number in range(5):
        play(DraftExtend((0, 1)), Draft((0, 1)))
        for request in play.side.running:
            assert len(request.tree) == NODES
            assert request.tree[0] == (play.tokens(request)[request.length], -1)
        found = [request.tree for request in play.side.running]
        accept = round_number % NODES
        batch = play.planned(Verify((0, 1), accept))
        assert [span.tree for span in batch.spans] == found
        output = play.decoder.forward(batch)
        rows = play.side.commit(batch, output)
        greedy_tokens = output["logits"].argmax(-1).tolist()
        for place, (tree, row) in enumerate(zip(found, rows, strict=True)):
            first = place * NODES
            path = accepted_path(tree, greedy_tokens[first : first + NODES], accept)
            assert row == first + path[-1]
            drafts = [tree[node][0] for node in path]
            assert play.tokens(play.request(place))[-len(path) - 1 :] == [
                *drafts,
                greedy_tokens[row],
            ]
    logits = play(Decode((0, 1)))["logits"]
    for request, row in zip(play.side.running, logits, strict=True):
        assert request.length > play.config.window
        assert agree(row, play.dense(request))


SMALL = st.integers(0, 5)
FEW = st.lists(SMALL, min_size=1, max_size=6).map(tuple)
ADMIT = st.builds(Admit, st.integers(1, 20), st.sampled_from([4, WHOLE, WHOLE]))
STEPS: st.SearchStrategy[Step] = st.one_of(
    ADMIT,
    st.builds(Decode, FEW),
    st.builds(DraftExtend, FEW),
    st.builds(Draft, FEW),
    st.builds(Verify, FEW, SMALL),
    WILD_STEPS,
)
ROUNDS = st.builds(
    lambda picks, accept: (DraftExtend(picks), Draft(picks), Verify(picks, accept)), FEW, SMALL
)
PARTS = st.lists(
    st.one_of(STEPS.map(lambda step: (step,)), ADMIT.map(lambda step: (step,)), ROUNDS),
    min_size=10,
    max_size=40,
)
SCHEDULES = st.builds(
    lambda parts, seed: Schedule(tuple(step for part in parts for step in part), seed),
    PARTS,
    st.integers(0, 2**31 - 1),
)
"""Any steps with any numbers, and among them admissions and whole rounds of speculation."""


def check_ledger(side: Scheduler) -> None:
    """Every page and row is its holders' or free, and every request is what it says it is."""
    sizes, free = side.pools.sizes, side.allocator
    held = [request.allocation for request in side.running if request.allocation is not None]
    assert len(held) == len(side.running)
    pages = {
        "full": ([page for holder in held for page in holder.full_pages], free.free_full),
        "swa": ([p for holder in held for p in holder.swa_pages if p is not None], free.free_swa),
        "rows": ([holder.row for holder in held], free.free_rows),
    }
    last = {
        "full": sizes.full_slots // sizes.page_size,
        "swa": sizes.swa_slots // sizes.page_size,
        "rows": sizes.rows,
    }
    for name, (owned, unowned) in pages.items():
        assert sorted([*owned, *unowned]) == list(range(1, last[name] + 1)), name
    every = side.running + side.retracted
    rows = [request.token_row for request in every] + side.free_token_rows
    assert sorted(rows) == list(range(side.token_rows))
    for request in every:
        assert request.drafted <= request.length <= request.known <= side.config.max_context
        caught_up = request.drafted == request.length == request.known - 1
        assert request.state is None or caught_up
        assert not request.tree or request.state is not None
    assert all(request.allocation is None for request in side.retracted)
    assert all(request.drafted == 0 for request in side.retracted)


@PAGES
@ENGINES
def test_whatever_is_played_the_ledger_is_exact(modes: frozenset[Mode], page_size: int) -> None:
    """After each plan and each forward; and what was played reached all there is of speculation."""
    config = PRESETS["gpt_oss"]
    pools = KVPools(
        config,
        draft_config(config),
        PoolSizes(64, 52, page_size, rows=5),
        torch.float32,
        torch.device("cpu"),
    )
    side = Scheduler(config, pools, 4, modes)
    events: Counter[str] = Counter()

    @settings(max_examples=80)  # The draws depend on what modules are imported.
    @given(SCHEDULES)
    @example(Schedule((Admit(3, WHOLE), Retract(0), Resume(0))))  # Few that are drawn resume any.
    def play(schedule: Schedule) -> None:
        generator = torch.Generator().manual_seed(schedule.seed)
        side.reset(schedule.seed)
        for _, step in schedule.flat():
            work = side.plan(step)
            check_ledger(side)
            if work is not None and work.batch is not None:
                assert 1 <= len(work.batch.spans) <= side.max_bs
                side.commit(work.batch, made_up(work.batch, generator))
                check_ledger(side)
        events.update(side.events)

    play()
    reached = {
        *("tree of a draft model", "tree of the harness", "accepted beside the first branch"),
        *("draft accepted", "draft rejected", "draft caught up in several steps"),
        *("pool full", "evicted", "retracted", "resumed", "finished"),
    }
    assert {event for event in reached if not events[event]} == set()
