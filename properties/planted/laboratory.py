"""One clean run of the laboratory on a tree with a fault: `python -m … SEED SECONDS`.

The clean trials of the default run are played in an order that the seed says, until one finds
something or the seconds of CPU time are over. Prints one JSON object: what was found, and what
the explanation blames.
"""

import ast
import json
import os
import random
import re
import sys
from dataclasses import asdict
from typing import Any

from paritybit.compat import StrEnum
from properties.planted.of_laboratory import LaboratoryFault
from properties.planted.proof import Proof, planted

BESIDE = frozenset({"difference", "slot", "taken", "compared", "twin_agrees", "uncaptured_run"})
"""Fields of a cause that say what was seen, and blame nothing."""

NAMED_FIRST = 3
"""Lines of an explanation, the nearest to the cause, of which one must be of the planted place."""


MOST_SHRINKING = 120
"""Steps after which a schedule is shrunk no further: an explanation needs no smallest one."""

OTHERS_FIRST = 8
"""Trials that come before those of overlapping steps at odd seeds."""

SEEDS = (0, 1, 2)
LIMIT_SECONDS = 1500.0
"""Seconds after which a run is ended."""

SECONDS = 400.0
"""Seconds of CPU time after which no further trial of a fault and a seed begins."""


class Verdict(StrEnum):
    """How the explanation of a found fault is judged."""

    RIGHT = "right"
    NOT_KNOWN = "not known"
    WRONG_LINE = "right thing, other line"
    WRONG = "wrong"
    ERROR = "error"
    NOT_FOUND = "not found"


def play(seed: int, seconds: float) -> dict[str, Any]:
    """Play clean trials until one finds something."""
    # Imported late: they are what is faulty.
    from paritybit.harness.campaigns import hunt  # noqa: PLC0415
    from paritybit.harness.campaigns.locksteps import kept_lockstep  # noqa: PLC0415
    from paritybit.harness.campaigns.regress import RunConfig, clean_tasks  # noqa: PLC0415
    from paritybit.harness.campaigns.task import GOOD, run_task  # noqa: PLC0415

    tasks = clean_tasks(RunConfig("cpu", seed=seed))
    random.Random(seed).shuffle(tasks)
    # As in the default run, overlapping steps are always reached; at odd seeds some others first.
    tasks.sort(key=lambda task: not task.trial.overlap)
    if seed % 2:
        overlapping = sum(task.trial.overlap for task in tasks)
        tasks = [*tasks[overlapping:][:OTHERS_FIRST], *tasks[:overlapping], *tasks[overlapping:]]
    hunt.SHRINKING_STEPS = MOST_SHRINKING
    for played, task in enumerate(tasks, 1):
        result = run_task(task, kept_lockstep)
        if result.status not in GOOD:
            return {"trial": task.label, "played": played, **shown(result)}
        if sum(os.times()[:4]) > seconds:
            break
    return {"trial": "", "played": played, "status": "green"}


def shown(result: Any) -> dict[str, Any]:
    """Return what a result says, as JSON data."""
    finding = result.finding
    violated = [] if finding is None else [one["property"] for one in finding.violations]
    message = "" if finding is None or not violated else finding.violations[0]["message"]
    error = result.error or (None if finding is None else finding.error)
    data = {"status": str(result.status), "violated": violated, "message": message, "error": error}
    explanation = None if finding is None else finding.explanation
    if explanation is None:
        return data
    cause = asdict(explanation.cause)
    named = {name: value for name, value in cause.items() if name not in BESIDE and value}
    return data | {
        "blame": explanation.cause.blame,
        "named": json.dumps(named),
        "proof": list(explanation.proof),
        "sources": [[line.what, line.file, line.line] for line in explanation.sources],
    }


def judged(fault: LaboratoryFault, text: str, found: dict[str, Any]) -> Verdict:
    """Judge what was found of a fault; `text` is that of its file with the fault."""
    if found["status"] == "green":
        return Verdict.NOT_FOUND
    if found.get("error"):
        return Verdict.ERROR
    if found.get("blame", "not known") == "not known":
        return Verdict.NOT_KNOWN
    if not re.search(fault.named, found["named"], re.IGNORECASE):
        return Verdict.WRONG
    first, last = place_of(text, fault.new)
    lines = [(file, line) for _, file, line in found["sources"][:NAMED_FIRST]]
    right = any(file == fault.file and first <= line <= last for file, line in lines)
    return Verdict.RIGHT if right else Verdict.WRONG_LINE


def place_of(text: str, planted: str) -> tuple[int, int]:
    """Return the first and the last line of the function that a text stands in.

    Of what stands in no function, those of the statement.
    """
    line = text[: text.index(planted)].count("\n") + 1
    line += len(planted) - len(planted.lstrip("\n"))
    tree = ast.parse(text)
    spans = [
        (node.lineno, node.end_lineno or node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    ]
    spans = [span for span in spans if span[0] <= line <= span[1]]
    if not spans:
        spans = [
            (node.lineno, node.end_lineno or node.lineno)
            for node in ast.walk(tree)
            if isinstance(node, ast.stmt | ast.expr)
            and node.lineno <= line <= (node.end_lineno or 0)
        ]
        calls = [span for span in spans if span[0] == line]
        return min(calls or spans, key=lambda span: span[1] - span[0])
    return min(spans, key=lambda span: span[1] - span[0])


def tried(proof: Proof, fault: LaboratoryFault, seed: int) -> dict[str, Any]:
    """Plant a fault in a copy of the tree and play there; return what was found, judged."""
    row: dict[str, Any] = {"fault": fault.name, "seed": seed}
    with proof.copy() as copy, planted(fault, copy) as applies:
        if not applies:
            raise SystemExit(f"{fault.name} does not apply")
        text = (copy / fault.file).read_text(encoding="utf-8")
        command = "-m", "properties.planted.laboratory", str(seed), str(SECONDS)
        ran = proof.run(copy, command, LIMIT_SECONDS)
    lines = ran.output.strip().splitlines()
    try:
        found = json.loads(lines[-1])
    except (IndexError, ValueError):
        found = {"status": "failed", "error": ran.output[-2000:] or "no end"}
    return {**row, "verdict": str(judged(fault, text, found)), **found}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(play(int(sys.argv[1]), float(sys.argv[2]))) + "\n")
