"""sglang's half: what it reads of the engine's objects, its laws, and a release."""

from pathlib import Path
from subprocess import CompletedProcess

import pytest
from paritybit.harness.cli.exit_codes import CANNOT_RUN, FINDING, OK
from paritybit.harness.errors import MalformedError

from paritybit.explore.bound import Bound
from paritybit.explore.laws import ownership
from paritybit.explore.search import ViolationError
from paritybit.explore.sglang.world import require_room, sliding_pages
from properties.planting.faults import FOLDER, plant, read
from properties.support.harness.command_line import python
from properties.support.releases import package_of

RELEASE = "0.5.23"


@pytest.mark.parametrize(
    ("free", "owners", "law"),
    [
        ([1, 2, 2], {3: ["r1"]}, "double free"),
        ([1, 2], {2: ["r1"], 3: ["r1"]}, "freed in use: page 2 of the full pool"),
        ([1, 2], {}, "leak: page 3 of the full pool"),
        ([1, 2], {3: ["r1", "r2"]}, "wrong owner: page 3 .* both r1 and r2"),
    ],
)
def test_a_page_is_free_or_has_one_owner(
    free: list[int], owners: dict[int, list[str]], law: str
) -> None:
    with pytest.raises(ViolationError, match=law):
        ownership(free, owners, (1, 2, 3), " of the full pool")
    ownership([1, 2], {3: ["r1"]}, (1, 2, 3))


def test_a_pool_has_room_for_one_request() -> None:
    for size in (1, 2, 3):
        bound = Bound(page_size=size)
        require_room(bound)
        assert sliding_pages(bound) < bound.slots
        assert max(map(len, bound.prompts)) < bound.longest
    with pytest.raises(MalformedError, match="--slots must be at least 14"):
        require_room(Bound(slots=13))
    require_room(Bound(slots=14))


def explored(engine: str, out: Path, *words: str) -> CompletedProcess[str]:
    """Explore an engine in a process of its own."""
    command = ["explore", "--engine", engine, "--out", str(out), "--seconds", "600", *words]
    return python("-m", "paritybit", *command)


def test_sglang_has_no_violation_in_few_actions(tmp_path: Path) -> None:
    package_of(RELEASE)
    first = explored(f"sglang=={RELEASE}", tmp_path, "--depth", "4")
    # Evictions take more actions, so the search is too short for a verdict.
    assert first.returncode in (OK, CANNOT_RUN), first.stderr
    assert "complete up to 4 actions" in first.stdout
    assert not list(tmp_path.iterdir())


def test_a_fault_of_sglang_is_found_and_replays(tmp_path: Path) -> None:
    package = package_of(RELEASE)
    faults = read(FOLDER / "sglang.toml")
    fault = next(one for one in faults if one.name == "allocation-keeps-its-last-slot")
    engine = tmp_path / "engine"
    plant(fault, package.parent, engine)
    found = explored(str(engine), tmp_path / "out")
    assert found.returncode == FINDING, found.stderr
    case = tmp_path / "out" / "latest" / "cases" / "explore.json"
    for spec, code in ((str(engine), FINDING), (f"sglang=={RELEASE}", OK)):
        done = python("-m", "paritybit", "replay", str(case), "--engine", spec)
        assert done.returncode == code, done.stderr
