"""The run before a run: the last record of the same kind in the same output folder."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from harness.cli.folders import shown
from harness.engines import record as engine_record
from harness.errors import MalformedError
from harness.records import record as run_record
from harness.records.case import read_json
from harness.records.schema import Record
from reports.compared.engines import compare_trials
from reports.compared.previous import Previous
from reports.compared.runs import compare_runs

RUN_FOLDER = re.compile(r"(\d{8}T\d{6})(?:-(\d+))?Z")
"""What `new_folder` calls folders of runs: by the second, those of one second by number."""

PAGE = "index.html"


def previous_of(path: Path, record: Record | Mapping[str, Any]) -> Previous | None:
    """Return the run before the one with this record, which is or will be in this file, if any.

    A record that cannot be read, as one of an older build, is reported and not passed over.
    """
    path = path.resolve()
    earlier = previous_record(path)
    if earlier is None:
        return None
    words = ["paritybit", "compare", shown(str(earlier), keep=3), shown(str(path), keep=3)]
    page = f"../{earlier.parent.name}/{PAGE}" if (earlier.parent / PAGE).exists() else ""
    name, command = earlier.parent.name, shlex.join(words)
    try:
        data, file = read_json(earlier), earlier.name
        if isinstance(record, Record):
            return Previous(
                name, page, command, compare_runs(run_record.record_of(data, file), record)
            )
        trial = engine_record.trial_of(data, file)
        return Previous(name, page, command, compare_trials(trial, record))
    except (MalformedError, LookupError, TypeError, AttributeError) as error:
        why = str(error) if isinstance(error, MalformedError) else "its record is not whole"
        return Previous(name, page, command, None, why)


def previous_record(path: Path) -> Path | None:
    """Return the record before one: of the same file name, in the last earlier folder with one."""
    mine = order_of(path.parent)
    if mine is None:
        return None
    folders = [(order_of(folder), folder) for folder in path.parent.parent.iterdir()]
    earlier = [
        (order, folder / path.name)
        for order, folder in folders
        if order is not None and order < mine and (folder / path.name).is_file()
    ]
    return max(earlier)[1] if earlier else None


def order_of(folder: Path) -> tuple[str, int] | None:
    """Return when the run of a folder began, and which of that second it is; None for others."""
    found = RUN_FOLDER.fullmatch(folder.name)
    return None if found is None else (found[1], int(found[2] or 0))


def print_previous(console: Console, previous: Previous | None) -> None:
    """Say in a line what differs from the run before, if there is one."""
    if previous is not None:
        compared = previous.comparison
        run = f"{previous.name} ({compared.names[0]})" if compared is not None else previous.name
        console.print(
            f"since the run before it, {run}: {previous.sentence}", highlight=False, markup=False
        )
