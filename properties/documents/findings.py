"""The tables of findings in releases, of results for public threads, and of figures."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from paritybit.compat import tomllib
from properties.planting.faults import FOLDER, TABLES, read
from properties.support.places import ROOT

EVIDENCE = ROOT / "reports/evidence"
FOUND_IN, FIELD = ROOT / "reports/found.toml", EVIDENCE / "field.toml"
REPORTS = ROOT / "docs/reports"

REPOSITORIES: Mapping[str, str] = {
    "sgl": "sgl-project/sglang",
    "vllm": "vllm-project/vllm",
    "vllm-ascend": "vllm-project/vllm-ascend",
    "lmcache": "LMCache/LMCache",
    "flashinfer": "flashinfer-ai/flashinfer",
}

FOUND, MISSED, INEXPRESSIBLE, UNTRIED = "found", "missed", "not expressible", "not tried"


@dataclass(frozen=True)
class Score:
    """The result for a public thread, and its reason."""

    thread: str
    result: str
    why: str


def found() -> str:
    """Return the table of findings in unmodified releases."""
    lines = ["| engine | releases | finding | cause | thread |", "|---|---|---|---|---|"]
    for entry in entries():
        cause = "in the report" if "report" in entry else entry["cause"]
        address = entry.get("thread")
        other = f"[report](reports/{entry['report']}.md)" if "report" in entry else "none known"
        thread = f"[#{address.rpartition('/')[2]}]({address})" if address else other
        thread += f", {entry['note']}" if address and "note" in entry else ""
        lines.append(
            f"| {entry['engine']} | {entry['releases']} | {entry['finding']} | {cause} | {thread} |"
        )
    return "\n".join(lines) + "\n"


def entries() -> list[dict[str, Any]]:
    """Return the findings in unmodified releases."""
    found: list[dict[str, Any]] = tomllib.loads(FOUND_IN.read_text(encoding="utf-8"))["found"]
    return found


def reports() -> str:
    """Return the table of reports."""
    lines = ["| report | releases | finding | cause |", "|---|---|---|---|"]
    for entry in (one for one in entries() if "report" in one):
        name = f"[{entry['report']}]({entry['report']}.md)"
        releases = f"{entry['engine']} {entry['releases']}"
        lines.append(f"| {name} | {releases} | {entry['finding']} | {entry['cause']} |")
    return "\n".join(lines) + "\n"


def planted() -> str:
    """Return how many faults of each table are found."""
    lines = ["| table | faults | found | missed |", "|---|---|---|---|"]
    for table in TABLES:
        faults = read(table)
        hits = sum(fault.found is not None for fault in faults)
        missed = sum(fault.missed is not None for fault in faults)
        if hits:
            name = f"[{table.name}](../properties/planting/{table.name})"
            lines.append(f"| {name} | {len(faults)} | {hits} | {missed} |")
    return "\n".join(lines) + "\n"


def scoreboard() -> str:
    """Return how many threads have each result, and the faults of those that were tried."""
    scored = list(scores())
    count = Counter(score.result for score in scored)
    kinds = ", ".join(f"{count[kind]} {kind}" for kind in (FOUND, MISSED, INEXPRESSIBLE, UNTRIED))
    lines = [f"{len(scored)} threads: {kinds}.", ""]
    for kind in (FOUND, MISSED):
        each = [f"{link(one.thread)} {one.why}" for one in scored if one.result == kind]
        lines.append(f"- {kind}: {', '.join(each)}")
    return "\n".join(lines) + "\n"


def scores() -> Iterator[Score]:
    """Yield the results for the threads, class by class."""
    for entry in tomllib.loads(FIELD.read_text(encoding="utf-8"))["class"]:
        for thread in entry["threads"]:
            result, why = tried(entry, thread) or untried(entry, thread)
            yield Score(thread, result, why)


def untried(entry: Mapping[str, Any], thread: str) -> tuple[str, str]:
    """Return the result for a thread for which nothing was tried."""
    lack = entry.get("lacks", {}).get(thread, entry.get("without"))
    if lack is not None:
        return INEXPRESSIBLE, f"no setting has {lack}"
    return UNTRIED, entry["untried"][thread]


def tried(entry: Mapping[str, Any], thread: str) -> tuple[str, str] | None:
    """Return the result for a thread's fix undone, or for a fault in a release, or one like it."""
    if thread in undone():
        name, status = undone()[thread]
        return status, f"`{name}`"
    if any(one.get("thread") == address(thread) for one in entries()):
        return FOUND, "unmodified"
    like = entry.get("resembles", {}).get(thread)
    if like is None:
        return None
    return results()[like["fault"]], f"like `{like['fault']}`"


def figures() -> str:
    """Return how much is found, at which cost, and how often a finding is wrong."""
    unseen = [read(table) for table in TABLES if "unseen" in table.stem]
    cpu, moves, ranks, overhead = (
        json.loads((EVIDENCE / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("cpu-unmodified", "moves", "ranks", "overhead")
    )
    default = [one for one in cpu.values() if isinstance(one, dict) and "reads" in one]
    column = moves["columns"].index("reads")
    reads = [one["reads"] for one in default] + [row[column] or 0 for row in moves["rows"]]
    wrong = sum(one["false alarms"] for one in [*default, moves, ranks])
    hits = sum(fault.found is not None for table in unseen for fault in table)
    count = Counter(score.result for score in scores())
    lines = [
        "| figure | value |",
        "|---|---|",
        f"| unseen faults | {hits} of {sum(map(len, unseen))} found |",
        f"| false alarms | {wrong} in {sum(reads) / 1e6:.1f} M reads of unmodified engines "
        f"({wrong / (sum(reads) / 1e6):.2f} per million), all fixed |",
        f"| `--overhead 3` | {overhead['found']} of {len(overhead['faults'])} lasting faults found "
        f"after {overhead['median_served']:.0f} forward passes in the median |",
        f"| public threads | {count[FOUND]} of {sum(count.values())} found |",
    ]
    return "\n".join(lines) + "\n"


@cache
def undone() -> dict[str, tuple[str, str]]:
    """Return, by thread, the fault that undoes its fix, and its result."""
    faults = read(FOLDER / "public.toml")
    return {str(fault.thread): (fault.name, results()[fault.name]) for fault in faults}


@cache
def results() -> dict[str, str]:
    """Return, by the name of each planted fault, whether it is found."""
    faults = (fault for table in TABLES for fault in read(table))
    return {fault.name: MISSED if fault.found is None else FOUND for fault in faults}


def address(thread: str) -> str:
    """Return the address of a thread."""
    project, _, number = thread.partition("#")
    return f"https://github.com/{REPOSITORIES[project.lower()]}/issues/{number}"


def link(thread: str) -> str:
    """Return a thread as a link."""
    return f"[{thread}]({address(thread)})"


BLOCKS = {
    "figures": figures,
    "found": found,
    "reports": reports,
    "planted": planted,
    "scoreboard": scoreboard,
}
"""The blocks by name."""
