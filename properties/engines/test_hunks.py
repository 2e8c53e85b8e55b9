"""The changes of an engine's source, and which of them a finding needs."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from paritybit.harness.cli.watch import isolate
from paritybit.harness.cli.watch.isolate import Undone, fewest

from paritybit.drive.script import Script
from paritybit.engines import fetch
from paritybit.engines.hunks import Hunk, hunks_of, linked_copy, nearest, undo
from paritybit.engines.packages import SGLANG
from paritybit.launch.case import WatchCase

SOURCE = """\
import os

class Pool:
    def free(self, slot):
        self.slots.append(slot)
        self.count += 1
        # The count is for the log.

    @property
    def size(self):
        def inner():
            return 1
        return inner()

def tail(): return 2
"""

EDITS = (
    ("Pool.free", "        self.slots.append(slot)\n", ""),
    ("Pool.free", "        # The count is for the log.\n", ""),
    ("Pool.size.inner", "return 1", "return 3"),
    ("Pool.size", "    @property\n", "    @cache\n"),
    ("tail", "return 2", "return 4"),
    ("", "import os\n", "import os\nimport re\n"),
)


def tree(folder: Path, text: str) -> Path:
    """Make a source tree of sglang with a file, and return its package."""
    package = folder / "sglang"
    (package / "srt/cache").mkdir(parents=True)
    (package / "srt/pool.py").write_text(text)
    (package / "srt/other.py").write_text("same = 1\n")
    return package


@pytest.mark.parametrize(("function", "old", "new"), EDITS)
def test_a_change_has_its_function_and_can_be_undone(
    tmp_path: Path, function: str, old: str, new: str
) -> None:
    base = tree(tmp_path / "base", SOURCE)
    package = tree(tmp_path / "mine", SOURCE.replace(old, new, 1))
    (hunk,) = hunks_of(package, base)
    assert (hunk.file, hunk.function) == ("sglang/srt/pool.py", function)
    linked_copy(package.parent, tmp_path / "copy", undo(package.parent, [hunk]))
    assert not hunks_of(tmp_path / "copy/sglang", base)
    assert (tmp_path / "copy/sglang/srt/other.py").is_symlink()


def test_changes_of_one_file_are_undone_apart(tmp_path: Path) -> None:
    first, last = SOURCE.replace("+= 1", "+= 2"), SOURCE.replace("return 2", "return 4")
    base = tree(tmp_path / "base", SOURCE)
    package = tree(tmp_path / "mine", first.replace("return 2", "return 4"))
    changes = hunks_of(package, base)
    assert [text for one in changes for text in undo(package.parent, [one]).values()] == [
        last,
        first,
    ]


@pytest.mark.parametrize("marker", ["srt", "srt/cache"])
def test_the_base_is_the_most_similar_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marker: str
) -> None:
    kind = replace(SGLANG, marker=marker)
    monkeypatch.setattr(fetch, "folder", lambda: tmp_path)
    package = tree(tmp_path / "mine", SOURCE)
    assert nearest(package, kind) is None
    tree(tmp_path / "sglang-0.5.22", SOURCE.replace("return 2", "return 5"))
    similar = tree(tmp_path / "sglang-0.5.23", SOURCE)
    found = nearest(package, kind)
    assert found is not None
    assert (found.name, found.package) == ("sglang 0.5.23", similar)


HUNKS = tuple(Hunk("sglang/srt/pool.py", n, n + 1, (), "") for n in range(11))


@pytest.mark.parametrize("needed", [{3}, {0, 10}, {4, 5, 6}])
def test_the_fewest_changes_are_isolated(needed: set[int]) -> None:
    """The finding needs any of the changes: it is gone once all of them are undone."""

    def shows(copies: Sequence[Undone]) -> list[bool | None]:
        return [not needed <= {one.start for one in undone} for undone in copies]

    assert {one.start for one in fewest(HUNKS, shows)} == needed


@pytest.mark.parametrize(
    ("shown", "alone"),
    [
        ([True, False], HUNKS[:1]),
        ([True, True], ()),  # The finding has another cause.
        ([True, None], ()),  # The copy did not run as long.
        ([False, False], ()),  # The case does not show the finding any more.
    ],
)
def test_a_change_is_a_cause_only_with_an_experiment(
    shown: list[bool | None], alone: Undone
) -> None:
    case = WatchCase("engine", "row", Script({}, ()), 1, None, "leak | full | why", "text", 1)
    assert isolate.isolated(case, [HUNKS[:1]], lambda *_: shown) == alone


@pytest.mark.parametrize(("rest", "named"), [(True, 2), (None, 0), (False, 0)])
def test_several_changes_are_causes_only_if_each_is_needed(rest: bool | None, named: int) -> None:
    """`rest` is what the case shows if one of two changes is undone at the end."""
    case = WatchCase("engine", "row", Script({}, ()), 1, None, "leak | full | why", "text", 1)
    shown: list[list[bool | None]] = [[True, False], [True, True], [rest, True]]

    def shows(case: WatchCase, copies: Sequence[Undone]) -> list[bool | None]:
        return shown.pop(0)

    assert len(isolate.isolated(case, [HUNKS[:2]], shows)) == named
