"""Plant faults in a release's own code, one at a time, and see what the trial says of each.

A script: `python -m properties.engines.planted VERSION --record FILE [--runner NAMES]`. Each
static input of each runner is got wrong in three ways after the engine has populated it, is
bound again after the capture, as it was or in another dtype, and what the engine's window, slot
map and allocator do is got wrong too. A fault that changed no bit in any replay was not planted,
and is left out. What is not found is listed with what was said instead, and with whether the
engine's graph itself wrote the right value over it.
"""

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from paritybit.harness.checks.of_steps.live_inputs import batch_axis
from paritybit.harness.checks.play import Lockstep
from paritybit.harness.checks.table import STEP_PROPERTIES
from paritybit.harness.engines.adapters.packages import DEPENDENCIES
from paritybit.harness.engines.adapters.sglang import (
    SPECULATING,
    RunnerEngines,
    drafting_lockstep,
    load,
)
from paritybit.harness.engines.faults import Evidence
from paritybit.harness.engines.fetch import dependencies_folder, fetch
from paritybit.harness.engines.legs import OURS, Leg
from paritybit.harness.engines.padding import PaddingLedger
from paritybit.harness.engines.playlist import FIRST, RUNNERS, Kind, trial_of
from paritybit.harness.engines.trial import mentions
from paritybit.harness.records.case import dump_json
from paritybit.harness.records.record import environment
from paritybit.harness.records.typed_json import to_json
from paritybit.harness.schedules.traffic import traffic_schedules
from paritybit.reference.batch import Mode
from paritybit.subjects.engines.sglang.engine import SglangEngine
from paritybit.subjects.engines.sglang.runners.decode import CpuGraphRunner
from paritybit.subjects.engines.sglang.runners.drafting import DraftingRunner
from paritybit.subjects.engines.shared.loading import Engine
from paritybit.subjects.engines.shared.missing import RunnerLackingError
from torch import Tensor

from properties.sanitizer.planted.spoiling import CHANGES

BY_THE_BACKEND = "attention."
"""How the names of static inputs begin that the attention backend writes as it plans."""


@dataclass
class Told:
    """What the trial said of one fault: found or not, in which words, and whether they name it."""

    runner: str
    fault: str
    found: bool
    named: bool
    said: str


@dataclass
class Planted:
    """In how many replays a fault changed a bit, and after how many of them it was undone."""

    changed: int = 0
    undone: int = 0


TAIL = "tail not reset"


def planner(runner: Any) -> tuple[Any, str]:
    """Return what a runner calls once its static inputs are populated, and by which name."""
    if runner.mode is Mode.EXTEND:
        name = "load_batch" if hasattr(runner.runner, "load_batch") else "replay_prepare"
        return runner.runner, name
    if isinstance(runner, CpuGraphRunner):
        return runner.backend, "init_forward_metadata"
    backend = runner.backend
    if isinstance(runner, DraftingRunner):
        backend = getattr(runner, "draft_backend", runner.catching_backend)
    return backend, "init_forward_metadata_out_graph"


@contextmanager
def input_fault(subject: Any, name: str, change: str, counted: Planted) -> Iterator[None]:
    """Get one static input of a subject wrong, each time after it is populated."""
    runner, state = subject.runner, dict[str, Any]()
    owner, method = planner(runner)
    plan, forward, replay = getattr(owner, method), subject.forward, runner.replay

    def forwarded(batch: Any, mode: Mode) -> Any:
        state.clear()
        if mode is subject.mode:
            state["before"] = runner.statics()[name].clone()
        given = forward(batch, mode)
        if "right" in state and torch.equal(runner.statics()[name], state["right"]):
            counted.undone += 1
        return given

    def replayed(batch: Any) -> Any:
        state["batch"] = batch
        return replay(batch)

    def spoil() -> None:
        if "before" not in state:
            return
        drafts = isinstance(runner, DraftingRunner)
        given = runner.brought if drafts else runner.given(state["batch"])
        if name not in given:
            return
        held = runner.statics()[name]
        right, axis = held.clone(), batch_axis(held, given[name])
        CHANGES[change](held, state["before"], axis, given[name].shape[axis])
        if not torch.equal(held, right):
            counted.changed += 1
            state["right"] = right

    def planned(*arguments: Any, **named: Any) -> Any:
        later = name.startswith(BY_THE_BACKEND) or subject.mode is Mode.EXTEND
        if not later:
            spoil()
        given = plan(*arguments, **named)
        if later:
            spoil()
        return given

    vars(subject)["forward"], vars(runner)["replay"] = forwarded, replayed
    setattr(owner, method, planned)
    try:
        yield
    finally:
        setattr(owner, method, plan)
        del vars(subject)["forward"], vars(runner)["replay"]


