"""Follows the drafts of an engine: which are proposed, and which its sampler accepts.

A draft model first computes the tokens that the target computed, each with the hidden state of the
position before it, so its KV also depends on the next token. Then it computes one draft per step.
The KV of drafts is reported with a token that no request has, and is written again later.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.following import expected, table_of
from paritybit.connectors.hooking import Call, maybe
from paritybit.connectors.vllm.pools import DRAFT, DRAFTED, EngineGroup, VllmPool
from paritybit.connectors.vllm.requests import (
    Account,
    Progress,
    Requests,
    padded,
    space_of,
    tokens_of,
)
from paritybit.connectors.vllm.transfers import Transfers
from paritybit.watch.facts import Forward, IndexList, Replay, Row, StaticInput

NOBODYS = -1
"""Stands for the token of an unknown or a rejected draft."""


class Turn:
    """What a draft model computes after a forward of the target.

    - `names`: the requests of the batch in order.
    - `owner`: the object of the engine that proposes drafts.
    - `names_next`: after a chunk of a prompt, the model gets the next token of the prompt.
    - `step`: the number of steps that have begun.
    - `done`: the number of tokens of each request whose KV the target has computed.
    - `spans`: per request, the number of positions of the first forward, and the first one.
    """

    step = 0
    stepping = False

    def __init__(
        self, engine: Any, pool: VllmPool, draft: EngineGroup, names: list[str], owner: Any
    ) -> None:
        self.names, self.owner, self.page, self.draft = names, owner, pool.page, draft
        self.of, counts = engine.requests.known, engine.account.counts
        self.progress: list[Progress] = [engine.account.requests[name] for name in names]
        self.tables = [engine.requests.of(name, pool).slots[draft.number] for name in names]
        self.done = [mine.computed for mine in self.progress]
        pairs = zip(self.progress, (counts[name] for name in names), strict=True)
        self.spans = [(n, mine.computed - (n - mine.rejected)) for mine, n in pairs]
        # The older runner passes the last token of a prompt in place of the next one.
        self.names_next = not hasattr(owner, "drafter")

    @property
    def drafts(self) -> int:
        """The number of drafts per request."""
        return int(self.owner.vllm_config.speculative_config.num_speculative_tokens)

    @property
    def longest(self) -> int:
        """The largest number of tokens of a request."""
        return int(self.owner.vllm_config.model_config.max_model_len)

    def extended(self) -> Forward:
        """Return the forward that computes the tokens of the batch."""
        rows = [
            self.row(at, first, count, self.progress[at].rejected)
            for at, (count, first) in enumerate(self.spans)
        ]
        return Forward("draft extend", tuple(rows), model=DRAFT)

    def stepped(self) -> Forward:
        """Return the forward of the steps that compute all drafts but the first."""
        rows = [
            self.row(at, done, max(0, min(self.drafts - 1, self.longest - done)), 0)
            for at, done in enumerate(self.done)
        ]
        return Forward("draft steps", tuple(rows), model=DRAFT)

    def row(self, at: int, cached: int, computed: int, spare: int) -> Row:
        """Return the row of a request."""
        mine, name, end = self.progress[at], self.names[at], cached + computed
        known = mine.tokens[1 : mine.computed + 1]
        return Row(
            request=name,
            tokens=[*known, *[NOBODYS] * max(0, end - len(known))],
            cached=cached,
            computed=computed,
            slots={DRAFTED: padded(self.tables[at][:end], end)},
            space=f"draft {space_of(self.of[name])} after {mine.tokens[0]}",
            spare=spare,
            window=self.draft.window,
        )

    def inputs(self, ids: Tensor, positions: Tensor, mapping: Tensor | None) -> list[StaticInput]:
        """Return the inputs of the first forward, except those of rejected drafts."""
        tokens, where, slots = list[int](), list[int](), list[int]()
        at, known, begin = list[int](), list[int](), 0
        for mine, table, (count, first) in zip(self.progress, self.tables, self.spans, strict=True):
            places = range(begin, begin + mine.computed - first)
            named = self.names_next or mine.computed == len(mine.tokens) - 1
            known += places if named else places[:-1]
            tokens += mine.tokens[first + 1 : mine.computed + named]
            at += places
            where += range(first, mine.computed)
            slots += padded(table[: mine.computed], mine.computed)[first:].tolist()
            begin += count
        found = [
            expected("input_ids (draft)", ids[known], tokens, ids),
            expected("positions (draft)", positions[at], where, positions),
        ]
        return found if mapping is None else [*found, mapped(mapping, at, slots)]

    def fits(self, step: int) -> bool:
        """Return whether every request has a position for its draft of a step."""
        return all(done + step <= self.longest for done in self.done)

    def step_inputs(
        self, lengths: Tensor, positions: Tensor, mapping: Tensor | None = None
    ) -> list[StaticInput]:
        """Return the inputs of the current step, or of the first one if none has begun."""
        rows = len(self.names)
        ends = [done + max(1, self.step) for done in self.done]
        last = [end - 1 for end in ends]
        found = [
            expected("seq_lens (draft)", lengths[:rows], ends, lengths),
            expected("positions (draft)", positions[:rows], last, positions),
        ]
        if mapping is None:
            return found
        pairs = zip(self.tables, ends, strict=True)
        slots = [int(padded(table[:end], end)[-1]) for table, end in pairs]
        return [*found, mapped(mapping, [*range(rows)], slots)]

    def lists(self, table: Tensor, lengths: Tensor) -> IndexList:
        """Return the block table of the draft model, with padded rows last."""
        counts = -(-lengths[: len(table)].long() // self.page)
        given = "block_table (draft)", DRAFTED, table, counts, self.page
        return table_of(*given, self.step or None)


def mapped(mapping: Tensor, places: list[int], slots: list[int]) -> StaticInput:
    """Return a mapping of slots, with those that the tokens at some places must be written to."""
    found = expected("slot_mapping (draft)", mapping[places], slots, mapping)
    return replace(found, writes=DRAFTED)


def draft_layers(runner: Any) -> set[str]:
    """Return the names of the attention layers of a runner's draft model, if it has one."""
    older = maybe(runner, "drafter._draft_attn_layer_names")
    return set(older or maybe(runner, "speculator.draft_attn_layer_names") or ())


