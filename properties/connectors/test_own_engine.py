"""The engine and the connector of the page for engine authors work as they stand."""

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from paritybit.watch.journal import Journal
from paritybit.watch.settings import Settings

PAGE = Path(__file__).parents[2] / "docs/own-engine.md"

FREES = "        self.free(slots)\n"
CACHED = "            cached = len(tokens)\n"
WRITES = "        self.keys[slots[cached:]] = new\n"

FAULTS = {
    "none": ("", "", None),
    "a slot is not freed": (FREES, FREES.replace("slots", "slots[1:]"), "leak"),
    "slots are freed twice": (FREES, FREES * 2, "double free"),
    "a slot is freed early": (CACHED, f"{CACHED}    {FREES}", "freed in use"),
    "another slot is written": (
        WRITES,
        f"{WRITES}        self.keys[31] += 1\n",
        "stray write",
    ),
    "a slot is handed out again": (
        "self.unused[count:]",
        "self.unused[count - 1 :]",
        "wrong owner",
    ),
}
"""What is changed in the engine, and the check that finds it."""


@pytest.mark.parametrize("fault", FAULTS)
def test_the_connector_of_the_page_finds_faults(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new, found = FAULTS[fault]
    engine, connector = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    toy: Any = ModuleType("toy")
    names: dict[str, Any] = {"__name__": "connector"}
    exec(engine.replace(old, new) if old else engine, vars(toy))
    monkeypatch.setitem(sys.modules, "toy", toy)
    journal = Journal(tmp_path / "process-1.jsonl")
    exec(connector, names)
    names |= {"of_process": lambda: journal, "active": lambda: Settings(str(tmp_path))}
    names["connect"]()
    served = toy.Toy()
    for name in "ab":
        served.generate(name, [1, 2, 3], 4)
    journal.settle()
    checks = {key.split(" | ")[0] for key in journal.findings}
    assert checks == set() if found is None else found in checks
    assert journal.counts["forwards"] == 8
    assert not [text for text in journal.said if "undecided" in text]
    journal.end()
