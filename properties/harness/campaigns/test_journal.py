"""A journal: what has ended is not run again, and no line of it constructs anything else."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from paritybit.harness.campaigns import executor, soak
from paritybit.harness.campaigns.executor import Ended
from paritybit.harness.campaigns.history import watch
from paritybit.harness.campaigns.mutants.hunting import MutantHunt, hunt_mutant
from paritybit.harness.campaigns.soak import Chunk, SeededHunts, clean_steps, hunt_by_seed
from paritybit.harness.campaigns.spreading import backends, journal
from paritybit.harness.campaigns.spreading.backends import execute
from paritybit.harness.campaigns.spreading.journal import Journal, line_of
from paritybit.harness.campaigns.task import Source, Task, run_in_turn
from paritybit.harness.errors import CannotRunError, MalformedError, headline
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.scale.shapes import one_size
from paritybit.harness.machine.workers import LOCAL, Workers
from paritybit.harness.records.sources import digest
from paritybit.harness.records.typed_json import to_json
from paritybit.subjects.mutants.mutant import mutants

from properties.support.harness.command_line import full_disk
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


def kept_in(path: Path) -> set[str]:
    """Return what the chores do whose ends a journal has."""
    return {does for does in "ab" if Journal(path, run).ended(Chore(does)) is not None}


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
    kept = Journal(path, run).ended(Chore("a"))
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


@pytest.mark.parametrize("failing", ["a", "b"])
def test_what_takes_the_ends_may_fail_and_is_heard(failing: str) -> None:
    """As where a case cannot be written. Of the last task, too, after which none is left."""

    def take(ended: Ended[Chore, Done]) -> None:
        if ended.task.does == failing:
            raise CannotRunError("the case cannot be written")

    with pytest.raises(CannotRunError, match="cannot be written"):
        execute(CHORES, [Chore("a"), Chore("b")], Workers(0), take)


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
        assert kept_in(path) == {"a"}
    assert [ended.task.does for ended in ends_of(path, "b", "a")] == ["a", "b"]


def test_a_journal_of_another_build_has_no_part_in_this_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal"
    ends_of(path, "a")
    monkeypatch.setattr(journal, "build", lambda: "another-build")
    with pytest.raises(MalformedError, match="journal journal was written by another build"):
        ends_of(path, "a")
    (tmp_path / "notes").write_text("something else")
    with pytest.raises(MalformedError, match="notes is not a journal of paritybit"):
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


BROKEN = one_size(TrialConfig("cpu_graph")).with_bug("req_pool_pad")

KEPT: list[tuple[Callable[[Any], Any], Any]] = [
    (run_in_turn, Task(BROKEN, Source.GENERATED, 0, 10)),
    (watch, BROKEN),
    (clean_steps, Chunk(BROKEN, 0, 1)),
    (hunt_by_seed, SeededHunts("cpu", "req_pool_pad", "cpu_graph", (0,))),
    (hunt_mutant, MutantHunt(next(mutants()), (0,), 10)),
]
"""A task of each campaign that a journal may keep."""


@pytest.mark.parametrize(("carry_out", "task"), KEPT, ids=lambda one: getattr(one, "__name__", ""))
def test_the_result_of_each_campaign_reads_back(
    carry_out: Callable[[Any], Any], task: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the same data of the same type; within JSON data a tuple reads back as a list."""
    monkeypatch.setattr(soak, "EXAMPLES", 2)
    result = carry_out(task)
    Journal(tmp_path / "journal", carry_out).keep(Ended(task, 1.5, result))
    found = Journal(tmp_path / "journal", carry_out).ended(task)
    assert found is not None
    assert (found.task, found.seconds, type(found.result)) == (task, 1.5, type(result))
    assert to_json(found.result) == to_json(result)
    if carry_out is not clean_steps:  # Its alarms are JSON data.
        assert found.result == result


def lines_that_are_no_results() -> dict[str, Callable[[dict[str, Any]], Any]]:
    """Return how to make of a whole entry one that is none, by what is wrong with it."""
    result = {"does": "a", "process": 1, "spoiled": False, "extra": None}
    return {
        "a result with a class": lambda entry: {**entry, "result": {"__class__": "os", **result}},
        "a result with less": lambda entry: {**entry, "result": {"does": "a"}},
        "a result of another type": lambda entry: {**entry, "result": [result]},
        "a number that is too long": lambda entry: {
            **entry,
            "result": {**result, "process": 10**30},
        },
        "seconds that are none": lambda entry: {**entry, "seconds": float("nan")},
        "one more key": lambda entry: {**entry, "more": 1},
        "deep nesting": lambda entry: {**entry, "result": {**result, "extra": nested(60)}},
        "too many bytes": lambda entry: {**entry, "result": {**result, "extra": "x" * 2**22}},
    }


def nested(depth: int) -> list[Any]:
    """Return lists within lists."""
    return [] if depth == 0 else [nested(depth - 1)]


@pytest.mark.parametrize("what", lines_that_are_no_results())
def test_a_line_that_is_no_whole_result_counts_for_nothing(what: str, tmp_path: Path) -> None:
    """Even with the right digest: its task runs again, and lines after it count."""
    path = tmp_path / "journal"
    ends_of(path, "a", "b")
    first, a, b = path.read_bytes().splitlines(keepends=True)
    entry = json.loads(a)
    del entry["sha256"]
    assert line_of(entry) == a
    path.write_bytes(first + line_of(lines_that_are_no_results()[what](entry)) + b)
    assert kept_in(path) == {"b"}


@pytest.mark.parametrize(
    "line", [b"[" * 100_000, b"\xff\xfe", b"9" * 10_000, b"{}", b"[]", b"", b"1"]
)
def test_a_line_of_anything_counts_for_nothing(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    ends_of(path, "a")
    path.write_bytes(path.read_bytes() + line + b"\n")
    assert kept_in(path) == {"a"}


def test_a_result_that_exceeds_a_size_limit_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal"
    ends_of(path, "a")
    for limit, value in (("MOST_BYTES", path.stat().st_size + 1), ("MOST_LINE_BYTES", 10)):
        with monkeypatch.context() as limited:
            limited.setattr(journal, limit, value)
            ends_of(path, "b")
        assert kept_in(path) == {"a"}


def test_a_disk_that_fills_up_ends_the_campaign_and_spoils_no_entry(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    ends_of(path, "a")
    with (
        full_disk(path.stat().st_size + 10),
        pytest.raises(CannotRunError, match="journal cannot be written: File too large"),
    ):
        ends_of(path, "b")
    assert kept_in(path) == {"a"}
    ends_of(path, "b")
    assert kept_in(path) == {"a", "b"}
