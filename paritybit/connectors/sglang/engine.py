"""Follows the engine in this process and reports to the watcher what happens, in order.

Each method that `hooks` names wraps functions of the engine. It gets the original function, then
the arguments of the call. Only forwards within a batch of the scheduler are watched. Warm-ups and
captures before the first batch are not.
"""

import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.failures import judge
from paritybit.connectors.hooking import Call, NotRecognisedError, passed
from paritybit.connectors.repeated import attribute
from paritybit.connectors.sglang import (
    adapters,
    drafts,
    eager,
    graphs,
    lists,
    metadata,
    rows,
    sampling,
)
from paritybit.connectors.sglang.allocations import Allocations, Original
from paritybit.connectors.sglang.hidden import HiddenStates
from paritybit.connectors.sglang.host import GivenBack, at_rest
from paritybit.connectors.sglang.models import Model, Models
from paritybit.connectors.sglang.states import meaning, nothing_runs
from paritybit.watch.captures import Captures
from paritybit.watch.facts import PIECES, Forward, Replay
from paritybit.watch.journal import Journal
from paritybit.watch.lines import SLOTS
from paritybit.watch.settings import Settings
from paritybit.watch.watcher import BEFORE, Watcher


@dataclasses.dataclass
class UnderWay:
    """The current forward, and the graph runner that replays it, if there is one.

    `arguments` are those of the runner. `replays` counts replays of whole graphs, and `pieces`
    replays of graphs of parts of the model. `listed` is True once index lists were judged.
    """

    model: Model
    batch: Any
    forward: Forward
    rows: rows.Rows
    implied: dict[str, Tensor]
    runner: Any = None
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    replays: int = 0
    pieces: int = 0
    listed: bool = False


