"""The executor: whatever happens to one task, its end says what, and the rest finishes."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from paritybit.harness.campaigns.executor import Campaign, Ended, Waiting, execute
from paritybit.harness.errors import headline
from paritybit.harness.machine.gpus import VISIBLE
from paritybit.harness.machine.workers import HERE, Workers

from properties.support.harness import executor_tasks
from properties.support.harness.command_line import LONGEST, in_its_own_group
from properties.support.harness.executor_tasks import CHORES, Chore, Done, run, shared


def ends_of(tasks: Sequence[Chore], processes: int) -> dict[Chore, Ended[Chore, Done]]:
    """Return how tasks ended."""
    ends: dict[Chore, Ended[Chore, Done]] = {}

    def on_end(ended: Ended[Chore, Done]) -> None:
        assert ended.task not in ends
        ends[ended.task] = ended

    execute(CHORES, tasks, Workers(processes), on_end)
    assert ends.keys() == set(tasks)
    return ends


def process_of(ended: Ended[Chore, Done]) -> int:
    """Return the process that a task ran in."""
    assert ended.result is not None
    return ended.result.process


ERRORS = {
    "hang": "it took more than 3 s and was killed",
    "die": "the process died with exit code 3",
    "raise": "LookupError: first line",
    "lose the device unexpectedly": f"{executor_tasks.__name__}.NoDeviceError: no device",
    "give what cannot be sent": "AttributeError: Can't ",
}
"""What a task does, and what its end says of it."""


def test_a_task_that_ends_badly_says_so_and_the_rest_finishes() -> None:
    """One process, replaced after each of them; one that hangs, beside another that runs on."""
    bad = [Chore(does) for does in ERRORS]
    well = [Chore("go well", place) for place in range(1, len(bad) + 1)]
    tasks = [task for pair in zip(bad, well, strict=True) for task in pair]
    ends = ends_of(tasks, 2)
    for task in bad:
        assert ends[task].result is None
        assert headline(ends[task].error or "").startswith(ERRORS[task.does])
    assert [ends[task].error for task in well] == [None] * len(well)
    assert os.getpid() not in {process_of(ends[task]) for task in well}


def test_the_whole_traceback_of_a_worker_is_kept_and_names_no_absolute_path() -> None:
    error = ends_of([Chore("raise")], 1)[Chore("raise")].error
    assert error is not None
    assert 'File "properties/support/harness/executor_tasks.py"' in error
    assert 'raise LookupError("first line\\nsecond line")' in error
    assert error.endswith("LookupError: first line\nsecond line\n")
    assert 'File "/' not in error


def test_a_process_that_lost_its_device_gives_its_result_and_runs_nothing_more() -> None:
    lost, same, other = Chore("lose the device", 1), Chore("go well", 1), Chore("go on", 1)
    ends = ends_of([lost, same, other], 1)
    assert process_of(ends[lost]) != process_of(ends[same]) == process_of(ends[other])


def test_a_process_that_died_while_idle_is_replaced_and_costs_no_task() -> None:
    ends: list[Ended[Chore, Done]] = []

    def kill(ended: Ended[Chore, Done]) -> None:
        ends.append(ended)
        os.kill(process_of(ended), signal.SIGKILL)
        with pytest.raises(ProcessLookupError):
            while True:
                os.kill(process_of(ended), 0)

    execute(CHORES, [Chore("a", 1), Chore("b", 1), Chore("c", 1)], Workers(1), kill)
    assert [ended.error for ended in ends] == [None] * 3
    assert len({process_of(ended) for ended in ends}) == 3


def test_no_process_makes_what_another_one_keeps() -> None:
    """Tasks alike go to one; when all share with running ones, to where most are left."""
    campaign = replace(
        CHORES, shared=lambda task: str(task.shared)[0], own=lambda task: task.shared
    )
    one, again, beside, other = (
        Chore(does, place) for does, place in zip("abcd", ("gx", "gx", "gy", "hz"), strict=True)
    )
    waiting = Waiting(campaign, [one, again, beside, other])
    assert waiting.take(None, []) == one
    assert waiting.take(None, [one]) == other
    assert waiting.take(other, [one]) == beside
    assert waiting.take(one, [beside]) == again
    left = Waiting(campaign, [one, beside, other, Chore("e", "gw"), Chore("f", "hv")])
    assert left.take(None, [again, Chore("g", "hu")]) == beside


def test_in_this_process_tasks_that_share_something_follow_one_another() -> None:
    """And one that raises or takes too long does not keep the rest from finishing."""
    order: list[str] = []
    tasks = [Chore("b", 2), Chore("hang"), Chore("raise"), Chore("c", 3), Chore("d", 2)]
    ends: list[Ended[Chore, Done]] = []
    quick = Campaign(run, shared, lambda task: 0.05 if task.does == "hang" else LONGEST)
    execute(quick, tasks, HERE, ends.append)
    order = [ended.task.does for ended in ends]
    assert order == ["b", "d", "hang", "raise", "c"]
    assert headline(ends[2].error or "").endswith("it took more than 0 s and was killed")
    assert headline(ends[3].error or "") == "LookupError: first line"
    assert {process_of(ends[place]) for place in (0, 1, 4)} == {os.getpid()}
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL


def test_a_thread_runs_tasks_in_this_process_too() -> None:
    """Where no signal can end one that hangs."""
    ends: list[Ended[Chore, Done]] = []
    words = (CHORES, [Chore("go well")], HERE, ends.append)
    thread = threading.Thread(target=execute, args=words, daemon=True)
    thread.start()
    thread.join(LONGEST)
    assert not thread.is_alive()
    assert process_of(ends[0]) == os.getpid()


def test_what_takes_note_of_an_end_may_raise_and_no_process_is_left() -> None:
    processes: list[int] = []

    def on_end(ended: Ended[Chore, Done]) -> None:
        processes.append(process_of(ended))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        execute(CHORES, [Chore("go well"), Chore("hang")], Workers(2), on_end)
    assert not Path(f"/proc/{processes[0]}").exists()


def test_processes_take_the_gpus_in_turn_and_each_sees_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From its start; one that takes the place of another has the GPU of that."""
    monkeypatch.setenv(VISIBLE, "5,2")
    ends: list[Ended[Chore, Done]] = []
    lost = Chore("lose the device", 1)
    tasks = [lost, *(Chore("say the environment", place) for place in (2, 3, 1))]
    execute(CHORES, tasks, Workers(3, ("5", "2")), ends.append)
    seen = {ended.task.shared: ended.result.extra for ended in ends if ended.result}
    assert {place: seen[place][VISIBLE] for place in (2, 3)} == {2: "2", 3: "5"}
    assert len(ends) == len(tasks)
    assert os.environ[VISIBLE] == "5,2"


