"""Follows the engine in this process. Each method that `hooks` names wraps functions of it.

If a method does not call `original`, its hook does so afterwards. Only forwards within a batch of
the scheduler are watched: no warm-ups and captures before.
"""

import dataclasses
import functools
import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.attention import ON_A_GPU, on_a_gpu
from paritybit.connectors.following import attributes, expected, implied_by, tensors
from paritybit.connectors.hooking import Call, NotRecognisedError, maybe
from paritybit.connectors.sampling import (
    LOGITS,
    MOST,
    ROUNDING,
    UNSEEN,
    Recording,
    embedded,
    handed_on,
    moves,
    row_sums,
    untried,
)
from paritybit.connectors.sglang import attention, drafts, graphs, rows, sampling
from paritybit.connectors.sglang.attending import Attended
from paritybit.connectors.sglang.host import at_rest, stream
from paritybit.connectors.sglang.models import SglangModel
from paritybit.connectors.sglang.pools import PREFILLS
from paritybit.connectors.sglang.ranks import rank_of
from paritybit.connectors.sharing import mirrored, places_of
from paritybit.watch.facts import PIECES, Base, Forward, Replay, RowValues
from paritybit.watch.lines import SLOTS
from paritybit.watch.watcher import Watcher

MERGE, FILTER = "merge_batch", "filter_batch"
"""The methods of parts of a batch that add rows, and move them."""


@dataclasses.dataclass
class SglangForward:
    """The current forward, and the graph runner that replays it, if there is one.

    `call` runs the batch, and `arguments` are those of the runner. `replays` counts replays of
    whole graphs, and `pieces` those of parts. `listed`: whether index lists were judged. `bases`
    are those of the forward, each with the inputs that it implies. `live` is the number of ids.
    """

    model: SglangModel
    batch: Any
    forward: Forward
    rows: rows.Rows
    implied: dict[str, Tensor]
    bases: list[tuple[Base, dict[str, Tensor] | None]]
    live: int
    runner: Any = None
    call: Call | None = None
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    replays: int = 0
    pieces: int = 0
    listed: bool = False
    parts: Any = None
    """What a runner without a graph has made to split prompts among ranks."""
    split: set[str] = dataclasses.field(default_factory=set)
    """The functions whose parts of prompts were judged."""


