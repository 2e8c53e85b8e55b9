"""One of the engine's own requests, told what our world decides of it.

What the engine's releases call the same is listed here; a release that has none of the names
raises PartMissingError.
"""

from array import array
from collections.abc import Sequence
from typing import Any

from paritybit.subjects.engines.shared.loading import Engine, named
from paritybit.subjects.engines.shared.missing import PartMissingError

BATCHES = "srt.managers.schedule_batch"


class SglangRequest:
    """A `Req` of the engine: its tokens, its row and what it says of its slots are the engine's.

    Ours is what an engine's user and its admission decide: which tokens are known, and how many
    of them a prefill takes next.
    """

    def __init__(self, engine: Engine, serial: int) -> None:
        self.engine = engine
        self.req = engine.part(f"{BATCHES}:Req")(
            rid=str(serial),
            origin_input_text="",
            origin_input_ids=array("q"),
            sampling_params=engine.part("srt.sampling.sampling_params:SamplingParams")(),
        )
        self.req.origin_input_ids = self._as_kept([])

    def _as_kept(self, tokens: Sequence[int]) -> Any:
        """Return tokens as the engine keeps them: in a list or, later, in an array."""
        return array("q", tokens) if isinstance(self.req.output_ids, array) else list(tokens)

    def _holder(self, name: str) -> Any:
        """Return what of the request holds a name: its record of KV, or itself."""
        for one in (getattr(self.req, "kv", None), self.req):
            if one is not None and hasattr(one, name):
                return one
        raise PartMissingError(f"the engine's request has no {name}")

    @property
    def row(self) -> int:
        """Its row of the request table."""
        return int(self._holder("req_pool_idx").req_pool_idx)

    @property
    def evicted(self) -> int:
        """How many of its first tokens have lost their SWA slots, as the engine keeps account."""
        try:
            return int(self._holder("swa_evicted_seqlen").swa_evicted_seqlen)
        except PartMissingError:
            holder = self._holder("get_evicted_seqlen")
            kinds = self.engine.part(
                "srt.mem_cache.unified_cache.component_type:ComponentType",
                "srt.mem_cache.unified_cache.components:ComponentType",
            )
            return int(holder.get_evicted_seqlen(kinds.SWA))

    @property
    def decodes(self) -> bool:
        """Whether it has generated tokens."""
        return len(self.req.output_ids) > 0

    @property
    def order_of_retraction(self) -> tuple[int, int]:
        """What the engine sorts requests by that it may retract, the first one least."""
        return len(self.req.output_ids), -len(self.req.origin_input_ids)

    def know(self, begin: int, tokens: Sequence[int]) -> None:
        """Know its tokens from `begin` on, and no later ones.

        Those that it generated before it was retracted stay generated ones.
        """
        req, kept = self.req, self._as_kept
        known = [*req.origin_input_ids, *req.output_ids][:begin] + list(tokens)
        prompt = len(req.origin_input_ids) if len(req.output_ids) else len(known)
        req.origin_input_ids, req.output_ids = kept(known[:prompt]), kept(known[prompt:])

    def generated(self, length: int, token: int) -> None:
        """Know the token after the first `length`, which was sampled.

        What was accepted of drafts in between is not known here, and nothing reads it.
        """
        missing = length - self.req.seqlen
        self.req.output_ids.extend([0] * missing + [token])

    def take_until(self, cache: Any, end: int, *, new: bool) -> None:
        """Let the next prefill take its tokens up to `end`; a new one is matched in the cache."""
        req = self.req
        req.init_next_round_input(cache if new else None)
        if hasattr(req, "extend_end"):
            req.extend_end = end
        elif hasattr(req, "set_extend_range"):
            req.set_extend_range(len(req.prefix_indices), end)
        elif hasattr(req, "set_extend_input_len"):
            req.set_extend_input_len(end - len(req.prefix_indices))
            if hasattr(req, "fill_len"):
                req.fill_len = end
            else:
                req.fill_ids = req.fill_ids[:end]
        else:
            raise PartMissingError("the engine's request has no way to set the next prefill chunk")

    @property
    def allocated(self) -> int:
        """How many of its tokens have slots, as the engine keeps account."""
        return int(self._holder("kv_allocated_len").kv_allocated_len)

    def commit(self, length: int) -> None:
        """Have KV of its first `length` tokens; slots behind them it may hold."""
        self._holder("kv_committed_len").kv_committed_len = length

    def advance(self, length: int) -> None:
        """Hold slots of its first `length` tokens and no more: the others were freed by us."""
        self.commit(length)
        self._holder("kv_allocated_len").kv_allocated_len = length

    def prefilled(self, cache: Any) -> None:
        """Let the engine keep what a prefill computed, as its scheduler does after each."""
        common = self.engine.module("srt.mem_cache.common")
        if hasattr(common, "checkpoint_kv_cache"):
            common.checkpoint_kv_cache(self.req, cache)
        elif hasattr(common, "maybe_cache_unfinished_req"):
            common.maybe_cache_unfinished_req(self.req, cache, chunked=True)
        else:
            cache.cache_unfinished_req(self.req, chunked=True)

    def finish(self, cache: Any) -> None:
        """Let the engine take back all that it holds, as its scheduler does when it ends."""
        self.req.finished_reason = self.engine.part(f"{BATCHES}:FINISH_LENGTH")(length=0)
        release = self.engine.part("srt.mem_cache.common:release_kv_cache")
        named(release, checkpoint=True)(self.req, cache)
