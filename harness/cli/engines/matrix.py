"""Releases by runner: what was found of each, as rows of text and as a Markdown file."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from paritybit.harness.engines.adapters.packages import SGLANG, Package
from paritybit.harness.engines.adapters.table import ADAPTERS
from paritybit.harness.records.files import write_whole
from paritybit.harness.records.record import device_name

Walked = Sequence[tuple[str, Mapping[str, Any] | str]]
"""Releases in order, each with the record of its trial, or why there is none."""

LACKING, UNTRIED = "–", "?"


def runners_of(package: Package, asked: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the runners of an engine that are tried, in order: those asked for, or all."""
    return tuple(asked) or tuple(ADAPTERS[package.name].runners)


def cells(record: Mapping[str, Any] | str, runners: Sequence[str]) -> dict[str, str]:
    """Return what was found of each of some runners of a release, in few words.

    That is what differs, by fault class where one explains it; "?" where something is open.
    """
    if isinstance(record, str):
        return dict.fromkeys(runners, UNTRIED)
    answer = record["answer"]
    lacking = {entry["runner"] for entry in answer["lacking"]}
    return {name: LACKING if name in lacking else cell(answer, name) for name in runners}


def cell(answer: Mapping[str, Any], runner: str) -> str:
    """Return what was found of one runner that an engine has."""
    found = [
        name
        for finding in answer["findings"]
        if finding["runner"] == runner and not finding["listed"]
        for name in finding["faults"] or [finding["property"]]
    ]
    still = any(entry["runner"] == runner for entry in answer["undecided"])
    replays = sum(leg["replays"] for leg in answer["legs"] if leg["runner"] == runner)
    if found:
        return ", ".join(dict.fromkeys(found)) + (f" {UNTRIED}" if still else "")
    return UNTRIED if still or not replays else f"clean ({replays})"


def write_matrix(
    path: Path,
    walked: Walked,
    device: str,
    package: Package = SGLANG,
    asked: Sequence[str] = (),
) -> None:
    """Write the matrix of a walk as Markdown: a row for each release, a column for each runner.

    With `asked`, the walk was of these runners alone.
    """
    columns = runners_of(package, asked)
    make = f"make bisect-all-releases{'' if package is SGLANG else f' ENGINE={package.name}'}"
    alone = f" ARGS='--runner {','.join(asked)}'" if asked else ""
    lines = [
        "# Engine releases, runner by runner"
        if package is SGLANG
        else f"# Releases of {package.name}, runner by runner",
        "",
        f"Tested on {datetime.now(timezone.utc):%Y-%m-%d}, on {device_name(device)}, by behaviour "
        f"alone: `{make}{alone}`.",
        "Each cell shows what differs: the fault class if there is evidence for one, "
        f"otherwise the violated property. `{LACKING}`: the engine lacks this runner. "
        f"`{UNTRIED}`: undecided.",
        "`clean (n)`: no difference found in n replays.",
        "",
        f"| release | {' | '.join(columns)} |",
        f"|---{'|---' * len(columns)}|",
    ]
    for version, record in walked:
        row = cells(record, columns)
        lines.append(f"| {version} | {' | '.join(row[name] for name in columns)} |")
    open_legs = [
        f"- {version}: {entry['leg']}: {entry['reason']}"
        for version, record in walked
        if not isinstance(record, str)
        for entry in record["answer"]["undecided"]
    ]
    refused = [f"- {version}: {record}" for version, record in walked if isinstance(record, str)]
    if open_legs or refused:
        lines += ["", "Undecided:", "", *open_legs, *refused]
    write_whole(path, "\n".join(lines) + "\n")