OTHER_DTYPE = {torch.int32: torch.int64, torch.int64: torch.int32, torch.bool: torch.uint8}
"""What an index drifts to; floating point becomes half as wide."""

REBINDINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "bound again after the capture": Tensor.clone,
    "of another dtype after the capture": lambda held: held.to(
        OTHER_DTYPE.get(held.dtype, torch.bfloat16)
    ),
}


def holders(runner: Any) -> Iterator[dict[Any, Any]]:
    """Yield what a runner of the engine keeps its static inputs in, as dictionaries by name."""
    engine_s = runner.runner
    registry = getattr(engine_s, "buffer_registry", None)
    owners = [
        engine_s,
        getattr(engine_s, "buffers", None),
        *getattr(registry, "_slots", {}).values(),
    ]
    yield from (vars(owner) for owner in owners if owner is not None)
    yield getattr(engine_s, "_prefill_static_buffers", None) or {}


@contextmanager
def bound_again(subject: Any, name: str, change: str, counted: Planted) -> Iterator[None]:
    """Let a runner hold another tensor as a static input than its graphs were captured with.

    It counts as changed if the runner holds that input by a name.
    """
    held = subject.runner.statics()[name]
    other = REBINDINGS[change](held)
    places = [
        (values, key)
        for values in holders(subject.runner)
        for key, value in values.items()
        if value is held
    ]
    counted.changed += bool(places)
    for values, key in places:
        values[key] = other
    try:
        yield
    finally:
        for values, key in places:
            values[key] = held


@contextmanager
def short_window(subject: Any) -> Iterator[None]:
    """Let the window of every attention backend be one key short."""
    found = planner(subject.runner)[0]
    backends = {subject.runner.backend, found, *getattr(found, "attn_backends", ())}
    held = [one for one in backends if getattr(one, "sliding_window_size", None)]
    for backend in held:
        backend.sliding_window_size -= 1
    try:
        yield
    finally:
        for backend in held:
            backend.sliding_window_size += 1


@contextmanager
def replaced(owner: Any, name: str, other: Callable[..., Any]) -> Iterator[None]:
    """Let `other` be called in the place of a method, with that first."""
    own = getattr(owner, name)
    setattr(owner, name, partial(other, own))
    try:
        yield
    finally:
        setattr(owner, name, own)


def next_slot(translate: Any, loc: Tensor) -> Tensor:
    """Translate the first location to the next one's SWA slot."""
    found: Tensor = translate(loc).clone()
    if len(found) > 1:
        found[0] = found[1]
    return found


@contextmanager
def replaced_all(owner: Any, names: Sequence[str], other: Callable[..., Any]) -> Iterator[None]:
    """Let `other` be called in the place of each method of those names that there is."""
    with ExitStack() as stack:
        for name in names:
            if hasattr(owner, name):
                stack.enter_context(replaced(owner, name, other))
        yield


EVICTS = ("free_swa", "free_swa_segment")
FREES = ("free", "free_segment")
"""What the host code of a release may evict by, and free by."""


def leaves_one(free: Any, loc: Tensor, **named: Any) -> None:
    """Free all slots but the last."""
    free(loc[:-1], **named)


def frees_nothing(free: Any, loc: Tensor, **named: Any) -> None:
    """Free no slot."""


def frees_again(free: Any, loc: Tensor, **named: Any) -> None:
    """Free all slots, and the last once more."""
    free(loc, **named)
    free(loc[-1:], **named)


def warns(replay: Any, *batch: Any) -> Any:
    """Warn as a module of the engine does."""
    logging.getLogger("sglang.srt.mem_cache").warning("SWA locations were never set")
    return replay(*batch)


def gives_reserved(alloc: Any, *arguments: Any, **named: Any) -> Any:
    """Give the reserved slot in the place of the first."""
    found = alloc(*arguments, **named)
    if found is not None and len(found):
        found = found.clone()
        found[0] = 0
    return found


