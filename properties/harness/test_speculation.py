"""Speculation: the tree that is drafted, the path that is accepted, and what a world makes of them.

Host parts are held against their definitions in plain Python; worlds are played eagerly.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from harness.checks.schedules import DENSE_BOUND
from harness.lockstep.bits import bits
from harness.lockstep.config import TrialConfig
from harness.lockstep.pair import DRAFT_SEED
from harness.lockstep.scheduler import Request, Scheduler
from harness.schedules.schedule import (
    Admit,
    Decode,
    Draft,
    DraftExtend,
    Evict,
    Extend,
    Finish,
    Resume,
    Retract,
    Schedule,
    Step,
    Verify,
)
from properties.test_cases import WILD_STEPS, made_up
from reference.batch import TRACK_INTERVAL, ForwardBatch, Mode, Span
from reference.config import PRESETS, SPECULATION, Kind, Role, draft_config
from reference.eager import EagerDecoder
from reference.model import Model, Output
from reference.oracle import dense_draft_logits, dense_logits
from reference.pool import KVPools, PoolSizes
from reference.speculative import Tree, accepted_path, tree_of

TOPK, NODES = SPECULATION.topk, SPECULATION.draft_tokens
EAGLE = frozenset(Mode) - {Mode.FROZEN_DRAFT}
FROZEN = frozenset(Mode) - {Mode.DRAFT}
WHOLE = 100
"""More tokens than any prompt has."""

Candidates = tuple[list[float], list[int], list[int]]
"""One row of each of `scores`, `tokens` and `chosen`."""


@pytest.fixture(scope="module", autouse=True)
def inference() -> Iterator[None]:
    """Live in inference mode and on one thread, as the harness does."""
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield


@st.composite
def candidates(draw: st.DrawFn) -> Candidates:
    """Draw what a draft may propose: few probabilities, 1 among them, so that scores tie."""
    likely = st.sampled_from([1.0, 0.5, 0.25])
    branches = draw(st.lists(likely, min_size=TOPK, max_size=TOPK))
    branches.sort(reverse=True)
    scores, chosen = list(branches), list[int]()
    for _ in range(SPECULATION.forwards):
        found = [score * draw(likely) for score in branches for _ in range(TOPK)]
        best = sorted(range(len(found)), key=lambda place: (-found[place], place))[:TOPK]
        scores += found
        chosen += best
        branches = [found[place] for place in best]
    tokens = draw(st.lists(st.integers(0, 9), min_size=len(scores), max_size=len(scores)))
    return scores, tokens, chosen


def ancestries(chosen: Sequence[int]) -> list[list[int]]:
    """Return the candidates above each candidate, the nearest first, as drafting goes on."""
    branches: list[list[int]] = [[place] for place in range(TOPK)]
    above: list[list[int]] = [[] for _ in range(TOPK)]
    for step in range(SPECULATION.forwards):
        first = len(above)
        above += [list(branch) for branch in branches for _ in range(TOPK)]
        picked = [first + place for place in chosen[step * TOPK : (step + 1) * TOPK]]
        branches = [[place, *above[place]] for place in picked]
    return above


@settings(max_examples=200)
@given(found=candidates(), root=st.integers(0, 9))
def test_a_tree_has_the_best_candidates_each_below_the_one_it_continues(
    found: Candidates, root: int
) -> None:
    """Of equal scores the earlier candidate; whatever is kept, so is all above it."""
    scores, tokens, chosen = found
    tree = tree_of(root, scores, tokens, chosen)
    best = sorted(range(len(scores)), key=lambda place: (-scores[place], place))
    kept = sorted(best[: NODES - 1])
    above = ancestries(chosen)
    assert tree[0] == (root, -1)
    for (token, parent), place in zip(tree[1:], kept, strict=True):
        assert token == tokens[place]
        assert parent == (kept.index(above[place][0]) + 1 if above[place] else 0)


@settings(max_examples=200)
@given(
    scores=st.lists(
        st.sampled_from([0.0, 0.5, 1.0, 2.0]),
        min_size=SPECULATION.candidates,
        max_size=SPECULATION.candidates,
    ),
    found=candidates(),
)
def test_a_child_whose_parent_was_dropped_hangs_below_the_next_one_above(
    scores: list[float], found: Candidates
) -> None:
    """Whatever the scores are, the tree is one, and parents come before their children."""
    _, tokens, chosen = found
    tree = tree_of(5, scores, tokens, chosen)
    kept = sorted(sorted(range(len(scores)), key=lambda place: -scores[place])[: NODES - 1])
    above = ancestries(chosen)
    for node, ((token, parent), place) in enumerate(zip(tree[1:], kept, strict=True), 1):
        nearest = next((each for each in above[place] if each in kept), None)
        assert parent == (0 if nearest is None else kept.index(nearest) + 1)
        assert 0 <= parent < node
        assert token == tokens[place]


def test_candidates_of_one_score_go_by_place() -> None:
    """So that the root's children come first, and then the first branch's first child."""
    tokens = list(range(10, 10 + SPECULATION.candidates))
    scores = [1.0] * SPECULATION.candidates
    tree = tree_of(3, scores, tokens, [0, 1] * SPECULATION.forwards)
    assert tree == ((3, -1), (10, 0), (11, 0), (12, 1))


def test_a_chain_is_kept_where_one_branch_outdoes_the_other() -> None:
    """The second forward goes on from the second candidate of the first branch."""
    scores = [0.9, 0.05, 0.1, 0.8, 0.01, 0.01, 0.7, 0.02, 0.01, 0.01]
    tokens = list(range(10, 20))
    assert tree_of(3, scores, tokens, [1, 0, 0, 1]) == ((3, -1), (10, 0), (13, 1), (16, 2))


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Draw any tree of few tokens, parents before their children."""
    tokens = draw(st.lists(st.integers(0, 2), min_size=1, max_size=8))
    parents = [-1, *(draw(st.integers(0, node - 1)) for node in range(1, len(tokens)))]
    return tuple(zip(tokens, parents, strict=True))


