"""The engine's own batches of requests: they allocate, evict and free what our world decides."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import torch
from paritybit.reference.model import Model
from paritybit.subjects.engines.sglang.host.host import TRACKS_STATES, Host
from paritybit.subjects.engines.sglang.memory.pool import SglangPool
from paritybit.subjects.engines.sglang.memory.scheduling import Asked
from paritybit.subjects.engines.sglang.scheduling.cache import prefix_cache
from paritybit.subjects.engines.sglang.scheduling.requests import BATCHES, SglangRequest
from paritybit.subjects.engines.shared.loading import Engine, named
from paritybit.subjects.engines.shared.missing import PartMissingError
from torch import Tensor


class SglangBatches:
    """The engine's `ScheduleBatch` of every request, over its pool, allocator and request table.

    Each request lies in a batch of its own, parted from the last one that it ran in and merged
    with others by the engine's code when it runs again. Of `reserving` requests the engine holds
    more slots than they have tokens, for drafts to come. With `lagging` drafts a window reaches
    further back than the engine's scheduler can know, whose draft model never lags: it then
    evicts when it is told to, and not by itself.
    """

    def __init__(self, host: Host, pool: SglangPool, model: Model, *, lagging: bool) -> None:
        part = host.engine.part
        self.host = host
        self.pool = pool
        self.lagging = lagging
        self.window = model.config.window
        self.kind = part(f"{BATCHES}:ScheduleBatch")
        self.config = host.model_config(model)
        self.cache = prefix_cache(host, pool, model.config)
        self.resolve = self._resolver()
        self.requests: dict[int, SglangRequest] = {}
        self.retracted: dict[int, SglangRequest] = {}
        self.batches: dict[int, Any] = {}
        self.reserving: set[int] = set()
        self.reserves = reserves_for_drafts(host.engine)

    def _resolver(self) -> Any:
        """Return what of the engine brings a prefill's tokens to the device, if it does so late."""
        try:
            return self.host.engine.part("srt.managers.overlap_utils:resolve_forward_inputs")
        except PartMissingError:
            return lambda batch, relayed: None

    def clear(self) -> None:
        """Hold no request. The pool is cleared by its owner."""
        self.requests.clear()
        self.retracted.clear()
        self.batches.clear()
        self.reserving.clear()
        self.cache.reset()

    def row(self, serial: int) -> int:
        """Return a request's row of the request table."""
        return self.requests[serial].row

    def evicted(self, serial: int) -> int:
        """Return how many of a request's first tokens have lost their SWA slots."""
        return self.requests[serial].evicted

    def reserved(self, serial: int) -> int:
        """Return how many of a request's tokens have slots for drafts to come, 0 if none has."""
        return self.requests[serial].allocated if serial in self.reserving else 0

    def extend(self, asked: Sequence[Asked]) -> Any:
        """Prefill: let the engine give rows and slots; return its batch.

        Raises RuntimeError where the engine has no room, or fails a check of its own.
        """
        for one in asked:
            new = one.serial not in self.requests
            if new:
                waiting = self.retracted.pop(one.serial, None)
                self.requests[one.serial] = waiting or SglangRequest(self.host.engine, one.serial)
            request = self.requests[one.serial]
            request.know(one.begin, one.tokens)
            request.take_until(self.cache, one.end, new=new)
        with own_checks():
            batch = self._new([self.requests[one.serial] for one in asked])
            with self._host_work(batch):
                batch.prepare_for_extend()
                self.resolve(batch, None)
            for one in asked:
                self.requests[one.serial].prefilled(self.cache)
            self._part(batch, asked)
        return batch

    def decode(self, asked: Sequence[Asked]) -> Any:
        """Decode: let the engine give a slot to each request; return its batch.

        Raises RuntimeError where the engine has no room, or fails a check of its own.
        """
        for one in asked:
            self._give_up_reserve(one.serial, one.begin)
            self.requests[one.serial].generated(one.begin, one.tokens[0])
        sampled = torch.tensor([one.tokens[0] for one in asked], device=self.pool.device)
        with own_checks():
            batch = self._merged(asked)
            batch.input_ids = batch.output_ids = sampled
            with self._host_work(batch):
                batch.prepare_for_decode()
            self._part(batch, asked)
        return batch

    def draft(self, asked: Sequence[Asked]) -> None:
        """Give slots for drafts, as the engine does before its draft worker runs.

        Releases whose worker does so itself, which is not run, give them by their allocator alone.
        """
        if self.reserves:
            self._reserve(asked)
            return
        self.pool.extend(
            [self.row(one.serial) for one in asked],
            [one.begin for one in asked],
            [one.end for one in asked],
        )

    def _reserve(self, asked: Sequence[Asked]) -> None:
        """Let the engine prepare a batch for its draft worker, which reserves slots.

        What some releases count as committed beforehand is taken back, as by the worker's results.
        """
        part = self.host.engine.part
        batch = self._merged(asked)
        batch.spec_algorithm = part("srt.speculative.spec_info:SpeculativeAlgorithm").EAGLE
        batch.enable_overlap = True
        batch.spec_info = object.__new__(part("srt.speculative.eagle_info:EagleDraftInput"))
        lengths = {one.serial: int(self.batches[one.serial].seq_lens_cpu[0]) for one in asked}
        with own_checks(), self._host_work(batch):
            batch.prepare_for_decode()
        for one in asked:
            self.requests[one.serial].commit(lengths[one.serial])
            self.reserving.add(one.serial)
            if self.reserved(one.serial) < one.end:
                raise RuntimeError(
                    f"the engine reserved slots for {self.reserved(one.serial)} tokens of "
                    f"request {one.serial}, whose drafts end at token {one.end}"
                )

    def _give_up_reserve(self, serial: int, length: int) -> None:
        """Free what is reserved behind a request's tokens: it runs without drafts.

        A server that drafts never does: freeing is the engine's, when is ours.
        """
        if serial in self.reserving:
            size = self.pool.sizes.page_size
            first = -(-length // size) * size
            self.pool.shrink(self.row(serial), first, self.reserved(serial))
            self.requests[serial].advance(length)
            self.reserving.discard(serial)

    def drop(self, serial: int, begin: int, end: int) -> None:
        """Free the slots of a request's last tokens, which were drafts, unless it reserves them."""
        if serial not in self.reserving:
            self.pool.shrink(self.row(serial), begin, end)

    def advance(self, serial: int, length: int) -> None:
        """Keep account of what a request holds once drafts were accepted, dropped or both."""
        request = self.requests[serial]
        (request.commit if serial in self.reserving else request.advance)(length)
        batch = self.batches[serial]
        for name in ("seq_lens", "seq_lens_cpu", "orig_seq_lens"):
            held: Tensor = getattr(batch, name)
            setattr(batch, name, torch.full_like(held, length, device=held.device))
        batch.seq_lens_sum = length

    def evict(self, serial: int, length: int, unseen: int) -> None:
        """Let the engine evict what left the window of a request with so many tokens.

        `unseen` is how many of them the world evicted, which says with a lagging draft how far
        back the window reaches.
        """
        reached = unseen + self.window - 1 if self.lagging else length
        with own_checks():
            self.batches[serial]._evict_swa(self.requests[serial].req, reached)

    def finish(self, serial: int) -> None:
        """Let the engine take back all that a request holds."""
        with own_checks():
            self.requests[serial].finish(self.cache)
        self._forget(serial)

    def retract(self, serial: int) -> None:
        """Let the engine take back all that a request holds, which may come again.

        Beside another that it would rather keep, the engine itself picks who is retracted.
        """
        kept = self._rather_kept(serial)
        with own_checks():
            if kept is None:
                release = self.batches[serial].release_req
                named(release, server_args=self.host.arguments)(0, 1)
            else:
                self._retract_beside(kept, serial)
        self.retracted[serial] = self.requests[serial]
        self._forget(serial)

    def _rather_kept(self, serial: int) -> int | None:
        """Return a decoding request that the engine retracts after this one, None if none is."""
        orders = {
            other: request.order_of_retraction
            for other, request in self.requests.items()
            if request.decodes
        }
        own = orders.pop(serial, None)
        later = [other for other, order in orders.items() if own is not None and order >= own]
        return max(later, key=lambda other: orders[other], default=None)

    def _retract_beside(self, kept: int, serial: int) -> None:
        """Let the engine make room in a batch of two; RuntimeError if it does not retract `serial`.

        What it leaves of the batch is the other's from then on.
        """
        batch = self._merged([Asked(kept, 0, 0), Asked(serial, 0, 0)])
        retract = named(batch.retract_decode, server_args=self.host.arguments)
        retracted, _, aborted = retract()
        right = self.requests[serial].req
        if len(retracted) != 1 or retracted[0] is not right or aborted or len(batch.reqs) != 1:
            raise RuntimeError(
                f"to make room for request {kept} the engine retracted "
                f"{[req.rid for req in retracted]} and aborted "
                f"{[req.rid for req in aborted]}; expected it to retract {serial}"
            )
        self.batches[kept] = batch

    def _forget(self, serial: int) -> None:
        del self.requests[serial], self.batches[serial]
        self.reserving.discard(serial)

    def _new(self, requests: Sequence[SglangRequest]) -> Any:
        """Return a new batch of the engine, of requests to prefill."""
        none = self.host.no_speculation()
        return self.kind.init_new(
            reqs=[request.req for request in requests],
            req_to_token_pool=self.pool.requests,
            token_to_kv_pool_allocator=self.pool.allocator,
            tree_cache=self.cache,
            model_config=self.config,
            enable_overlap=False,
            spec_algorithm=none,
        )

    def _merged(self, asked: Sequence[Asked]) -> Any:
        """Return one batch of the requests' own ones, merged by the engine."""
        first, *others = [self.batches[one.serial] for one in asked]
        batch = another(first)
        batch.output_ids = None
        for other in others:
            batch.merge_batch(other)
        return batch

    def _part(self, batch: Any, asked: Sequence[Asked]) -> None:
        """Keep a batch of each of its requests, parted by the engine."""
        for place, one in enumerate(asked):
            self.batches[one.serial] = part = another(batch)
            part.output_ids = None
            part.filter_batch(keep_indices=[place])

    @contextmanager
    def _host_work(self, batch: Any) -> Iterator[None]:
        """Hold what a batch must find while it is prepared: no state is tracked by the engine."""
        if self.lagging:
            batch.maybe_evict_swa = lambda: None
        with TRACKS_STATES.off():
            yield
        vars(batch).pop("maybe_evict_swa", None)


def reserves_for_drafts(engine: Engine) -> bool:
    """Whether an engine reserves slots for drafts before its worker runs, which frees none.

    Earlier releases, by default, have a worker that takes slots and frees those of rejected drafts.
    """
    try:
        engine.part("srt.speculative.eagle_worker:EAGLEWorker")
    except PartMissingError as error:
        if "cannot be imported" in str(error):
            raise
        return True
    return False


def another(batch: Any) -> Any:
    """Return another batch of the same requests, which can be changed by itself."""
    made = copy.copy(batch)
    for field in fields(batch):
        value = getattr(batch, field.name)
        if isinstance(value, list):
            setattr(made, field.name, list(value))
    made.sampling_info = copy.copy(batch.sampling_info)
    return made


@contextmanager
def own_checks() -> Iterator[None]:
    """Turn a failed assertion of the engine's code into RuntimeError: it is the engine's own."""
    try:
        yield
    except AssertionError as error:
        said = str(error).strip().splitlines()
        what = said[0] if said else "an assertion without a message"
        raise RuntimeError(f"a check in the engine failed: {what}") from error
