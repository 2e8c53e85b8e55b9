"""The watcher. A connector calls it around each forward pass of the engine.

For each forward pass, the connector calls `due`. If it returns False, `skipped` follows. Otherwise
the order is `begin`, any number of `judge_lists`, `judge_inputs`, `judge_tokens`, `replay` and
`run_without_graph`, then `end` or `abandon`. `judge_rows`, `captured`, `offered` and the methods of
`Between` may be called at any time.

If the sanitizer itself raises an error, the checks of this forward stop, the state of all slots is
unknown from then on, the run has no verdict, and the engine continues with its own result.

A watcher keeps no object of the engine alive. It ends when its connector drops it.
"""

import os
import platform
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from paritybit.watch import memory, reading
from paritybit.watch.between import FILLED, MOST_NOTED, SKIPPED, SlotCopy
from paritybit.watch.boundary import guarded
from paritybit.watch.budget import Budget, drawn
from paritybit.watch.digests import digests_of
from paritybit.watch.facts import (
    FORWARDS,
    At,
    Base,
    Copy,
    Forward,
    Group,
    IndexList,
    Replay,
    Row,
    RowValues,
    StaticInput,
)
from paritybit.watch.journal import Journal
from paritybit.watch.ledger import Ledger, Overwrite, SlotCall
from paritybit.watch.lines import LISTS
from paritybit.watch.moves import READ, WRITTEN, Moving
from paritybit.watch.observations import (
    DuringCopy,
    GivenList,
    Outside,
    Reads,
    RowsGiven,
    Unwritten,
    fetched,
)
from paritybit.watch.origins import Origins
from paritybit.watch.replays.replaying import BEFORE, Replaying, WatchedForward
from paritybit.watch.settings import Settings
from paritybit.watch.stacks import Stack
from paritybit.watch.waits import Waits

ROW = "wrong row"
"""The check of the values that an engine uses for rows."""


def whole_input(
    name: str,
    tensor: Tensor,
    expected: Tensor,
    implied: Sequence[tuple[Base, Tensor | None]],
    copied: Tensor | None = None,
) -> StaticInput:
    """Return an input without padding that must have these values."""
    facts: dict[str, Any] = {"expected": expected, "implied": implied, "copied": copied}
    return StaticInput(name, tensor, len(tensor), len(tensor), **facts)