def path_to(tree: Tree, node: int) -> list[int]:
    """Return a node and all above it, from the root down."""
    parent = tree[node][1]
    return [*(path_to(tree, parent) if parent >= 0 else []), node]


@settings(max_examples=300)
@given(tree=trees(), data=st.data(), at_least=st.integers(0, 9))
def test_an_accepted_path_is_its_definition(tree: Tree, data: st.DataObject, at_least: int) -> None:
    """Of all paths from the root, the one at which every choice is right and none is left."""
    said = data.draw(st.lists(st.integers(0, 2), min_size=len(tree), max_size=len(tree)))
    path = accepted_path(tree, said, at_least)
    assert path == path_to(tree, path[-1])

    def right(node: int) -> int | None:
        """Return what must follow a node."""
        children = [each for each, (_, parent) in enumerate(tree) if parent == node]
        accepted = len(path_to(tree, node)) - 1
        for child in children:
            if tree[child][0] == said[node]:
                return child
        return max(children) if children and accepted < at_least else None

    assert [right(node) for node in path] == [*path[1:], None]


FORK = ((7, -1), (1, 0), (2, 0), (3, 2))
"""Two branches, of which the second is longer."""


@pytest.mark.parametrize(
    ("message", "said", "at_least", "path"),
    [
        ("nothing fits", [9, 9, 9, 9], 0, [0]),
        ("the first branch fits", [1, 9, 9, 9], 0, [0, 1]),
        ("the second branch fits, and its end", [2, 9, 3, 9], 0, [0, 2, 3]),
        ("the end fits, but not what is above it", [9, 9, 3, 9], 0, [0]),
        ("one is forced: the last child", [9, 9, 9, 9], 1, [0, 2]),
        ("one is forced, and the next fits", [9, 9, 3, 9], 1, [0, 2, 3]),
        ("two are forced", [9, 9, 9, 9], 2, [0, 2, 3]),
        ("one fits, and a forced one after it", [2, 9, 9, 9], 2, [0, 2, 3]),
        ("one fits, so that none is forced", [2, 9, 9, 9], 1, [0, 2]),
        ("one fits, below which there is none to force", [1, 9, 9, 9], 3, [0, 1]),
        ("more are forced than there are", [9, 9, 9, 9], 2**31 - 1, [0, 2, 3]),
    ],
)
def test_what_fits_is_accepted_and_what_is_forced(
    message: str, said: list[int], at_least: int, path: list[int]
) -> None:
    assert accepted_path(FORK, said, at_least) == path, message


def test_of_two_children_that_fit_the_first_is_accepted() -> None:
    tree = ((7, -1), (1, 0), (1, 0), (1, 1), (1, 2))
    assert accepted_path(tree, [1] * 5, 0) == [0, 1, 3]


def span_of(begin: int, tree: Tree) -> Span:
    """Return a span that verifies a tree after `begin` tokens."""
    slots = range(begin, begin + len(tree))
    return Span(1, 0, begin, begin + len(tree), slots, slots, 0, 0, False, 0, tree)