class Engine:
    """The engine in this process. `hook` wraps another function immediately, by its path."""

    hook: Callable[[str, Original], None]

    def __init__(self, release: str, journal: Journal, settings: Settings) -> None:
        self.release, self.journal, self.settings = release, journal, settings
        self.models = Models(journal)
        self.watcher: Watcher | None = None
        self.allocations = Allocations(journal)
        self.requests: Sequence[Any] | None = None
        self.now: UnderWay | None = None
        self.capturing = 0
        self.captures = Captures(journal)
        self.hooked: set[str] = set()
        self.forwards = 0
        self.idle_at: tuple[int, bool, dict[str, int], bool] = 0, False, {}, False
        self.hidden, self.placed = HiddenStates(), sampling.Placed()
        self.all_rows = 0
        self.dropped = False
        self.batches = self.drafting = object
        """The classes of the scheduler's batches, and of their inputs of drafts."""
        self.lags = 0
        """The number of tokens of a request that the host may not know yet."""
        self.names_next = False
        """Whether a batch passes the token after a chunk of a prompt to the draft model."""

    # The models, and the start.

    def model_runner(self, original: Original, runner: Any, *args: Any, **kwargs: Any) -> Any:
        """Remember each model runner of the engine."""
        self.models.add(runner)
        return original(runner, *args, **kwargs)

    def start(self) -> Watcher:
        """Describe the models of the engine and start the watcher. Called at the first batch."""
        watcher = Watcher(
            self.models.described(self.allocations),
            engine="sglang",
            release=self.release,
            journal=self.journal,
            settings=self.settings,
        )
        if self.dropped:
            watcher.lose()  # Slots may have been written before it began.
        if self.models.target is not None:
            weakref.finalize(self.models.target, self.drop)
        watcher.copied_elsewhere = self.models.copied_elsewhere or self.allocations.unfollowed
        watcher.captures, watcher.missed = self.captures, self.missed
        self.allocations.watcher = watcher
        watcher.listen("sglang")
        return watcher

    def missed(self) -> None:
        """Forget what the connector itself knows of earlier forwards, after it failed."""
        self.hidden.clear()
        self.allocations.given_back = GivenBack()

    def drop(self) -> None:
        """Stop watching if the engine dropped the model. The next batch starts again."""
        if self.models.target is not None:
            return
        self.watcher = self.allocations.watcher = None
        self.models.models.clear()
        self.dropped = True

    def loop(self, original: Original, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        """Judge an error that ends the loop of the scheduler."""
        try:
            return original(scheduler, *args, **kwargs)
        except Exception as error:
            judge(error, self.journal, self.settings, meaning(error))
            raise

    # Batches and forwards.

    def plan(self, original: Original, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        """Learn which lines of the engine fill the inputs of the next batch."""
        with self.learning():
            return original(scheduler, *args, **kwargs)

    def learning(self) -> AbstractContextManager[None]:
        """Return a context in which the engine prepares a forward."""
        return nullcontext() if self.watcher is None else self.watcher.lines.learning()

    def batch(
        self, original: Original, scheduler: Any, batch: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Watch the forwards of one batch of the scheduler."""
        if self.watcher is None:
            self.watcher = self.start()
            taken = {rows.request_row(request) for request in batch.reqs} - {None}
            self.all_rows = len(self.models.rows.free_slots) + len(taken)
            self.names_next = hasattr(batch, "chunked_req_next_prompt_token")
            if hasattr(scheduler, "enable_overlap"):  # It may differ from the server argument.
                self.journal.scope(disable_overlap_schedule=not scheduler.enable_overlap)
            self.lags = int(getattr(scheduler, "enable_overlap", True))
        self.requests, self.batches = batch.reqs, type(batch)
        self.drafting = type(getattr(batch, "spec_info", None))
        try:
            with self.learning():
                return original(scheduler, batch, *args, **kwargs)
        finally:
            self.requests = None

    def forward(
        self, original: Original, runner: Any, batch: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Watch a forward of a model."""
        run = functools.partial(original, runner, batch, *args, **kwargs)
        return self.watched(run, runner, batch, None)

    def runner(self, original: Original, runner: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Watch a call of a graph runner. The engine calls a draft's runner outside a forward."""
        run = functools.partial(original, runner, batch, *args, **kwargs)
        if self.now is None:
            return self.watched(run, runner.model_runner, batch, runner)
        with self.running(self.now, runner, run):
            return run()

    @contextmanager
    def running(self, now: UnderWay, runner: Any, run: Call) -> Iterator[None]:
        """Note the runner that replays graphs. Afterwards, report a replay in pieces."""
        before = now.runner, now.arguments
        now.runner, now.arguments = runner, {**now.arguments, **passed(run)}
        pieces, replays = now.pieces, now.replays
        try:
            with self.learning():
                yield
        finally:
            now.runner, now.arguments = before
        only_pieces = now.pieces > pieces and now.replays == replays
        if only_pieces and self.watcher is not None and self.watcher.watching:
            live = len(now.batch.input_ids)
            sizes = getattr(runner, "capture_num_tokens", None) or [live]
            bucket = min((size for size in sizes if size >= live), default=live)
            self.watcher.replay(
                Replay(runner, type(runner).__name__, live, bucket, (), tuple, once=PIECES)
            )

    def watched(self, run: Call, runner: Any, batch: Any, graph_runner: Any) -> Any:
        """Run a forward between `begin` and `end` of the watcher."""
        watcher, requests = self.watcher, self.requests
        if watcher is not None:
            watcher.lines.stop()
        model = self.models.of(runner)
        if watcher is None or requests is None or self.capturing or self.now is not None:
            return run()
        if model is None or not self.located(model, batch):
            self.hidden.clear()
            watcher.skipped(None)
            return run()
        if not watcher.due():
            return self.skipped(watcher, model, batch, run)
        forward, found = self.facts(model, batch, requests, graph_runner)
        implied = rows.with_dimensions(model.implied(found, forward.kind, batch), batch)
        self.forwards += 1
        self.hook_lists(runner)
        eager.hook(self, runner)
        watcher.begin(forward)
        table = self.models.table
        watcher.lines.note(SLOTS, {f"req_to_token {name}": table for name in model.pool.groups})
        if not model.drafts:
            self.judge_rows(watcher, batch, requests, rows.mode_of(batch))
        self.judge_batch(watcher, batch, implied, model)
        watcher.inputs("draft", self.hidden.given(model, found, batch))
        watcher.inputs("LoRA", adapters.buffers_used(model, batch, found, requests))
        self.now = now = UnderWay(model, batch, forward, found, implied)
        try:
            running = None if graph_runner is None else self.running(now, graph_runner, run)
            with running or nullcontext():
                result = run()
        except BaseException:
            self.hidden.clear()
            watcher.abandon()
            raise
        finally:
            self.now = None
        if forward.rows and not now.listed and not model.drafts:
            watcher.undecided(f"the index lists of a forward of kind {forward.kind}")
        self.models.judge_states(watcher)
        if any(one.ahead for one in self.models.models.values()):
            self.hidden.note(model, found, batch, result)
        watcher.end()
        return result

    def located(self, model: Model, batch: Any) -> bool:
        """Return whether a batch states which slots it writes."""
        mode = rows.mode_of(batch)
        says = mode == "idle" or model.frozen or batch.out_cache_loc is not None
        if not says:
            self.journal.undecided(f"a {mode} batch without the slots it writes is not watched")
        return says

    def skipped(self, watcher: Watcher, model: Model, batch: Any, run: Callable[[], Any]) -> Any:
        """Run a forward that is not checked, and report only the slots that it writes.

        Without drafts, it reports none: each is written once, and its allocation is known.
        """
        owned = model.pool.written(batch.out_cache_loc) if self.models.rewrites else {}
        if self.models.states is not None and not model.drafts:
            owned |= self.models.states.written(batch)
        self.forwards += 1
        self.hidden.clear()
        with attribute(self, "requests", None):
            result = run()
        watcher.skipped(owned)
        return result

    def facts(
        self, model: Model, batch: Any, requests: Sequence[Any], runner: Any
    ) -> tuple[Forward, rows.Rows]:
        """Return the facts of a forward, and its rows. If these are unknown, only owned slots."""
        mode, pool, table = rows.mode_of(batch), model.pool, self.models.table
        kind = f"draft {mode}" if model.drafts else mode
        try:
            if not model.drafts:
                facts = rows.forward_of(batch, requests, pool, table)
                return self.models.with_states(batch, *facts)
            if model.frozen:
                return drafts.frozen_forward_of(batch, requests, pool, table)
            if model.shares:
                raise NotRecognisedError("a draft that reads the KV of its target")
            steps = None if runner is None else drafts.Steps.of(runner)
            return drafts.draft_forward_of(batch, requests, pool, table, steps, model.ahead)
        except NotRecognisedError as error:
            if model.drafts:
                self.journal.scope(drafts_not_watched=str(error))
            else:
                self.journal.undecided(f"{error} is not watched")
        return Forward(kind, (), pool.written(batch.out_cache_loc)), rows.Rows()

    # Inputs, index lists and replays.

    def judge_batch(
        self, watcher: Watcher, batch: Any, implied: Mapping[str, Tensor], model: Model
    ) -> None:
        """Judge the fields of the engine's batch whose values the rows imply."""
        if not implied or getattr(batch, "encoder_lens", None) is not None:
            return
        ids, positions = batch.input_ids, getattr(batch, "positions", None)
        listed = ids is not None and len(ids) == len(implied.get("out_cache_loc", ()))
        # The ids of draft steps belong to no request. Their positions are judged below.
        told = not model.drafts or (model.ahead and rows.mode_of(batch) != "decode")
        if listed and told:
            same = positions is not None and positions.shape == ids.shape
            requests = self.requests or ()
            kept = drafts.kept_ids(batch, requests, self.names_next) if model.drafts else None
            watcher.tokens(ids, positions if same else None, kept)
        own = ["positions"] if model.drafts else []
        names = ("seq_lens", "out_cache_loc", "mrope_positions", *own)
        watcher.inputs("batch", rows.fields_of(batch, implied, names))

    def judge_rows(self, watcher: Watcher, batch: Any, requests: Sequence[Any], mode: str) -> None:
        """Judge what the sampler uses for each row of a batch."""
        if (info := getattr(batch, "sampling_info", None)) is None or mode == "idle":
            return
        try:
            mine = rows.requests_of(batch, requests, mode)
            values = list(sampling.rows(info, mine, mode))
        except (NotRecognisedError, AttributeError, KeyError, TypeError, ValueError) as error:
            self.journal.scope(rows_not_watched=repr(error))
        else:
            moves = self.placed.moves(mine, mode)
            watcher.rows("sampler", values, sampling.moved_by(info, moves))
            if mode == "decode":
                counts = rows.totals(batch, mine, self.lags)
                watcher.rows("batch", counts, sampling.moved_by(self.batches, moves))
            if mode == "target_verify":
                found = rows.roots(batch, mine)
                watcher.rows("drafts", found, sampling.moved_by(self.drafting, moves))

    def hook_lists(self, runner: Any) -> None:
        """Wrap the method that builds index lists, once per class of attention backend."""
        kind = type(lists.attending(runner.attn_backend))
        path = f"{kind.__module__}.{kind.__qualname__}.init_forward_metadata"
        if path not in self.hooked:
            self.hooked.add(path)
            self.hook(path, self.metadata)

    def metadata(
        self, original: Original, backend: Any, batch: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Judge the index lists that an attention backend built for an eager forward."""
        now = self.now
        with nullcontext() if now is None else self.learning():
            result = original(backend, batch, *args, **kwargs)
        if now is not None and backend is lists.attending(now.model.runner.attn_backend):
            self.judge_lists(now, backend, int(batch.batch_size), graph=False)
        return result

    def judge_lists(self, now: UnderWay, backend: Any, size: int, graph: bool) -> None:
        """Pass the index lists and the metadata of the current forward to the watcher."""
        if self.watcher is None or not self.watcher.watching or not now.rows.batch_rows:
            return
        now.listed = True
        mode, pool = now.forward.kind.removeprefix("draft "), now.model.pool
        try:
            self.watcher.lists(lists.lists_of(backend, pool, mode, now.rows, size, graph))
        except NotRecognisedError as error:
            if now.model.drafts:
                self.watcher.scope(draft_lists_not_watched=str(error))
            else:
                self.watcher.undecided(f"{error} are not watched")
        given = metadata.metadata_of(backend, mode, now.batch, now.rows, graph, now.model.drafts)
        self.watcher.inputs(type(backend).__name__, list(given))

    def capture(self, original: Original, runner: Any, *args: Any, **kwargs: Any) -> Any:
        """Record the static inputs of captured graphs, and the slots that the capture changed."""
        watcher = self.watcher if self.capturing == 0 else None
        if watcher is not None:
            watcher.moved(BEFORE)
        self.capturing += 1
        try:
            result = original(runner, *args, **kwargs)
        finally:
            self.capturing -= 1
        if watcher is not None:
            watcher.moved("the capture of graphs")
        if self.capturing == 0:
            self.captured(runner)
            model = getattr(runner, "model_runner", None)
            if getattr(model, "attn_backend", None) is not None:
                self.hook_lists(model)  # Now, so that forks of this process need not do it.
        return result

    def captured(self, runner: Any) -> None:
        """Pass the inputs of a runner's graphs to the watcher, or keep them until it starts."""
        kind = type(runner).__name__
        graphs.follow_functions(runner, self.replay)
        for key, graph in graphs.graphs_of(runner).items():
            bucket = graphs.bucket_of(key)
            if bucket is None:
                self.journal.undecided(f"the graphs of {kind} with the key {key!r} are not watched")
                continue
            self.hook_graph(graph)
            inputs = graphs.inputs_of(runner, None, bucket, {}, None, {})
            self.captures.note(graph, kind, inputs)

    def hook_graph(self, graph: Any) -> None:
        """Wrap `replay` of a class of graphs. That of torch's own class is wrapped already."""
        own = torch.cuda.CUDAGraph
        owner = next((cls for cls in type(graph).__mro__ if "replay" in vars(cls)), own)
        path = f"{owner.__module__}.{owner.__qualname__}.replay"
        if owner is not own and path not in self.hooked:
            self.hooked.add(path)
            self.hook(path, self.replay)

    def replay(self, original: Original, graph: Any, *args: Any, **kwargs: Any) -> Any:
        """Judge the replay of a whole graph, and count the replay of a piece."""
        run = graphs.Returning(functools.partial(original, graph, *args, **kwargs))
        now, watcher = self.now, self.watcher
        if watcher is not None:
            watcher.lines.stop()
        if now is None or now.runner is None or watcher is None or not watcher.watching:
            return run()
        bucket = graphs.bucket_of(key := graphs.key_of(now.runner, graph))
        if bucket is None:
            now.pieces += 1
            return run()
        now.replays += 1
        runner, batch, pool = now.runner, now.batch, now.model.pool
        live = graphs.live(runner, batch, now.rows)
        known = self.models.ranges, pool, now.implied, now.arguments
        backend = graphs.backend_of(runner)
        if backend is None and not now.listed and not now.model.drafts:
            backend = lists.attending(now.model.runner.attn_backend)
        if backend is not None:
            self.judge_lists(now, backend, graphs.rows_of(runner, bucket), graph=True)
        requests = self.requests or ()
        watcher.inputs("LoRA", adapters.buffers_used(now.model, batch, now.rows, requests))
        return watcher.replay(
            Replay(
                graph,
                type(runner).__name__,
                live,
                bucket,
                graphs.inputs_of(runner, batch, bucket, *known),
                run,
                functools.partial(graphs.outputs_of, runner, key, graphs.Shape(live, bucket), run),
                graphs.eager(self, now.model.runner, now.batch, now.forward.kind),
                functools.partial(graphs.padding_of, runner, key, graphs.Shape(live, bucket), run),
                once=self.models.once,
            )
        )

    # Idle moments.

    def idle(self, original: Original, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        """Judge which slots are free or cached, once each time that no batch can run.

        Requests may be waiting, and a chunk of a prompt may hold slots.
        """
        if self.watcher is None:
            return original(scheduler, *args, **kwargs)
        # The cache may be flushed between two calls, without a forward.
        sizes = self.allocations.sizes(scheduler.tree_cache, "evictable_size")
        now = self.forwards, nothing_runs(scheduler), sizes, at_rest(scheduler.tree_cache)
        if self.idle_at != now:
            self.idle_at = now
            try:
                self.allocations.idle(scheduler.tree_cache, self.free_rows(scheduler), now[1])
            except NotRecognisedError as error:
                self.journal.undecided(f"{error} are not watched")
        return original(scheduler, *args, **kwargs)

    def free_rows(self, scheduler: Any) -> tuple[list[int], int] | None:
        """Return the free request rows and the number of all. None if a session is open."""
        sessions = getattr(getattr(scheduler, "session_controller", None), "sessions", None)
        return None if sessions else ([*self.models.rows.free_slots], self.all_rows)
