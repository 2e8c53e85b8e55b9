"""The engine, the connector and the test of the page for engine authors work as they stand."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from paritybit.testing import UndecidedError, conformance, laws
from paritybit.watch import journal, stacks
from paritybit.watch.journal import Journal
from paritybit.watch.settings import VARIABLE, Settings

PAGE = (Path(__file__).parents[2] / "docs/own-engine.md").read_text(encoding="utf-8")

FREES = "        self.free(slots)\n"
CACHED = "            cached = len(tokens)\n"
WRITES = "        self.keys[slots[-len(ids) :]] = ids[:, None] / torch.arange(1, 5)\n"

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
    "a list has another slot": (
        "torch.tensor(slots))",
        "torch.tensor([31, *slots[1:]]))",
        "wrong list",
    ),
    "a token is another": ("torch.tensor(tokens[", "1 + torch.tensor(tokens[", "stale input"),
    "a parameter is another": ("sample(name, state, most)", "sample(name, state, 40)", "wrong row"),
}
"""What is changed in the engine, and the check that finds it."""

Made = Callable[..., Any]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    """Return what makes the modules of the page, with a change, and returns that of its test."""
    monkeypatch.setattr(journal, "_OPEN", [])
    monkeypatch.delenv(VARIABLE, raising=False)

    def make(old: str = "", new: str = "", folder: Path = Path()) -> Any:
        for name, code in zip(
            ("toy", "connector", "test"),
            re.findall(r"```python\n(.*?)```", PAGE, re.S),
            strict=True,
        ):
            module = ModuleType(name)
            monkeypatch.setitem(sys.modules, name, module)
            path = "<string>" if folder == Path() else str(folder / f"{name}.py")
            text = code.replace(old, new) if old else code
            exec(compile(text, path, "exec"), vars(module))
        return sys.modules["test"]

    return make


@pytest.mark.parametrize("fault", FAULTS)
def test_the_connector_of_the_page_finds_faults(
    fault: str, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new, found = FAULTS[fault]
    lines = Journal(tmp_path / "process-1.jsonl")
    monkeypatch.setenv(VARIABLE, Settings(str(tmp_path)).text())
    monkeypatch.setattr(journal, "_OPEN", [lines])
    made(old, new).serve()
    lines.settle()
    checks = {key.split(" | ")[0] for key in lines.findings}
    assert checks == set() if found is None else found in checks
    assert lines.counts["forwards"] == 8
    assert not [text for text in lines.said if "undecided" in text]
    lines.end()


def test_a_finding_names_no_line_of_a_connector_in_the_package_of_its_engine(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal_file = tmp_path / "process-1.jsonl"
    monkeypatch.setattr(stacks, "CONNECTORS", set())
    monkeypatch.setenv(VARIABLE, Settings(str(tmp_path)).text())
    monkeypatch.setattr(journal, "_OPEN", [lines := Journal(journal_file)])
    made(*FAULTS["a slot is not freed"][:2], folder=tmp_path / "toy").serve()
    lines.end()
    said = [json.loads(line) for line in journal_file.read_text().splitlines()]
    leaks = [one for one in said if one.get("check") == "leak"]
    assert leaks and not [one for one in leaks if "connector" in json.dumps(one)]
    assert "by toy/toy.py:15, in Toy.free; called at toy.py:35 in" in leaks[0]["origin"]


def test_the_laws_that_fire_are_those_of_the_page(made: Made) -> None:
    rows = re.findall(r"^\| ((?:fires|not \w+).*?) \| (.*) \|$", PAGE, re.M)
    assert laws(made().serve) == {
        check: verdict for verdict, checks in rows for check in checks.split(", ")
    }


OWNED = '(row,), {"kv": torch.tensor(slots[cached:])})'


@pytest.mark.parametrize(
    ("check", "old", "new", "verdict"),
    [
        ("double free", '"free", ', "", "not reported: Watcher.freed"),
        ("stray write", "(row,))", OWNED, "fires"),
    ],
)
def test_a_verdict_depends_on_what_the_connector_reports(
    check: str, old: str, new: str, verdict: str, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conformance, "CHECKS", {check: None})
    assert laws(made(old, new).serve) == {check: verdict}


@pytest.mark.parametrize(
    ("inject", "verdict"),
    [
        (conformance.free_twice, "fires"),
        (lambda *given: conformance.free_twice(*given) < 0, "not reported: "),
        (lambda *_: True, "silent"),
        (lambda *_: 1 / 0, "undecided: the connector failed: ZeroDivisionError"),
    ],
)
def test_the_verdict_says_what_a_fault_showed(
    inject: Any, verdict: str, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = conformance.Fault(inject, "", ("freed",))
    monkeypatch.setattr(conformance, "CHECKS", {"double free": None})
    monkeypatch.setattr(conformance, "FAULTS", {"double free": fault})
    assert laws(made().serve)["double free"].startswith(verdict)


def test_a_finding_without_a_fault_is_reported(made: Made) -> None:
    with pytest.raises(AssertionError, match="is freed twice"):
        laws(made(FREES, FREES * 2).serve)


def test_without_a_connector_nothing_is_judged() -> None:
    with pytest.raises(UndecidedError, match="no forward pass was reported"):
        laws(lambda: None)


def test_a_process_that_is_watched_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_OPEN", [Journal(tmp_path / "process-1.jsonl")])
    with pytest.raises(RuntimeError, match="paritybit watch"):
        laws(lambda: None)