def test_the_mask_of_a_tree_is_this_table() -> None:
    """Each draft sees the request's tokens, what is above it, and itself."""
    table = [
        "xx x...",
        "xx xx..",
        "xx x.x.",
        "xx x.xx",
    ]
    wanted = [letter == "x" for row in table for letter in row if letter != " "]
    assert span_of(2, FORK).tree_mask() == wanted


@given(tree=trees(), begin=st.integers(0, 5))
def test_masks_depths_and_positions_follow_from_the_paths(tree: Tree, begin: int) -> None:
    span, nodes = span_of(begin, tree), range(len(tree))
    paths = [path_to(tree, node) for node in nodes]
    assert span.depths == [len(path) - 1 for path in paths]
    assert span.positions(Mode.TARGET_VERIFY) == [begin + depth for depth in span.depths]
    mask = span.tree_mask()
    keys = begin + len(tree)
    assert len(mask) == len(tree) * keys
    for node in nodes:
        row = mask[node * keys : (node + 1) * keys]
        assert row == [True] * begin + [other in paths[node] for other in nodes]


def test_where_tokens_stand_and_what_keys_a_request_has_follow_from_the_mode() -> None:
    """Drafts not yet accepted are no keys of their request; a frozen draft stands on its last."""
    span = replace(span_of(5, ()), end=8)
    assert {mode: span.positions(mode) for mode in Mode if mode is not Mode.TARGET_VERIFY} == {
        Mode.EXTEND: [5, 6, 7],
        Mode.DECODE: [5, 6, 7],
        Mode.DRAFT: [5] * TOPK,
        Mode.FROZEN_DRAFT: [4] * TOPK,
        Mode.DRAFT_EXTEND: [5, 6, 7],
    }
    assert {mode: span.seq_len(mode) for mode in Mode} == {
        Mode.EXTEND: 8,
        Mode.DECODE: 8,
        Mode.TARGET_VERIFY: 5,
        Mode.DRAFT: 5,
        Mode.FROZEN_DRAFT: 5,
        Mode.DRAFT_EXTEND: 8,
    }


class Play:
    """One world, played eagerly."""

    def __init__(
        self,
        device: str,
        page_size: int = 1,
        modes: frozenset[Mode] = EAGLE,
        preset: str = "gpt_oss",
        slots: int = 80,
    ) -> None:
        self.config = PRESETS[preset].tiny
        self.size = page_size
        place = torch.device(device)
        draft = draft_config(self.config)
        self.model = Model(self.config, torch.float32, place)
        self.draft = Model(draft, torch.float32, place, DRAFT_SEED)
        sizes = PoolSizes(slots, slots, page_size)
        self.pools = KVPools(self.config, draft, sizes, torch.float32, place)
        ops = TrialConfig(device=device).ops()
        self.decoder = EagerDecoder(ops, self.model, self.draft, self.pools)
        self.world = Scheduler(self.config, self.pools, 8, modes)

    def __call__(self, *steps: Step) -> Output:
        """Play steps, each of which must ask for a forward if it can; return the last output."""
        output: Output | None = None
        for step in steps:
            work = self.world.plan(step)
            if work is not None and work.batch is not None:
                output = self.decoder.forward(work.batch)
                self.world.commit(work.batch, output)
            else:
                assert isinstance(step, Evict | Finish | Retract), step
        assert output is not None or isinstance(steps[-1], Evict | Finish | Retract)
        return output or {}

    def planned(self, step: Step) -> ForwardBatch:
        """Plan a step; return the batch that it asks for."""
        work = self.world.plan(step)
        assert work is not None and work.batch is not None
        return work.batch

    def asks(self, step: Step) -> bool:
        """Play a step; return whether it asked for a forward."""
        work = self.world.plan(step)
        if work is None or work.batch is None:
            return False
        self.world.commit(work.batch, self.decoder.forward(work.batch))
        return True

    def request(self, place: int = 0) -> Request:
        """Return a running request."""
        return self.world.running[place]

    def tokens(self, request: Request) -> list[int]:
        """Return all tokens of a request whose value is known."""
        found: list[int] = self.world.tokens[request.token_row, : request.known].tolist()
        return found

    def kv(self, request: Request, kind: Kind, role: Role = Role.TARGET) -> Tensor:
        """Return K and V of a request's tokens, in their order, of those not evicted."""
        full, swa = self.world.owned(request)
        return self.pools[role].arena[kind][:, :, full if kind is Kind.FULL else swa]

    def poison(self) -> None:
        """Fill every slot with NaN in which the pool's model has no KV of a request's token."""
        for role, kind, arena in self.pools.arenas_of(self.pools.storage):
            free = torch.ones(arena.shape[2], dtype=torch.bool)
            for each in self.world.running:
                run = each.length if role is Role.TARGET else each.drafted
                full, swa = self.world.owned(each)
                lost = len(full) - len(swa)
                free[full[:run] if kind is Kind.FULL else swa[: max(0, run - lost)]] = False
            arena[:, :, free.to(arena.device)] = torch.nan

    def dense(self, request: Request) -> Tensor:
        """Return the oracle's logits after the request's last token in the pool."""
        position = torch.arange(request.length)
        every = position % TRACK_INTERVAL == TRACK_INTERVAL - 1
        return dense_logits(
            self.model,
            torch.tensor(self.tokens(request)[: request.length]),
            request.mrope_delta,
            torch.where(every & request.tracked, request.track_index, -1),
            request.encoder_len,
        )[-1]

    def dense_draft(self, request: Request) -> Tensor:
        """Return the oracle's logits of the draft model after the tokens it has caught up on."""
        return dense_draft_logits(
            self.draft,
            torch.tensor(self.tokens(request)[1 : request.drafted + 1]),
            self.world.hidden_states[request.token_row, : request.drafted],
        )[-1]

    def free(self) -> tuple[list[int], list[int]]:
        """Return the free pages of both sub-pools, in the order of their return."""
        return list(self.world.allocator.free_full), list(self.world.allocator.free_swa)