class Drafting(Transfers):
    """The part of an engine that follows its drafts. `account` is None without speculation."""

    def forget(self) -> None:
        """Stop watching, and forget all that is known of requests."""
        self.watcher = self.pool = None
        self.account: Account | None = None
        self.requests = Requests()
        self.turn: Turn | None = None
        self.waiting: list[Callable[[], object]] = []
        """The steps of drafts that are not followed yet."""
        self.skipping = False
        """Whether the forwards since the last checked one were skipped."""
        self.firsts: dict[str, int] = {}
        """The first position of each request that was computed since then."""
        self.unwatched: Tensor | None = None
        """The slots that the draft model may have written after a skipped forward."""
        self.undrafted: list[str] = []
        """Requests whose last tokens the draft model has not computed."""
        self.checked = False

    def follow_drafts(self, runner: Any, output: Any, begun: dict[str, int]) -> None:
        """Read what the scheduler says about requests with drafts, before a forward."""
        config = runner.vllm_config
        if config.speculative_config is None:
            return
        if self.account is None:
            self.account = Account(bool(config.scheduler_config.async_scheduling))
        self.firsts |= begun
        tokens = {name: list(self.requests.known[name].all_token_ids) for name in begun}
        self.later(functools.partial(self.account.follow, output, begun, tokens))

    def later(self, step: Callable[[], object]) -> None:
        """Follow a step of the drafts, which may wait for a device, once a forward is checked."""
        self.waiting.append(step)
        if not self.skipping:
            self.catch_up()

    def catch_up(self) -> None:
        """Follow the steps that wait."""
        steps, self.waiting = self.waiting, []
        for step in steps:
            step()

    def first_unknown(self, names: Sequence[str]) -> dict[str, int]:
        """Return the first position of each request that a skipped forward may compute."""
        if self.account is None:
            return {name: self.requests.known[name].computed for name in names}
        if not self.skipping:
            self.firsts = {name: one.computed for name, one in self.account.requests.items()}
            self.skipping = True
        return {name: self.firsts.get(name, 0) for name in names}

    def give_up(self, why: str) -> None:
        """Stop watching, because the state of requests is unknown from now on."""
        self.journal.undecided(why)
        self.watcher = self.pool = None

    def sampled(self, original: Call, runner: Any) -> None:
        """Count the drafts that a sampler accepts."""
        try:
            result = original()
        except BaseException:
            self.give_up("sampling failed, so later forwards are not watched")
            raise
        if self.account is not None:
            first, *rest = result if isinstance(result, tuple) else (result,)
            made = [one.clone() for one in (first.sampled_token_ids, *rest[:1])]
            names = names_of(original, runner)
            self.later(functools.partial(self.count, self.account, names, made))

    def count(self, account: Account, names: list[str], result: Any) -> None:
        """Count the drafts that a sampler accepted."""
        drafts, accepted = account.sampled(names, tokens_of(*result))
        if self.watcher is not None:
            self.journal.count(
                drafts=drafts, accepted_drafts=accepted, rejected_drafts=drafts - accepted
            )

    def proposed(self, original: Call, owner: Any, batch: Any, given: Any = None) -> None:
        """Record the proposed drafts: a drafter's result, or those that are `given` on."""
        result = original()
        if self.account is not None:
            drafts = given if result is None else result
            drafts = drafts.clone() if isinstance(drafts, Tensor) else drafts
            names = names_of(original, owner)
            self.later(functools.partial(self.account.proposed, names, drafts))

    # A draft model.

    def drafted(self, original: Call, owner: Any) -> None:
        """Watch the forwards of a draft model, if the target's forward was checked."""
        turn = self.turn_of(names_of(original, owner), owner)
        if turn is None or self.watcher is None or not self.checked:
            return
        with self.forward_of(turn, attribute="turn"), self.learning():
            original()

    def turn_of(self, names: list[str], owner: Any) -> Turn | None:
        """Return what a draft model computes for a batch, or None if it is unknown."""
        account, pool = self.account, self.pool
        if account is None or pool is None or pool.draft is None:
            return None
        if any(name not in account.requests or name not in account.counts for name in names):
            return None
        return Turn(self, pool, pool.draft, names, owner)

    def take_up(
        self, turn: Turn, ids: Tensor, positions: Tensor, mapping: Tensor | None = None
    ) -> None:
        """Begin the forward in which a draft model computes the target's tokens."""
        assert self.watcher is not None
        self.undrafted = []
        self.watcher.begin(turn.extended())
        self.watcher.judge_inputs("draft", turn.inputs(ids, positions, mapping))
        self.learned()
        chunks = sum(one.computed < len(one.tokens) - 1 for one in turn.progress)
        self.journal.count(ends_of_chunks=0 if turn.names_next else chunks)

    def prefills(self, original: Call) -> None:
        """Begin to watch a draft model of the newer runner, which has just built its inputs."""
        original()
        if self.turn is not None:
            buffers = original.having("input_ids")
            self.take_up(self.turn, buffers.input_ids, buffers.positions)

    def steps(self, owner: Any) -> None:
        """Begin to watch the steps that compute all drafts but the first. Judge their inputs."""
        turn, watcher = self.turn, self.watcher
        if turn is not None and watcher is not None:
            self.begin_steps(turn)
            buffers, tables = owner.input_buffers, owner.block_tables.input_block_tables
            if turn.fits(turn.drafts - 1):
                given = turn.step_inputs(buffers.seq_lens, buffers.positions)
                watcher.judge_inputs("draft", given)
                ends = torch.tensor([done + turn.drafts - 1 for done in turn.done])
                watcher.judge_lists([turn.lists(tables[turn.draft.number][: len(ends)], ends)])

    def begin_steps(self, turn: Turn) -> None:
        """End the forward that computes the target's tokens, and begin the steps."""
        if self.watcher is not None and not turn.stepping:
            turn.stepping = True
            self.watcher.end(self.until(self.now))
            self.watcher.begin(turn.stepped())

    def draft_metadata(self, result: Any, owner: Any) -> None:
        """Judge the attention inputs of a draft model."""
        turn, watcher, older = self.turn, self.watcher, isinstance(result, tuple)
        layers = result[1] if older else result
        if turn is None or watcher is None or layers is None:
            return
        mine = layers[turn.draft.layer]
        if older and not watcher.watching:
            self.take_up(turn, owner.input_ids, owner.positions, mine.slot_mapping)
        else:
            self.begin_steps(turn)
            turn.step += 1
            if not turn.fits(turn.step):
                return
            positions = owner.positions if older else owner.input_buffers.positions
            given = turn.step_inputs(mine.seq_lens, positions, mine.slot_mapping)
            watcher.judge_inputs("draft", given)
        # The newer runner also increments the lengths of padded rows, and drops their results.
        table = mine.block_table if older else mine.block_table[: len(turn.names)]
        watcher.judge_lists([turn.lists(table, mine.seq_lens)])

    def draft_graph(self, original: Call, graphs: Any, one: Any) -> None:
        """Watch the replay of a draft model's graph."""
        turn, watcher = self.turn, self.watcher
        if turn is None or watcher is None:
            return
        live = len(turn.names)
        if not turn.stepping:
            live = sum(count for count, _ in turn.spans)
        once, bucket = "it changes the inputs of its next step", int(one.num_tokens)
        watcher.replay(Replay(graphs, "draft graph", live, bucket, (), original, once=once))

    def forget_undrafted(self) -> None:
        """Mark slots as unknown whose computation by the draft model was not watched."""
        names, self.undrafted, self.checked = self.undrafted, [], False
        unwatched, self.unwatched = self.unwatched, None
        if self.watcher is None or self.account is None:
            return
        if unwatched is not None:
            self.watcher.forget(DRAFTED, unwatched)
        turn = self.turn_of([name for name in names if name in self.account.requests], None)
        if turn is not None and turn.names:
            pairs = zip(turn.tables, turn.spans, strict=True)
            parts = [table[first:] for table, (_, first) in pairs]
            self.watcher.forget(DRAFTED, torch.cat(parts))


def names_of(call: Call, runner: Any) -> list[str]:
    """Return the requests of the batch in a call, or else of the runner's, in order."""
    return list((call.having("req_ids") or runner.input_batch).req_ids)
