"""Says which checks find a fault of an engine through its connector.

A fault is injected into what the connector reports, or into the KV tensors that it described.
Nothing else is known of the engine.
"""

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from paritybit.connectors.following import attributes
from paritybit.testing.replays import InMemory, UndecidedError, report
from paritybit.watch import journal
from paritybit.watch.bits import EMPTY, as_integers
from paritybit.watch.chains import UNKNOWN
from paritybit.watch.checks import CHECKS
from paritybit.watch.facts import At, Copy
from paritybit.watch.ledger import NEVER, Ledger
from paritybit.watch.reading import first_read, slots_computed
from paritybit.watch.replays.rerun import SavedSlots, other_tails, tail
from paritybit.watch.settings import NOT_TRIED, TRIED, VARIABLE, Settings
from paritybit.watch.watcher import Watcher
from paritybit.watch.weak import ReleasedError

Given = dict[str, Any]
"""The arguments of a call of the watcher, by name."""

Inject = Callable[[Watcher, Given], object]
"""Injects a fault before a call. Returns whether it could."""


def flip(ledger: Ledger, slot: Tensor, all_bits: bool = False) -> bool:
    """Flip the lowest bit, or all bits, of each number of a slot, int64 [1]."""
    saved, was = SavedSlots.of(ledger, slot), ledger.open
    lowest = [(as_integers(part) ^ 1).view(part.dtype) for part in saved.rows]
    with torch.no_grad(), torch.inference_mode(saved.rows[0].is_inference()):
        ledger.open = True
        (saved.inverted() if all_bits else replace(saved, rows=lowest)).restore()
        ledger.open = was
    return True


def spoil(watcher: Watcher) -> None:
    """Make the result of a replay wrong: a slot that the forward pass owns."""
    owned = {} if watcher.now is None else watcher.now.owned
    for name in [name for name, slots in owned.items() if len(slots)][:1]:
        flip(watcher.ledgers[name], owned[name][:1], all_bits=True)


def places(
    watcher: Watcher, given: Given, computed: bool = False
) -> Iterator[tuple[Ledger, int, int, int]]:
    """Yield the ledger, row, position and slot of what rows read, or of what they compute."""
    watcher.settled()
    for name, ledger in watcher.ledgers.items():
        for at, row in enumerate(given["forward"].rows):
            span = first_read(row, ledger.group), row.cached
            if computed:
                span = row.cached, row.cached + row.computed - row.spare
            for position in range(*span) if name in row.slots else ():
                slot = int(row.slots[name][position])
                if slot >= 0 and ledger.usable[slot]:
                    yield ledger, at, position, slot


def hand_out(
    which: Callable[[Ledger, int], Tensor], watcher: Watcher, given: Given, computed: bool = False
) -> bool:
    """Say that a row has another slot. `which` returns those that are possible, bool [slots]."""
    forward = given["forward"]
    for ledger, at, position, slot in places(watcher, given, computed):
        others = which(ledger, slot) & ledger.usable[:-1]
        name = ledger.group.name
        others[slots_computed(forward, ledger)] = False
        if computed:
            others[ledger.index(forward.rows[at].slots[name])] = False
        if others.any():
            rows = [*forward.rows]
            slots = rows[at].slots[name].clone()
            slots[position] = others.nonzero()[0]
            rows[at] = replace(rows[at], slots={**rows[at].slots, name: slots})
            given["forward"] = replace(forward, rows=tuple(rows))
            return True
    return False


def decidable(ledger: Ledger, slot: int) -> Tensor:
    """Return the slots of which it can be decided whether a forward pass wrote them."""
    return (ledger.forward > 0) | (ledger.scanned == EMPTY)


def of_others(ledger: Ledger, slot: int) -> Tensor:
    """Return the slots that other requests wrote for other tokens."""
    others = (ledger.forward > 0) & (ledger.request != ledger.request[slot])
    return others & (ledger.chain != UNKNOWN) & (ledger.chain != ledger.chain[slot])


def corrupt(watcher: Watcher, given: Given) -> bool:
    """Change a slot that is read next."""
    return any(flip(ledger, torch.tensor([slot])) for ledger, *_, slot in places(watcher, given))