def agree(found: Tensor, wanted: Tensor) -> bool:
    """Whether logits are the oracle's but for rounding."""
    error = (found.cpu().double() - wanted).abs() / (1 + wanted.abs())
    return bool((error <= DENSE_BOUND[torch.float32]).all())


PAGES = pytest.mark.parametrize("page_size", [1, 4], ids=["page1", "page4"])
ENGINES = pytest.mark.parametrize("modes", [EAGLE, FROZEN], ids=["eagle", "frozen"])

SHAPES = {
    "a chain": (-1, 0, 1, 2),
    "two branches": (-1, 0, 0, 2),
    "a fork below the first draft": (-1, 0, 1, 1),
    "a star": (-1, 0, 0, 0),
}
"""The parent of each node."""


def planted(play: Play, request: Request, parents: Sequence[int]) -> Tree:
    """Give a request a tree of that shape to verify."""
    root = play.tokens(request)[request.length]
    drafts = ((17 + 23 * node, parent) for node, parent in enumerate(parents[1:]))
    request.tree = ((root, -1), *drafts)
    return request.tree


@pytest.mark.parametrize("accept", range(NODES))
@pytest.mark.parametrize("shape", SHAPES)
@PAGES
def test_a_verified_request_is_as_if_it_had_decoded_the_tokens_accepted(
    page_size: int, shape: str, accept: int, device: str
) -> None:
    """Its tokens, its KV and hidden states, its pages, and what it says next; nothing beside it."""
    preset = list(PRESETS)[(accept + page_size) % len(PRESETS)]
    play, plain = (Play(device, page_size, EAGLE, preset) for _ in range(2))
    window = play.config.window
    for each in (play, plain):
        each(Admit(5, WHOLE), Admit(window - 2, WHOLE))
    beside, request = play.request(0), play.request(1)
    other = [bits(play.kv(beside, kind)).clone() for kind in Kind]
    before = play.tokens(request)
    tree = planted(play, request, SHAPES[shape])
    output = play(Verify((1,), accept))
    greedy = output["logits"].argmax(-1).tolist()
    path = accepted_path(tree, greedy, accept)
    depth = max(len(path_to(tree, node)) for node in range(NODES)) - 1
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
    assert [len(each) for each in play.free()] == [80 // page_size - held] * 2
    for kind, kv in zip(Kind, other, strict=True):
        assert torch.equal(bits(play.kv(beside, kind)), kv)

    fresh_engine = plain.request(1)
    for position in range(fresh_engine.length, request.length):
        plain.world.tokens[fresh_engine.token_row, position] = play.tokens(request)[position]
        plain(Decode((1,)))
    assert fresh_engine.length == request.length
    for kind in Kind:
        torch.testing.assert_close(
            play.kv(request, kind), plain.kv(fresh_engine, kind), rtol=1e-3, atol=1e-4
        )
    hidden, wanted = (
        each.world.hidden_states[found.token_row, : found.length]
        for each, found in ((play, request), (plain, fresh_engine))
    )
    torch.testing.assert_close(hidden, wanted, rtol=1e-3, atol=1e-4)
    play.poison()
    assert agree(play(Decode((1,)))["logits"][0], play.dense(request))


@PAGES
@ENGINES
def test_what_a_draft_proposed_is_verified_with_the_root_the_request_stands_at(
    modes: frozenset[Mode], page_size: int, device: str
) -> None:
    """A round of speculation after another goes on where the dense oracle does."""
    play = Play(device, page_size, modes)
    play(Admit(3, WHOLE), Admit(play.config.window - 1, WHOLE))
    for turn in range(5):
        play(DraftExtend((0, 1)), Draft((0, 1)))
        for request in play.world.running:
            assert len(request.tree) == NODES
            assert request.tree[0] == (play.tokens(request)[request.length], -1)
        found = [each.tree for each in play.world.running]
        accept = turn % NODES
        batch = play.planned(Verify((0, 1), accept))
        assert [span.tree for span in batch.spans] == found
        output = play.decoder.forward(batch)
        rows = play.world.commit(batch, output)
        said = output["logits"].argmax(-1).tolist()
        for place, (tree, row) in enumerate(zip(found, rows, strict=True)):
            first = place * NODES
            path = accepted_path(tree, said[first : first + NODES], accept)
            assert row == first + path[-1]
            drafts = [tree[node][0] for node in path]
            assert play.tokens(play.request(place))[-len(path) - 1 :] == [*drafts, said[row]]
    logits = play(Decode((0, 1)))["logits"]
    for request, row in zip(play.world.running, logits, strict=True):
        assert request.length > play.config.window
        assert agree(row, play.dense(request))


def caught_up(
    device: str, page_size: int = 1, modes: frozenset[Mode] = EAGLE, prompts: Sequence[int] = (9, 5)
) -> Play:
    """Return a play of two requests that the draft model has caught up on."""
    play = Play(device, page_size, modes)
    play(*(Admit(prompt, WHOLE) for prompt in prompts), DraftExtend(tuple(range(len(prompts)))))
    return play


@PAGES
@ENGINES
def test_drafting_gives_every_slot_back_and_leaves_the_target_alone(
    modes: frozenset[Mode], page_size: int, device: str
) -> None:
    """The mapping of pages that hold no token is cleared, and whoever gets them next is told."""
    play = caught_up(device, page_size, modes)
    mapping = play.pools.tables.full_to_swa_index_mapping
    before, free = bits(play.pools[Role.TARGET].storage).clone(), list(map(sorted, play.free()))
    batch = play.planned(Draft((0, 1)))
    taken = 0 if modes is FROZEN else 2 * SPECULATION.slots
    assert len(batch.out_cache_loc) == taken
    assert (list(map(sorted, play.free())) != free) is (taken > 0)
    lost = play.world.freed_slots.copy()
    play.world.commit(batch, play.decoder.forward(batch))
    assert list(map(sorted, play.free())) == free
    assert torch.equal(bits(play.pools[Role.TARGET].storage), before)
    held = {
        slot
        for each in play.world.running
        if each.allocation is not None
        for slot in play.world.allocator.full_slots(
            each.allocation, 0, page_size * len(each.allocation.full_pages)
        )
    }
    drafted_in = set(batch.out_cache_loc.tolist()) - held
    assert bool(drafted_in) is (taken > 0)
    assert not mapping[list(drafted_in)].any()
    assert play.world.freed_slots - lost >= drafted_in
    for each in play.world.running:
        assert (each.length, each.known) == (each.prompt, each.prompt + 1)


@pytest.mark.parametrize("step", [Decode((0,)), Verify((0,), 1)], ids=["decode", "verify"])
@ENGINES
def test_drafts_are_void_once_their_request_moves_on(
    modes: frozenset[Mode], step: Step, device: str
) -> None:
    """Those of a parked request are not."""
    play = caught_up(device, modes=modes)
    play(Draft((0, 1)))
    moved, parked = play.world.running
    kept = parked.tree, parked.state
    assert moved.tree and parked.tree and moved.state is not None
    play(step)
    assert moved.tree == ()
    assert play.request(0).state is None
    assert (parked.tree, parked.state) == kept
    batch = play.planned(Draft((0, 1)))
    assert [play.world.request_of(span.row) for span in batch.spans] == [parked]


@ENGINES
def test_a_draft_is_the_same_however_often_it_is_made(modes: frozenset[Mode], device: str) -> None:
    play = caught_up(device, modes=modes)
    play(Draft((0, 1)))
    first = [each.tree for each in play.world.running]
    play(Draft((1,)), Draft((0,)))
    assert [each.tree for each in play.world.running] == first


@PAGES
@ENGINES
def test_only_a_draft_model_that_has_caught_up_can_draft(
    modes: frozenset[Mode], page_size: int, device: str
) -> None:
    """It runs what is in the target's pool and it has not run, one token ahead of the target."""
    play = Play(device, page_size, modes)
    play(Admit(7, WHOLE))
    request = play.request()
    assert not play.asks(Draft((0,)))
    for step, since, until in (
        (None, 0, 7),
        (Decode((0,)), 7, 8),
        (Decode((0,)), 8, 9),
        (Verify((0,), 2), 9, None),
    ):
        if isinstance(step, Verify):
            planted(play, request, SHAPES["a chain"])
        if step is not None:
            play(step)
            assert not play.asks(Draft((0,)))
        end = request.length if until is None else until
        assert end >= since + (3 if until is None else 1)
        batch = play.planned(DraftExtend((0,)))
        assert batch.positions.tolist() == list(range(since, end))
        assert batch.input_ids.tolist() == play.tokens(request)[since + 1 : end + 1]
        wanted = play.world.hidden_states[request.token_row, since:end]
        assert torch.equal(bits(batch.spec_info["hidden_states"]), bits(wanted))
        assert batch.spec_info["extend_seq_lens"].tolist() == [end - since]
        output = play.decoder.forward(batch)
        assert play.world.commit(batch, output) == []
        assert request.drafted == request.length == end
        assert agree(output["logits"][0], play.dense_draft(request))
        assert request.state is not None
        assert torch.equal(request.state.topk_index, output["topk_index"][0])
        assert torch.equal(bits(request.state.topk_p), bits(output["topk_p"][0]))
        assert torch.equal(bits(request.state.hidden), bits(output["hidden"][0]))
        assert not play.asks(DraftExtend((0,)))
        play(Draft((0,)))


@PAGES
@ENGINES
def test_eviction_leaves_what_a_draft_model_that_lags_will_see(
    modes: frozenset[Mode], page_size: int, device: str
) -> None:
    """NaN in every free slot: a read of one that was evicted too soon would show."""
    play = caught_up(device, page_size, modes, (20,))
    request, window = play.request(), play.config.window
    play(*[Decode((0,))] * 9, Evict(0))
    assert request.drafted == 20
    assert request.allocation is not None
    evicted = request.allocation.swa_pages.count(None)
    assert 0 < (20 - window) // page_size <= evicted <= (20 - window + 1) // page_size
    play.poison()
    assert agree(play(DraftExtend((0,)))["logits"][0], play.dense_draft(request))
    assert request.drafted == request.length == 29


@PAGES
@ENGINES
def test_eviction_leaves_what_the_next_draft_will_see(
    modes: frozenset[Mode], page_size: int, device: str
) -> None:
    """A frozen draft stands where the target wrote last, a token before the next query."""
    play, kept = (caught_up(device, page_size, modes, (19, 15)) for _ in range(2))
    play(Evict(0), Evict(1))
    for each in play.world.running:
        assert each.allocation is not None
        assert None in each.allocation.swa_pages
    play.poison()
    found, wanted = play(Draft((0, 1))), kept(Draft((0, 1)))
    for name, values in wanted.items():
        assert torch.equal(bits(found[name]), bits(values))
    logits = play(Verify((0, 1), 1))["logits"]
    assert bool(logits.isfinite().all())
    assert torch.equal(bits(logits), bits(kept(Verify((0, 1), 1))["logits"]))


def test_eviction_waits_for_no_draft_model_that_never_ran(device: str) -> None:
    """It then cannot catch up, until the request is prefilled again."""
    play = Play(device)
    play(Admit(15, WHOLE), *[Decode((0,))] * 4)
    request, window = play.request(), play.config.window
    assert request.length == 19
    play(Evict(0))
    assert request.allocation is not None
    assert request.allocation.swa_pages.count(None) == 19 - window + 1
    assert not play.asks(DraftExtend((0,)))
    play(Retract(0), Resume(0), DraftExtend((0,)))
    assert play.request().drafted == 20


@ENGINES
def test_a_request_that_leaves_takes_its_drafts_along(modes: frozenset[Mode], device: str) -> None:
    """Resumed, it is drafted for from the start; its slots are another's by then."""
    play = caught_up(device, modes=modes)
    play(Draft((0, 1)))
    first, second = play.world.running
    known = first.known
    play(Retract(0), Finish(0))
    for each in (first, second):
        assert (each.drafted, each.state, each.tree, each.allocation) == (0, None, (), None)
    assert [len(each) for each in play.free()] == [80, 80]
    assert first.known == known
    assert play.world.running == []
    play(Resume(0))
    assert not play.asks(Draft((0,)))
    assert play.planned(DraftExtend((0,))).positions.tolist() == list(range(known))


SPECULATIVE: tuple[Step, ...] = (Draft((0,)), Verify((0,), 1), DraftExtend((0,)))


def test_nothing_is_speculated_on_while_nobody_is_ready(device: str) -> None:
    """Without requests, while a prompt is not all in, and by an engine without the runners."""
    play = Play(device)
    assert not any(play.asks(step) for step in SPECULATIVE)
    play(Admit(9, 4))
    assert not any(play.asks(step) for step in SPECULATIVE)
    plain = Play(device, modes=frozenset({Mode.DECODE, Mode.EXTEND}))
    plain(Admit(9, WHOLE))
    assert not any(plain.asks(step) for step in SPECULATIVE)
    assert not any(
        play.asks(step) for step in (Draft(()), Verify((), 1), DraftExtend(()), Decode(()))
    )


@ENGINES
def test_nothing_is_speculated_beyond_the_longest_context(
    modes: frozenset[Mode], device: str
) -> None:
    """A verify needs room for its tree and the token after it, a draft for its slots."""
    longest = PRESETS["gpt_oss"].tiny.max_context
    least_room = {"verify": NODES + 1, "draft": SPECULATION.slots if modes is EAGLE else 1}
    for room in range(1, 8):
        play = Play(device, modes=modes)
        play(Admit(longest - room, WHOLE), DraftExtend((0,)))
        assert play.asks(Draft((0,))) is (room >= least_room["draft"])
        assert play.asks(Verify((0,), 3)) is (room >= least_room["verify"])
        assert play.request().known <= longest


def test_a_request_that_fills_the_context_is_left_alone(device: str) -> None:
    """The draft model stays a token behind: nobody knows the token that it would need."""
    play = caught_up(device, modes=FROZEN, prompts=(46,))
    play(Decode((0,)))
    assert not play.asks(Decode((0,)))
    play(Retract(0), Resume(0))
    request = play.request()
    assert request.length == request.known == play.config.max_context
    play(DraftExtend((0,)))
    assert request.drafted == request.length - 1
    assert not any(play.asks(step) for step in (*SPECULATIVE, Decode((0,))))


@PAGES
@ENGINES
def test_a_pool_without_room_stops_what_needs_slots(
    modes: frozenset[Mode], page_size: int, device: str
) -> None:
    """And changes nothing. Of two requests, the one that there is room for goes on."""
    play = Play(device, page_size, modes, slots={1: 20, 4: 24}[page_size])
    play(Admit(7, WHOLE), Admit(5, WHOLE), DraftExtend((0, 1)), Admit(4, WHOLE))
    free = play.free()
    assert [len(each) * page_size for each in free] == [4, 4]
    assert play.asks(Draft((0,))) is (modes is FROZEN)
    assert play.free() == free
    batch = play.planned(Verify((0, 1), 0))
    assert [play.world.request_of(span.row) for span in batch.spans] == [play.request(0)]
    play.world.commit(batch, play.decoder.forward(batch))
    while play.asks(Admit(1, 1)):
        assert len(play.world.running) < 8
    free, held = play.free(), [(each.length, each.known) for each in play.world.running]
    assert free[0] == []
    assert not play.asks(Verify((0,), 1))
    assert play.free() == free
    assert [(each.length, each.known) for each in play.world.running] == held
    assert play.asks(DraftExtend((0, 1)))


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


def check_ledger(world: Scheduler) -> None:
    """Every page and row is one request's, or free; and every request is what it says it is."""
    sizes, free = world.pools.sizes, world.allocator
    held = [each.allocation for each in world.running if each.allocation is not None]
    assert len(held) == len(world.running)
    pages = {
        "full": ([page for each in held for page in each.full_pages], free.free_full),
        "swa": ([p for each in held for p in each.swa_pages if p is not None], free.free_swa),
        "rows": ([each.row for each in held], free.free_rows),
    }
    last = {
        "full": sizes.full_slots // sizes.page_size,
        "swa": sizes.swa_slots // sizes.page_size,
        "rows": sizes.rows,
    }
    for name, (owned, unowned) in pages.items():
        assert sorted(owned + unowned) == list(range(1, last[name] + 1)), name
    every = world.running + world.retracted
    rows = [each.token_row for each in every] + world.free_token_rows
    assert sorted(rows) == list(range(world.token_rows))
    for each in every:
        assert each.drafted <= each.length <= each.known <= world.config.max_context
        assert each.state is None or each.drafted == each.length == each.known - 1
        assert not each.tree or each.state is not None
    assert all(each.allocation is None and each.drafted == 0 for each in world.retracted)


def check_settled(world: Scheduler) -> None:
    """Nobody holds a page of no token, and each token in the pool is mapped, if not evicted."""
    mapping, tables = world.pools.tables.full_to_swa_index_mapping, world.pools.tables
    owned = [world.owned(each) for each in world.running]
    for slots in zip(*owned, strict=True):
        flat = [slot for of_request in slots for slot in of_request]
        assert len(set(flat)) == len(flat)
    for each, (full, swa) in zip(world.running, owned, strict=True):
        assert each.allocation is not None
        pages = -(-each.length // world.pools.sizes.page_size)
        assert len(each.allocation.full_pages) == len(each.allocation.swa_pages) == pages
        assert tables.req_to_token[each.allocation.row, : each.length].tolist() == full
        assert [slot for slot in mapping[full].tolist() if slot] == swa


@PAGES
@ENGINES
def test_whatever_is_played_the_ledger_is_exact(modes: frozenset[Mode], page_size: int) -> None:
    """After each plan and each forward; and what was played reached all there is of speculation."""
    config = PRESETS["gpt_oss"].tiny
    pools = KVPools(
        config,
        draft_config(config),
        PoolSizes(64, 52, page_size, rows=5),
        torch.float32,
        torch.device("cpu"),
    )
    world = Scheduler(config, pools, 4, modes)
    events: Counter[str] = Counter()

    @settings(max_examples=100)
    @given(SCHEDULES)
    def play(schedule: Schedule) -> None:
        generator = torch.Generator().manual_seed(schedule.seed)
        world.reset(schedule.seed)
        for _, step in schedule.flat():
            work = world.plan(step)
            check_ledger(world)
            if work is not None and work.batch is not None:
                assert 1 <= len(work.batch.spans) <= world.max_bs
                world.commit(work.batch, made_up(work.batch, generator))
                check_ledger(world)
            check_settled(world)
        events.update(world.events)

    play()
    reached = {
        *("tree of a draft model", "tree of the harness", "accepted beside the first branch"),
        *("draft accepted", "draft rejected", "draft caught up in several steps"),
        *("pool full", "evicted", "retracted", "resumed", "finished"),
    }
    assert {event for event in reached if not events[event]} == set()


def life(seed: int) -> Iterator[Step]:
    """Yield steps of every kind, so that requests come, speculate, lag behind and go."""
    draw = random.Random(seed)
    kinds: list[Callable[[tuple[int, ...]], Step]] = [
        lambda picks: Admit(draw.randrange(1, 20), draw.choice([4, WHOLE])),
        lambda picks: Extend(picks[0], 6),
        Decode,
        Draft,
        DraftExtend,
        lambda picks: Verify(picks, draw.randrange(NODES)),
        lambda picks: Evict(picks[0]),
        lambda picks: Retract(picks[0]),
        lambda picks: Resume(picks[0]),
        lambda picks: Finish(picks[0]),
    ]
    for kind in draw.choices(kinds, [4, 1, 3, 5, 6, 4, 4, 1, 1, 1], k=120):
        yield kind(tuple(draw.randrange(6) for _ in range(draw.randrange(1, 5))))


@PAGES
@ENGINES
def test_no_forward_reads_what_holds_no_token(
    modes: frozenset[Mode], page_size: int, device: str
) -> None:
    """All that no token's KV is in is NaN before each forward: a read of it would show."""
    play = Play(device, page_size, modes)
    forwards: Counter[Mode] = Counter()
    for seed in range(3):
        play.world.reset(seed)
        for step in life(seed):
            work = play.world.plan(step)
            if work is not None and work.batch is not None:
                play.poison()
                output = play.decoder.forward(work.batch)
                assert all(bool(each.isfinite().all()) for each in output.values()), step
                play.world.commit(work.batch, output)
                forwards[work.mode] += 1
    assert set(forwards) == modes
    assert min(forwards.values()) >= 10
    assert play.world.events["evicted"] > 0
