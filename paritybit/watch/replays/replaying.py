"""Judges the replays of a watched forward, and repeats some of them."""

import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from paritybit.watch import reading
from paritybit.watch.between import Between
from paritybit.watch.boundary import guarded
from paritybit.watch.captures import SMALL, Captures
from paritybit.watch.facts import Forward, Group, Replay, StaticInput
from paritybit.watch.journal import Journal
from paritybit.watch.ledger import Ledger, Overwrite
from paritybit.watch.lines import ALL, FEW, FEWEST, Lines
from paritybit.watch.observations import (
    Captured,
    DuringCopy,
    Inputs,
    Relation,
    StrayWrites,
    Unwritten,
    Wrong,
)
from paritybit.watch.replays.causes import Explained, Suspect, explain, suspects_of
from paritybit.watch.replays.influence import LiveReads
from paritybit.watch.replays.relations import NAMES, Relations, Tried
from paritybit.watch.replays.rerun import LARGEST, Rerun
from paritybit.watch.replays.unwritten import Expected, Quiet, quiet
from paritybit.watch.settings import NOT_TRIED, Settings

CAREFUL = 64
"""The number of forwards that are scanned before as well, after a change that none explains."""

BEFORE, UNSURE = "changed before the forward", "changed in the forward or before it"
"""Describe a change of slots if nothing more is known about it."""

UNREPEATED = "slots changed, and no replay wrote them again"

UNNEEDED = "no relation is due, and no other slots are scanned"
"""Why the state before a replay was not saved."""


@dataclass
class WatchedForward:
    """The forward that is being watched. `owned`, `given` and `writes` have its slots, per group.

    `unmapped` is True if a row reads a position that has no slot of its own. It then reads what
    padded rows write.
    """

    number: int
    forward: Forward
    owned: dict[str, Tensor]
    given: dict[str, reading.Positions | None]
    writes: dict[str, reading.Writes | None]
    unmapped: bool = False
    careful: bool = True
    """Whether all slots were scanned before the forward."""
    against: Sequence[DuringCopy] = ()
    """What it does against copies that were under way when it began."""
    scanned: bool = False
    """Whether all slots were scanned after a replay."""
    changed: dict[str, Tensor] = field(default_factory=dict)
    """For each group, the slots that changed since the forward began, bool [slots]."""
    holding: list[StaticInput] = field(default_factory=list)
    """The inputs that hold slots to write."""
    replayed: str | None = None
    """The kind of the last graph runner that replayed a graph in this forward."""
    rewritten: bool = False
    """Whether a replay ran again to see which slots with unchanged bytes it writes."""