def code_faults(subject: Any) -> dict[str, Any]:
    """Return faults of the engine's window, slot map and allocator, by name."""
    pool = subject.pool
    kv, allocator = pool.kv, pool.allocator
    replay = "drafted" if isinstance(subject.runner, DraftingRunner) else "replay"
    return {
        "window one key short": lambda: short_window(subject),
        "slot map off by one": lambda: replaced(kv, "translate_loc_from_full_to_swa", next_slot),
        "eviction leaves a slot": lambda: replaced_all(allocator, EVICTS, leaves_one),
        "eviction frees nothing": lambda: replaced_all(allocator, EVICTS, frees_nothing),
        "free leaves a slot": lambda: replaced_all(allocator, FREES, leaves_one),
        "the reserved slot is given": lambda: replaced(allocator, "alloc", gives_reserved),
        "a slot is freed twice": lambda: replaced_all(allocator, FREES, frees_again),
        "a warning at each replay": lambda: replaced(subject.runner, replay, warns),
    }


def played(
    lockstep: Lockstep, fault: Any, *, of_padding: bool
) -> tuple[list[dict[str, Any]], PaddingLedger]:
    """Return the findings of a runner's first schedule with a fault planted, or of traffic.

    What padding holds is disturbed, and held against what is declared, for a fault `of_padding`:
    what came of that is returned too.
    """
    subject = lockstep.pair.subject
    assert isinstance(subject, SglangEngine)
    name = lockstep.trial.runner
    ledger = PaddingLedger(subject, lockstep.pair)
    ledger.at_once = len(ledger.entries) if of_padding else 0
    leg = Leg(lockstep, Evidence(name), OURS, ledger=ledger)
    trial, pair = lockstep.trial, lockstep.pair
    most, mode = max(trial.buckets), subject.mode
    with fault:
        leg.play(FIRST[name], STEP_PROPERTIES | {"dense_agreement"})
        if not leg.failing:
            for schedule in traffic_schedules(pair.config, most, trial.room, 1, 0, mode):
                leg.play(schedule)
    found = [finding.to_json() for finding in leg.findings()]
    broken = [policy for policy in ledger.policies() if policy["holds"] == "no"]
    found += [
        {"property": "declared_padding", "message": f"{policy['buffer']}: {policy['observed']}"}
        for policy in broken
    ]
    return found, ledger


def told_of(lockstep: Lockstep, label: str, fault: Any, name: str) -> Told:
    """Return what is said of a fault, and whether that names what it is in: `name`."""
    runner = lockstep.trial.runner
    try:
        findings, ledger = played(lockstep, fault, of_padding=label.endswith(TAIL))
    except Exception as error:  # It is no verdict, which is what the script reports.
        return Told(runner, label, found=False, named=False, said=f"no verdict: {error!r:.150}")
    words = [f"{finding['property']}: {finding['message']}" for finding in findings]
    named = any(name.rsplit(".", maxsplit=1)[-1] in said for said in words)
    return Told(runner, label, bool(words), named, words[0] if words else unseen(ledger, name))


def unseen(ledger: PaddingLedger, name: str) -> str:
    """Return what is said of a fault of a static input that nothing shows.

    Of one whose padding is kept, what other values there did: they are tried at each replay.
    """
    entry = ledger.entries.get(name)
    if entry is None or not entry.disturbed:
        return "no difference found"
    return f"no difference found; its padding, of {entry.disturbed} other values: {entry.verdict}"


def tell(engine: Engine, runner: str, share: int, shares: int) -> Iterator[Told]:
    """Yield what is said of each fault of one of so many shares of a runner's."""
    trial = trial_of(runner, RUNNERS[runner].presets[0], Kind.REPLAYED, "cpu")
    if runner in SPECULATING:
        lockstep, _ = drafting_lockstep(engine, trial)
    else:
        lockstep = Lockstep(trial, engines=RunnerEngines(engine))
    subject: Any = lockstep.pair.subject
    clean = told_of(lockstep, "none", nullcontext(), "")
    if clean.found:
        raise RuntimeError(f"{runner} differs as it is: {clean.said}")
    ways = [(change, input_fault) for change in CHANGES]
    ways += [(change, bound_again) for change in REBINDINGS]
    for name in islice(subject.runner.statics(), share, None, shares):
        for change, plant in ways:
            counted = Planted()
            fault = plant(subject, name, change, counted)
            told = told_of(lockstep, f"{name}: {change}", fault, name)
            if counted.undone and not told.found:
                told.said += f"; the graph wrote it again in {counted.undone} of {counted.changed}"
            if counted.changed:
                yield told
    for label, fault in islice(code_faults(subject).items(), share, None, shares):
        yield told_of(lockstep, label, fault(), "")


