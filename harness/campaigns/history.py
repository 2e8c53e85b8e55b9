"""The upstream history: the bugs at each point, and the properties that must detect them.

The table comes from the reports of five upstream changes. The campaign checks that the properties
are violated where the reports describe a bug, and nowhere else.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from paritybit.harness.campaigns.executor import Campaign, Ended
from paritybit.harness.campaigns.hunt import HuntResult, play_all, time_limit
from paritybit.harness.campaigns.regress import RunConfig, trial_of
from paritybit.harness.campaigns.spreading.backends import execute
from paritybit.harness.campaigns.task import pieces_of
from paritybit.harness.checks.play import DeviceLostError, Lockstep
from paritybit.harness.checks.table import PROPERTIES, STEP_PROPERTIES
from paritybit.harness.errors import headline
from paritybit.harness.lockstep.config import TrialConfig, catalogued
from paritybit.harness.lockstep.scale.shapes import one_size
from paritybit.harness.machine.workers import Workers, sparing
from paritybit.subjects.runners import RUNNERS
from paritybit.subjects.toggles import LocationScheme
from rich.progress import Progress

SEED = 0
SCHEDULES = 3
PIECES = 1
"""The numbers of generated schedules and slices of traffic per runner and point."""

SECONDS = time_limit(SCHEDULES + PIECES)
"""The time limit in seconds for one runner at one point."""

TOLD_TWICE = frozenset({"read_frame", "live_inputs"})

CONSEQUENCES: Mapping[str, frozenset[str]] = {
    "kv_parity": TOLD_TWICE | {"write_frame", "logits_parity", "token_trajectory"},
    "hermetic_replay": TOLD_TWICE,
}
"""Properties that may be violated in addition to a given one, because of the same wrong bytes."""

SCATTERED = frozenset({"kv_parity", "write_frame"})
"""Properties that may be violated in addition if padded rows of a draft use a stale request row.

They write their candidates to that request's row of the draft table.
"""

DECODE = ("decode", "target_verify")
"""Runners that are one class upstream, and share its bugs."""

PREFILL = ("piecewise", "breakable")

PADDED = (*DECODE, "cpu_graph", "eagle_draft_extend")
"""The runners that 26292 fixed, except `frozen_kv_mtp`, which did not exist from the start."""

EVERY = tuple(RUNNERS)


@dataclass(frozen=True)
class Point:
    """The engine after one upstream change.

    - `bugs`: the runners that had each bug.
    - `red`: the runners on which each property must be violated.
    - `hidden`: the runners on which another bug makes the worlds diverge first.
    - `absent`: the runners that did not exist yet.
    """

    name: str
    merged: str
    scheme: LocationScheme
    bugs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    red: Mapping[str, Sequence[str]] = field(default_factory=dict)
    hidden: Mapping[str, Sequence[str]] = field(default_factory=dict)
    absent: Sequence[str] = ()

    @property
    def runners(self) -> tuple[str, ...]:
        """The runners that existed."""
        return tuple(name for name in RUNNERS if name not in self.absent)

    def trial(self, runner: str, device: str) -> TrialConfig:
        """Return the trial of a runner at this point."""
        bugs = catalogued(bug for bug, runners in self.bugs.items() if runner in runners)
        trial = trial_of(RunConfig(device), runner, self.scheme)
        return replace(one_size(trial), bugs=bugs)

    def expected(self, runner: str) -> frozenset[str]:
        """Return the properties that must be violated on a runner."""
        return frozenset(name for name, runners in self.red.items() if runner in runners)


HISTORY = (
    Point(
        name="before 23552",
        merged="",
        scheme=LocationScheme.PER_LAYER,
        bugs={"req_pool_pad": PADDED},
        red={"hermetic_replay": PADDED},
        absent=("frozen_kv_mtp",),
    ),
    Point(
        name="after 23552",
        merged="2026-04-24",
        scheme=LocationScheme.PRESET,
        bugs={
            "swa_pad": DECODE,
            "swa_int64": (*DECODE, *PREFILL),
            "req_pool_pad": PADDED,
        },
        red={
            "kv_parity": (*DECODE, *PREFILL),
            "index_contract": (*DECODE, *PREFILL),
            "hermetic_replay": ("cpu_graph", "eagle_draft_extend"),
        },
        hidden={"hermetic_replay": DECODE},
        absent=("frozen_kv_mtp",),
    ),
    Point(
        name="after 24743",
        merged="2026-05-09",
        scheme=LocationScheme.PRESET,
        bugs={"swa_int64": ("breakable",), "req_pool_pad": (*PADDED, "frozen_kv_mtp")},
        red={
            "kv_parity": ("breakable",),
            "index_contract": ("breakable",),
            "hermetic_replay": (*PADDED, "frozen_kv_mtp"),
        },
    ),
    Point(
        name="after 25824",
        merged="2026-05-20",
        scheme=LocationScheme.MEMO,
        bugs={"loc_memo_warning": EVERY, "req_pool_pad": (*PADDED, "frozen_kv_mtp")},
        red={"log_hygiene": EVERY, "hermetic_replay": (*PADDED, "frozen_kv_mtp")},
    ),
    Point(
        name="after 26152",
        merged="2026-05-23",
        scheme=LocationScheme.MEMO,
        bugs={"req_pool_pad": (*PADDED, "frozen_kv_mtp")},
        red={"hermetic_replay": (*PADDED, "frozen_kv_mtp")},
    ),
    Point(name="after 26292", merged="2026-05-25", scheme=LocationScheme.MEMO),
)
"""The engine before and after the five changes.