def free(watcher: Watcher, given: Given) -> bool:
    """Free a slot that is read next, if the engine has freed others."""
    for ledger, *_, slot in places(watcher, given):
        if watcher.journal.counts[f"{TRIED}double free"]:
            page = ledger.group.page_size
            watcher.freed(ledger.group.name, torch.tensor([slot // page * page]))
            return True
    return False


def free_twice(_: Watcher, given: Given) -> int:
    """Free slots twice."""
    given["slots"] = given["slots"].flatten().repeat(2)
    return len(given["slots"])


def lose(watcher: Watcher, given: Given) -> bool:
    """Leave out a slot that is free or cached."""
    watcher.settled()
    for name, parts in given["groups"].items():
        used = watcher.ledgers[name].written().nonzero()
        for slot in used[torch.isin(used, torch.cat(parts).to(used))][:1]:
            rest = tuple(part[part.cpu() != slot] for part in parts)
            given["groups"] = {**given["groups"], name: rest}
            return True
    return False


def copy_early(watcher: Watcher, given: Given) -> bool:
    """Copy from what a copy fills, before the engine has waited for it."""
    watcher.settled()
    for moves in watcher.moves.values():
        for one in moves.under_way.get(given["name"], ()):
            source = At(one.target, one.copy.target.pool)
            watcher.begin_copies("early", [Copy(one.copy.group, source, At(one.target, "fault"))])
            return True
    return False


def change(
    facts: str, part: str, to: Callable[..., Tensor | None], _: Watcher, given: Given
) -> bool:
    """Change a part of the first fact for which `to` returns another one."""
    held = [*given[facts]]
    for at, one in enumerate(held):
        if (tensor := to(one, given.get("captured"))) is not None:
            held[at] = replace(one, **{part: tensor})
            given[facts] = held
            return True
    return False


def other(tensor: Tensor, place: int = 0) -> Tensor | None:
    """Return a tensor with another value at a place of the first axis, or None if it is empty."""
    if not tensor.numel() or place < 0:
        return None
    changed = tensor.clone()
    changed[place] = (changed[place] == 0).to(tensor.dtype)
    return changed


def depend(
    on: Callable[[Watcher, Given], Iterable[Tensor]], watcher: Watcher, given: Given
) -> bool:
    """Make the result of a replay wrong whenever something differs from now."""
    replay, was = given["replay"], [*on(watcher, given)]

    def run() -> object:
        differs = not all(map(torch.equal, was, on(watcher, given)))
        result = replay.run()
        if differs:
            spoil(watcher)
        return result

    given["replay"] = replace(replay, run=run)
    return bool(was)


def tails(_: Watcher, given: Given) -> Iterator[Tensor]:
    """Yield the padding of inputs that may have other values."""
    inputs = given["replay"].inputs
    names = other_tails(inputs, 0)
    yield from (tail(one, one.tensor).clone() for one in inputs if one.name in names)


def foreign(watcher: Watcher) -> Iterator[tuple[Ledger, Tensor]]:
    """Yield the slots of each group that no row of the forward pass has, int64 [n]."""
    if (now := watcher.now) is None:
        return
    for name, ledger in watcher.ledgers.items():
        others = ledger.usable[:-1].clone()
        rows = [row.slots[name] for row in now.forward.rows if name in row.slots]
        others[ledger.index(torch.cat([now.owned[name], *rows]))] = False
        yield ledger, others.nonzero().flatten()


def stray(watcher: Watcher, _: Given) -> bool:
    """Change a slot that no row has."""
    return any(flip(ledger, slots[:1]) for ledger, slots in foreign(watcher) if len(slots))


def unread(watcher: Watcher, _: Given) -> list[Tensor]:
    """Return the checksums of the slots that no row has."""
    return [ledger.checksums.of(slots) for ledger, slots in foreign(watcher)]


def differ(watcher: Watcher, given: Given) -> bool:
    """Make the result of an eager run wrong."""
    replay = given["replay"]

    def eager() -> Mapping[str, Tensor]:
        result: Mapping[str, Tensor] = replay.eager()
        spoil(watcher)
        return result

    given["replay"] = replace(replay, eager=replay.eager and eager)
    return replay.eager is not None


class Fault(NamedTuple):
    """What `inject` does before some calls, until a check fires. It `needs` a call or a fact."""

    inject: Inject
    needs: str
    at: tuple[str, ...] = ("begin",)


READS = "a row that reads slots"
CAPTURED = "Watcher.captured with an input of a Replay"
GRAPH, INPUTS = ("replay",), ("_judge_inputs",)

of_input = partial(partial, change, "inputs", "tensor")

FAULTS: Mapping[str, Fault | str] = {
    "stray write": Fault(stray, "Watcher.end", ("end",)),
    "unwritten slot": Fault(
        partial(hand_out, decidable, computed=True), "a row that computes slots"
    ),
    "wrong owner": Fault(
        partial(hand_out, of_others), f"{READS} after another request, Row.tokens"
    ),
    "corrupted read": Fault(corrupt, READS),
    "uninitialised read": Fault(partial(hand_out, lambda one, _: one.forward == NEVER), READS),
    "freed in use": Fault(free, f"Watcher.freed, then {READS}"),
    "wrong list": Fault(
        partial(
            change,
            "lists",
            "entries",
            lambda one, _: other(one.entries, int(one.offsets[0] + one.counts[0]) - 1),
        ),
        "Watcher.judge_lists",
        ("judge_lists",),
    ),
    "copy under way": Fault(copy_early, "Watcher.begin_copies", ("end_copies",)),
    "double free": Fault(free_twice, "Watcher.freed", ("freed",)),
    "leak": Fault(lose, "Watcher.idle", ("idle",)),
    "engine error": "only the code of the engine can raise it",
    "unrepeatable replay": Fault(
        partial(depend, lambda watcher, _: [torch.tensor(watcher.busy)]), "Watcher.replay", GRAPH
    ),
    "padding leak": Fault(partial(depend, tails), "StaticInput.valid of a padded input", GRAPH),
    "graph and eager differ": Fault(differ, "Replay.eager", GRAPH),
    "wrong read": Fault(
        partial(depend, unread),
        "Watcher.replay or Watcher.run_without_graph",
        (*GRAPH, "run_without_graph"),
    ),
    "kernel race": "the Triton interpreter of paritybit looks for it, and no connector",
    "moved address": Fault(
        of_input(lambda one, known: one.tensor.clone() if one.name in known else None),
        CAPTURED,
        INPUTS,
    ),
    "changed dtype": Fault(
        of_input(lambda one, known: one.tensor.short() if one.dtype or one.name in known else None),
        f"StaticInput.dtype or {CAPTURED}",
        INPUTS,
    ),
    "stale input": Fault(
        of_input(lambda one, _: None if one.expected is None else other(one.tensor)),
        "StaticInput.expected or Watcher.judge_tokens",
        INPUTS,
    ),
    "wrong row": Fault(
        partial(change, "values", "held", lambda one, _: None if one.untried else other(one.held)),
        "Watcher.judge_rows",
        ("judge_rows",),
    ),
}
"""The fault for each check, or why none can be injected from outside."""

LINES = InMemory(Path())
"""The journal of this process, which connectors keep."""

STATE = "captures", "missed", "inner", "copied_elsewhere"
"""What a connector sets in its watcher."""


def run(serve: Callable[[], object], fault: Fault | None, check: str = "") -> str:
    """Serve requests with a fault. Returns the verdict, or "" if there is nothing to report.

    No watcher knows anything of earlier runs.
    """
    injected = 0

    def fires() -> bool:
        return any(check in ("", one.check) for one in LINES.found)

    def tapped(name: str) -> Callable[..., Any]:
        method = getattr(Watcher, name)
        signature = inspect.signature(method)

        @wraps(method)
        def call(watcher: Watcher, *args: Any, **kwargs: Any) -> Any:
            nonlocal injected
            given = signature.bind(watcher, *args, **kwargs)
            if name == "begin":
                watcher.careful = max(1, watcher.careful)  # Slots are scanned before it, too.
            if fault and name in fault.at and not (watcher.busy or fires()):
                injected += bool(fault.inject(watcher, given.arguments))
            return method(*given.args, **given.kwargs)

        return call

    for kept in (LINES.found, LINES.unsure, LINES.counts, LINES.said):
        kept.clear()
    for watcher in [one for one in LINES.watchers if isinstance(one, Watcher)]:
        state = {name: vars(watcher)[name] for name in STATE}
        groups = [ledger.group for ledger in watcher.ledgers.values()]
        given: Given = {"journal": LINES, "settings": watcher.settings}
        with suppress(ReleasedError):
            Watcher.__init__(watcher, groups, engine=watcher.package, release="", **given)
            vars(watcher).update(state)
    names = {"begin", *(fault.at if fault else ())}
    with attributes(*((Watcher, name, tapped(name)) for name in names)):
        try:
            serve()
        except Exception as error:
            if not injected:
                raise
            LINES.undecided(f"serve raised {error!r}")
        LINES.settle()
    if injected and fires():
        return "fires"
    if LINES.unsure:
        return f"undecided: {'; '.join(LINES.unsure)}"
    if fault is None:
        return ""
    if injected and LINES.counts[f"{TRIED}{check}"]:
        return "silent"
    prefix = f"{NOT_TRIED}{check}: "
    why = [name.removeprefix(prefix) for name in LINES.counts if name.startswith(prefix)]
    return f"not reported: {'; '.join(why) or fault.needs}"


def laws(serve: Callable[[], object]) -> dict[str, str]:
    """Return, for each check, whether it finds a fault of an engine, and print the table.

    `serve` serves the same requests in each call, in this process, and begins with an empty prefix
    cache. Its first call installs the connector, then starts the engine.

    - "fires": the check finds the fault, and nothing without it.
    - "not reported: ...": the call or fact of the connector that the check lacks.
    - "silent": the check does not find the fault.
    - "undecided: ...": why the run with the fault could not be judged.
    - "not injected: ...": why no fault can be injected from outside.

    Raises AssertionError for a finding without a fault, UndecidedError if a run without one could
    not be judged, and RuntimeError under `paritybit watch`.
    """
    if journal.of_process() is not None:
        raise RuntimeError("laws() cannot run under paritybit watch")
    found = dict[str, str]()
    with (
        TemporaryDirectory() as out,
        patch.dict(os.environ, {VARIABLE: Settings(out).text()}),
        patch.object(journal, "_OPEN", [LINES]),
    ):
        for _ in range(2):  # The second one begins as those with a fault do.
            wrong = run(serve, None)
            if LINES.found:
                raise AssertionError("\n\n".join(map(report, LINES.found)))
            if wrong or not LINES.counts.get("forwards"):
                raise UndecidedError(wrong or "no forward pass was reported")
        for check in CHECKS:
            if isinstance(fault := FAULTS[check], Fault):
                found[check] = run(serve, fault, check)
            else:
                found[check] = f"not injected: {fault}"
    table = Table("check", "with a fault")
    for row in found.items():
        table.add_row(*row)
    Console().print(table)
    return found
