"""What `docs/findings.md` shows: findings in releases, and a scoreboard of public threads."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from paritybit.compat import tomllib
from properties.planting.faults import FOLDER, TABLES, read
from properties.support.places import ROOT

EVIDENCE = ROOT / "reports/evidence"
FOUND_IN, FIELD = EVIDENCE / "found.toml", EVIDENCE / "field.toml"

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
    """What is known of a public thread: its class, what came of it, and how that is known."""

    thread: str
    family: str
    result: str
    why: str


def found() -> str:
    """Return the findings in unmodified releases."""
    entries = tomllib.loads(FOUND_IN.read_text(encoding="utf-8"))["found"]
    lines = [
        "| engine | releases | finding | cause | public thread | watched again by |",
        "|---|---|---|---|---|---|",
    ]
    for entry in entries:
        link = entry.get("thread")
        thread = f"[#{link.rpartition('/')[2]}]({link})" if link else "none known"
        note = f", {entry['note']}" if link and "note" in entry else ""
        record = entry.get("evidence")
        measured = f" ([record](../reports/evidence/{record}))" if record else ""
        lines.append(
            f"| {entry['engine']} | {entry['releases']} | {entry['finding']} | {entry['cause']}"
            f"{measured} | {thread}{note} | `{entry['again']}` |"
        )
    return "\n".join(lines) + "\n"


def scoreboard() -> str:
    """Return what came of each public thread of the field, and how many there are of each kind."""
    scored = list(scores())
    count = Counter(score.result for score in scored)
    kinds = ", ".join(f"{count[kind]} {kind}" for kind in (FOUND, MISSED, INEXPRESSIBLE, UNTRIED))
    lines = [f"{len(scored)} threads: {kinds}.", ""]
    lines += ["| thread | class | result | how this is known |", "|---|---|---|---|"]
    lines += [
        f"| {link(score.thread)} | {score.family} | {score.result} | {score.why} |"
        for score in scored
    ]
    return "\n".join(lines) + "\n"


def scores() -> Iterator[Score]:
    """Yield the threads of the field, class by class."""
    for entry in tomllib.loads(FIELD.read_text(encoding="utf-8"))["class"]:
        for thread in entry["threads"]:
            result, why = tried(entry, thread) or untried(entry, thread)
            yield Score(thread, entry["name"], result, why)


def untried(entry: Mapping[str, Any], thread: str) -> tuple[str, str]:
    """Return the result of a thread of which nothing was tried."""
    lack = entry.get("lacks", {}).get(thread, entry.get("without"))
    if lack is not None:
        return INEXPRESSIBLE, f"no setting has {lack}"
    return UNTRIED, entry["untried"][thread]


def tried(entry: Mapping[str, Any], thread: str) -> tuple[str, str] | None:
    """Return what came of a thread's fix undone, or else of the fault that resembles it."""
    if thread in undone():
        name, status, reason = undone()[thread]
        why = f"its fix undone in a release: {name}"
        return status, why if status == FOUND else f"{why}. {reason}"
    like = entry.get("resembles", {}).get(thread)
    if like is None:
        return None
    return planted()[like["fault"]], f"{like['fault']}, planted, resembles it: {like['how']}"


@cache
def undone() -> dict[str, tuple[str, str, str]]:
    """Return, by thread, the fault that undoes its fix, its result, and why it is missed."""
    return {
        str(fault.thread): (
            fault.name,
            MISSED if fault.found is None else FOUND,
            first_sentence(fault.missed or ""),
        )
        for fault in read(FOLDER / "public.toml")
    }


def first_sentence(text: str) -> str:
    """Return the first sentence of a text on one line."""
    return re.split(r"(?<=\.)\s", " ".join(text.split()))[0]


@cache
def planted() -> dict[str, str]:
    """Return, by the name of each planted fault, whether it is found."""
    return {
        fault.name: MISSED if fault.found is None else FOUND
        for table in TABLES
        for fault in read(table)
    }


def link(thread: str) -> str:
    """Return a thread as a link."""
    project, _, number = thread.partition("#")
    return f"[{thread}](https://github.com/{REPOSITORIES[project.lower()]}/issues/{number})"


def undone_fixes() -> str:
    """Return how many public fixes of sglang were undone, and how many of those are found."""
    results = Counter(status for _, status, _ in undone().values())
    return (
        f"{results.total()} public fixes of sglang were undone, one at a time, in a release that "
        f"has them: {results[FOUND]} are found at a seed at least, and {results[MISSED]} missed.\n"
    )


BLOCKS = {"found": found, "scoreboard": scoreboard, "undone-fixes": undone_fixes}
"""What can be made, by the name that a document gives it."""
