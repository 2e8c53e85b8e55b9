"""Tests of the lines of the code that a cause is about: they are where they say."""

from pathlib import Path

import pytest
from paritybit.harness.explain.facts import (
    BakedIn,
    Cause,
    CodeSite,
    GivenValue,
    IndexOrigin,
    ListFault,
    SourceLine,
    Writer,
)
from paritybit.harness.explain.origins.source_lines import (
    contract_row,
    line_of,
    site_of,
    source_lines,
)
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.pair import Pair
from paritybit.subjects.buffers import BufferPool
from paritybit.subjects.runners import RUNNERS
from paritybit.subjects.runners.base import GraphRunner

from paritybit.places import SOURCES


def text_at(line: SourceLine) -> str:
    """Return what stands at a line, and on the next one."""
    lines = (SOURCES / line.file).read_text().splitlines()
    return "\n".join(lines[line.line - 1 : line.line + 1])


@pytest.mark.parametrize("name", RUNNERS)
def test_every_row_of_every_contract_is_found_in_the_code(name: str) -> None:
    for row in RUNNERS[name].rows:
        line = contract_row(RUNNERS[name], row.name)
        assert line is not None
        assert f'"{row.name}"' in text_at(line)
        assert line.what == f"the contract row of {row.name}"
        assert line.file.startswith("subjects/runners/")


def test_a_runners_own_row_goes_before_that_of_what_it_is_made_from() -> None:
    line = contract_row(RUNNERS["target_verify"], "custom_mask")
    assert line is not None
    assert line.file == "subjects/runners/target_verify.py"
    inherited = contract_row(RUNNERS["target_verify"], "positions")
    assert inherited is not None
    assert inherited.file == "subjects/runners/decode.py"
    assert contract_row(RUNNERS["decode"], "no_such_input") is None


def test_a_site_is_where_its_function_begins() -> None:
    site = site_of(BufferPool.get, "it refuses")
    assert (site.function, site.file) == ("BufferPool.get", "subjects/buffers.py")
    assert site.line is not None
    assert "def get(" in text_at(SourceLine("", site.file, site.line))
    assert site_of(BufferPool.get, "", "another name").function == "another name"


def test_a_path_outside_the_tree_is_not_told() -> None:
    assert line_of("", Path.exists).file == "pathlib.py"


@pytest.fixture(scope="module")
def runner() -> GraphRunner:
    """A captured decode runner."""
    subject = Pair(TrialConfig()).subject
    return next(one for one in subject.runners.values() if one.name == "decode")


def whats(cause: Cause, runner: GraphRunner | None) -> list[str]:
    """Return what stands at the lines of a cause, each of which is in the code."""
    lines = source_lines(runner, cause)
    assert all((SOURCES / line.file).is_file() for line in lines)
    assert len(set(lines)) == len(lines)
    return [line.what for line in lines]


def index(buffer: str | None) -> IndexOrigin:
    """Return an index that an element of a buffer led to."""
    left_by = Writer(2, "decode", 1, None)
    return IndexOrigin(buffer, 1, 9, 0, True, 1, None, 9, 0, left_by, "copied")


LAUNCHED = "the graph is launched"
WRITTEN = "static inputs are written"


def test_the_lines_of_a_cause_are_its_row_what_populates_it_and_the_launch(
    runner: GraphRunner,
) -> None:
    rows = [
        "the contract row of positions",
        "positions is populated",
        "static inputs are written",
        LAUNCHED,
    ]
    assert whats(Cause("inputs", index=index("positions")), runner) == rows
    given = GivenValue("positions[1]", "3", "4", True, None, None)
    assert whats(Cause("inputs", given=given), runner) == rows
    assert whats(Cause("inputs", index=index("kv_indices")), runner)[0] == "kv_indices is written"
    baked = Cause("captured state", index=index(None), baked=BakedIn("rotary", 4, None, "a", "b"))
    assert whats(baked, runner) == ["the graph is captured", LAUNCHED]
    listed = Cause("key lists", listed=ListFault("swa", 1, None, "is one short"))
    assert whats(listed, runner) == ["the key lists are written", LAUNCHED]


def test_a_site_comes_first_and_an_eager_forward_has_nothing_but_it() -> None:
    site = CodeSite("f", "subjects/pool.py", "it warns", 7)
    assert source_lines(None, Cause("call site", site=site)) == (
        SourceLine("f", "subjects/pool.py", 7),
    )
    assert source_lines(None, Cause("not known")) == ()
