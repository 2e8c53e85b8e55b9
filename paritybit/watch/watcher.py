"""The watcher: a connector calls it around each forward of its engine.

The order is `begin`, then any number of `lists` and `replay`, then `end` or `abandon`. An error
inside the sanitizer makes the run undecided and stops the checks of that forward. The engine goes
on with its own result.
"""

import os
import platform
import random
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from paritybit.watch import reading
from paritybit.watch.between import FILLED, MOST_NOTED
from paritybit.watch.boundary import guarded
from paritybit.watch.facts import Forward, Group, IndexList, StaticInput
from paritybit.watch.journal import Finding, Journal
from paritybit.watch.ledger import Ledger, Story
from paritybit.watch.observations import Inputs, Lists, Logged, Unwritten
from paritybit.watch.recorder import Recorder
from paritybit.watch.replays.replaying import Replaying, UnderWay
from paritybit.watch.settings import Settings

BEFORE = "changed before the forward"
"""What explains a change of slots if nothing more is known."""


class Watcher(Replaying):
    """Watches the KV groups of one model in this process.

    A checked forward takes a frame before and after it, and after each replay. Where forwards are
    sampled, the frame after the last replay is the last one.

    Slots are given as integer tensors of any shape and device; -1 means no slot.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        *,
        engine: str,
        release: str,
        journal: Journal,
        settings: Settings,
    ) -> None:
        super().__init__(groups, journal, settings)
        self.wait, self.gaps = 0, random.Random(0)
        self.recorder = Recorder()
        journal.once(
            "start",
            engine=engine,
            release=release,
            pid=os.getpid(),
            torch=torch.__version__,
            python=platform.python_version(),
            device=str(next(iter(self.ledgers.values())).device) if self.ledgers else None,
            checks=[check.name for check in self.checks],
            every=settings.every,
        )

    def write(self, findings: Iterable[Finding]) -> None:
        """Write findings to the journal, and the traffic before the first of each key."""
        for finding in findings:
            new = finding.key not in self.journal.findings
            super().write((finding,))
            if new:
                requests = self.recorder.traffic(self.chains.chains)
                self.journal.write("traffic", key=finding.key, requests=requests)

    # Forwards.

    def due(self) -> bool:
        """Whether the next forward is to be checked: one in `every`, on average.

        Asked once per forward. If not, `skipped` is called in place of `begin` and `end`.
        """
        self.wait -= 1
        if self.wait >= 0:
            return False
        # Gaps of one length might always meet the same kind of forward.
        self.wait = self.gaps.randint(0, 2 * self.settings.every - 2)
        return True

    @property
    def watching(self) -> bool:
        """Whether a forward is being watched."""
        return self.now is not None

    @guarded
    def skipped(self, owned: Mapping[str, Tensor] | None) -> None:
        """Note a forward that is not checked, and the slots that it writes.

        Slots that were allocated since the last checked forward may be left out. None: it is not
        known which slots it writes.
        """
        if owned is None:
            self.settle()
            for ledger in self.ledgers.values():
                ledger.forget_all()
        else:
            for name, slots in owned.items():
                self.note(name, FILLED, slots)
            if any(len(changes.noted) >= MOST_NOTED for changes in self.changes.values()):
                self.settle()
        self.loading.clear()
        self.relayed.waiting.clear()  # It may have computed anew what they are compared with.
        self.journal.count(skipped_forwards=1)

    @guarded
    def begin(self, forward: Forward) -> None:
        """Start to watch a forward, and judge what its rows read."""
        if self.now is not None:
            self.now = None
            self.undecided("a forward began before the last one ended")
        self.settle()
        self.number += 1
        self.recorder.note(self.number, forward)
        chain = reading.hashes(forward, self.chains)
        owned = {name: reading.owned(forward, ledger) for name, ledger in self.ledgers.items()}
        read = shared = open_ = 0
        for ledger in self.ledgers.values():
            self.moved_between(ledger, BEFORE)
            reads = reading.reads(forward, self.number, ledger, chain)
            if reads is None:
                continue
            open_ += reading.resolve(reads, self.chains)
            self.judge("reads", reads)
            read += len(reads.slots)
            mine = [ledger.names.number(row.request) for row in forward.rows]
            requests = torch.tensor(mine, device=ledger.device)[reads.row]
            others = ledger.request[reads.slots.clamp(min=0)] != requests
            shared += int((others & reads.judged).sum())
            reading.adopt(reads)
        self.now = UnderWay(self.number, forward, chain, owned)
        self.listener.taken()
        if (known := self.relayed.known(forward)) is not None:
            self.inputs("batch", [known])
        self.journal.count(
            forwards=1,
            reads=read,
            shared_reads=shared,
            unresolved_reads=open_,
            **{f"forwards: {forward.kind}": 1},
        )

    def moved_between(self, ledger: Ledger, what: str) -> None:
        """Remember which slots changed since the last frame, to explain later reads."""
        changed = ledger.frame() & (ledger.checksum != 0) & (ledger.before != ledger.checksum)
        slots = changed.nonzero().flatten()
        if len(slots):
            ledger.tell(slots.tolist(), Story(self.number, what))

    @guarded
    def moved(self, what: str) -> None:
        """Note that something that is no forward has just ended, and say what it is.

        Slots that changed since the last such moment, or the last forward, changed by it.
        """
        if self.now is None:
            self.settle()
            for ledger in self.ledgers.values():
                self.moved_between(ledger, what)

    @guarded
    def lists(self, lists: Sequence[IndexList]) -> None:
        """Judge index lists that the attention backend built for the forward under way."""
        if self.now is None:
            return
        for given in lists:
            if given.group not in self.ledgers:
                self.undecided(f"{given.name} is of a group that is not known: {given.group}")
                continue
            ledger = self.ledgers[given.group]
            self.judge("lists", Lists(self.now.number, self.now.forward, ledger, given))
            rows = len(self.now.forward.rows)
            self.journal.count(lists=1, list_entries=int(given.counts[:rows].sum()))

    @guarded
    def inputs(self, kind: str, inputs: Sequence[StaticInput]) -> None:
        """Judge the inputs of a forward that replays no graph, where their values are known."""
        if self.now is not None:
            self.judge("inputs", Inputs(self.now.number, self.now.forward, kind, inputs, {}))

    @guarded
    def tokens(
        self, ids: Tensor, positions: Tensor | None = None, kept: Sequence[int] | None = None
    ) -> None:
        """Judge the token ids and positions, [n], that a forward gives to its model.

        They are in the order of the rows. Of the ids of a row the first `kept` are judged; None
        means all. An id is compared once its row knows the token, in this forward or in a later
        one.
        """
        if self.now is None:
            return
        forward, rows = self.now.forward, self.now.forward.rows
        counts = [row.computed for row in rows] if kept is None else kept
        wanted, places, start = list[int](), list[int](), 0
        for row, count in zip(rows, counts, strict=True):
            for place, token in enumerate(row.tokens[row.cached :][:count], start):
                if token is not None:
                    places.append(place)
                    wanted.append(token)
            start += row.computed
        known = torch.tensor(places, dtype=torch.int64, device=ids.device)
        expected = torch.tensor(wanted)
        given = [StaticInput("input_ids", ids[known], len(known), len(known), expected=expected)]
        if positions is not None:
            right = torch.cat([torch.arange(r.cached, r.cached + r.computed) for r in rows])
            size = len(positions)
            given.append(StaticInput("positions", positions, size, size, expected=right))
        self.inputs("batch", given)
        parts = ids.split([row.computed for row in rows])
        for row, mine, count in zip(rows, parts, counts, strict=True):
            self.relayed.add(forward.model, row, mine[:count])

    @guarded
    def end(self) -> None:
        """End the forward: judge which slots it changed, and enter its writes into the ledger."""
        now, self.now = self.now, None
        if now is None:
            return
        self.settle()
        for name, ledger in self.ledgers.items():
            if now.replayed and self.settings.every > 1:
                ledger.reframe(now.owned[name], now.changed[name])
            elif len(stray := self.stray(ledger, now)):
                self.judge_stray(ledger, now, stray)
            writes = reading.writes(now.forward, ledger, now.chain)
            if now.forward.owned is not None:
                self.note_owned(ledger, now, name)
            if writes is not None:
                missing = reading.note(writes, ledger, now.changed[name], now.number)
                self.judge_missing(ledger, now, writes, missing)
            if ledger.device.type == "cuda":  # Calls between forwards may use another stream.
                torch.cuda.current_stream(ledger.device).synchronize()
        self.loading.clear()
        errors, warnings = self.listener.taken()
        self.judge("log", Logged(now.number, now.forward.kind, errors))
        self.journal.count(logged_warnings=warnings)

    def judge_missing(
        self, ledger: Ledger, now: UnderWay, writes: reading.Writes, missing: Tensor
    ) -> None:
        """Judge the slots that must be written and were not, if there are any."""
        if bool(missing.any()):
            slots, rows = writes.slots[missing], writes.row[missing]
            position, replay = writes.position[missing], now.replayed
            found = Unwritten(now.number, now.forward, ledger, slots, rows, position, replay)
            self.judge("writes", found)

    def note_owned(self, ledger: Ledger, now: UnderWay, name: str) -> None:
        """Note the writes of slots of which only the owner is known, not the tokens."""
        mine = now.owned[name]
        slots = mine[now.changed[name][mine]]
        ledger.forget(slots)
        ledger.use(slots)
        ledger.forward[slots] = now.number
        ledger.checksum[slots] = ledger.before[slots]

    @guarded
    def abandon(self) -> None:
        """Note that the forward raised: what it wrote is not known."""
        now, self.now = self.now, None
        self.loading.clear()
        if now is not None:
            self.journal.count(**{f"failed forwards: {now.forward.kind}": 1})
            for name, slots in now.owned.items():
                self.note(name, FILLED, slots)

    def stopped(self) -> None:
        """Stop watching this forward. What it writes is not known."""
        now, self.now = self.now, None
        if now is not None:
            for ledger in self.ledgers.values():
                ledger.forget_all()
