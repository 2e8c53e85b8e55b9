"""A search for a smaller case runs the check of its finding alone, and all of them at the end."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest
from paritybit.harness.cli.watch.shrink import Shrinking

from paritybit.drive.adapters import adapter
from paritybit.drive.environment import Environment
from paritybit.drive.script import Part, Planned, Script, Wave
from paritybit.drive.sglang.settings import Served
from paritybit.launch.case import WatchCase
from paritybit.launch.follow import Stops

SMALL = (Wave((Planned("small", (Part("small", 1),), 1),)),)
LARGE = (*SMALL, *SMALL)

Checks = tuple[str, ...] | None


@dataclass
class Scripted(Shrinking):
    """A search whose engine shows small scripts with some checks alone, and large ones always."""

    small: tuple[Checks, ...] = ()
    ran: list[Checks] = field(default_factory=list)

    def shows(self, case: WatchCase, script: Script, seconds: float) -> Script | None:
        """Return the small script where it may shrink and is shown."""
        self.ran.append(case.checks)
        shown = case.checks in self.small
        if seconds:
            return replace(script, waves=SMALL) if shown else script
        return script if shown or script.waves == LARGE else None


def search(tmp_path: Path, small: tuple[Checks, ...]) -> Scripted:
    engine = cast("Environment", None)
    return Scripted(adapter("sglang"), engine, tmp_path, Stops(), str, small=small)


def case_of(key: str) -> WatchCase:
    script = Script(Served().scope(), LARGE)
    return WatchCase("0.5.23", "decode graphs", script, 1, None, key, "found", 7)


def test_only_the_check_of_the_finding_runs_until_the_end(tmp_path: Path) -> None:
    searched = search(tmp_path, (("stray write",), None))
    found = searched.smallest(case_of("stray write | full | not known"), 60.0)
    assert found is not None
    assert (found.script.waves, found.checks, found.forward) == (SMALL, None, None)
    assert searched.ran == [("stray write",), None]


@pytest.mark.parametrize(
    ("key", "small", "ran", "left"),
    [
        ("stray write | full", (("stray write",),), [("stray write",), None, None], LARGE),
        ("attention kernel | name", (None,), [None], SMALL),
    ],
)
def test_what_all_checks_do_not_show_is_searched_with_all(
    tmp_path: Path, key: str, small: tuple[Checks, ...], ran: list[Checks], left: tuple[Wave, ...]
) -> None:
    searched = search(tmp_path, small)
    found = searched.smallest(case_of(key), 60.0)
    assert found is not None
    assert found.script.waves == left
    assert searched.ran == ran
