"""The command `watch`. It runs the user's command, or serves an engine with configurations."""

import os
import re
import secrets
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from itertools import count
from math import prod
from pathlib import Path
from typing import Any

from paritybit.harness.cli.exit_codes import FINDING
from paritybit.harness.cli.folders import run_folder
from paritybit.harness.cli.watch.display import Display
from paritybit.harness.cli.watch.finish import finish
from paritybit.harness.cli.watch.isolate import isolate
from paritybit.harness.cli.watch.plan import OVER, ConfigTurn, Plan, configs_of, workers_of
from paritybit.harness.errors import (
    CannotRunError,
    MalformedError,
    no_verdict,
    quote,
    report_error,
    require_known,
)
from paritybit.harness.machine.gpus import device_of
from paritybit.harness.machine.stopping import heard_by
from paritybit.harness.records.environment import commit_of

from paritybit.drive.adapters import Adapter, Environment, adapter_of
from paritybit.drive.configs import LACKING, Config, SettingPair, Table
from paritybit.drive.job import Job, command, comparisons
from paritybit.drive.models import MODELS
from paritybit.drive.served import PARALLEL
from paritybit.drive.warm import Warm, warm
from paritybit.engines import fetch
from paritybit.engines.fetch import EngineFolder, with_version
from paritybit.engines.hunks import nearest
from paritybit.inject import environment_with, prepare
from paritybit.launch import record as records
from paritybit.launch.case import WatchCase, cases_of, with_cases
from paritybit.launch.command import Running
from paritybit.launch.follow import Follower, StopLimits, Stops
from paritybit.launch.journals import Journals
from paritybit.launch.record import WatchOptions, check_names
from paritybit.launch.schema import EngineChange, RecordedFinding
from paritybit.launch.tally import Tally
from paritybit.launch.verdict import ConfigOutcome
from paritybit.launch.words import causes_of, plural
from paritybit.watch.settings import Settings

COMMAND = "command"
"""The name of the only configuration of a user's command."""

ALLOWANCE = 120.0
"""Additional seconds for a configuration to start, and also to become idle."""

RAISED = re.compile(r"^[\w.]+(?:Error|Exception): .*$", re.MULTILINE)
"""The last line of a Python traceback."""

LONGEST_NAME = 100
"""The most characters of a configuration's name in the name of its folder."""

ONLY_ENGINE = ("base", "model", "device", "seed", "seconds", "settings", "keep_going")

SECONDS = 300
"""The default budget of a run with --engine in seconds, with the starts of the engine."""

MOST_CAUSES = 3
"""The most causes whose cases are replayed, and whose changes of the engine are looked for."""

AFTER_FINDING = 5.0
"""Seconds that a run continues after the first finding. Later findings may show its effects."""


