"""Known findings for the scripts of `properties/launch`."""

import json
from pathlib import Path

THREAD = "https://github.com/example/engine/issues/1"
STRAY = {
    "check": "stray write", "cause": "out_cache_loc_swa", "thread": THREAD, "expires": "2999-01-01"
}  # fmt: skip


def listed(folder: Path, *entries: dict[str, str]) -> str:
    """Write a file of known findings, and return its path."""
    path = folder / "known.json"
    data = {"format": "paritybit-known", "version": 1, "known": entries}
    path.write_text(json.dumps(data), encoding="utf-8")
    return str(path)
