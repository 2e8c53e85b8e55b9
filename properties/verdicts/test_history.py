"""Which properties the upstream bugs violate at each point of the upstream history.

A point is the state of sglang before or after a public change: its location scheme, and the bugs
that it had, with the runners that they affected.
"""

from contextlib import suppress
from dataclasses import replace

import pytest
from paritybit.harness.campaigns.plan import RunConfig, trial_of
from paritybit.harness.campaigns.search import EnoughDrawn, SearchResult, draw_schedules
from paritybit.harness.checks.play import SchedulePlayer
from paritybit.harness.checks.table import CHEAP_PROPERTIES
from paritybit.harness.lockstep.config import catalogued
from paritybit.harness.lockstep.observation import Observation
from paritybit.harness.schedules.schedule import Schedule, Step
from paritybit.subjects.bugs.catalogue import BUGS
from paritybit.subjects.runners import RUNNERS
from paritybit.subjects.toggles import LocationScheme

SCHEDULES = 3
"""The most schedules that are played until all bugs of a point are detected."""

DECODE, PREFILL = ("decode", "target_verify"), ("piecewise", "breakable")
PADDED = (*DECODE, "cpu_graph", "eagle_draft_extend")
"""The runners that change 26292 fixed, except `frozen_kv_mtp`, which exists since 24743."""

STALE_ROWS = (*PADDED, "frozen_kv_mtp")

HISTORY: dict[str, tuple[LocationScheme, dict[str, tuple[str, ...]]]] = {
    "before 23552": (LocationScheme.PER_LAYER, {"req_pool_pad": PADDED}),
    "after 23552": (
        LocationScheme.PRESET,
        {"swa_pad": DECODE, "swa_int64": (*DECODE, *PREFILL), "req_pool_pad": PADDED},
    ),
    "after 24743": (
        LocationScheme.PRESET,
        {"swa_int64": ("breakable",), "req_pool_pad": STALE_ROWS},
    ),
    "after 25824": (
        LocationScheme.MEMO,
        {"loc_memo_warning": tuple(RUNNERS), "req_pool_pad": STALE_ROWS},
    ),
    "after 26152": (LocationScheme.MEMO, {"req_pool_pad": STALE_ROWS}),
}
"""The points at which a runner had a bug. After 26292 none has one, as in any clean trial."""

CASES = [
    (point, runner)
    for point, (_, bugs) in HISTORY.items()
    for runner in RUNNERS
    if any(runner in affected for affected in bugs.values())
]

WRONG_BYTES = {"read_frame", "live_inputs", "write_frame", "logits_parity", "next_tokens"}
CONSEQUENCES = {
    "kv_parity": WRONG_BYTES,
    "index_contract": WRONG_BYTES | {"kv_parity"},
    "hermetic_replay": {"read_frame", "live_inputs"},
}
"""Properties that the same wrong bytes may also violate."""


@pytest.mark.parametrize(("point", "runner"), CASES)
def test_the_bugs_of_a_point_violate_their_properties_and_no_other(
    point: str, runner: str, device: str
) -> None:
    scheme, table = HISTORY[point]
    bugs = catalogued(bug for bug, affected in table.items() if runner in affected)
    trial = replace(trial_of(RunConfig(device), runner, scheme), bugs=bugs)
    player, played = SchedulePlayer(trial, CHEAP_PROPERTIES), SearchResult()
    detecting = {BUGS[bug].expected[runner] for bug in bugs}
    if "swa_int64" in bugs:  # The runs differ from the first prefill on, which hides stale rows.
        detecting -= {"hermetic_replay"}

    padded = list[bool]()

    def observe(_: int, __: Step, observation: Observation | None, ___: frozenset[str]) -> None:
        if observation is not None and observation.replay is not None:
            padded.append(observation.replay.padded)

    def play(schedule: Schedule) -> None:
        played.add(player.play(schedule, observe))
        if detecting <= played.violated.keys():
            raise EnoughDrawn

    with suppress(EnoughDrawn):
        draw_schedules(trial, play, 0, SCHEDULES)
    allowed = detecting.union(*(CONSEQUENCES.get(name, ()) for name in detecting))
    assert played.error is None
    assert any(padded)
    assert detecting <= set(played.violated) <= allowed