@dataclass
class WatchRun:
    """A run in progress.

    `outcomes` has the configurations that ended, and `not_run` why others did not run. `pairs` are
    the pairs of settings that the covering array has. `found` is whether an unknown finding was
    shown. `again` has whether a replay showed a finding, and `changes` those of the engine that
    findings need, by the keys of findings. `key` is that of `Settings`.
    """

    folder: Path
    imports: Path
    display: Display
    stops: Stops
    options: WatchOptions
    outcomes: list[ConfigOutcome] = field(default_factory=list)
    not_run: dict[str, str] = field(default_factory=dict)
    pairs: frozenset[SettingPair] = frozenset()
    found: bool = False
    again: dict[str, bool] = field(default_factory=dict)
    changes: Mapping[str, tuple[EngineChange, ...]] = field(default_factory=dict)
    key: str = field(default_factory=secrets.token_hex, repr=False)

    def settings(self, out: Path) -> str:
        """Return the value of PARITYBIT_WATCH for a folder with journals."""
        options = self.options
        every = max(2, options.every) if options.overhead else options.every
        given = str(out.resolve()), options.checks, every, options.overhead
        return Settings(*given, key=self.key).text()

    def new_folder(self, name: str) -> Path:
        """Create the folder of a configuration. Its name is short, as some file systems want it."""
        short = re.sub(r"[^\w.-]+", "-", name)[:LONGEST_NAME]
        for more in count(1):
            folder = self.folder / "configs" / (short if more == 1 else f"{short}-{more}")
            with suppress(FileExistsError):
                folder.mkdir(parents=True)
                break
        return folder

    def watch(
        self,
        config: Config,
        words: Sequence[str],
        variables: Mapping[str, str],
        limits: StopLimits,
        warm: Warm | None = None,
    ) -> ConfigOutcome:
        """Serve a configuration in its own folder, which also gets its output."""
        out = self.new_folder(config.name)
        variables = environment_with(variables, self.imports, self.settings(out))
        with (out / "engine.log").open("wb") as log:
            running = Running(words, variables, log, out, warm)
            outcome = self.followed(running, config, out, limits)
        file = out / "engine.log"
        errors = RAISED.findall(file.read_text(encoding="utf-8", errors="replace"))
        error = errors[-1] if errors else ""
        outcome = replace(outcome, log=str(file.relative_to(self.folder)), error=error)
        if outcome.code == LACKING:
            self.not_run[config.name] = last_line(file)
        else:
            self.outcomes.append(outcome)
        return outcome

    def play(
        self,
        case: WatchCase,
        adapter: Adapter,
        engine: Environment,
        seconds: float,
        warm: Warm | None = None,
    ) -> ConfigOutcome:
        """Serve an engine the script of a case until its finding appears, or the script ends."""
        job = Job(case.script.settings, case.script.waves)
        words, variables = command(adapter, engine, job, self.imports)
        limits = StopLimits(seconds, after_finding=0.0, sought=case.key)
        return self.watch(Config(case.config), words, variables, limits, warm)

    def trial(
        self,
        case: WatchCase,
        adapter: Adapter,
        engine: Environment,
        seconds: float,
        warm: Warm | None = None,
    ) -> ConfigOutcome | None:
        """Play a case without showing it on the terminal. Returns None without time for it."""
        if seconds <= 0 or self.stops.received is not None:
            return None
        display = Display()
        display.console.quiet = True
        options = replace(self.options, checks=case.checks, every=case.every, overhead=0.0)
        own = replace(self, folder=self.imports, display=display, options=options)
        own = replace(own, outcomes=[], not_run={})
        return own.play(case, adapter, engine, seconds, warm)

    def worst(self) -> dict[str, WatchCase]:
        """Return the cases of the worst findings that are not known, by name."""
        record = records.make(self.options, self.outcomes)
        cases = cases_of(record, self.outcomes)
        roots = causes_of(with_cases(record, cases).findings)
        found = (root.findings[0] for root in roots)
        names = [one.case for one in found if one.known is None and one.case is not None]
        return {name: cases[name] for name in names[:MOST_CAUSES]}

    def followed(
        self, running: Running, config: Config, out: Path, limits: StopLimits
    ) -> ConfigOutcome:
        """Follow a running command, and return its outcome."""

        def show(tally: Tally, finding: RecordedFinding | None) -> None:
            self.found |= finding is not None and limits.counts(finding)
            self.display.show(config.name if config.name != COMMAND else "", tally, finding)

        following = Follower(running, Journals(out), self.stops, show, limits)
        tally = following.follow()
        return ConfigOutcome(
            name=config.name,
            arguments=config.arguments,
            values=config.values,
            tally=tally,
            code=running.process.wait(),
            seconds=following.seconds,
            starting=following.starting or 0.0,
            replays=config.replays,
            stopped=running.asked_to_stop,
            too_long=following.too_long,
        )


def last_line(log: Path) -> str:
    """Return the last line of a log that is not empty."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return next(filter(str.strip, reversed(lines)), "no reason was given").strip()


def run_watch(options: WatchOptions) -> int:
    """Watch a command, or an engine with generated requests, and return the exit code.

    Once a finding that is not known was shown, the exit code is FINDING, whatever happens.
    """
    require_sense(options)
    now, begun = datetime.now(timezone.utc).isoformat(timespec="seconds"), time.monotonic()
    options, server = replace(options, started=now), None
    if options.engine is not None:
        options, server = prepared(options, options.engine)
    display, stops = Display(stderr=server is None), Stops()
    run: WatchRun | None = None
    try:
        with (
            tempfile.TemporaryDirectory(prefix="paritybit-") as scratch,
            run_folder(options.out) as folder,
            heard_by(stops.hear),
        ):
            prepare(Path(scratch))
            run = WatchRun(folder, Path(scratch), display, stops, options)
            if server is None:
                watch_command(run)
            else:
                server.serve(run)
                server.isolate(run, begun + float(options.seconds or SECONDS) - time.monotonic())
            return finish(run)
    except BaseException as error:  # Removing the folder may fail, too.
        if run is None or not run.found:
            raise
        known_kinds = isinstance(error, MalformedError | CannotRunError)
        why = str(error) if known_kinds else no_verdict(error)
        why = "interrupted" if isinstance(error, KeyboardInterrupt) else why
        return report_error(f"there are findings, but their report is not complete: {why}", FINDING)


def watch_command(run: WatchRun) -> None:
    """Watch the user's command."""
    variables = environment_with(os.environ, run.imports, run.settings(run.folder))
    running = Running(run.options.program, variables)
    limits = StopLimits(known=run.options.known)
    run.outcomes.append(run.followed(running, Config(COMMAND), run.folder, limits))


