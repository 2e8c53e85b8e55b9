"""The generated parts of the README and of `docs/`, made from code, tables and cases.

A block stands between `<!-- made: NAME -->` and `<!-- end -->`.
"""

import io
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from pathlib import Path

from paritybit.harness.checks.table import PROPERTIES
from paritybit.reports.glossary import GLOSSARY

from paritybit.__main__ import main
from paritybit.watch.checks import CHECKS
from properties.documents import findings
from properties.support.places import ROOT

README, DOCS = ROOT / "README.md", ROOT / "docs"
CASE = "properties/corpus/swa_pad@decode.json"
BLOCK = re.compile(r"(<!-- made: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def documents() -> list[Path]:
    """Return the README, the pages of `docs/`, and the reports."""
    return [README, *sorted(DOCS.glob("*.md")), *sorted(findings.REPORTS.glob("*.md"))]


def remade(text: str) -> str:
    """Return the text of a document with its blocks made again."""
    return BLOCK.sub(lambda found: f"{found[1]}{BLOCKS[found[2]]()}{found[3]}", text)


def printed(command: str) -> str:
    """Return a command of `paritybit` and what it prints, as a block of code."""
    output = io.StringIO()
    with redirect_stdout(output):
        main(shlex.split(command)[1:])
    return f"```console\n$ {command}\n{output.getvalue().strip()}\n```\n"


def rows(head: str, lines: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table. `head` has its first cells, separated by "|"."""
    cells = [head.split("|"), ["---"] * (head.count("|") + 1), *lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def glossary() -> str:
    """Return the words of the project, as a list."""
    return "".join(f"- **{word}**: {sentence}\n" for word, sentence in GLOSSARY.items())


def properties() -> str:
    """Return the table of properties."""
    lines = ((f"`{name}`", found.statement) for name, found in PROPERTIES.items())
    return rows("property|what must hold", lines)


def checks() -> str:
    """Return the table of the sanitizer's checks."""
    return rows(
        "finding|what must hold", ((check.name, check.invariant) for check in CHECKS.values())
    )


BLOCKS: Mapping[str, Callable[[], str]] = {
    **findings.BLOCKS,
    "glossary": glossary,
    "properties": properties,
    "checks": checks,
    "replay": lambda: printed(f"paritybit replay {CASE}"),
}
"""The blocks by name."""
