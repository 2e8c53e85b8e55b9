"""Judges what the sampler and the adapters of an engine use for each row."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from paritybit.connectors.hooking import Call
from paritybit.connectors.vllm.batch import Batch
from paritybit.connectors.vllm.drafting import Drafting
from paritybit.connectors.vllm.sampling import Sampling, adapters
from paritybit.watch.facts import Forward
from paritybit.watch.stacks import NOWHERE, Stack, brief

SAMPLER = "sampler"
"""What uses the values of rows, for reports."""


class Rows(Drafting):
    """The part of an engine that follows requests from row to row, and judges rows."""

    def forget(self) -> None:
        """Stop watching, and forget all that is known of requests and rows."""
        super().forget()
        self.sampling: Sampling | None = None
        self.moves: dict[str, tuple[Stack, str]] = {}
        """How each request came into its row, since the last forward that was judged."""
        self.holders: dict[int, str] = {}
        """The request that had each slot of the newer runner last."""

    def begin_rows(
        self, runner: Any, output: Any, names: Sequence[str], forward: Forward, batch: Batch
    ) -> None:
        """Note what the requests of a forward asked for, and judge the adapters of its tokens."""
        of, counts = self.scheduler.requests, output.num_scheduled_tokens
        with self.recognising("rows"):
            self.sampling = Sampling.of(
                forward,
                names,
                of,
                output.scheduled_spec_decode_tokens,
                lambda: batch.by_row(names, counts),
                int(runner.vllm_config.model_config.get_vocab_size()),
                self.account,
            )
        self.rows("adapters", lambda: adapters(runner, names, of, counts), self.moves)

    def indices(self, given: Any) -> None:
        """Judge which tokens the older runner samples after."""
        if (sampling := self.sampling) is not None and isinstance(given, Tensor):
            self.rows(SAMPLER, lambda: [sampling.logits_indices(given)], self.moves)

    def sampled(self, original: Call, runner: Any) -> Any:
        """Judge what a sampler uses for each row, then count the drafts that it accepts."""
        sampling, batch = self.sampling, original.having("req_ids")
        if sampling is not None and self.checked and batch is None:
            verified = original.having("num_draft_tokens")
            self.rows(SAMPLER, lambda: sampling.older(runner, verified), self.moves)
        elif sampling is not None and self.checked:
            self.rows(SAMPLER, lambda: sampling.newer(runner, batch), self.moves)
        try:
            return super().sampled(original, runner)
        finally:
            self.sampling, self.moves = None, {}

    def processed(self, original: Call, owner: Any, logits: Tensor) -> Any:
        """Judge logits after a sampler has applied the parameters of their requests."""
        sampling, metadata = self.sampling, original.having("all_greedy")
        if sampling is None or not self.checked:
            return original()
        raw = logits if metadata is None else logits.clone()
        result = original()
        self.rows(SAMPLER, lambda: sampling.logits(owner, raw, result, metadata), self.moves)
        return result

    def moved(self, original: Call, batch: Any) -> Any:
        """Note the requests that the older runner moves to other rows, or adds."""
        before = {name: row for row, name in enumerate(batch._req_ids) if name is not None}
        result = original()
        lines = NOWHERE if self.watcher is None else self.watcher.here()
        for row, name in enumerate(batch._req_ids):
            if name is not None and (since := before.get(name)) != row:
                told = "added to" if since is None else f"moved from row {since} to"
                self.moves[name] = lines, f"it was {told} row {row} in this step"
        return result

    def joined(self, original: Call, states: Any, req_id: str) -> Any:
        """Note the slot that a request gets in the newer runner."""
        result = original()
        slot = states.req_id_to_index[req_id]
        holder = self.holders.get(slot)
        lines = NOWHERE if self.watcher is None else self.watcher.here()
        by = "".join(f" at {brief(line)}" for line in lines.lines[1:2])
        told = f"it got slot {slot} in this step{by}"
        self.moves[req_id] = NOWHERE, f"{told}, which request {holder} had" if holder else told
        self.holders[slot] = req_id
        return result
