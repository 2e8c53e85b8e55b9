"""Shorten a record for `reports/evidence`: `python -m properties.documents.evidence RECORD FILE`.

The command that a record names makes the whole of it again. What is left has the verdict, the
figures, and all that the documents show of it: `paritybit summary` prints the same of both.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LISTS = ("pairs", "contracts", "required_events", "properties", "engine_runners", "clean", "bugs")
"""What a record says of the catalogue, and of each trial."""


def shortened(
    record: Mapping[str, Any], *, head: bool = False, only: str | None = None
) -> dict[str, Any]:
    """Return a record without findings, events of hunts, and changes that were detected.

    With `head`, no list is left, and no page can be made of it: it has the verdict and its message.
    With `only`, no other figure than the one of this name is left.
    """
    short = dict(record)
    for trials in set(short) & {"bugs", "clean"}:
        short[trials] = [{**trial, "finding": None} for trial in short[trials]]
    if "bugs" in short:
        short["bugs"] = [{**hunt, "events": {}, "mechanism": ""} for hunt in short["bugs"]]
    figures = dict(short.get("figures", {}))
    if "rows" in figures:
        figures["rows"] = [row for row in figures["rows"] if not row["properties"]]
    if "clean" in figures:
        figures["clean"] = {
            name: figures["clean"][name] for name in figures["clean"] if name != "trials"
        }
    if only is not None:
        figures = {only: figures[only]}
    if figures:
        short["figures"] = figures
    if head:
        short = {name: short[name] for name in short if name not in LISTS}
    return short


def main() -> None:
    """Write what a command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("record", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--head", action="store_true", help="Leave out all lists")
    parser.add_argument("--only", metavar="FIGURE", help="Leave out all other figures")
    asked = parser.parse_args()
    record = json.loads(asked.record.read_text(encoding="utf-8"))
    text = json.dumps(shortened(record, head=asked.head, only=asked.only), separators=(",", ":"))
    asked.file.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