`frozen_kv_mtp` exists since 24743, because the same release has both first. The built-in engine's
store reinterprets an int64 location. With swa_int64 the worlds therefore diverge in the first
prefill, which hides the stale rows of decode.
"""


def watch(trial: TrialConfig) -> HuntResult:
    """Play all schedules and slices of traffic of a trial, even after a violation."""
    lockstep = Lockstep(trial, STEP_PROPERTIES)
    hunt_result = HuntResult()
    try:
        hunt_result = play_all(lockstep, SEED, SCHEDULES)
        for piece in pieces_of(trial, PIECES, SEED):
            hunt_result.add(lockstep.play(piece))
    except DeviceLostError as lost:
        hunt_result.add(lost.outcome)
    return hunt_result


def play_history(
    device: str, workers: Workers, history: Sequence[Point] = HISTORY
) -> dict[str, Any]:
    """Play each runner at each point, and compare the violated properties with the table.

    Points at which a runner is unchanged are one trial, which is played once.
    """
    started = time.perf_counter()
    trials = dict.fromkeys(
        point.trial(runner, device) for point in history for runner in point.runners
    )
    seen: dict[TrialConfig, HuntResult] = {}
    campaign = Campaign(
        watch, shared=lambda trial: trial, seconds=lambda _: SECONDS, label=attrgetter("runner")
    )
    with Progress(transient=True) as progress:
        bar = progress.add_task("runners at the points of the history", total=len(trials))

        def on_end(ended: Ended[TrialConfig, HuntResult]) -> None:
            seen[ended.task] = ended.result or HuntResult(error=ended.error)
            progress.advance(bar)

        execute(campaign, trials, sparing(workers, device), on_end)
    points = [_point(point, device, seen) for point in history]
    wrong = [point["name"] for point in points if not point["as_said"]]
    return {
        "seed": SEED,
        "schedules": SCHEDULES,
        "pieces_of_traffic": PIECES,
        "properties": [name for name in PROPERTIES if name in STEP_PROPERTIES],
        "trials": len(trials),
        "runners": list(RUNNERS),
        "points": points,
        "seconds": round(time.perf_counter() - started, 1),
        "errors": _errors(seen),
        "undecided": bool(wrong)
        and all(len(point["open"]) == len(point["odd"]) for point in points),
        "as_hoped": not wrong,
        "message": f"{len(points)} points; unexpected results: {', '.join(wrong) or 'none'}",
    }


def _errors(seen: Mapping[TrialConfig, HuntResult]) -> list[dict[str, str]]:
    """Return the tracebacks of the trials that an internal error ended early."""
    return [
        {"trial": f"{'+'.join(trial.bugs) or 'clean'}@{trial.runner}", "error": hunt_result.error}
        for trial, hunt_result in seen.items()
        if hunt_result.error is not None
    ]


def _point(point: Point, device: str, seen: Mapping[TrialConfig, HuntResult]) -> dict[str, Any]:
    """Return the results at a point as JSON data."""
    found = {runner: seen[point.trial(runner, device)] for runner in point.runners}
    red = {
        name: {
            runner: count
            for runner, hunt_result in found.items()
            if (count := hunt_result.violated[name])
        }
        for name in PROPERTIES
    }
    messages = {runner: _odd(point, runner, hunt_result) for runner, hunt_result in found.items()}
    odd = [f"{runner}: {message}" for runner, message in messages.items() if message]
    return {
        "name": point.name,
        "merged": point.merged,
        "scheme": str(point.scheme),
        "bugs": {name: list(runners) for name, runners in point.bugs.items()},
        "absent": list(point.absent),
        "must_be_red": {name: list(runners) for name, runners in point.red.items()},
        "hidden": {name: list(runners) for name, runners in point.hidden.items()},
        "red": {name: runners for name, runners in red.items() if runners},
        "played": {
            runner: {
                "schedules": hunt_result.schedules,
                "steps": hunt_result.steps,
                "replays": hunt_result.replays,
                "padded_replays": hunt_result.padded_replays,
            }
            for runner, hunt_result in found.items()
        },
        "odd": odd,
        "open": [runner for runner, hunt_result in found.items() if _left_open(hunt_result)],
        "as_said": not odd,
    }


def _left_open(hunt_result: HuntResult) -> bool:
    """Whether a result is open: an internal error, or no padded replay."""
    return bool(hunt_result.error) or not (hunt_result.padded_replays or hunt_result.violated)


def _odd(point: Point, runner: str, hunt_result: HuntResult) -> str:
    """Describe how a runner's result differs from the table. Empty if it does not."""
    if hunt_result.error is not None:
        return f"failed: {headline(hunt_result.error)}"
    if not hunt_result.padded_replays:
        return "no padded batch was replayed"
    wanted, found = point.expected(runner), frozenset(hunt_result.violated)
    allowed = wanted.union(*(CONSEQUENCES.get(name, ()) for name in wanted))
    if RUNNERS[runner].mode.drafts and "hermetic_replay" in wanted:
        allowed |= SCATTERED
    message = [f"{name} was not violated" for name in PROPERTIES if name in wanted - found]
    return ", ".join(
        message + [f"{name} was violated" for name in PROPERTIES if name in found - allowed]
    )