def told_by_process(version: str, shares: int, of: tuple[str, int]) -> list[dict[str, Any]]:
    """Return what is said of a share of a runner's faults, tried in a process of its own."""
    runner, share = of
    with tempfile.TemporaryDirectory(prefix="paritybit-") as scratch:
        record = Path(scratch) / "told.json"
        part = ["--shares", str(shares), "--share", str(share)]
        command = [sys.executable, "-m", __spec__.name, version, "--runner", runner, *part]
        done = subprocess.run(
            [*command, "--here", "--record", str(record)],
            capture_output=True,
            text=True,
            check=False,
        )
        found: list[dict[str, Any]] = (
            json.loads(record.read_text())["told"] if record.exists() else []
        )
        if done.returncode:
            last = found[-1]["fault"] if found else "its start"
            lines = done.stderr.strip().splitlines() or ["no output"]
            said = f"the process ended with {done.returncode}: {lines[-1]}"
            what = f"share {share}, after {last}"
            found.append(asdict(Told(runner, what, found=False, named=False, said=said)))
        return found


def write(path: Path, version: str, told: Sequence[Mapping[str, Any]]) -> None:
    """Write what was said of each fault, as JSON."""
    made = {"environment": to_json(environment("cpu")), "engine": version, "told": list(told)}
    path.write_text(dump_json(made))


def write_table(path: Path, version: str, told: Sequence[Mapping[str, Any]]) -> None:
    """Write how many faults of each runner were found, and those that were not, as Markdown."""
    lines = [
        f"# Faults planted in release {version} of the engine",
        "",
        f"Tried on {datetime.now(timezone.utc):%Y-%m-%d} on a CPU:"
        f" `make planted-engine VERSION={version}`."
        " Found means that a property is violated, by name; it is named if what is said of it"
        " names the static input that is wrong.",
        "",
        "| runner | planted | found | of a static input | named |",
        "|---|---|---|---|---|",
    ]
    for runner in dict.fromkeys(one["runner"] for one in told):
        own = [one for one in told if one["runner"] == runner]
        inputs = [one for one in own if ": " in one["fault"]]
        counts = len(own), sum(one["found"] for one in own), len(inputs)
        named = sum(one["named"] for one in inputs)
        lines.append(f"| {runner} | {' | '.join(map(str, counts))} | {named} |")
    missed = [one for one in told if not one["found"]]
    lines += ["", f"Not found, {len(missed)} of {len(told)}:", ""]
    lines += [f"- {one['runner']}: {one['fault']}: {one['said']}" for one in missed]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Plant every fault in each runner, a process for each, and write a record and a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version")
    parser.add_argument("--runner", default="", help="Comma-separated runners (default: all)")
    parser.add_argument("--here", action="store_true", help="Try one runner in this process")
    parser.add_argument(
        "--workers",
        type=int,
        default=os.cpu_count(),
        help="Number of worker processes (default: one per core)",
    )
    parser.add_argument("--shares", type=int, default=1, help="Parts of each runner's faults (1)")
    parser.add_argument("--share", type=int, default=0, help="Which part is tried in this process")
    parser.add_argument("--record", type=Path, required=True)
    options = parser.parse_args(arguments)
    package = fetch(options.version).package
    if not options.here:
        asked = options.runner.split(",") if options.runner else RUNNERS
        runners = [name for name in asked if mentions(package / "srt", RUNNERS[name].word)]
        told = list[dict[str, Any]]()
        with ThreadPoolExecutor(options.workers) as pool:
            shares = [(name, share) for name in runners for share in range(options.shares)]
            parts = [
                pool.submit(told_by_process, options.version, options.shares, share)
                for share in shares
            ]
            for part in as_completed(parts):
                told += part.result()
                told.sort(key=lambda one: list(RUNNERS).index(one["runner"]))
                write(options.record, options.version, told)
                write_table(options.record.with_suffix(".md"), options.version, told)
    else:
        warnings.simplefilter("ignore")
        engine = load(package, dependencies_folder() / DEPENDENCIES, "cpu")
        faults = tell(engine, options.runner, options.share, options.shares)
        told = list[dict[str, Any]]()
        with suppress(RunnerLackingError):  # What an engine lacks cannot be got wrong.
            for one in faults:
                told.append(asdict(one))
                write(options.record, options.version, told)  # Whatever ends the process later.
    sys.stdout.write(f"{sum(one['found'] for one in told)} of {len(told)} faults found\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
