"""Records of the sanitizer for tests: what was found in which config."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from paritybit.harness.records.environment import RunEnvironment

from paritybit.launch.changes import changes, label
from paritybit.launch.schema import (
    IN_BASELINE,
    Cause,
    ConfigRecord,
    ExcerptLine,
    RecordedFinding,
    Untried,
    Verdict,
    WatchRecord,
    Who,
)

CONFIG = ConfigRecord("decode graphs", (), "ended", 0, 1.0, {}, {}, {}, ())


def finding(cause: str, number: int = 1) -> RecordedFinding:
    return RecordedFinding(
        *("leak", "a slot leaks", f"leak | {cause}"),
        cause=Cause(cause),
        number=number,
        config=CONFIG.name,
    )


def watched(
    findings: Sequence[RecordedFinding], configs: Sequence[str] = (CONFIG.name,)
) -> WatchRecord:
    verdict: Verdict = "finding" if findings else "no finding"
    return WatchRecord(
        environment=RunEnvironment("1", {"python": "3.11"}, None, None),
        command="paritybit watch",
        verdict=verdict,
        message="",
        interrupted=None,
        engine="sglang==1",
        model="gemma4",
        device="cpu",
        seed=0,
        every=1,
        checks=None,
        seconds=1.0,
        counts={},
        findings=tuple(findings),
        undecided=(),
        configs=tuple(replace(CONFIG, name=name) for name in configs),
        not_tried=(),
    )


def record(folder: Path) -> Any:
    """Return the JSON data of the last run in a folder."""
    return json.loads((folder / "out" / "latest" / "watch.json").read_text())


def shown() -> WatchRecord:
    """Return a record with all that its page can show."""
    lines = tuple(ExcerptLine(number, f"    line = {number}") for number in range(9, 14))
    lines += (ExcerptLine(14, f"    longest = {'x' * 140!r}"),)
    stray = RecordedFinding(
        *("stray write", "the replay of decode changed slot 17 (swa)", "s | swa"),
        number=25,
        config=CONFIG.name,
        forward=4,
        forward_kind="decode",
        group="swa",
        replay="decode",
        layer="layer 0",
        slots=(17, 18),
        count=2,
        writer=Who("r1", 12, 3),
        reader=Who("r2", 14, 4),
        freed=Who(forward=3),
        cause=Cause("the padded tail explains it", "out_cache_loc_swa", "engine/runner.py:11"),
        case="finding-1.json",
        excerpt=lines,
    )
    leak = replace(
        finding(""),
        cause=None,
        group="swa",
        config="overlap",
        known=IN_BASELINE,
        case="finding-2.json",
    )
    before = replace(watched([leak], ["overlap", CONFIG.name]), revision="0123456789abcdef")
    now = replace(
        watched([stray, leak], [CONFIG.name, "overlap"]),
        message="25 findings with 1 cause in 500 forwards",
        started="2026-11-26T02:00:00+00:00",
        counts={"forwards": 500, "replays": 200, "padded_replays": 90, "reads": 40_000, "idle": 3},
        undecided=("the engine was killed",),
        not_tried=(
            Untried(
                "configuration few window slots",
                "the run was interrupted before",
                ("few window slots",),
            ),
        ),
    )
    return replace(now, baseline=label(before), changes=changes(before, now))
