"""The table of planted faults still fits the tree, so that it cannot rot unseen.

Nothing is planted here: `make planted` does that.
"""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

from properties.planted.fault import Fault
from properties.planted.outcomes import AFTER, README, read, readme
from properties.planted.proof import GOOD, Verdict
from properties.planted.table import FAULTS

ROOT = Path(__file__).parents[2]


@cache
def text_of(file: str) -> str:
    """Return the text of a file of this tree, '' where there is none."""
    path = ROOT / file
    return path.read_text(encoding="utf-8") if path.is_file() else ""


@cache
def names_of_tests(file: str) -> frozenset[str]:
    """Return the names of a file's tests."""
    functions = (
        node for node in ast.parse(text_of(file)).body if isinstance(node, ast.FunctionDef)
    )
    return frozenset(node.name for node in functions if node.name.startswith("test_"))


def test_every_fault_applies() -> None:
    """Its old text stands once in its file, which still compiles with the new one."""
    gone = [fault.name for fault in FAULTS if fault.planted_in(text_of(fault.file)) is None]
    assert gone == []


def unknown_tests(fault: Fault) -> list[str]:
    """Return what a fault names that is no test: files, tests of them, words of none."""
    places, words = list(fault.tests), ""
    if "-k" in places:
        words = places.pop()
        places.remove("-k")
    found: set[str] = set()
    wrong = []
    for place in places:
        file, _, name = re.sub(r"\[.*", "", place).partition("::")
        known = names_of_tests(file)
        found |= known
        wrong += [place] if not known or name not in {"", *known} else []
    for alternative in filter(None, words.split(" or ")):
        # Some words may be of a parameter's id, which is not known here.
        if not any(word in name for word in alternative.split(" and ") for name in found):
            wrong.append(alternative)
    return wrong


def test_every_test_that_is_named_exists() -> None:
    assert {fault.name: wrong for fault in FAULTS if (wrong := unknown_tests(fault))} == {}


def test_a_test_that_does_not_exist_is_found() -> None:
    file = "properties/harness/test_planted_table.py"
    named = f"{file}::test_every_fault_applies"
    for tests, wrong in (
        ((file,), []),
        ((named,), []),
        ((f"{named}[decode]", "-k", "fault and decode or unheard_of"), ["unheard_of"]),
        ((f"{file}::test_nothing",), [f"{file}::test_nothing"]),
        (("properties/harness/test_nothing.py",), ["properties/harness/test_nothing.py"]),
    ):
        fault = Fault("name", file, "old", "new", tests, "why")
        assert unknown_tests(fault) == wrong


def test_no_two_faults_are_one() -> None:
    for values in (
        [fault.name for fault in FAULTS],
        [fault.why for fault in FAULTS],
        [(fault.file, fault.old, fault.new) for fault in FAULTS],
    ):
        assert [value for value, count in Counter(values).items() if count > 1] == []


def test_every_fault_was_caught_by_a_test_that_still_exists() -> None:
    """A fault that is new, or whose test has another name, is planted again: see `make planted`."""
    after = read(AFTER)
    assert after.keys() == {fault.name for fault in FAULTS}
    assert {name for name, outcome in after.items() if outcome.verdict not in GOOD} == set()
    caught_by = {
        outcome.caught_by for outcome in after.values() if outcome.verdict == Verdict.CAUGHT
    }
    gone = set()
    for test in caught_by:
        file, _, name = test.partition("[")[0].partition("::")
        gone |= {test} if name not in names_of_tests(file) else set()
    assert gone == set()


def test_the_page_is_that_of_the_table() -> None:
    assert README.read_text(encoding="utf-8") == readme(FAULTS, read(AFTER))