class SglangEngine(Attended):
    """The engine in this process."""

    package = "sglang"
    inner = "/mem_cache/allocator", "/srt/plugins/"

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.requests: Any = None
        self.lengths: tuple[Any, Any] = None, None
        """The numbers of cached and of computed positions, per prompt in the scheduler's batch."""
        self.capturing = 0
        self.ranks: Mapping[str, tuple[int, int]] = {}
        self.placed: dict[str, int] = {}
        """The row that each request had in the last batch that decoded."""
        self.unwatched = False
        """Whether the last forward was not checked."""
        self.asked: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        """The parameters of each request at its first batch. Retracting it keeps them."""
        self.penalizers: Any = None
        self.all_rows = 0
        self.dropped = False
        self.drafting: type = object
        """The class of the inputs of drafts in a batch of the scheduler."""
        self.scored: tuple[list[str], Tensor] | None = None
        """The request of each row of logits that is sampled next, and the checksums of these."""
        self.places: Mapping[str, int | None] = {}
        """The first position of each request that is sampled next, or None if that is not used."""
        self.drawn: Tensor | None = None
        self.heats: bool | None = None
        """The logits from which the sampler draws, and whether likelihoods are by temperature.

        It is None if they are computed in a way that is not known.
        """
        self.recording = Recording()
        self.names_next = False
        """Whether a batch passes the token after a chunk of a prompt to the draft model."""

    # The models, and the start.

    def rank(self) -> Mapping[str, tuple[int, int]]:
        """Return the rank of this process, and the number of ranks, by axis."""
        return self.ranks

    def model_runner(self, runner: Any) -> None:
        """Remember each model runner of the engine."""
        self.runners.append(weakref.ref(runner))

    def start(self, scheduler: Any, requests: Sequence[Any]) -> Watcher:
        """Start the watcher at the first batch, which has these requests."""
        with self.recognising("ranks"):
            self.ranks = rank_of(scheduler)
        watcher = self.watch(self.described())
        self.follow_hosts(maybe(scheduler, "tree_cache"))
        self.follow_transfers(scheduler)
        if self.dropped:
            watcher.lose()  # Slots may have been written before it began.
        watcher.copied_elsewhere = self.copied_elsewhere
        if self.target is not None:
            weakref.finalize(self.target, self.drop)
            taken = {rows.request_row(request) for request in requests} - {None}
            self.all_rows = len(self.request_table.free_slots) + len(taken)
            if maybe(self.request_table, "pre_alloc_size"):  # Requests that wait for KV have some.
                self.all_rows = len(self.table) - 1
        if hasattr(scheduler, "enable_overlap"):  # It may differ from the server argument.
            self.journal.scope(disable_overlap_schedule=not scheduler.enable_overlap)
        return watcher

    def drop(self) -> None:
        """Stop watching if the engine dropped the model. The next batch starts again."""
        if self.target is None:
            self.watcher = None
            self.models.clear()
            self.dropped = True

    # Batches and forwards.

    def batch(self, original: Call, scheduler: Any, batch: Any) -> None:
        """Watch the forwards of one batch of the scheduler."""
        if self.watcher is None:
            self.watcher = self.start(scheduler, batch.reqs)
        self.scheduling = stream()
        self.names_next = hasattr(batch, "chunked_req_next_prompt_token")
        self.requests, self.drafting = batch.reqs, type(maybe(batch, "spec_info"))
        self.lengths = maybe(batch, "prefix_lens"), maybe(batch, "extend_lens")
        info = maybe(batch, "sampling_info")
        self.penalizers = maybe(info, "penalizer_orchestrator")
        try:
            with self.learning():
                original()
        finally:
            self.requests = None

    def forward(self, original: Call, runner: Any, batch: Any) -> None:
        """Watch a forward of a model."""
        self.watched(original, runner, batch, None)

    def runner(self, original: Call, runner: Any, batch: Any) -> None:
        """Watch a call of a graph runner. The engine calls a draft's runner outside a forward."""
        if self.now is None:
            self.watched(original, runner.model_runner, batch, runner)
            return
        with self.running(runner, original):
            original()

    @contextmanager
    def running(self, runner: Any, call: Call) -> Iterator[None]:
        """Note the runner that replays graphs. Afterwards, report a replay in pieces."""
        now = self.now
        before = now.runner, now.arguments
        now.runner, now.arguments = runner, {**now.arguments, **call.arguments}
        pieces, replays = now.pieces, now.replays
        try:
            with self.learning():
                yield
        finally:
            now.runner, now.arguments = before
        only_pieces = now.pieces > pieces and now.replays == replays
        if only_pieces and self.watcher is not None and self.watcher.watching:
            live = len(now.batch.input_ids)
            sizes = maybe(runner, "capture_num_tokens") or [live]
            bucket = min((size for size in sizes if size >= live), default=live)
            self.watcher.replay(
                Replay(runner, type(runner).__name__, live, bucket, (), tuple, once=PIECES)
            )

    def watched(self, run: Call, runner: Any, batch: Any, graph_runner: Any) -> None:
        """Run a forward, and watch it if it is one of a batch of the scheduler."""
        watcher, model = self.watcher, self.model_of(runner)
        self.learned()
        if watcher is None or self.requests is None or self.capturing or self.now is not None:
            return
        mode = rows.mode_of(batch)
        if model is not None and model.shares:
            self.journal.scope(drafts_not_watched="a draft that reads the KV of its target")
            return
        located = mode == "idle" or maybe(batch, "out_cache_loc") is not None
        if model is not None and not located:
            self.journal.undecided(f"a {mode} batch without the slots it writes is not watched")
        if model is None or not located:
            watcher.skipped(None)
            return
        if not model.drafts:
            self.scored, self.places = None, {}
        self.awaited(model.pool.pool)
        self.forwards += 1
        self.unwatched = not watcher.due(mode, len(self.requests), "draft " * model.drafts)
        if self.unwatched:
            self.arrived()
            self.skipped(watcher, model, batch, run)
            return
        forward, found = self.facts(model, batch, graph_runner)
        mine = self.requests
        implied = model.implied(batch, found, forward.kind, mine)
        bases = [
            (base, model.implied_by(base, batch, found, forward, mine)) for base in forward.bases
        ]
        self.hook_lists(runner)
        live = 0 if batch.input_ids is None else len(batch.input_ids)  # The engine may pad them.
        now = SglangForward(model, batch, forward, found, implied, bases, live)
        with self.forward_of(now, forward):
            self.judge(watcher, now)
            if watcher.between_stages:
                given = run.arguments.get("pp_proxy_tensors")
                self.exchanged("received", given, now.live)
            with nullcontext() if graph_runner is None else self.running(graph_runner, run):
                output = run()
            self.arrived()
            self.followed(now, run, output)
            if watcher.between_stages:
                output = output[0] if isinstance(output, tuple) else maybe(output, "logits_output")
                self.exchanged("sent", output, now.live)
        if self.states is not None:
            self.states.end(watcher)

    def followed(self, now: SglangForward, run: Call, output: Any) -> None:
        """Note the hidden states that a forward returned, if a draft model gets them."""
        known, given = self.draft_states, (now.batch, now.rows, output)
        if now.model.ahead:
            self.rows("draft", known.returns(*given, run.arguments.get("select_index")))
        elif not now.model.drafts and any(model.ahead for model in self.models.values()):
            with self.recognising("rows"):
                known.computed(*given)

    def ended(self, now: Any) -> None:
        """Report what was not judged before the forward."""
        if self.watcher is None:
            return
        if now.forward.rows and not now.listed and not now.model.drafts:
            self.watcher.undecided(f"the index lists of a forward of kind {now.forward.kind}")
        self.rows("attention", self.layers.taken())
        if self.states is not None:
            self.states.judge(self.watcher)

    def skipped(
        self, watcher: Watcher, model: SglangModel, batch: Any, run: Callable[[], Any]
    ) -> None:
        """Run a forward that is not checked, and report only the slots that it writes."""
        self.recording.unseen(request.rid for request in self.requests)
        self.draft_states.forget()
        owned = model.pool.slots(batch.out_cache_loc) if self.rewrites else {}
        if self.states is not None and not model.drafts:
            owned |= self.states.written(batch)
        with attributes((self, "requests", None)):
            run()
        watcher.skipped(owned)

    def facts(self, model: SglangModel, batch: Any, runner: Any) -> tuple[Forward, rows.Rows]:
        """Return the facts of a forward, and its rows. If these are unknown, only owned slots."""
        mode, pool, given = rows.mode_of(batch), model.pool, (batch, self.requests, model.pool)
        kind = f"draft {mode}" if model.drafts else mode
        try:
            if model.drafts:
                return rows.draft_forward_of(*given, self.table, runner, model.ahead)
            facts, states = rows.forward_of(*given, self.table, self.lengths), self.states
            if states is None or not facts[1].rows:
                return facts
            return states.with_states(batch, *facts)
        except NotRecognisedError as error:
            if model.drafts:
                self.journal.scope(drafts_not_watched=str(error))
            else:
                self.journal.undecided(f"{error} is not watched")
        return Forward(kind, (), pool.slots(batch.out_cache_loc)), rows.Rows()

    def run_batch(self, original: Call, runner: Any, batch: Any) -> None:
        """Run a batch of the current forward. Some prompts without graphs run again."""
        now, states = self.now, self.states
        if now is None or self.watcher is None or batch is not now.batch:
            return
        now.call = original
        if now.model.drafts or now.forward.kind not in PREFILLS:
            return
        live = len(batch.input_ids)
        copies = states is not None and states.due  # Made by the first run alone.
        self.run_without_graph(
            original,
            lambda result: dict(tensors(result.logits_output)),
            lambda: now.replays + now.pieces == 0,
            functools.partial(graphs.as_after_the_first, self, runner),
            graph=runner,
            kind=f"{now.forward.kind} forward",
            rows=live,
            bucket=live,
            inputs=(),
            once="it copies states first" if copies else self.once,
        )

    # Inputs, index lists and replays.

    def judge(self, watcher: Watcher, now: SglangForward) -> None:
        """Judge the inputs of a forward that has just begun."""
        model, batch, table = now.model, now.batch, self.table
        watcher.lines.note(SLOTS, {f"req_to_token {name}": table for name in model.pool.groups})
        if not model.drafts:
            self.judge_rows(batch, rows.mode_of(batch))
        elif model.ahead:
            self.rows("draft", self.draft_states.given(batch, now.rows))
            if rows.mode_of(batch) != "decode" and now.rows.rows:
                self.rows("draft", drafts.sampled(batch, now.rows, self.recording.made))
        if now.implied and maybe(batch, "encoder_lens") is None:
            self.judge_batch(watcher, now)
        watcher.judge_inputs("LoRA", sampling.buffers_used(now, self.requests))

    def judge_batch(self, watcher: Watcher, now: SglangForward) -> None:
        """Judge the fields of the engine's batch whose values the rows imply.

        Those from which others are made come first.
        """
        batch, implied, model = now.batch, now.implied, now.model
        known = now.rows.known
        watcher.judge_inputs("batch", [expected(name, *one) for name, one in known.items()])
        ids, positions = batch.input_ids, maybe(batch, "positions")
        listed = ids is not None and len(ids) == len(implied.get("out_cache_loc", ()))
        # The ids of draft steps belong to no request. Their positions are judged below.
        told = not model.drafts or (model.ahead and rows.mode_of(batch) != "decode")
        if listed and told:
            same = positions is not None and positions.shape == ids.shape
            kept = rows.kept_ids(batch, self.requests, self.names_next) if model.drafts else None
            watcher.judge_tokens(ids, positions if same else None, kept)
        names = "seq_lens", "out_cache_loc", "mrope_positions", *(["positions"] * model.drafts)
        left = [name for name in names if name in implied and name not in known]
        held = [(name, one) for name in left if (one := maybe(batch, name)) is not None]
        inputs = [expected(name, one, implied[name]) for name, one in held]
        watcher.judge_inputs("batch", implied_by(inputs, now.bases))

    def judge_rows(self, batch: Any, mode: str) -> None:
        """Judge what the sampler uses for each row of a batch."""
        if (info := maybe(batch, "sampling_info")) is None or mode == "idle":
            return
        with self.recognising("rows"):
            mine, before = rows.requests_of(batch, self.requests, mode), self.placed
            now = {request.rid: row for row, request in enumerate(mine)}
            asked = [self.asked.setdefault(one, copy(one.sampling_params)) for one in mine]
            begins = mode in PREFILLS
            by = moves(before, now, info, "from_schedule_batch" if begins else MERGE, FILTER)
            kept = self.penalizers if mine == list(self.requests) else None
            self.rows("sampler", sampling.rows(info, mine, asked, mode, kept), by)
            if mode == "target_verify":
                by = moves(before, now, self.drafting, MERGE, FILTER)
                self.rows("drafts", rows.roots(batch, mine), by)
            if not begins:
                self.placed = now

    def embeds(self, original: Call) -> None:
        """Judge the embeddings of images that a model gets."""
        now = self.now
        if now is None or now.model.drafts:
            return
        passed = isinstance(maybe(now.model, "runner.model.visual"), torch.nn.Identity)
        mine = self.requests or ()
        images = {one.rid: [*rows.embeddings_of(one, passed=passed)] for one in mine}
        if (result := original()) is not None:
            self.rows("model", embedded(result, now.rows.rows, images))

    def logits(
        self, result: Any, processor: Any, _: Any, hidden: Tensor, head: Any, batch: Any
    ) -> None:
        """Judge the logits of prompts. Those of a GPU are rounded more."""
        now = self.now
        if now is None or now.model.drafts:
            return
        self.computed(now, result.next_token_logits)
        if now.forward.kind in PREFILLS and now.rows.rows and hidden.dtype == torch.float32:
            given = processor, hidden, head, batch, result, now.rows, self.requests
            self.rows("logits", sampling.of_prompts(*given))

    def computed(self, now: SglangForward, logits: Tensor | None) -> None:
        """Note the logits of a forward that are sampled next, with the request of each row."""
        count = 1
        if now.forward.kind == "target_verify":
            count = int(now.batch.spec_info.draft_token_num)
        requests = dict.fromkeys(row.request for row in now.rows.rows)
        if logits is not None and requests:
            names = [name for name in requests for _ in range(count)]
            self.scored = names, row_sums(logits[: len(names)])
            ends = {row.request: row.cached + row.computed for row in now.rows.rows}
            # The root of drafts is a token of the request.
            firsts = {row.request: row.cached + 1 for row in now.rows.rows}
            places = firsts if now.forward.kind == "target_verify" else ends
            # After a chunk, also of a retracted request, the next token is known already.
            known = {
                one.rid: len(one.origin_input_ids) + len(one.output_ids) for one in self.requests
            }
            self.places = {
                name: None if at < known.get(name, 0) else at for name, at in places.items()
            }

    def samples(self, original: Call, runner: Any, output: Any, batch: Any = None) -> None:
        """Judge the logits of a sampler, and note the tokens that it returns."""
        self.given(output)
        logits, count = output.next_token_logits, len(self.places)
        marked = maybe(batch, "sampling_info.has_watermark_candidates")
        judged = count and not self.unwatched and not marked and logits.numel() <= MOST
        raw, self.drawn = logits[:count].clone() if judged else None, None
        tokens = original()
        final, self.drawn = self.drawn, None
        if raw is None or final is None:
            self.made(tokens[:, None].tolist)
            return
        if len(mine := self.placed_requests()) == count:
            self.rows("sampler", sampling.biased(mine, raw, final[:count]))
        self.made(tokens[:, None].tolist, final[:count], sampled=True, heats=self.heats)

    def draws(self, sampler: Any, output: Any, info: Any = None) -> None:
        """Note the logits from which a sampler draws, and how it computes likelihoods."""
        logits = output.next_token_logits
        if self.places and logits.numel() <= MOST and logits.dtype == torch.float32:
            self.drawn = logits.clone()
            rounds = maybe(sampler, "rl_on_policy_target") is not None
            self.heats = None if rounds else not maybe(info, "is_all_greedy")

    def placed_requests(self) -> list[Any]:
        """Return the requests of the rows that are sampled now."""
        by_name = {one.rid: one for one in self.requests or ()}
        return [by_name[name] for name in self.places if name in by_name]

    def made(
        self,
        tokens: Callable[[], list[list[int]]],
        logits: Tensor | None = None,
        *,
        sampled: bool = False,
        heats: bool | None = None,
    ) -> None:
        """Note the tokens that were sampled for each row, if the forward was checked.

        `logits` are those of each token. With `sampled`, they say which tokens are allowed. `heats`
        is as in `draws`.
        """
        mine, places, self.places = self.placed_requests(), self.places, {}
        if places and not self.unwatched:
            made, likely = tokens()[: len(places)], None
            known = len(mine) == len(places)
            if logits is not None and known and not bool(logits.isnan().any()):
                asked = [self.asked.get(one) or one.sampling_params for one in mine]
                given = mine, asked, logits, made
                likely = None if heats is None else sampling.likelihoods(*given, heats=heats)
                if sampled:
                    self.rows("sampler", sampling.allowed_tokens(*given))
            self.recording.sampled([*places], [*places.values()], made, likely)
        elif self.requests:
            self.recording.unseen(request.rid for request in self.requests)

    def records(self, original: Call, scheduler: Any, batch: Any, result: Any) -> None:
        """Judge what the scheduler records for the requests of a batch: tokens, hidden states."""
        hidden = rows.Recorded.of(batch, result)
        original()
        if hidden is not None:
            self.rows("scheduler", hidden.values())
        mine = [one for one in batch.reqs if one.rid in self.recording.made]
        known = {one.rid: (len(one.origin_input_ids), one.output_ids) for one in mine}
        likely = {one.rid: sampling.listed(one, self.recording.made[one.rid]) for one in mine}
        self.rows("scheduler", self.recording.recorded(known, likely))

    def given(self, output: Any) -> None:
        """Judge whose logits a sampler gets: an engine's output."""
        scored, self.scored = self.scored, None
        if scored is not None:
            names, known = scored
            given, whose = row_sums(output.next_token_logits), [f"request {one}" for one in names]
            places = range(len(names))
            values = handed_on(LOGITS, names, given[: len(names)], places, known, whose)
            self.rows("sampler", values)
        elif not self.unwatched and self.requests:
            self.rows("sampler", untried(LOGITS, [one.rid for one in self.requests], UNSEEN))

    def verifies(
        self, original: Call, drafts: Any, batch: Any, output: Any, mask: Any = None
    ) -> None:
        """Judge the logits of drafts after penalties and biases: as if the rows decoded."""
        if self.unwatched or not batch.reqs:
            self.made(list)
            return
        held, info = output.next_token_logits, batch.sampling_info
        raw = held.clone()
        self.given(output)
        predicted, _, accepted = original()
        marked, greedy = (
            bool(maybe(info, name)) for name in ("has_watermark_candidates", "is_all_greedy")
        )
        small = not marked and held.numel() <= MOST and held.dtype == torch.float32
        self.made(
            lambda: [predicted[one[one >= 0].long()].tolist() for one in accepted],
            held[accepted[accepted >= 0].long()] if small else None,
            sampled=greedy and not sampling.simulated(),
            heats=not greedy,
        )
        names = [one.rid for one in batch.reqs for _ in range(int(drafts.draft_token_num))]

        def judged() -> Iterator[RowValues]:
            for row in raw.unflatten(0, (len(batch.reqs), -1)).unbind(1):
                info.apply_logits_bias(row)
            if mask is not None:
                mask.apply(raw)
            yield RowValues("logits", names, held.cpu(), raw.cpu(), ROUNDING)

        # The engine replaces what is not a number, and all logits for a watermark.
        others = marked or bool(raw.isnan().any())
        if len(held) == len(names) and not others:
            self.rows("drafts", judged())

    def decodes(self, original: Call, batch: Any) -> None:
        """Judge how many slots the scheduler expects the next tokens of a batch to take."""
        pool = batch.token_to_kv_pool_allocator
        plain = hasattr(pool, "check_decode_capacity") and batch.spec_algorithm.is_none()
        if self.unwatched or not plain:
            return
        sizes = functools.partial(self.sizes, batch.tree_cache, "evictable_size")
        pool, evictable = getattr(pool, "full_attn_allocator", pool), sizes()
        needed, before = batch.new_tokens_required_next_decode(), pool.available_size()
        original()
        if sizes() == evictable:
            held, right = (torch.tensor([one]) for one in (needed, before - pool.available_size()))
            names = [", ".join(request.rid for request in batch.reqs)]
            self.rows("scheduler", [RowValues("expected slots", names, held, right)])

    def hook_lists(self, runner: Any) -> None:
        """Wrap the method that builds index lists, once per class of attention backend."""
        backend = attention.attending(runner.attn_backend)
        self.hook(type(backend), "init_forward_metadata", self.metadata)
        if on_a_gpu(runner.model):
            self.journal.scope(attention_not_watched=ON_A_GPU)
            return
        for name in ("forward_decode", "forward_extend"):
            self.hook(type(backend), name, self.attends)

    def metadata(self, original: Call, backend: Any, batch: Any) -> None:
        """Judge the index lists that an attention backend built for an eager forward."""
        now = self.now
        with nullcontext() if now is None else self.learning():
            original()
        if now is not None and backend is attention.attending(now.model.runner.attn_backend):
            now.parts = maybe(batch, "attn_cp_metadata")
            self.judge_lists(now, backend, int(batch.batch_size), graph=False)

    def judge_lists(self, now: SglangForward, backend: Any, size: int, graph: bool) -> None:
        """Judge the index lists and the metadata of the current forward."""
        if self.watcher is None or not self.watcher.watching or not now.rows.batch_rows:
            return
        now.listed = True
        mode, pool = now.forward.kind.removeprefix("draft "), now.model.pool
        try:
            self.watcher.judge_lists(attention.lists_of(backend, pool, mode, now.rows, size, graph))
        except NotRecognisedError as error:
            if now.model.drafts:
                self.journal.scope(draft_lists_not_watched=str(error))
            else:
                self.watcher.undecided(f"{error} are not watched")
        given, parts = (backend, mode, now.batch), (now.parts, *self.ranks.get("cp", (0, 1)))
        of_rows = functools.partial(attention.metadata_of, *given, graph=graph, parts=parts)
        inputs = list(of_rows(now.rows, drafts=now.model.drafts))
        bases = [
            (base, None if other is None else {one.name: one.expected for one in of_rows(other)})
            for base, _ in now.bases
            for other in [now.rows.of(base.rows)]
        ]
        self.watcher.judge_inputs(type(backend).__name__, implied_by(inputs, bases))

    def parts(self, original: Call, _: Any, whole: Tensor) -> None:
        """Judge which tokens of prompts this rank gets, if ranks split them."""
        self.judge_part(original, whole, original())

    def rejoins(self, original: Call, _: Any, part: Tensor) -> None:
        """Judge whether what this rank computed comes back in its places among all tokens."""
        self.judge_part(original, original(), part)

    def judge_part(self, call: Call, whole: Tensor, part: Tensor) -> None:
        """Judge this rank's part of a tensor of all tokens, once per forward and function."""
        now, name = self.now, call.function.__name__
        if now is None or now.model.drafts or name in now.split:
            return
        now.split.add(name)
        spans = [(row.cached, row.computed) for row in now.rows.rows]
        rank, ranks = self.ranks.get("cp", (0, 1))
        mine = places_of(mirrored(spans, ranks)[rank], spans)
        tokens = [(row, at) for row in now.rows.rows for at in range(row.computed)]
        if len(tokens) <= len(whole):
            names = [tokens[at][0].request for at in mine]
            whose = [f"position {row.cached + at} of request {row.request}" for row, at in tokens]
            held, known = (row_sums(one.reshape(len(one), -1)) for one in (part, whole))
            values = handed_on(name, names, held[: len(mine)], mine, known[: len(whose)], whose)
            self.rows("ranks", values)

    def capture(self, original: Call, runner: Any) -> None:
        """Record the static inputs of captured graphs."""
        self.capturing += 1
        try:
            original()
        finally:
            self.capturing -= 1
        if self.capturing == 0:
            self.captured(runner)
            model = maybe(runner, "model_runner")
            if maybe(model, "attn_backend") is not None:
                self.hook_lists(model)  # Now, so that forks of this process need not do it.

    def captured(self, runner: Any) -> None:
        """Note the inputs of a runner's graphs."""
        kind = type(runner).__name__
        for key, graph in graphs.graphs_of(runner).items():
            bucket = graphs.bucket_of(key)
            if bucket is None:
                self.journal.undecided(f"the graphs of {kind} with the key {key!r} are not watched")
                continue
            self.hook(type(graph), "replay", self.replay)
            self.captures.note(graph, kind, graphs.inputs_of(runner, bucket))

    def replay(self, original: Call, graph: Any) -> None:
        """Judge the replay of a whole graph, and count the replay of a piece."""
        now, watcher = self.now, self.watcher
        self.learned()
        if now is None or now.runner is None or watcher is None or not watcher.watching:
            return
        known = graphs.graphs_of(now.runner).items()
        key = next((key for key, one in known if one is graph), None)
        bucket = graphs.bucket_of(key)
        if bucket is None:
            now.pieces += 1
            return
        now.replays += 1
        runner, batch, model = now.runner, now.batch, now.model
        backend = graphs.backend_of(runner)
        if backend is None and not now.listed and not model.drafts:
            backend = attention.attending(model.runner.attn_backend)
        if backend is not None:
            self.judge_lists(now, backend, bucket, graph=True)
        watcher.judge_inputs("LoRA", sampling.buffers_used(now, self.requests))
        by_tokens = hasattr(runner, "capture_num_tokens") and not hasattr(runner, "capture_bs")
        live = len(batch.input_ids) if by_tokens else int(batch.batch_size)
        watcher.judge_inputs("graph", graphs.tails_of(runner, live, bucket))
        if "tp" not in self.ranks:  # Else, a rank counts those of its part.
            watcher.judge_inputs("graph", graphs.counted(runner, batch, now.forward))
        states = maybe(runner, "buffers.pp_proxy_tensors")
        if states is not None and watcher.between_stages:
            self.exchanged("received", SimpleNamespace(tensors=states), now.live)
        outputs = functools.partial(graphs.outputs_of, runner, key, live, bucket)
        watcher.replay(
            Replay(
                graph,
                type(runner).__name__,
                live,
                bucket,
                graphs.inputs_of(runner, bucket, now, self.ranges),
                original,
                lambda: outputs()[0],
                graphs.eager(self, now),
                lambda: outputs()[1],
                once=self.once,
            )
        )
        if not model.drafts and now.forward.kind not in PREFILLS:
            self.computed(now, outputs()[0].get("next_token_logits"))

    # Idle moments.

    def idle(self, scheduler: Any) -> None:
        """Judge which slots are free or cached, once each time that no batch can run."""
        cache = scheduler.tree_cache
        if self.watcher is not None:
            # The cache may be flushed between two calls, without a forward.
            sizes, quiet = self.sizes(cache, "evictable_size"), nothing_runs(scheduler)
            if self.idle_since((self.forwards, quiet, sizes, at_rest(cache))):
                free = [*self.request_table.free_slots], self.all_rows
                with self.needing("{} are not watched"):
                    self.judge_idle(cache, free, quiet)


def nothing_runs(scheduler: Any) -> bool:
    """Return whether no request runs, and no session keeps slots for its next turn.

    Requests may wait if the release can tell these apart.
    """
    sessions = maybe(scheduler, "session_controller.sessions") or {}
    if any(maybe(one, "streaming") for one in sessions.values()):
        return False
    asked = inspect.signature(scheduler.is_fully_idle).parameters
    return bool(scheduler.is_fully_idle(**{n: True for n in asked if n == "ignore_waiting"}))