def prepared(options: WatchOptions, spec: str) -> tuple[WatchOptions, "ConfigServer"]:
    """Return the options with their defaults, and what serves the engine."""
    device, seed, spec = device_of(options.device or "auto"), options.seed or 0, with_version(spec)
    adapter = adapter_of(spec)
    if options.base is not None and fetch.package_of(options.base) != adapter.package:
        raise MalformedError(f"--base {quote(options.base)} is not {adapter.package.name}")
    if options.model is not None:
        require_known("model", options.model, MODELS)
    for name in options.parallel:
        if name not in adapter.settings.SEVERAL:
            raise MalformedError(f"{adapter.package.name} is not served with {PARALLEL[name]}")
    try:
        several = [name for name, size in options.parallel.items() if size > 1]
        table = adapter.table.on(device, options.model).with_ranks(several, device)
    except ValueError as error:
        raise MalformedError(str(error)) from error
    configs = configs_of(table, seed, options.settings)
    engine = adapter.prepare(spec)
    base = None if options.base is None else fetch.find(options.base)
    revision = commit_of(Path(spec))
    options = replace(options, engine=spec, device=device, seed=seed, revision=revision)
    return options, ConfigServer(adapter, engine, configs, table, base)


@dataclass
class ConfigServer:
    """Serves an engine with configurations.

    `base` is the engine of --base. `found` has the times of all findings. `compared` has the models
    whose requests were compared with themselves alone, or are now.
    """

    adapter: Adapter
    engine: Environment
    configs: Sequence[Config]
    table: Table
    base: EngineFolder | None = None
    found: list[float] = field(default_factory=list)
    compared: set[str] = field(default_factory=set)

    def serve(self, run: WatchRun) -> None:
        """Serve the configurations, some of them at a time."""
        device, run.pairs = str(run.options.device), self.table.array.pairs
        seconds = float(run.options.seconds or SECONDS)
        workers = workers_of(device, prod(run.options.parallel.values()))
        plan = Plan(self.configs, seconds, workers, named=bool(run.options.settings))
        number = plural(len(self.configs), "configuration")
        run.display.put(f"watch {self.engine.name} on {device}: {number}, {seconds:.0f} s")
        for lacking in self.table.lacks:
            run.display.put(f"not served with these ranks: {lacking}")
        with ExitStack() as stack, ThreadPoolExecutor(workers) as pool:
            scratches = (tempfile.mkdtemp(dir=run.imports) for _ in range(workers))
            warms = [stack.enter_context(warm(Path(one), device)) for one in scratches]
            for done in [pool.submit(self.work, run, plan, one) for one in warms]:
                done.result()
            found = [*run.worst().values()] if run.found else []
            if found:
                run.display.put(f"replaying {plural(len(found), 'case')} in the time that is left")
            shares = [(found[number::workers], one) for number, one in enumerate(warms)]
            for done in [pool.submit(self.replay, run, plan.ends, *share) for share in shares]:
                done.result()
        run.not_run |= {config.name: OVER for config in plan.left if config.name not in run.not_run}
        order = [config.name for config in self.configs]
        run.outcomes.sort(key=lambda outcome: order.index(outcome.name))

    def replay(
        self, run: WatchRun, until: float, cases: Sequence[WatchCase], importers: Warm | None
    ) -> None:
        """Note which of some cases show their findings again, for as many as there is time."""
        for case in cases:
            left = until - time.time()
            outcome = run.trial(case, self.adapter, self.engine, left, importers)
            shown = outcome is not None and case.key in outcome.tally.findings
            if outcome is not None and (shown or (outcome.code == 0 and not outcome.stopped)):
                run.again[case.key] = shown

    def isolate(self, run: WatchRun, seconds: float) -> None:
        """Look for the changes of the engine that findings need, unless the run was interrupted.

        Without --base, they are those of a folder since the most similar release.
        """
        kind, spec = self.adapter.package, str(run.options.engine)
        if not run.found or run.stops.received is not None:
            return
        try:
            base = self.base
            if base is None and fetch.version_in(spec, kind) is None:
                base = nearest(self.engine.source / kind.name, kind)
            if base is not None:
                run.changes = isolate(run, self.adapter, self.engine, base, seconds)
        except OSError as error:  # The findings are reported all the same.
            run.display.put(f"the change that causes it was not found: {error}")

    def work(self, run: WatchRun, plan: Plan, importers: Warm | None) -> None:
        """Serve configurations, one after another, in forks of a process of this thread's own.

        Unless the run keeps going, they end AFTER_FINDING seconds after the first finding.
        """
        after = None if run.options.keep_going else AFTER_FINDING
        while (why := reason_to_skip(run)) is None:
            turn = plan.next()
            if turn is None:
                return
            limits = StopLimits(None, after, known=run.options.known, found=self.found)
            plan.start = self.serve_config(run, turn, limits, importers)
        run.not_run |= {config.name: why for config in plan.left}

    def serve_config(
        self, run: WatchRun, turn: ConfigTurn, limits: StopLimits, importers: Warm | None
    ) -> float:
        """Serve a configuration, and return the seconds that the engine took to start."""
        given: dict[str, Any] = {
            **turn.config.settings,
            **run.options.parallel,
            "device": run.options.device,
            "seed": (run.options.seed or 0) + turn.config.number,
        }
        served = self.adapter.settings(**given)
        first = served.company() is not None and served.model not in self.compared
        self.compared |= {served.model} if first else set()
        job = replace(turn.job(served.scope()), compare=first)
        words, variables = command(self.adapter, self.engine, job, run.imports)
        left = max(0.0, turn.until - time.time())
        limits.seconds = min(turn.seconds + ALLOWANCE, left) + ALLOWANCE
        outcome = run.watch(turn.config, words, variables, limits, importers)
        if first and not outcome.tally.count(comparisons(served.model)):
            self.compared.discard(served.model)
        return outcome.starting


