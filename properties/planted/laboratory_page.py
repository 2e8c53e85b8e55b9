"""The page of the laboratory's planted faults: which were found, and what was blamed for them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from properties.planted.laboratory import SECONDS, Verdict
from properties.planted.of_laboratory import LaboratoryFault

Rows = Mapping[tuple[str, int], Mapping[str, Any]]
"""What came of each fault at each seed that was tried."""

HEAD = """\
# Faults planted in the laboratory's engine

{count} faults of classes that the catalogue lacks, drawn before the explanations were measured and
not changed since. `make planted ARGS="--laboratory --table FILE.json"` plants each in a copy of the
tree and plays the clean trials of the default run, in an order that the seed decides, until one
finds something or {seconds:.0f} seconds of CPU time are over. What is found first is explained.

| explanation | means |
| --- | --- |
| right | it names what the fault makes wrong, and one of its first three lines is of the changed \
function |
| right thing, other line | it names what the fault makes wrong, and none of those lines is |
| not known | no single change that was tried makes the violated property hold |
| wrong | it names something else |
| error | the explainer, or the run, ended in an error of the project's |
| not found | no trial was red |

"""


def page(faults: Sequence[LaboratoryFault], rows: Rows, notes: Sequence[str] = ()) -> str:
    """Return the page."""
    seeds = sorted({seed for _, seed in rows})
    counts = Counter(row["verdict"] for row in rows.values())
    found = sum(counts.values()) - counts[Verdict.NOT_FOUND]
    lines = [
        f"{found} of {len(rows)} runs found their fault. Of these "
        + ", ".join(f"{counts[one]} {one}" for one in Verdict if one != Verdict.NOT_FOUND)
        + ".\n",
        *(f"\n{note}\n" for note in notes),
        "\n| fault | class | what is wrong | file | "
        + " | ".join(f"seed {seed}" for seed in seeds)
        + " |\n",
        "| --- | --- | --- | --- |" + " --- |" * len(seeds) + "\n",
    ]
    for fault in faults:
        cells = [f"`{fault.name}`", fault.kind, fault.why, fault.file]
        cells += [_cell(rows.get((fault.name, seed))) for seed in seeds]
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n")
    return HEAD.format(count=len(faults), seconds=SECONDS) + "".join(lines)


def _cell(row: Mapping[str, Any] | None) -> str:
    """Return what came of one run: the verdict, what is blamed, and the first line."""
    if row is None:
        return "not run"
    sources = row.get("sources") or []
    where = f", {sources[0][1]}:{sources[0][2]}" if sources else ""
    blamed = f" ({row['blame']}{where})" if row.get("blame") else ""
    return f"{row['verdict']}{blamed}"
