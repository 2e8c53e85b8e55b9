"""Makes and writes the record of `paritybit watch`, without torch, whose import is slow."""

import importlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec.structs import replace

from paritybit.drive.configs import SettingPair
from paritybit.harness.lockstep.tracebacks import without_paths
from paritybit.harness.records.codec import save
from paritybit.harness.records.environment import environment
from paritybit.launch import changes as since
from paritybit.launch.journals import Journals
from paritybit.launch.known import Known
from paritybit.launch.schema import ConfigRecord, EngineChange, WatchRecord
from paritybit.launch.scope import CUT_SHORT, ENDED, PAIRS, SERVED_PAIRS, not_tried
from paritybit.launch.tally import Tally
from paritybit.launch.verdict import (
    ConfigOutcome,
    ending,
    missing_counts,
    open_questions,
    verdict_of,
)


@dataclass(frozen=True)
class WatchOptions:
    """The options of `watch`. `checks` is None for all.

    - `command`: the command line of paritybit, for the record.
    - `program`: the user's command, if there is one.
    - `base`: the engine whose differences from `engine` may be the cause of a finding.
    - `parallel`: the numbers of ranks that are greater than 1.
    - `overhead`: the percentage of the time that checks may take, or 0 for no limit.
    - `warn`: whether a run without a verdict ends with exit code 0.
    """

    command: str
    program: Sequence[str] = ()
    every: int = 1
    overhead: float = 0.0
    checks: tuple[str, ...] | None = None
    engine: str | None = None
    base: str | None = None
    model: str | None = None
    device: str | None = None
    seed: int | None = None
    seconds: int | None = None
    settings: Sequence[str] = ()
    parallel: Mapping[str, int] = field(default_factory=dict)
    keep_going: bool = False
    known: Known = field(default_factory=Known)
    warn: bool = False
    out: Path = Path()
    started: str | None = None
    revision: str | None = None


def check_names() -> tuple[str, ...]:
    """Return the names of all checks."""
    return tuple(importlib.import_module("paritybit.watch.checks").CHECKS)


def make(
    options: WatchOptions,
    outcomes: Sequence[ConfigOutcome],
    interrupted: str | None = None,
    not_run: Mapping[str, str] = MappingProxyType({}),
    pairs: Set[SettingPair] = frozenset(),
    changes: Mapping[str, tuple[EngineChange, ...]] = MappingProxyType({}),
) -> WatchRecord:
    """Return the record of a run.

    `interrupted` is the name of the signal that interrupted it, or None. `not_run` has the reasons
    why configurations did not run, and `pairs` the pairs of settings of the covering array.
    `changes` are those of the engine that findings need, by their keys. Findings of the same check
    and cause need the same ones.
    """
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        counts.update(outcome.tally.counts())
    found = [
        replace(
            one,
            number=max(outcome.tally.number(key), 1),
            config=outcome.name,
            after=outcome.tally.after(key),
            ranks=outcome.tally.ranks_with(key),
        )
        for outcome in outcomes
        for key, one in outcome.tally.findings.items()
    ]
    needed = {(one.check, one.cause_name): changes[one.key] for one in found if one.key in changes}
    findings = tuple(
        replace(
            one,
            known=options.known.where(one),
            changes=needed.get((one.check, one.cause_name), ()),
        )
        for one in found
    )
    unselected = [] if options.checks is None else sorted({*check_names()} - {*options.checks})
    unseen = {one.name: why for one in outcomes if (why := next(missing_counts(one), None))}
    if pairs:
        seen = (one for one in outcomes if one.name not in unseen)
        served = {frozenset(two) for one in seen for two in combinations(one.values, 2)}
        counts.update({PAIRS: len(pairs), SERVED_PAIRS: len(served & pairs)})
    cut = {one.name: ENDED if one.judged else CUT_SHORT for one in outcomes if one.short}
    configs = {**not_run, **cut, **unseen}
    ran = Counter[str]()
    for outcome in outcomes:
        ran.update(outcome.tally.kernels)
    idle_kernels = sorted(name for name, times in ran.items() if not times)
    ranks: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        for name, mine in outcome.tally.of_ranks().items():
            ranks.setdefault(name, Counter()).update(mine)
    untried = tuple(not_tried(counts, unselected, configs, idle_kernels, ranks))
    undecided = tuple(dict.fromkeys(open_questions(outcomes)))
    verdict, message = verdict_of(findings, undecided, counts, untried, interrupted)
    record = WatchRecord(
        environment=environment(),
        command=options.command,
        verdict=verdict,
        message=message,
        interrupted=interrupted,
        engine=options.engine,
        model=options.model,
        device=options.device,
        seed=options.seed,
        every=rate(counts) if options.overhead else options.every,
        checks=options.checks,
        seconds=round(sum(outcome.seconds for outcome in outcomes), 1),
        counts=dict(counts),
        findings=findings,
        undecided=undecided,
        configs=tuple(map(config_of, outcomes)),
        not_tried=untried,
        started=options.started,
        revision=options.revision,
        overhead=options.overhead,
    )
    baseline = options.known.baseline
    if baseline is None:
        return record
    return replace(record, baseline=since.label(baseline), changes=since.changes(baseline, record))


