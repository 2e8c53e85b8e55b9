"""What became of the faults, kept as JSON and shown as a table in Markdown."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from properties.planted.fault import Fault
from properties.planted.proof import GOOD, Outcome, Verdict

HERE = Path(__file__).parent
AFTER, README = HERE / "after.json", HERE / "README.md"
"""The outcomes, and the page about them."""

HEAD = """\
# Planted faults

{count} small mistakes, planted one at a time, each of which the test suite must catch:
`make planted`, or `make planted ARGS="--only NAME,NAME --jobs 4"`. This page is made by
`python -m properties.planted.run --readme` from the table and `after.json`.

*Caught by* is the first test that fails of those that the table names for the fault. The last
column is the time that these tests took with the fault, in seconds, in one process on a CPU.

| fault | what is wrong | part of the house | caught by | s |
| --- | --- | --- | --- | ---: |
"""


def read(path: Path) -> dict[str, Outcome]:
    """Return the outcomes of a file by the name of their fault; none if there is no file."""
    if not path.is_file():
        return {}
    rows = json.loads(path.read_text(encoding="utf-8"))
    found = [Outcome(**{**row, "verdict": Verdict(row["verdict"])}) for row in rows]
    return {outcome.fault: outcome for outcome in found}


def write(outcomes: Mapping[str, Outcome], faults: Sequence[Fault], path: Path) -> None:
    """Write outcomes, one a line, in the order of the table; those of no fault are left out."""
    lines = [json.dumps(vars(outcomes[row.name])) for row in faults if row.name in outcomes]
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def readme(faults: Sequence[Fault], after: Mapping[str, Outcome]) -> str:
    """Return the page: a row for each fault."""
    lines = [
        _line(
            f"`{fault.name}`",
            fault.why,
            fault.part,
            _caught(after.get(fault.name)),
            f"{after[fault.name].seconds:.1f}" if fault.name in after else "–",
        )
        for fault in faults
    ]
    return HEAD.format(count=len(faults)) + "".join(lines)


def _caught(outcome: Outcome | None) -> str:
    """Say which test caught a fault, or that none did."""
    if outcome is None or outcome.verdict not in GOOD:
        return "–"
    return outcome.caught_by.removeprefix("properties/")


def _line(*cells: str) -> str:
    escaped = [cell.replace("|", r"\|") for cell in cells]
    return f"| {' | '.join(escaped)} |\n"