def reason_to_skip(run: WatchRun) -> str | None:
    """Return why no further configuration is served, or None."""
    if run.stops.received is not None:
        return "the run was interrupted before"
    found = [
        outcome.name
        for outcome in run.outcomes
        for finding in outcome.tally.findings.values()
        if run.options.known.where(finding) is None
    ]
    if found and not run.options.keep_going:
        return f"configuration {found[0]} had a finding; --keep-going tries the others, too"
    return None


def require_sense(options: WatchOptions) -> None:
    """Raise MalformedError unless there is one thing to watch, with options that apply to it."""
    if options.overhead and options.every > 1:
        raise MalformedError("--overhead chooses the forward passes, so --every does not apply")
    if options.engine is not None:
        if options.program:
            raise MalformedError("--engine takes no command: it generates requests itself")
        return
    if not options.program:
        raise MalformedError(
            "watch needs a command after --, as in: paritybit watch -- python serve.py; or "
            "--engine with a release"
        )
    if not options.program[0]:
        raise MalformedError("the command after -- is empty")
    if "==" in options.program[0]:
        name = quote(options.program[0])
        raise MalformedError(f"{name} is no command: use --engine for a release")
    for name in (*filter(lambda name: getattr(options, name), ONLY_ENGINE), *options.parallel):
        raise MalformedError(f"--{name.replace('_', '-')} needs --engine")


def checks_of(requested: Sequence[str]) -> tuple[str, ...] | None:
    """Return the names of the requested checks, or None for all.

    A name may have `-` or `_` in place of a space. Raises UnknownNameError for unknown names.
    """
    if not requested:
        return None
    names = check_names()
    found = tuple(re.sub("[-_]", " ", name.lower()) for name in requested)
    for name, plain in zip(requested, found, strict=True):
        require_known("check", plain if plain in names else name, names)
    return found
