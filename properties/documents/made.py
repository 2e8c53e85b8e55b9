"""What the README and `docs/` show of runs: made from committed records and cases, never typed.

A block stands between `<!-- made: NAME -->` and `<!-- end -->`.
"""

import ast
import io
import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from functools import cache
from pathlib import Path

from paritybit.harness.campaigns.bench import BOUNDS
from paritybit.harness.campaigns.replay import lockstep_of
from paritybit.harness.checks.expectations import affected_runners, detected_by
from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.cli import exit_codes
from paritybit.harness.cli.display import clean_table, matrix, runner_matrix
from paritybit.harness.explain.report import explanation, observe
from paritybit.harness.records.case import load_case
from paritybit.harness.records.record import load
from paritybit.harness.records.schema import Record
from paritybit.reports.compared.kinds import ALARMING, KINDS, LOST
from paritybit.reports.glossary import GLOSSARY
from paritybit.reports.page import draw
from paritybit.reports.review import review
from paritybit.reports.verdicts import STATUSES
from paritybit.subjects.bugs.bug import Bug
from paritybit.subjects.bugs.catalogue import BUGS
from paritybit.subjects.runners import RUNNERS
from rich.console import Console, RenderableType

from paritybit.__main__ import main
from paritybit.watch.checks import CHECKS
from properties.documents import findings
from properties.support.places import ROOT

README, DOCS = ROOT / "README.md", ROOT / "docs"
PICTURE = DOCS / "swa_pad.svg"
CASE = "properties/corpus/swa_pad@decode.json"
RUN = ROOT / "reports/evidence/h200/regress.json"
BENCH = ROOT / "reports/evidence/cpu-bench.json"

FOREMOST = ("swa_pad", "swa_int64", "req_pool_pad", "loc_memo_warning")
"""The bugs that the README's table shows: those that were found in a released engine."""

COLUMNS, NEWLINE = 80, "\n"
CODE = re.compile(r"\[`([\w.]+)`\]\(\.\./([\w./]+\.py)(?:#L\d+)?\)")
"""A link to what a file of code defines."""

