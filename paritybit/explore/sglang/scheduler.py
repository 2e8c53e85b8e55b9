"""A step of sglang's scheduler, modelled on the engine's own, with the engine's objects.

It follows `Scheduler.get_next_batch_to_run`, `_get_new_batch_prefill_raw` and
`update_running_batch` (managers/scheduler.py) and `process_batch_result_prefill` and `_decode`
(scheduler_components/batch_result_processor.py) of releases 0.5.18 and 0.5.23, for a server
without overlap, mixed chunks, drafts, sessions and host memory, with first-come scheduling.
Admission (`PrefillAdder`), batches, requests, allocation and eviction are the engine's own.
"""

from dataclasses import dataclass
from typing import Any

from paritybit.engines.loading import named
from paritybit.engines.stubs import PartMissingError
from paritybit.explore.bound import OUTPUT
from paritybit.explore.laws import Tokens
from paritybit.explore.sglang.world import World

RATIO = 0.1
"""The fraction of the output for which running requests reserve slots: a server's minimum."""


@dataclass(frozen=True)
class Computed:
    """The tokens that a request computes in a step: positions `begin` to `end` - 1."""

    request: Any
    begin: int
    end: int


class SglangScheduler:
    """The requests and batches of a scheduler, and the engine's objects."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.table, self.allocator, self.cache = world.objects()
        self.reached: set[str] = set()
        self.waiting: list[Any] = []
        self.running: Any = None
        self.last: Any = None
        self.chunked: Any = None
        self.stashes = False

    def requests(self) -> list[Any]:
        """Return the unfinished requests: the running ones in order, then the waiting ones."""
        found = list(self.running.reqs) if self.running is not None else []
        if self.last is not None:
            found += [one for one in self.last.reqs if one not in found]
        if self.chunked is not None and self.chunked not in found:
            found.append(self.chunked)
        return [one for one in found if not one.finished()] + self.waiting

    def idle(self) -> bool:
        """Whether no request is left."""
        return not self.requests()

    def compute(self, parts: list[Computed]) -> None:
        """Do what the model does with a batch."""
        raise NotImplementedError

    def step(self) -> None:
        """Run a batch, if there is one."""
        self.merge()
        batch = self.prefill()
        prefills = batch is not None
        if batch is None:
            batch = self.decode()
        if batch is not None:
            self.compute(self.computed(batch, prefills=prefills))
            self.finish(batch, prefills=prefills)
        self.last = batch if prefills else None

    def merge(self) -> None:
        """Cache the last chunk, and let the requests of the last prefill decode."""
        if self.chunked is not None and self.stashes:
            self.keep(self.chunked, chunked=True)
        last, self.last = self.last, None
        if last is not None:
            out = [one for one in (self.chunked, last.chunked_req) if one is not None]
            # By release.
            named(last.filter_batch, reqs_to_exclude=out, chunked_req_to_exclude=out)()
            if not last.is_empty():
                if self.running is None or self.running.is_empty():
                    self.running = last
                else:
                    self.running.merge_batch(last)
        if self.running is not None:
            self.running.filter_batch()
            if self.running.is_empty():
                self.running = None

    def prefill(self) -> Any:
        """Return a batch of the requests that can be admitted, or None."""
        self.stashes = False
        if not self.waiting and self.chunked is None:
            return None
        adder = self.adder()
        if self.chunked is not None:
            before = self.chunked
            before.init_next_round_input()
            self.chunked = adder.add_chunked_req(before)
            self.stashes = before in adder.can_run_list
        for request in self.waiting:
            if adder.budget_state().name == "OTHER":
                break
            request.init_next_round_input(self.cache)
            result = adder.add_one_req(
                request, has_chunked_req=self.chunked is not None, truncation_align_size=None
            )
            if result.name != "CONTINUE":
                break
        admitted = adder.can_run_list
        if not admitted:
            return None
        if any(prefix_of(one) for one in self.waiting if one in admitted):
            self.reached.add("shared prefixes")
        self.waiting = [one for one in self.waiting if one not in admitted]
        if adder.new_chunked_req is not None:
            self.chunked, self.stashes = adder.new_chunked_req, True
        if self.chunked is not None:
            self.chunked.inflight_middle_chunks += 1
        batch = self.world.batch.init_new(
            admitted,
            self.table,
            self.allocator,
            self.cache,
            self.world.model,
            False,
            self.world.no_drafts,
            chunked_req=self.chunked,
        )
        batch.prepare_for_extend()
        return batch

    def adder(self) -> Any:
        """Return the engine's object that admits requests to a prefill."""
        bound = self.world.bound
        running = self.running if self.running is not None else self.world.batch(reqs=[])
        return self.world.adder(
            bound.page_size,
            self.cache,
            self.allocator,
            running,
            RATIO,
            16384,
            self.world.chunk,
            max_running_requests=bound.requests,
        )

    def decode(self) -> Any:
        """Return the running batch with another slot for each request, or None."""
        batch = self.running
        if batch is None or batch.is_empty():
            return None
        if not batch.check_decode_mem():
            retracted = named(batch.retract_decode, server_args=self.world.settings)()[0]
            if retracted:
                self.reached.add("preemptions")
            self.waiting += retracted
        if batch.is_empty():
            self.running = None
            return None
        batch.prepare_for_decode()
        return batch

    def computed(self, batch: Any, *, prefills: bool) -> list[Computed]:
        """Return the tokens that a batch computes, per request."""
        if not prefills:
            return [Computed(one, one.seqlen - 1, one.seqlen) for one in batch.reqs]
        parts = zip(batch.reqs, batch.prefix_lens, batch.extend_lens, strict=True)
        return [Computed(one, begin, begin + count) for one, begin, count in parts]

    def finish(self, batch: Any, *, prefills: bool) -> None:
        """Append a token to each request, free the finished ones, and cache the prefilled ones."""
        self.allocator.free_group_begin()
        for request in batch.reqs:
            if prefills and request.inflight_middle_chunks > 0:
                request.inflight_middle_chunks -= 1
                continue
            request.output_ids.append(OUTPUT)
            request.update_finish_state()
            if request.finished():
                self.world.release(request, self.cache)
            elif prefills:
                self.keep(request)
        self.allocator.free_group_end()

    def keep(self, request: Any, *, chunked: bool = False) -> None:
        """Insert the computed tokens of a request into the prefix cache."""
        common = self.world.common
        if hasattr(common, "checkpoint_kv_cache"):
            common.checkpoint_kv_cache(request, self.cache)
        else:
            common.maybe_cache_unfinished_req(request, self.cache, chunked=chunked)

    def stop(self, request: Any) -> None:
        """Abort a request: immediately if it waits, or with its next token if it runs."""
        if request in self.waiting:
            self.waiting.remove(request)
        else:
            request.to_finish = self.world.abort()

    def reset(self) -> None:
        """Reset the prefix cache, like a flush of an idle server."""
        self.reached.add("resets")
        self.running = self.last = None
        self.cache.reset()
        self.table.clear()
        self.allocator.clear()


def prefix_of(request: Any) -> int:
    """Return the number of a request's tokens that were found in the prefix cache."""
    return request.prefix_len if hasattr(request, "prefix_len") else len(request.prefix_indices)


def field_of(request: Any, name: str) -> Any:
    """Return a field of a request about its slots, wherever the release keeps it."""
    for holder in (getattr(request, "kv", None), request):
        if holder is not None and hasattr(holder, name):
            return getattr(holder, name)
    raise PartMissingError(f"the engine's request has no {name}")


def tokens_of(request: Any) -> Tokens:
    """Return the prompt and the output of a request."""
    return (*request.origin_input_ids, *request.output_ids)
