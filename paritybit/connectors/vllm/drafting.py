"""Follows the drafts of an engine: which are proposed, and which its sampler accepts."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.hooking import Call
from paritybit.connectors.vllm.blocks import Blocks
from paritybit.connectors.vllm.drafts import Turn
from paritybit.connectors.vllm.pools import DRAFTED
from paritybit.connectors.vllm.requests import Requests
from paritybit.connectors.vllm.speculation import Account, kept, tokens_of
from paritybit.watch.facts import Replay


class Drafting(Blocks):
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
        """Whether the last forward of the target was checked."""

    def follow_drafts(self, runner: Any, output: Any, begun: dict[str, int]) -> None:
        """Read the output of the scheduler about requests with drafts, before a forward."""
        if self.scheduler is None:
            return
        config = runner.vllm_config
        if config.speculative_config is None:
            return
        if self.account is None:
            self.account = Account(bool(config.scheduler_config.async_scheduling))
        of = self.scheduler.requests
        self.firsts |= begun
        # The scheduler's own requests change meanwhile.
        tokens = {name: list(of[name].all_token_ids) for name in begun}
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

    def sampled(self, original: Call, runner: Any) -> Any:
        """Count the drafts that a sampler accepts."""
        try:
            result = original()
        except BaseException:
            self.give_up("sampling failed, so later forwards are not watched")
            raise
        if self.account is not None:
            names = names_of(original, runner)
            self.later(functools.partial(self.count, self.account, names, kept(result)))
        return result

    def count(self, account: Account, names: list[str], result: Any) -> None:
        """Count the drafts that a sampler accepted."""
        drafts, accepted = account.sampled(names, tokens_of(*result))
        if self.watcher is not None:
            self.journal.count(
                drafts=drafts, accepted_drafts=accepted, rejected_drafts=drafts - accepted
            )

    def proposed(self, original: Call, owner: Any, batch: Any, given: Any = None) -> Any:
        """Record the proposed drafts: the result of a drafter, or those that are `given` on."""
        result = original()
        if self.account is not None:
            drafts = given if result is None else result
            drafts = drafts.clone() if isinstance(drafts, Tensor) else drafts
            names = names_of(original, owner)
            self.later(functools.partial(self.account.proposed, names, drafts))
        return result

    # A draft model.

    def drafted(self, original: Call, owner: Any) -> Any:
        """Watch the forwards of a draft model, if the target's forward was checked."""
        turn = self.turn_of(names_of(original, owner), owner)
        if turn is None or self.watcher is None or not self.checked:
            return original()
        with self.forward_of(turn, "turn"), self.learning():
            return original()

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
        self.watcher.inputs("draft", turn.inputs(ids, positions, mapping))
        self.watcher.lines.stop()  # The draft model runs next.
        chunks = sum(one.computed < len(one.tokens) - 1 for one in turn.progress)
        self.journal.count(ends_of_chunks=0 if turn.names_next else chunks)

    def prefills(self, original: Call) -> Any:
        """Begin to watch a draft model of the newer runner, which has just built its inputs."""
        result = original()
        if self.turn is not None:
            buffers = original.having("input_ids")
            self.take_up(self.turn, buffers.input_ids, buffers.positions)
        return result

    def steps(self, original: Call, owner: Any) -> Any:
        """Begin to watch the steps that compute all drafts but the first. Judge their inputs."""
        turn, watcher = self.turn, self.watcher
        if turn is not None and watcher is not None:
            self.begin_steps(turn)
            buffers, tables = owner.input_buffers, owner.block_tables.input_block_tables
            if turn.fits(turn.drafts - 1):
                given = turn.step_inputs(buffers.seq_lens, buffers.positions)
                watcher.inputs("draft", given)
                watcher.lists([turn.whole_table(tables[turn.draft.number])])
        return original()

    def begin_steps(self, turn: Turn) -> None:
        """End the forward that computes the target's tokens, and begin the steps."""
        if self.watcher is not None and not turn.stepping:
            turn.stepping = True
            self.watcher.end()
            self.watcher.begin(turn.stepped())

    def draft_metadata(self, original: Call, owner: Any) -> Any:
        """Judge the attention inputs of a draft model."""
        result = original()
        turn, watcher, older = self.turn, self.watcher, isinstance(result, tuple)
        layers = result[1] if older else result
        if turn is None or watcher is None or layers is None:
            return result
        mine = layers[turn.draft.layer]
        if older and not watcher.watching:
            self.take_up(turn, owner.input_ids, owner.positions, mine.slot_mapping)
        else:
            self.begin_steps(turn)
            turn.step += 1
            if not turn.fits(turn.step):
                return result
            positions = owner.positions if older else owner.input_buffers.positions
            given = turn.step_inputs(mine.seq_lens, positions, mine.slot_mapping)
            watcher.inputs("draft", given)
        # The newer runner also increments the lengths of padded rows, and drops their results.
        table = mine.block_table if older else mine.block_table[: len(turn.names)]
        watcher.lists([turn.lists(table, mine.seq_lens)])
        return result

    def draft_graph(self, original: Call, graphs: Any, one: Any) -> Any:
        """Watch the replay of a draft model's graph."""
        turn, watcher = self.turn, self.watcher
        if turn is None or watcher is None:
            return original()
        live = len(turn.names)
        if not turn.stepping:
            live = sum(count for count, _ in turn.spans)
        once, bucket = "it changes the inputs of its next step", int(one.num_tokens)
        return watcher.replay(Replay(graphs, "draft graph", live, bucket, (), original, once=once))

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