def test_under_mps_what_ended_badly_is_run_again_alone(tmp_path: Path) -> None:
    """Its neighbour's fault may have been what ended it: that ends well, and is told once."""
    lost, alone = tmp_path / "lost", Chore("lose the device", 2)
    victim = Chore(f"lose the device the first time {lost}", 1)
    ends: list[Ended[Chore, Done]] = []
    workers = Workers(2, mps=True)
    execute(CHORES, [victim, alone, Chore("go well", 3)], workers, ends.append)
    assert lost.exists()
    spoiled = {ended.task: ended.result.spoiled for ended in ends if ended.result}
    assert spoiled == {victim: False, alone: True, Chore("go well", 3): False}
    assert len(ends) == len(spoiled)
    noted = {(str(task), "its process lost the device") for task in (victim, alone)}
    assert set(workers.again) == noted
    assert len(workers.again) == len(noted)


def running(group: int) -> Iterator[str]:
    """Yield the processes of a group that run or sleep."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().rpartition(") ")
        except OSError:
            continue
        state, _, process_group = rest.split()[:3]
        if int(process_group) == group and state not in {"Z", "X"}:
            yield name


def survivors(group: int) -> list[str]:
    """Return the processes of a group that still run, after a grace of some seconds."""
    deadline = time.monotonic() + 10
    while (found := list(running(group))) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


@contextmanager
def busy(*, starting: bool) -> Iterator[subprocess.Popen[str]]:
    """Run a campaign in a group of processes of its own, until its workers start or one ended."""
    imported = f"from {executor_tasks.__name__} import *"
    code = f"{imported}; interrupted(slow_start={starting})"
    with in_its_own_group("-c", code, forked=False) as process:
        assert process.stdout is not None
        assert ("starting\n" if starting else "ended\n") in iter(process.stdout.readline, "")
        time.sleep(0.5 if starting else 0.0)
        # As long as their server imports what they need, none of them is there.
        deadline = time.monotonic() + LONGEST
        while len(list(running(process.pid))) <= (1 if starting else 2):
            assert time.monotonic() < deadline
        yield process


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are told by /proc")
@pytest.mark.parametrize("starting", [True, False], ids=["while they start", "while they run"])
def test_ctrl_c_ends_all_processes_and_keeps_what_ended(starting: bool) -> None:
    """The whole group hears it, as on a terminal; no process prints anything."""
    with busy(starting=starting) as process:
        os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    kept = "" if starting else " go well"
    assert (process.returncode, output, errors) == (130, f"interrupted after{kept}\n", "")
    assert survivors(process.pid) == []


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are told by /proc")
@pytest.mark.parametrize(("number", "starting"), [(signal.SIGKILL, False), (signal.SIGTERM, True)])
def test_processes_end_with_the_one_that_started_them_however_it_ends(
    number: signal.Signals, starting: bool
) -> None:
    """It alone hears the signal; whoever reads what it prints reads the end of it."""
    with busy(starting=starting) as process:
        process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode == -number
    assert survivors(process.pid) == []
