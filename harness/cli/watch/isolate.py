"""Isolates the changes of an engine that a finding needs.

An engine in a folder differs from a release, or from another folder, in the hunks of a diff. The
case of a finding is played again in copies of the engine in which some hunks are undone. Delta
debugging (Zeller and Hildebrandt, 2002) finds few hunks without which the finding does not appear.
"""

import math
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from paritybit.harness.cli.watch.plan import workers_of

from paritybit.drive.adapters import Adapter, Environment
from paritybit.engines import fetch
from paritybit.engines.fetch import EngineFolder
from paritybit.engines.hunks import Hunk, hunks_of, linked_copy, undo
from paritybit.launch.case import WatchCase
from paritybit.launch.schema import EngineChange
from paritybit.launch.words import plural

if TYPE_CHECKING:
    from paritybit.harness.cli.watch.run import WatchRun

LEAST = 120.0
"""Seconds for all findings, if less is left of the budget of a run."""

MOST_HUNKS = 3
"""The most changes that are reported for a cause."""

Undone = tuple[Hunk, ...]
"""The changes that are undone in a copy of an engine."""

Shows = Callable[[WatchCase, Sequence[Undone]], list[bool | None]]
"""Returns, for each copy of an engine, whether a case shows its finding. None: not known."""


@dataclass
class Copies:
    """Plays cases in copies of an engine until a time. `scratch` gets the copies."""

    run: "WatchRun"
    adapter: Adapter
    engine: Environment
    deadline: float
    scratch: Path
    made: dict[Undone, Path] = field(default_factory=dict)

    def show(self, case: WatchCase, copies: Sequence[Undone]) -> list[bool | None]:
        """Return, for each copy, whether a case shows its finding. Plays some at a time."""
        for undone in copies:
            if undone and undone not in self.made:
                target, home = self.scratch / str(len(self.made)), self.engine.source
                linked_copy(home, target, undo(home, undone))
                self.made[undone] = target
        with ThreadPoolExecutor(workers_of(str(self.run.options.device))) as pool:
            return list(pool.map(lambda undone: self.shows(case, undone), copies))

    def shows(self, case: WatchCase, undone: Undone) -> bool | None:
        """Return whether a case shows its finding in a copy.

        Returns None if the engine did not end by itself, or ran fewer forward passes than before.
        """
        engine = replace(self.engine, source=self.made.get(undone, self.engine.source))
        outcome = self.run.trial(case, self.adapter, engine, self.deadline - time.monotonic())
        if outcome is None or case.key in outcome.tally.findings:
            return None if outcome is None else True
        whole = outcome.tally.count("forwards") >= (case.forward or 0)
        return False if outcome.code == 0 and not outcome.stopped and whole else None


def isolated(case: WatchCase, changes: Sequence[Undone], shows: Shows) -> Undone:
    """Return few changes that a finding needs, or none if the case does not show that it does.

    `changes` are tried in turn, to be undone together. Each of several that are returned is needed:
    with all others undone, the case shows the finding.
    """
    for mine in case.with_few_checks():
        found, *absent = shows(mine, [(), *changes])
        if found:
            without = (one for one, seen in zip(changes, absent, strict=True) if seen is False)
            few = fewest(next(without, ()), partial(shows, mine))
            rests = [tuple(one for one in few if one is not other) for other in few]
            return few if len(few) == 1 or all(shows(mine, rests)) else ()
    return ()


def fewest(changes: Undone, shows: Callable[[Sequence[Undone]], list[bool | None]]) -> Undone:
    """Return few of some changes without which a finding does not appear, by delta debugging."""
    parts = 2
    while len(changes) > 1:
        size = math.ceil(len(changes) / parts)
        chunks = [changes[at : at + size] for at in range(0, len(changes), size)]
        rests = [tuple(one for one in changes if one not in chunk) for chunk in chunks]
        smaller = next(gone(chunks, shows), None)
        if smaller is None and len(chunks) > 2:
            smaller = next(gone(rests, shows), None)
        if smaller is not None:
            changes, parts = smaller, 2 if smaller in chunks else max(2, parts - 1)
        elif parts >= len(changes):
            break
        else:
            parts = min(len(changes), 2 * parts)
    return changes


def gone(
    copies: Sequence[Undone], shows: Callable[[Sequence[Undone]], list[bool | None]]
) -> Iterator[Undone]:
    """Yield the copies in which a finding does not appear. Plays two of them at a time."""
    for at in range(0, len(copies), 2):
        pair = copies[at : at + 2]
        yield from (one for one, seen in zip(pair, shows(pair), strict=True) if seen is False)


def isolate(
    run: "WatchRun", adapter: Adapter, engine: Environment, base: EngineFolder, seconds: float
) -> Mapping[str, tuple[EngineChange, ...]]:
    """Return the changes since `base` that the worst findings need, by the keys of their cases.

    Shows which findings were tried without a result.
    """
    cases = {name: one for name, one in run.worst().items() if run.again.get(one.key, True)}
    hunks = tuple(hunks_of(engine.source / adapter.package.name, base.package)) if cases else ()
    if not hunks:
        return {}
    number = plural(len(hunks), "change")
    run.display.put(f"looking for the change that causes it, of {number} since {base.name}")
    deadline, seen = time.monotonic() + max(LEAST, seconds), list[Undone]()
    needed = dict[str, tuple[EngineChange, ...]]()
    with tempfile.TemporaryDirectory(prefix="paritybit-") as scratch:
        copies = Copies(run, adapter, engine, deadline, Path(scratch).resolve())
        for name, case in cases.items():
            changes = isolated(case, [*seen[-1:], hunks], copies.show)
            if 0 < len(changes) <= MOST_HUNKS:
                seen.append(changes)
                needed[case.key] = tuple(
                    EngineChange(one.source, one.function, base.name) for one in changes
                )
            else:
                run.display.put(f"{name}: the change that causes it was not found")
        cached = fetch.dependencies_folder() / "pycache" / str(copies.scratch).lstrip("/")
        shutil.rmtree(cached, ignore_errors=True)
    return needed