BLOCK = re.compile(r"(<!-- made: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def documents() -> list[Path]:
    """Return the README and every page of `docs/`."""
    return [README, *sorted(DOCS.glob("*.md"))]


def remade(text: str) -> str:
    """Return the text of a document with its blocks made again, and its links to lines of code."""
    text = BLOCK.sub(lambda found: f"{found[1]}{BLOCKS[found[2]]()}{found[3]}", text)
    return CODE.sub(
        lambda found: f"[`{found[1]}`](../{found[2]}#L{line_of(*found.groups())})", text
    )


def line_of(name: str, file: str) -> int:
    """Return the line of a file that defines a name, such as CLASS.METHOD.

    Raises LookupError where it defines no such name.
    """
    body: Sequence[ast.stmt] = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
    line = 0
    for part in name.split("."):
        found = next((one for one in body if part in defined(one)), None)
        if found is None:
            raise LookupError(f"{file} defines no {name}")
        line, body = found.lineno, getattr(found, "body", ())
    return line


def defined(statement: ast.stmt) -> set[str]:
    """Return the names that a statement defines."""
    if isinstance(statement, ast.ClassDef | ast.FunctionDef):
        return {statement.name}
    targets = statement.targets if isinstance(statement, ast.Assign) else ()
    return {target.id for target in targets if isinstance(target, ast.Name)}


def printed(*shown: RenderableType) -> str:
    """Return what a terminal of 80 columns shows, without colours."""
    console = Console(width=COLUMNS, file=io.StringIO(), color_system=None, force_terminal=False)
    console.print(*shown, sep="\n", highlight=False)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    return "\n".join(line.rstrip() for line in lines)


def fenced(text: str) -> str:
    """Return a text as a block of Markdown that is shown as it stands."""
    return f"```\n{text.strip(NEWLINE)}\n```\n"


def said(command: str) -> str:
    """Run a command of `paritybit`; return it and what it prints."""
    heard = io.StringIO()
    with redirect_stdout(heard):
        main(shlex.split(command)[1:])
    return fenced(f"$ {command}\n{heard.getvalue()}")


@cache
def run() -> Record:
    """Return the record of the run on a GPU that the documents show."""
    return load(RUN)


def result() -> str:
    """Return the end of a run in ten lines: four bugs, and what it came to."""
    record = run()
    bugs = tuple(row for row in record.bugs if row.bug in FOREMOST)
    table = runner_matrix(replace(record, bugs=bugs))
    table.title, table.caption = None, None
    runners = list(dict.fromkeys(pair.runner for pair in record.pairs))
    letters = ", ".join(f"{chr(ord('A') + n)} {name}" for n, name in enumerate(runners))
    end = f"{record.verdict}: {record.message}; {record.seconds:.0f} s"
    return fenced(printed(table, letters, f"\n{end}"))


def tables() -> str:
    """Return all tables of that run."""
    record = run()
    end = f"\n{record.verdict}: {record.message}; {record.seconds:.0f} s"
    return fenced(printed(clean_table(record), matrix(record), runner_matrix(record), end))


def bounds() -> str:
    """Return the table of bounds on speed, and how committed records keep them."""
    before = json.loads(BENCH.read_text(encoding="utf-8"))
    cells = (bound.cells({}, before) for bound in BOUNDS)
    return rows("figure|bound|record|verdict", (row[:2] + row[3:] for row in cells))


def spread() -> str:
    """Return over how many processes and GPUs the run was spread."""
    facts = {fact.name: fact.value for fact in review(run()).environment}
    return f"It was spread over {facts['spread over']}.\n"


def rows(head: str, lines: Iterable[Iterable[str]]) -> str:
    """Return a table of Markdown: the cells of its head, by "|", and those of each line."""
    cells = [head.split("|"), ["---"] * (head.count("|") + 1), *lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def glossary() -> str:
    """Return the words, as a list."""
    return "".join(f"- **{word}**: {sentence}\n" for word, sentence in GLOSSARY.items())


def properties() -> str:
    """Return the table of properties."""
    lines = ((f"`{name}`", found.statement) for name, found in PROPERTIES.items())
    return rows("property|what must hold", lines)


def checks() -> str:
    """Return the table of the sanitizer's checks."""
    return rows("finding|what must hold|cost", ((c.name, c.law, c.cost) for c in CHECKS.values()))


def changes() -> str:
    """Return the table of what can become of a finding from one run to the next."""
    codes = dict.fromkeys(ALARMING, exit_codes.FINDING)
    codes |= dict.fromkeys(LOST, exit_codes.CANNOT_RUN)
    lines = ((kind, text, str(codes.get(kind, exit_codes.OK))) for kind, text in KINDS.items())
    return rows("change|meaning|exit code", lines)


def verdicts() -> str:
    """Return the table of how the test of a bug on a runner can end."""
    lines = (
        (verdict, meaning, "yes" if expected else "no")
        for verdict, (expected, meaning) in STATUSES.items()
    )
    return rows("verdict|meaning|as expected", lines)


def bugs() -> str:
    """Return the tables of bugs, one for each family."""
    families = dict.fromkeys(bug.family for bug in BUGS.values())
    return "\n".join(f"### {family.capitalize()}\n\n{family_table(family)}" for family in families)


def family_table(family: str) -> str:
    """Return the table of the bugs of a family."""
    lines = (
        (f"`{bug.name}`", bug.mechanism, detectors(bug), affects(bug), linked(bug.thread))
        for bug in BUGS.values()
        if bug.family == family
    )
    return rows("bug|what is wrong|must be detected by|affects|thread", lines)


def detectors(bug: Bug) -> str:
    """Return the properties that must detect a bug, on whichever runner it affects."""
    found = dict.fromkeys(detected_by(bug, runner) for runner in affected_runners(bug))
    return ", ".join(f"`{name}`" for name in found) or "nothing"


def affects(bug: Bug) -> str:
    """Return the runners that a bug affects."""
    affected = affected_runners(bug)
    if not affected:
        return "none"
    names = ", ".join(f"`{name}`" for name in affected)
    return "all" if len(affected) == len(RUNNERS) else names


def linked(thread: str) -> str:
    """Return the addresses of public threads as links that name repository and number."""
    short = r"https://github.com/([\w.-]+/[\w.-]+)(?:/(?:pull|issues)/(\d+))?"
    return re.sub(
        short, lambda found: f"[{' '.join(filter(None, found.groups()))}]({found[0]})", thread
    )


def picture() -> str:
    """Return the picture of the swa_pad finding, from its case, which is played again."""
    case = load_case(ROOT / CASE)
    lockstep = lockstep_of(case)
    outcome, timeline = observe(lockstep, case.schedule)
    found = explanation(lockstep, case.schedule, outcome, timeline, case.target)
    assert found is not None
    return draw(found)


BLOCKS: Mapping[str, Callable[[], str]] = {
    **findings.BLOCKS,
    "result": result,
    "tables": tables,
    "bounds": bounds,
    "spread": spread,
    "glossary": glossary,
    "properties": properties,
    "checks": checks,
    "changes": changes,
    "verdicts": verdicts,
    "bugs": bugs,
    "replay": lambda: said(f"paritybit replay {CASE}"),
}
"""What can be made, by the name that a document gives it."""
