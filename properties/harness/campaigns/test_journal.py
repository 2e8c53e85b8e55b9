"""A journal: what has ended is not run again, and nothing is made of it but what it should."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from paritybit.harness.campaigns import executor
from paritybit.harness.campaigns.executor import Ended
from paritybit.harness.campaigns.spreading import backends, journal
from paritybit.harness.campaigns.spreading.backends import execute
from paritybit.harness.campaigns.spreading.journal import HEAD, Journal, framed
from paritybit.harness.errors import CannotRunError, MalformedError, headline
from paritybit.harness.machine.workers import LOCAL, Workers
from paritybit.harness.records.sources import digest

from properties.support.harness.executor_tasks import CHORES, Chore, Done, run


@pytest.fixture(autouse=True)
def one_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name of the build that is known at once."""
    monkeypatch.setattr(journal, "build", lambda: "this-build")


def ends_of(path: Path, *does: str) -> list[Ended[Chore, Done]]:
    """Run chores with a journal, in this process; return their ends in the order they came."""
    ends: list[Ended[Chore, Done]] = []
    workers = Workers(0, journal=path)
    execute(CHORES, [Chore(what) for what in does], workers, ends.append)
    return ends


class CutShortError(Exception):
    """Ends a campaign midway."""


def cut_short(path: Path, *does: str) -> None:
    """Run chores with a journal until the first has ended."""

    def end(_: Ended[Chore, Done]) -> None:
        raise CutShortError

    with pytest.raises(CutShortError):
        execute(CHORES, [Chore(what) for what in does], Workers(0, journal=path), end)


def test_a_campaign_that_was_cut_short_goes_on_where_it_was(tmp_path: Path) -> None:
    """What has ended keeps its result and its time; it is handed on first."""
    path = tmp_path / "new" / "journal"
    cut_short(path, "a", "b", "c")
    (kept,) = Journal(path, run).ends.values()
    ends = ends_of(path, "c", "b", "a")
    assert ends[0] == kept
    assert [ended.task.does for ended in ends] == ["a", "c", "b"]
    assert ends_of(path, "c", "b", "a") == [ends[1], ends[2], ends[0]]


@pytest.mark.parametrize("before", [0, 2])
def test_where_work_can_go_on_no_more_what_has_ended_is_kept(
    before: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All else ends with that error, to be done again; where nothing has ended, it is raised."""
    path = tmp_path / "journal"

    def lose_the_cluster(*given: Any) -> None:
        campaign, tasks, workers, on_end = given
        executor.execute(campaign, tasks[:before], workers, on_end)
        raise CannotRunError("the cluster answers no more")

    with monkeypatch.context() as lost:
        lost.setattr(backends, "execute_on_ray", lose_the_cluster)
        workers = Workers(0, cluster=LOCAL, journal=path)
        ends: list[Ended[Chore, Done]] = []
        chores = [Chore(what) for what in "abcd"]
        if before:
            execute(CHORES, chores, workers, ends.append)
        else:
            with pytest.raises(CannotRunError, match="answers no more"):
                execute(CHORES, chores, workers, ends.append)
    assert [ended.task for ended in ends] == (chores if before else [])
    said = "paritybit.harness.errors.CannotRunError: the cluster answers no more"
    assert [headline(ended.error or "") for ended in ends[before:]] == [said] * len(ends[before:])
    assert [ended.error for ended in ends_of(path, *"abcd")] == [None] * len(chores)


def test_what_ended_without_a_result_is_done_again(tmp_path: Path) -> None:
    """And so is what spoiled its process."""
    path, lost = tmp_path / "journal", tmp_path / "lost"
    bad = f"lose the device the first time {lost}"
    first = ends_of(path, "raise", bad, "a")
    assert [ended.error is None for ended in first] == [False, True, True]
    again = ends_of(path, "raise", bad, "a")
    assert [ended.task.does for ended in again] == ["a", "raise", bad]
    assert again[2].result is not None
    assert not again[2].result.spoiled


def test_an_entry_that_was_cut_short_is_done_again(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    ends_of(path, "a", "b")
    path.write_bytes(path.read_bytes()[:-3])
    assert {key.split("'")[1] for key in Journal(path, run).ends} == {"a"}
    ends_of(path, "a", "b")
    assert {key.split("'")[1] for key in Journal(path, run).ends} == {"a", "b"}


@pytest.mark.parametrize("bit", [0, 7])
def test_what_was_damaged_is_no_result(bit: int, tmp_path: Path) -> None:
    """Any byte of the last entry: what stood before it counts, and it is done again."""
    path = tmp_path / "journal"
    ends_of(path, "a")
    before = path.stat().st_size
    ends_of(path, "a", "b")
    whole = path.read_bytes()
    for place in range(before, len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << bit
        path.write_bytes(damaged)
        assert {key.split("'")[1] for key in Journal(path, run).ends} == {"a"}
    assert [ended.task.does for ended in ends_of(path, "b", "a")] == ["a", "b"]


def test_a_journal_of_another_build_has_no_part_in_this_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal"
    ends_of(path, "a")
    monkeypatch.setattr(journal, "build", lambda: "another-build")
    with pytest.raises(MalformedError, match="journal journal is of another build"):
        ends_of(path, "a")
    (tmp_path / "notes").write_text("something else")
    with pytest.raises(MalformedError, match="notes is no journal of paritybit"):
        ends_of(tmp_path / "notes", "a")
    assert (tmp_path / "notes").read_text() == "something else"
    with pytest.raises(MalformedError, match="cannot be kept"):
        ends_of(tmp_path, "a")


def test_a_build_is_its_sources_and_what_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert journal.build().startswith(digest())
    before = journal.build()
    monkeypatch.setattr(journal, "package_version", lambda name: f"another {name}")
    assert journal.build() != before


class Evil:
    """What calls a function where it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("made",)


def test_a_journal_calls_nothing_and_makes_no_class_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "journal"
    for foreign in (Evil(), Path("x")):
        path.write_bytes(HEAD + b"this-build\n" + framed(pickle.dumps(("a", foreign))))
        with pytest.raises(MalformedError, match="is nothing that a journal holds"):
            ends_of(path, "a")
    assert not (tmp_path / "made").exists()