class Replaying(Between):
    """Judges the replays of the forward that is being watched."""

    def __init__(
        self, groups: Sequence[Group], journal: Journal, settings: Settings, package: str
    ) -> None:
        super().__init__(groups, journal, settings, package)
        self.now: WatchedForward | None = None
        self.rerun: Rerun | None = None
        tried = tuple(name for name in NAMES if name in {check.name for check in self.checks})
        few = settings.every > 1 or any(one.snapshot is None for one in self.ledgers.values())
        self.relations = Relations(few, tried, settings.every > 1)
        self.passing = any(check.stage == "scan" for check in self.checks)
        """Whether a check needs a pass over each pool. Without it, owned slots are enough."""
        self.careful = 1
        """The number of forwards that are still scanned before as well."""
        self.captures = Captures(journal)
        self.expected = Expected()
        """The tensors that forwards are expected to write."""
        judging = settings.every == 1 and NAMES[1] in tried
        rate = FEWEST if settings.every > 1 else FEW if few else ALL
        self.lines = Lines(package, ALL if judging else rate)
        self.lines.fills.judging = judging
        self.before: dict[tuple[str, str], dict[str, tuple[int, Tensor]]] = {}
        """The inputs of each kind and model, in the last forward that had them."""
        self.overlaps = list(sharing(groups))
        """Layers that share memory. They are judged with the first forward that has rows."""
        self.copied_elsewhere: str | None = None
        """Why the engine may copy slots at any time, for example to another process, or None."""

    def lose(self) -> None:
        """Forget everything that is known, and stop watching the current forward."""
        with self.lock:
            self.now = self.rerun = None
            self.careful = max(1, self.careful)
            self.lines.fills.known.clear()
            super().lose()

    def barred(self) -> str | None:
        """Return why slots may not be changed for a moment, or None. Waits for copies of slots.

        `Rerun.restoring` asks here before slots change: poison, other values, and the repetition of
        a replay, which first restores what they held before.
        """
        if self.copied_elsewhere is not None:
            return self.copied_elsewhere
        if self.copying - {threading.get_ident()}:
            return "another thread copies KV"
        for event in self.copies.values():
            event.synchronize()
        self.copies.clear()
        return None

    def judge_layers(self, now: WatchedForward) -> None:
        """Judge, once, that no layers of a group share memory."""
        if now.forward.rows and NAMES[-1] in self.relations.names:
            found, self.overlaps = self.overlaps, []
            for wrong in found:
                kind = f"{now.forward.kind} forward"
                self.judge(NAMES[-1], Relation(now.number, now.forward, kind, wrong))

    @guarded
    def captured(self, graph: object, kind: str, inputs: Sequence[StaticInput]) -> None:
        """Record the addresses and values of the static inputs of a graph that was captured."""
        self.captures.note(graph, kind, inputs)

    def _judge_inputs(
        self,
        now: WatchedForward,
        kind: str,
        inputs: Sequence[StaticInput],
        captured: Mapping[str, Captured],
    ) -> None:
        """Judge inputs of the current forward, and remember the values that are expected."""
        held = ((one, one.tensor if one.copied is None else one.copied) for one in inputs)
        self.lines.note(kind, {static.name: tensor for static, tensor in held})
        for static in inputs:
            if static.source is None:
                static.learned = partial(self.lines.of, kind, static.name)
        now.holding += [static for static in inputs if static.writes is not None]
        before = self.before.setdefault((kind, now.forward.model), {})
        parts = now.number, now.forward, kind, inputs, captured
        self.judge("inputs", Inputs(*parts, before, self.ledgers))
        for static in inputs:
            if static.expected is not None and static.tensor.nbytes <= SMALL:
                before[static.name] = now.number, static.tensor.clone()

    def replay(self, replay: Replay) -> object:
        """Replay a graph and judge the replay. Returns the result of the first `replay.run()`."""
        if self.now is None or self.busy:
            return replay.run()
        padded = replay.rows < replay.bucket
        due = self.relations.due(replay.kind, replay.bucket, padded=padded)
        self._prepare(replay, due)
        self.lines.fills.stop()
        result = replay.run()
        self._replayed(replay, result, due)
        return result

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Ignore reports of the engine while the sanitizer itself runs it."""
        self.lines.fills.stop()
        with super().alone():
            yield

    @guarded
    def _prepare(self, replay: Replay, due: tuple[str, ...]) -> None:
        """Judge the static inputs, and save the state before a replay that may run again.

        It may if a relation is `due`, or to explain slots that a scan finds changed.
        """
        if self.now is None:
            return
        captured = self.captures.get(replay.graph) or {}
        self._judge_inputs(self.now, replay.kind, replay.inputs, captured)
        given = [*replay.inputs, *self.lines.fills.inputs(replay.graph)]
        replay = dataclasses.replace(replay, inputs=given)
        for reason in self.lines.fills.reasons():
            self.not_tried(NAMES[1], reason)
        scanned = any(self.scans(one, self.now) for one in self.ledgers.values())
        why = None if due or scanned else UNNEEDED
        self.rerun = Rerun(replay, self.now.owned, self.ledgers, self.barred, why)

    @guarded
    def _replayed(self, replay: Replay, result: object, due: tuple[str, ...]) -> None:
        """Judge the slots that a replay changed, then repeat the replay if a test is due."""
        now, rerun = self.now, self.rerun
        if now is None or rerun is None:
            return
        self.settle()
        self.rerun, now.replayed = None, replay.kind
        padded = int(replay.rows < replay.bucket)
        self.journal.count(replays=1, padded_replays=padded, **{f"replays: {replay.kind}": 1})
        if now.unmapped:
            due = tuple(name for name in due if name == NAMES[0])
        # What cannot run again explains nothing, so the scan at the end is enough.
        now.scanned = replay.once is None
        scanned = {
            name: ledger
            for name, ledger in self.ledgers.items()
            if self.scans(ledger, now) and (now.scanned or not self.sparing(ledger, now))
        }
        strays = {n: slots for n, one in scanned.items() if len(slots := self.stray(one, now))}
        left = self.quiet(now, rerun, bool(due))
        if strays or due or left:
            rerun.ran(result)
        for name in due:
            if rerun.barred is not None:
                self.not_tried(name, rerun.barred)
        now.rewritten |= rerun.possible
        self.judge_quiet(now, rerun, left)
        with self.alone():
            for name, stray in strays.items():
                ledger = self.ledgers[name]
                found = self.explained(ledger, stray, rerun)
                self.judge_stray(ledger, now, stray, replay.kind, found)
            if due and not strays and rerun.possible:
                self.scan_rest(now)
                reads = LiveReads.of(now.forward, self.ledgers)
                with rerun.restoring():
                    suspects = self.suspects(rerun)
                    for tried in self.relations.tried(rerun, due, now.number, reads, suspects):
                        self.judge_tried(replay, now, tried)
        if rerun.changed:
            self.check_restored(now, rerun)

    def run_without_graph(self, replay: Replay, again: Callable[[], bool]) -> object:
        """Run a forward that replays no graph, and repeat some to see which slots they read.

        After the first run, `again` returns whether it may be repeated. Returns the result of the
        first `replay.run()`.
        """
        due = self.relations.due(replay.kind, 0, NAMES[-1:])
        self.lines.fills.stop()
        cheap = any(one.snapshot is not None for one in self.ledgers.values())
        if self.now is None or self.busy or not (due or cheap):
            return replay.run()
        self._prepare(replay, due)
        result = replay.run()
        self._ran(replay, result, due, again)
        return result

    @guarded
    def _ran(
        self, run: Replay, result: object, due: tuple[str, ...], again: Callable[[], bool]
    ) -> None:
        """Repeat a forward that replayed no graph."""
        now, rerun = self.now, self.rerun
        self.rerun = None
        if now is None or rerun is None or now.unmapped or not again():
            return
        left = self.quiet(now, rerun, bool(due))
        if not (due or left):
            return
        rerun.ran(result)
        self.judge_quiet(now, rerun, left)
        if not due:
            return
        if rerun.barred is not None:
            self.not_tried(NAMES[-1], rerun.barred)
            return
        reads = LiveReads.of(now.forward, self.ledgers)
        with self.alone(), rerun.restoring():
            for tried in self.relations.tried_without_graph(rerun, now.number, reads):
                self.judge_tried(run, now, tried)

    def quiet(self, now: WatchedForward, rerun: Rerun, compared: bool) -> list[Quiet]:
        """Return the slots that the forward must write and that look unwritten.

        Tensors are only `compared` one by one if there is time for it, or a snapshot.
        """
        found = list[Quiet]()
        for name, ledger in self.ledgers.items() if "writes" in self.of_stage else ():
            writes, seen = now.writes[name], now.changed.get(name)
            if writes is None:
                continue
            by_tensor = compared or ledger.snapshot is not None
            changed = rerun.changes(ledger, writes.slots) if by_tensor else None
            if changed is not None:
                needed = self.expected.needed(now.forward, writes, ledger, changed)
            elif seen is not None:
                changed = seen[writes.slots].expand(len(ledger.layers), -1)
                needed = torch.zeros_like(changed)
            else:
                continue
            found.append(quiet(ledger, writes, changed, needed))
        return [one for one in found if len(one.writes.slots)]

    def judge_quiet(self, now: WatchedForward, rerun: Rerun, quiet: Sequence[Quiet]) -> None:
        """Repeat the forward to see which slots it writes, and judge those of which parts lack."""
        if quiet and not rerun.possible:
            number = sum(len(one.writes.slots) for one in quiet)
            self.not_tried("unwritten slot", f"{rerun.barred or rerun.gate()}", number)
            return
        for one in quiet:
            with self.alone():
                wrote, lacking = one.tried(rerun)
            changed = torch.zeros_like(one.ledger.usable[:-1])
            changed[one.writes.slots[wrote]] = True
            self.note_changed(now, one.ledger, changed)
            if len(slots := lacking.writes.slots):
                given = slots, lacking.writes.row, lacking.writes.position, now.replayed
                tensors = lacking.needed[:, 0].nonzero().flatten().tolist()
                found = Unwritten(now.number, now.forward, one.ledger, *given, tensors)
                self.judge("writes", found)

    def explained(self, ledger: Ledger, stray: Tensor, rerun: Rerun) -> Explained:
        """Find the causes of stray writes by repeating the replay, for as many as can be saved.

        Without repeating it, what holds the slots is the cause.
        """
        if not rerun.possible:
            holding = [] if self.now is None else self.now.holding
            return Explained(list(held_by(holding, ledger.group.name, stray)), {})
        most = max(1, LARGEST // ledger.checksums.bytes_per_slot)
        return explain(rerun, ledger, stray[:most], self.suspects(rerun))

    def suspects(self, rerun: Rerun) -> list[Suspect]:
        """Return the static inputs that may explain what a replay does wrong."""
        known = self.captures.get(rerun.replay.graph) or {}
        values = {name: was.value for name, was in known.items() if was.value is not None}
        return suspects_of(rerun, values)

    def sparing(self, ledger: Ledger, now: WatchedForward) -> bool:
        """Return whether a group is scanned only once in the forward."""
        return ledger.snapshot is None and not now.careful

    def judge_stray(
        self,
        ledger: Ledger,
        now: WatchedForward,
        stray: Tensor,
        kind: str | None = None,
        explained: Explained | None = None,
    ) -> None:
        """Judge stray writes, and remember them for later reads.

        `kind` is that of the replay that wrote them. Without it, what holds the slots is the cause.
        Slots that were not scanned before the forward are only judged if a replay wrote them again.
        """
        causes, layers = ([], {}) if explained is None else (explained.causes, explained.layers)
        if self.sparing(ledger, now):
            sure = torch.isin(stray, torch.tensor([*layers], dtype=torch.int64))
            if not bool(sure.all()):
                self.careful = CAREFUL
                self.not_tried("stray write", UNREPEATED, int((~sure).sum()))
                unsure = stray[~sure & (ledger.checksum[stray] != 0)]
                ledger.note_overwrite(unsure.tolist(), Overwrite(now.number, UNSURE))
            stray = stray[sure]
        if not len(stray):
            return
        for slot in stray.tolist():
            if (known := ledger.overwrites.get(slot)) is not None and known.what == UNSURE:
                del ledger.overwrites[slot]
        if kind is None:
            causes = list(held_by(now.holding, ledger.group.name, stray))
        found = StrayWrites(now.number, now.forward, ledger, stray, kind, causes, layers)
        self.judge("scan", found)
        for cause, slots in causes:
            ledger.note_overwrite(slots, Overwrite(now.number, "a stray write", cause))
        ledger.note_overwrite(stray.tolist(), Overwrite(now.number, "a stray write"))

    def judge_tried(self, replay: Replay, now: WatchedForward, tried: Tried) -> None:
        """Count a test of a relation, and judge it if the relation does not hold."""
        if tried.reason is not None:
            self.not_tried(tried.name, tried.reason)
            return
        self.compared(tried.name, 1)
        if tried.found is not None:
            given = now.number, now.forward, replay.kind
            self.judge(tried.name, Relation(*given, tried.found, tried.cause))

    def not_tried(self, check: str, reason: str, number: int = 1) -> None:
        """Count reruns of a check that could not have failed."""
        self.journal.count(**{f"{NOT_TRIED}{check}: {reason}": number})

    def scan_rest(self, now: WatchedForward) -> None:
        """Scan the groups that were not scanned, so that `check_restored` finds later changes."""
        for ledger in self.ledgers.values():
            if not self.scans(ledger, now):
                self.stray(ledger, now)

    def check_restored(self, now: WatchedForward, rerun: Rerun) -> None:
        """Look for slots that changed only when the replay was repeated.

        The first run may have written these slots, too, with the bytes that they already held. So
        the replay runs again over poisoned slots, and those that it overwrites are stray writes.
        """
        for ledger in self.ledgers.values():
            slots = self.stray(ledger, now)
            if not len(slots):
                continue
            with self.alone(), rerun.restoring():
                rerun.again()
            with self.alone():
                explained = self.explained(ledger, slots, rerun)
            self.stray(ledger, now)
            hit = torch.tensor([*explained.layers], dtype=torch.int64)
            self.judge_stray(ledger, now, hit, rerun.replay.kind, explained)
            if len(rest := slots[~torch.isin(slots, hit)]):
                self.undecided("a replay that ran again changed slots that it does not own")
                ledger.forget(rest)

    def scans(self, ledger: Ledger, now: WatchedForward) -> bool:
        """Return whether all slots of a group are scanned after the forward."""
        return self.passing or not self.sparing(ledger, now)

    def stray(self, ledger: Ledger, now: WatchedForward) -> Tensor:
        """Scan one group. Returns the changed slots that the forward does not own."""
        name = ledger.group.name
        changed = ledger.scan(now.owned[name])
        if changed is None:
            now.changed.setdefault(name, torch.zeros_like(ledger.usable[:-1]))
            return ledger.reserved[:0]
        self.compared("scan", 1)
        self.note_changed(now, ledger, changed)
        return ledger.outside(changed, self.allowed(ledger, now))

    def allowed(self, ledger: Ledger, now: WatchedForward) -> Tensor:
        """Return the slots that may change: those the forward owns, and those a load fills.

        Another process may fill targets of copies at any time.
        """
        name = ledger.group.name
        loading = (ledger.index(one.slots) for one in self.loading.get(name, ()))
        coming = (one for one in self.moves[name] if one.pool("source") and not one.pool("target"))
        elsewhere = (one.target for one in coming if not len(one.source))
        return torch.cat((now.owned[name], *loading, *elsewhere))

    def note_changed(self, now: WatchedForward, ledger: Ledger, changed: Tensor) -> None:
        """Add slots to those that changed in the forward. `changed` is bool [slots]."""
        before = now.changed.get(ledger.group.name)
        now.changed[ledger.group.name] = changed if before is None else before | changed


def sharing(groups: Sequence[Group]) -> Iterator[Wrong]:
    """Yield, for each group, the first layer with a tensor that an earlier layer has, too.

    A connector merges the layers that an engine lets share KV, or leaves them out.
    """
    for group in groups:
        owners: dict[int, str] = {}
        for layer in group.layers:
            held = [tensor.data_ptr() for tensor in layer.tensors if tensor.numel()]
            other = next((owners[one] for one in held if one in owners), None)
            if other is not None:
                names = f"{other} and {layer.name}"
                text = f"keeps the KV of {names} in the same memory"
                yield Wrong(text, group.name, layer.name, cause={"what": f"{names} share memory"})
                break
            owners.update(dict.fromkeys(held, layer.name))


def held_by(
    inputs: Sequence[StaticInput], group: str, stray: Tensor
) -> Iterator[tuple[dict[str, Any], list[int]]]:
    """Yield the inputs that hold stray slots of a group to write, and these slots."""
    for static in inputs:
        tensor = static.tensor if static.copied is None else static.copied
        held = torch.isin(stray, tensor.to(stray))
        if static.writes == group and bool(held.any()):
            size = min(static.size, static.tensor.shape[static.axis]) - static.live
            rest = static.tensor.narrow(static.axis, static.live, max(0, size))
            if bool(torch.isin(stray[held], rest.to(stray)).all()):
                what = f"the padded tail of {static.name} holds the slot"
                yield {"what": what, "input": static.name, **static.place}, stray[held].tolist()
            else:
                live = static.tensor.narrow(static.axis, 0, static.live)
                base = static.base(live)
                own = {"what": f"{static.name} holds the slot", **static.place}
                yield own if base is None else base.cause, stray[held].tolist()
            stray = stray[~held]