class Watcher(Replaying):
    """Watches the KV groups of one engine in this process.

    For each checked forward, the watcher scans the slots (computes their checksums) before the
    forward, after each replay and at the end. In a group without a snapshot, it scans once, after
    the forward, and looks only at slots that are read and owned before. A slot that changed is then
    judged if a replay that runs again writes it. Otherwise, the next CAREFUL forwards are scanned
    before as well.

    Slots are passed as integer tensors of any shape and device. -1 means "no slot". `rank` has the
    rank of this process, and the number of ranks, by axis: see `paritybit.watch.digests`.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        *,
        engine: str,
        release: str,
        journal: Journal,
        settings: Settings,
        rank: Mapping[str, tuple[int, int]] = MappingProxyType({}),
    ) -> None:
        layers = (layer for group in groups for layer in group.layers)
        for device in {tensor.device for layer in layers for tensor in layer.tensors}:
            memory.prepare(device)
        with memory.Ours():
            super().__init__(groups, journal, settings, engine)
        self.budget = Budget(settings.overhead / 100) if settings.overhead else None
        self.origins = Origins(self.lines)
        self.missed: Callable[[], None] = lambda: None
        """Tells the connector that one of its hooks failed, and may have missed something."""
        journal.once(
            "start",
            engine=engine,
            release=release,
            pid=os.getpid(),
            torch=torch.__version__,
            python=platform.python_version(),
            device=next((str(one.checksums.device) for one in self.ledgers.values()), None),
            checks=[check.name for check in self.checks],
            every=settings.every,
            overhead=settings.overhead,
            rank={axis: number for axis, (number, _) in rank.items()},
            ranks={axis: size for axis, (_, size) in rank.items()},
        )
        self.digests = digests_of(journal, rank, settings)
        journal.watchers[self] = None
        self.waits = Waits(journal, self.package) if rank else None
        if self.waits is not None:
            weakref.finalize(self, self.waits.over.set)
            self.waits.start()

    def __del__(self) -> None:
        """Judge what was only noted so far. While Python ends, torch would abort."""
        if not hasattr(self, "missed") or sys.is_finalizing():  # Or the constructor failed.
            return
        noted = self.digests is not None or any(one.noted for one in self.changes.values())
        if noted and os.getpid() == self.journal.pid:
            self.settled()

    def settle(self) -> None:
        """Apply all noted changes to the ledgers, and write the digest of the last forward."""
        super().settle()
        if self.digests is not None:
            self.digests.write()

    def lose(self) -> None:
        """Forget everything that is known, and stop watching the current forward."""
        with self.lock:
            super().lose()
            self.origins = Origins(self.lines)
        self.go_on()

    # Forwards.

    def due(self, kind: str = "", rows: int = 0, model: str = "") -> bool:
        """Return whether to check the next forward: one in `every`, or what the budget allows.

        The budget chooses alike among forwards of each kind, and about so many rows. All ranks of
        an engine choose alike. `model` is that of `Forward`. Call it exactly once per forward. If
        it returns False, call `skipped` in place of `begin` and `end`.
        """
        passes = self.journal.passes
        passes[model] = number = passes.get(model, 0) + 1
        share = drawn(self.settings.key, model, number)
        if self.digests is not None:
            self.digests.now = model, number
        full = any(len(one.noted) >= MOST_NOTED for one in self.changes.values())
        if self.budget is not None:
            again = any(self.relations.again.values())
            kind = f"{model}{kind} {rows.bit_length()}"
            return self.budget.due(kind, model, share, forced=full, again=again)
        return full or number == 1 or share * self.settings.every < 1

    def replay(self, replay: Replay) -> object:
        """Replay a graph and judge the replay. Returns the result of the first `replay.run()`."""
        if self.digests is not None and self.watching and not self.busy:
            self.digests.add("bucket", (replay.kind, replay.bucket))
        return super().replay(replay)

    @property
    def watching(self) -> bool:
        """Whether a forward is being watched now."""
        return self.now is not None

    @guarded
    def skipped(self, owned: Mapping[str, Tensor] | None) -> None:
        """Record a forward that is not checked. Waits for no device.

        `owned` are the slots that it writes, per group, or None if they are unknown. It may omit
        slots that were allocated since the last checked forward.
        """
        self.lines.done()
        for name in self.ledgers if owned is None else owned:
            if owned is None:
                self.later(name, Ledger.forget_all)
            else:
                self.changes[name].note(SKIPPED, owned[name])
        self.loading.clear()
        self.careful = max(1, self.careful)
        self.relayed.waiting.clear()  # The forward may have recomputed their positions.
        spent = {} if self.budget is None else self.budget.counts()
        self.journal.count(skipped_forwards=1, **spent)

    @guarded
    def begin(self, forward: Forward) -> None:
        """Start to watch a forward, and judge the reads of its rows."""
        if self.now is not None:
            self.lose()
            self.undecided("a forward began before the last one ended")
        self.settle()
        self.number += 1
        if self.waits is not None:
            self.waits.begin(self.number)
        self.lines.begin(forward.kind)
        for base in forward.bases:
            learned = partial(self.lines.of, base.kind or LISTS, base.name)
            base.learned = None if base.source else learned
        chain = reading.hashes(forward, self.chains)
        given = {n: reading.positions(forward, one, chain) for n, one in self.ledgers.items()}
        writes = {n: reading.writes(forward, one, given[n]) for n, one in self.ledgers.items()}
        owned = {
            name: reading.owned(forward, one, writes[name]) for name, one in self.ledgers.items()
        }
        origins = self.origins if self.settings.every == 1 else None
        read = shared = carried = open_ = 0
        unmapped, against = False, list[DuringCopy]()
        self.waited.clear()
        careful, self.careful = self.passing and self.careful > 0, max(0, self.careful - 1)
        for name, ledger in self.ledgers.items():
            ledger.checksums.refresh()
            self.moved_between(ledger, given[name], None if careful else owned[name])
            self.judge_outside(forward, ledger)
            against += self.during_copies(forward, ledger, given[name], writes[name])
            reads = reading.reads(forward, self.number, ledger, given[name], writes[name])
            if reads is None:
                continue
            reading.adopt_hashes(reads)
            open_ += reading.resolve(reads, self.chains)
            self.judge("reads", replace(reads, origins=origins))
            read += len(reads.slots)
            carried += int(ledger.carried[reads.slots[~reads.missing]].sum())
            unmapped |= bool(reads.missing.any())
            mine = [ledger.names.number(row.request) for row in forward.rows]
            others = reads.request != torch.tensor(mine)[reads.row]
            shared += int((others & reads.judged).sum())
            reading.adopt_checksums(reads)
        self.origins.note(self.number, forward)
        if self.digests is not None:
            self.digests.begin(forward)
        self.now = WatchedForward(
            *(self.number, forward, owned, given, writes, unmapped, careful, against)
        )
        self.judge_layers(self.now)
        if (known := self.relayed.known(forward)) is not None:
            self.judge_inputs("batch", [known])
        self.journal.count(
            forwards=1,
            reads=read,
            shared_reads=shared,
            copied_reads=carried,
            unresolved_reads=open_,
            **{f"forwards: {forward.kind}": 1},
        )
        if self.budget is not None:
            self.journal.count(**self.budget.counts())

    @guarded
    def offered(
        self, group: str, request: str, tokens: Sequence[int], slots: Tensor, space: str = ""
    ) -> None:
        """Judge slots that the engine now offers to requests with the same first tokens.

        `slots`, int64 [n], are those of the last n of the request's first `tokens`. It is called
        between forwards, as the request may be aborted before another one reads them. `space` is
        that of its rows.
        """
        self.settle()
        known = self.chains.chains.get(request)
        more = known.tokens[len(tokens) :] if known is not None else []  # Those under way.
        held = torch.cat([torch.full((len(tokens) - len(slots),), -1), slots])
        row = Row(
            *(
                request,
                [*tokens, *more, None],
                len(tokens),
                max(1, len(more)),
                {group: held},
                space,
            ),
            window=len(slots) + 1,
        )
        forward, ledger = Forward("prefix cache", (row,)), self.ledgers[group]
        chain = reading.hashes(forward, self.chains)
        given = reading.positions(forward, ledger, chain)
        self.judge_offer(reading.reads(forward, self.number, ledger, given, None))

    @guarded
    def kept(self, group: str, request: str, slots: Tensor, model: str = "") -> None:
        """Judge slots, int64 [n], of a request that the engine now keeps elsewhere for others.

        Its rows, or those of a `model`, have computed them, if they are still known. Each slot must
        have the content of one of their positions. The engine may have freed it.
        """
        self.settle()
        ledger, known = self.ledgers[group], self.chains.chains.get(f"{model}{request}")
        slots = ledger.index(slots)
        if known is None or not known.hashes or not len(slots):
            return
        at = ledger.position[slots].long().clamp(0, len(known.hashes) - 1)
        forward = Forward(
            "cache elsewhere", (Row(request, known.tokens, len(known.tokens), 0, {}),)
        )
        row, every = torch.zeros_like(at), torch.arange(len(at))
        expected = torch.frombuffer(known.hashes, dtype=torch.int64)[at]
        given = reading.Positions(slots, expected, row, at, every, every[:0])
        if (reads := reading.reads(forward, self.number, ledger, given, None)) is not None:
            self.judge_offer(replace(reads, freed=torch.zeros_like(reads.freed)))

    def judge_offer(self, reads: Reads | None) -> None:
        """Judge slots that the engine offers to others, as reads."""
        if reads is not None:
            reading.resolve(reads, self.chains)
            self.judge("reads", replace(reads, offer=self.call()))

    def judge_outside(self, forward: Forward, ledger: Ledger) -> None:
        """Judge the slots that rows hold although their window left them."""
        if self.copied_elsewhere is not None:  # A copy may need them.
            return
        for row in forward.rows:
            if not row.frees or (row.window or ledger.group.window) is None:
                continue
            slots = reading.outside(row, self.origins.earlier(forward, row), ledger)
            if slots is not None:
                self.judge("idle", Outside(self.number, forward, ledger, row, slots))

    def during_copies(
        self,
        forward: Forward,
        ledger: Ledger,
        given: reading.Positions | None,
        writes: reading.Writes | None,
    ) -> Iterator[DuringCopy]:
        """Yield what a forward reads and writes against copies under way."""
        if not self.moves[ledger.group.name].under_way:
            return
        used = list[tuple[str, Tensor, Tensor]]()
        if given is not None:
            used.append((READ, given.slots[given.cached], given.row[given.cached]))
        if writes is not None:
            used.append((WRITTEN, writes.slots[writes.must], writes.row[writes.must]))
        for act, slots, rows in used:
            for at, row in enumerate(forward.rows):
                mine, who = slots[rows == at], f"request {row.request}"
                yield from self.against(
                    *(ledger, act, "", mine, who, row.request),
                    queues=(FORWARDS,),
                    during=forward.kind,
                )

    def moved_between(
        self, ledger: Ledger, given: reading.Positions | None, owned: Tensor | None
    ) -> None:
        """Remember the slots that changed since the last scan, to explain later reads.

        With `owned`, it looks only at these and those that are read, unless there is a snapshot.
        """
        if owned is None or ledger.snapshot is not None:
            changed = ledger.scan()
            slots = ledger.reserved[:0] if changed is None else changed.nonzero().flatten()
        else:
            read = owned[:0] if given is None else ledger.index(given.slots[given.cached])
            looked = torch.cat((read, owned))
            slots = looked[ledger.look(looked).index_select(0, looked)]
        known, now = ledger.checksum[slots], ledger.scanned[slots]
        slots = slots[(known != 0) & (known != now)]
        if len(slots):
            ledger.note_overwrite(slots.tolist(), Overwrite(self.number, BEFORE))

    @guarded
    def judge_lists(self, lists: Sequence[IndexList]) -> None:
        """Judge the index lists that the attention backend built for the current forward."""
        if self.now is None:
            return
        self.lines.note(LISTS, {given.name: given.entries for given in lists})
        for one in fetched(lists):
            learned = partial(self.lines.of, LISTS, one.name)
            given = one if one.source else replace(one, learned=learned)
            if given.group not in self.ledgers:
                self.undecided(f"{given.name} is of a group that is not known: {given.group}")
                continue
            ledger = self.ledgers[given.group]
            self.judge("lists", GivenList(self.now.number, self.now.forward, ledger, given))
            rows = len(self.now.forward.rows)
            self.journal.count(list_entries=int(given.counts[:rows].sum()))
            if self.digests is not None:
                self.digests.lists(len(self.now.forward.rows), given)

    @property
    def between_stages(self) -> bool:
        """Whether the current forward is compared with those of other stages of a pipeline."""
        return self.watching and self.digests is not None and self.digests.stages

    @guarded
    def exchanged(self, way: str, tensors: Mapping[str, Tensor], live: int) -> None:
        """Note the tensors that a stage of a pipeline "received", or has computed to be "sent".

        Their first `live` entries are those of the tokens that the forward computes. Call it when
        the model reads what was received, and once the model has computed what is sent.
        """
        if self.now is not None and self.digests is not None and self.digests.stages:
            self.digests.exchange(way, self.now.forward, tensors, live)

    @guarded
    def judge_inputs(self, kind: str, inputs: Sequence[StaticInput]) -> None:
        """Judge inputs that do not belong to a graph, if their `expected` values are known."""
        if self.now is not None and inputs:
            self._judge_inputs(self.now, kind, inputs, {})

    @guarded
    def judge_rows(
        self,
        kind: str,
        values: Sequence[RowValues],
        moves: Mapping[str, tuple[Stack, str]] | None = None,
    ) -> None:
        """Judge values that the engine uses for the rows of the last forward, which may have ended.

        `kind` says what uses them, such as the sampler. `moves` are those of `RowsGiven`.
        """
        for one in values:
            if one.untried is not None:
                self.not_tried(ROW, f"{one.name}: {one.untried}", len(one.requests))
        values = [one for one in values if one.untried is None]
        filled = {one.name: one.filled for one in values if one.filled is not None}
        self.lines.note(kind, filled)
        for one in values:
            one.learned = partial(self.lines.of, kind, one.name, one.source)
        self.judge("rows", RowsGiven(self.number, self.lines.forward, kind, values, moves or {}))

    @guarded
    def judge_tokens(
        self, ids: Tensor, positions: Tensor | None = None, judged: Sequence[int] | None = None
    ) -> None:
        """Judge the token ids and positions that a forward passes to its model.

        `ids` and `positions` have shape [n] and the order of the rows. `judged` has, per row, how
        many of the row's ids are judged; None means all. An id is compared as soon as the token of
        its row is known, in this forward or in a later one.
        """
        if self.now is None:
            return
        forward, rows = self.now.forward, self.now.forward.rows
        counts = [row.computed for row in rows] if judged is None else judged
        wanted, places, start = list[tuple[int, int, int]](), list[int](), 0
        unknown = list[tuple[Row, int, int]]()
        for at, (row, count) in enumerate(zip(rows, counts, strict=True)):
            for place, token in enumerate(row.tokens[row.cached :][:count]):
                if token is None:
                    unknown.append((row, row.cached + place, start + place))
                elif token >= 0:
                    places.append(start + place)
                    wanted.append((at, place, token))
            start += row.computed
        known = torch.tensor(places, dtype=torch.int64, device=ids.device)
        expected = torch.tensor([token for *_, token in wanted])
        implied = [
            (base, torch.tensor(tokens))
            for base in forward.bases
            if None not in (tokens := reading.tokens_at(base.rows, wanted))
        ]
        given = [whole_input("input_ids", ids[known], expected, implied, ids)]
        once = start // forward.repeats
        if self.digests is not None:
            self.digests.add("tokens", [ids[:once]])
        if positions is not None:
            if self.digests is not None:
                self.digests.add("positions", [positions[:once]])
            follow = [
                (base, None if base.rows is None else reading.positions_of(base.rows))
                for base in forward.bases
            ]
            right = reading.positions_of(rows)
            given.append(whole_input("positions", positions, right, follow))
        self.judge_inputs("batch", given)
        self.relayed.add(forward.model, ids, unknown)

    def go_on(self) -> None:
        """Record that no forward waits any longer."""
        if self.waits is not None:
            self.waits.go_on()

    @guarded
    def end(self, until: str = "") -> None:
        """End the forward. Judges the slots that it changed, and records its writes.

        Without a pass over the pool, `settle` does so later, so that the engine waits for no GPU.
        With `until`, the device may still run it until `end_copies` gets that name: copies that
        begin before may neither write what it reads nor use what it writes, unless they wait.
        """
        self.lines.done()
        self.go_on()
        now, self.now = self.now, None
        if now is None:
            return
        self.judge_copies(one for one in now.against if one.moving.name not in self.waited)
        for name, ledger in self.ledgers.items():
            if self.sparing(ledger, now) and (now.scanned or not self.passing):
                slots = self.allowed(ledger, now)
                self.later(name, partial(self.record, now, slots, SlotCopy(ledger.looking(slots))))
            else:
                self.settle()
                self.judge_stray(ledger, now, self.stray(ledger, now))
                self.record(now, None, None, ledger)
        self.loading.clear()
        self.compared("error", 1)
        if self.digests is not None:
            self.digests.end(now.number, now.forward)
        if until:
            self.copies_of[until] = {*self.ledgers}
            self.running.add(until)
            for name in self.ledgers:
                self.later(name, partial(self.last, now, until, self.call()))

    def last(self, now: WatchedForward, until: str, call: SlotCall, ledger: Ledger) -> None:
        """Add a forward that the device may still run to what is under way."""
        given, writes = now.given[ledger.group.name], now.writes[ledger.group.name]
        none = torch.empty(0, dtype=torch.int64)
        read = none if given is None else given.slots[given.cached]
        written = none if writes is None else writes.slots[writes.must]
        copy = Copy(ledger.group.name, At(read), At(written), queue=FORWARDS)
        self.moves[ledger.group.name].begin(Moving(until, copy, call, read, written))

    def record(
        self, now: WatchedForward, looked: Tensor | None, seen: SlotCopy | None, ledger: Ledger
    ) -> None:
        """Record the writes of a forward to a group.

        `seen` are the checksums of the slots that were `looked` at after it, or None if all were.
        """
        name = ledger.group.name
        if looked is not None and seen is not None:
            self.note_changed(now, ledger, ledger.seen(looked, seen.slots))
        if now.forward.owned is not None:  # It is not known for which tokens it wrote them.
            slots = now.owned[name]
            slots = slots[now.changed[name][slots]]
            ledger.forget(slots)
            ledger.mark_in_use(slots)
            ledger.checksum[slots] = ledger.scanned[slots]
        if (writes := now.writes[name]) is not None:
            changed, warm = now.changed[name], not now.rewritten
            missing = reading.note(
                now.forward, writes, ledger, self.chains, changed, now.number, warm
            )
            self.compared("writes", int(writes.must.sum()))
            if bool(missing.any()):
                left = (one[missing] for one in (writes.slots, writes.row, writes.position))
                slots, rows, positions = left
                given = now.number, now.forward, ledger, slots, rows, positions, now.replayed
                self.judge("writes", Unwritten(*given))

    @guarded
    def abandon(self) -> None:
        """Record that the forward raised an error. The content of its slots is then unknown."""
        self.lines.done()
        self.go_on()
        now, self.now, self.rerun = self.now, None, None
        self.loading.clear()
        self.careful = max(1, self.careful)
        if now is not None:
            self.journal.count(**{f"failed forwards: {now.forward.kind}": 1})
            for name, slots in now.owned.items():
                self.changes[name].note(FILLED, slots)