def of_journals(folder: Path) -> WatchRecord | None:
    """Return the record of a run that was killed before it wrote one, or None without journals."""
    outcomes, starts = list[ConfigOutcome](), list[Mapping[str, Any]]()
    for place in (folder, *sorted((folder / "configs").glob("*/"))):
        journals, tally, times = Journals(place), Tally(), list[float]()
        for process, entry in journals.entries():
            tally.take(process, entry)
            time = entry.get("time")
            times += [time] if isinstance(time, float) and math.isfinite(time) else []
            starts += [entry] if entry["kind"] == "start" else []
        if not tally.processes:
            continue
        tally.finish()
        tally.undecided |= dict.fromkeys(journals.incomplete())
        seconds = max(times, default=0.0) - min(times, default=0.0)
        name = "command" if place == folder else place.name
        log = None if place == folder else f"configs/{place.name}/engine.log"
        outcomes.append(ConfigOutcome(name, (), tally, None, seconds, log=log))
    if not outcomes:
        return None
    chosen = [one["checks"] for one in starts if isinstance(one.get("checks"), list)]
    checks = tuple(name for name in check_names() if any(name in names for names in chosen))
    rates = [one["every"] for one in starts if type(one.get("every")) is int]
    limits = [one["overhead"] for one in starts if type(one.get("overhead")) is float]
    engines = {f"{one.get('engine')}=={one.get('release')}" for one in starts}
    options = WatchOptions(
        command="unknown: this record was made from journals",
        every=max(rates, default=1),
        overhead=max(limits, default=0.0),
        checks=checks if 0 < len(checks) < len(check_names()) else None,
        engine=engines.pop() if len(engines) == 1 and outcomes[0].name != "command" else None,
    )
    return make(options, outcomes)


def rate(counts: Mapping[str, int]) -> int:
    """Return N if about one in N forwards was checked."""
    checked = counts.get("forwards", 0)
    return max(1, round((checked + counts.get("skipped_forwards", 0)) / max(1, checked)))


def config_of(outcome: ConfigOutcome) -> ConfigRecord:
    """Return the record of a configuration."""
    tally, settings = outcome.tally, {**outcome.tally.settings}
    if devices := {str(one.device).partition(":")[0] for one in tally.started}:
        settings["device"] = sorted(devices)
    return ConfigRecord(
        name=outcome.name,
        arguments=outcome.arguments,
        ending=ending(outcome),
        code=outcome.code,
        seconds=round(outcome.seconds, 1),
        counts=tally.counts(),
        settings={name: tuple(values) for name, values in settings.items()},
        stand_ins=dict(tally.stand_ins),
        processes=tally.started,
    )


def write(data: Any, path: Path) -> None:
    """Write data as JSON, without the paths of this machine. Raises as `save` does."""
    save(without_paths(msgspec.to_builtins(data)), path)
