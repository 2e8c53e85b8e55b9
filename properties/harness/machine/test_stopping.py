"""Whatever asks a run to stop, however often and whenever, the run keeps what it has."""

import json
import os
import signal
import time
import weakref
from pathlib import Path

import pytest
from paritybit.harness.machine.stopping import PATIENCE, Stop, heard_at_the_end, listening

from properties.support.harness.command_line import (
    HUNG_UP,
    INTERRUPTED,
    LONGEST,
    TERMINATED,
    in_its_own_group,
    python,
)

SIGNALS = ((signal.SIGINT, INTERRUPTED), (signal.SIGTERM, TERMINATED), (signal.SIGHUP, HUNG_UP))


def test_a_hasty_second_signal_is_not_heard_and_ctrl_c_is_later() -> None:
    """As `timeout` sends it: to the process, and to its whole group."""
    stop = Stop()
    with pytest.raises(KeyboardInterrupt):
        stop.hear(signal.SIGINT, None)
    for number in (signal.SIGINT, signal.SIGTERM):
        stop.hear(number, None)
    assert stop.received == signal.SIGINT
    for number in (signal.SIGINT, signal.SIGTERM):
        stop.at -= PATIENCE
        with pytest.raises(KeyboardInterrupt):
            stop.hear(number, None)
    stop.at -= PATIENCE
    stop.hear(signal.SIGTERM, None)
    assert stop.received == signal.SIGTERM


def test_what_asks_to_stop_is_heard_once_what_is_kept_is_written() -> None:
    written = False
    with pytest.raises(KeyboardInterrupt), heard_at_the_end():
        signal.raise_signal(signal.SIGINT)
        written = True
    assert written


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_within_a_weakref_callback_still_stops(number: int) -> None:
    stop, thing = Stop(), Stop()
    kept = weakref.ref(thing, lambda _: signal.raise_signal(number))
    with pytest.raises(KeyboardInterrupt), listening(stop):
        del thing
        assert kept() is None
        time.sleep(LONGEST)
    assert stop.received == number


RUN = """
import os, sys
import paritybit.harness.cli.regress
from paritybit.__main__ import main

def stop():
    os.kill(os.getpid(), {number})

def run_tasks(tasks, workers, on_result):
    {while_playing}

def write(record, path, writing=paritybit.harness.cli.regress.run_record.write):
    {while_writing}
    writing(record, path)

paritybit.harness.cli.regress.run_tasks = run_tasks
paritybit.harness.cli.regress.run_record.write = write
sys.exit(main(["regress", "--device", "cpu", "--bug", "swa_pad@decode", "--out", sys.argv[1]]))
"""
"""The main job, with tasks of nothing, which is asked to stop."""

TWICE = """
    try:
        stop()
    finally:
        stop()
"""


@pytest.mark.parametrize(
    ("signalled", "while_playing", "while_writing"),
    [
        (SIGNALS[0], TWICE.strip(), "pass"),
        (SIGNALS[1], "pass", "stop()"),
        (SIGNALS[2], "stop()", "stop()"),
    ],
    ids=["again while the work ends", "while the record is written", "before and then"],
)
def test_a_run_that_is_asked_to_stop_at_any_time_keeps_its_record_and_page(
    signalled: tuple[int, int], while_playing: str, while_writing: str, tmp_path: Path
) -> None:
    number, code = signalled
    source = RUN.format(
        number=int(number), while_playing=while_playing, while_writing=while_writing
    )
    done = python("-c", source, str(tmp_path))
    assert (done.returncode, done.stderr.replace("paritybit: interrupted\n", "")) == (code, "")
    record = json.loads((tmp_path / "latest/run.json").read_text())
    assert (record["verdict"] == "interrupted") == (while_playing != "pass")
    assert (tmp_path / "latest/index.html").exists()


HANG = """
import signal, sys, time
import paritybit.harness.campaigns.task
from paritybit.__main__ import main

def hang(*_, **__):
    by_default = signal.SIGTERM, signal.SIGHUP
    print("plays", {{signal.getsignal(number) for number in by_default}}, flush=True)
    time.sleep({longest})

paritybit.harness.campaigns.task.run_task = hang
sys.argv[1:] = ["regress", "--device", "cpu", "--bug", "swa_pad@decode", "--workers", "1", "--out",
    sys.argv[1]]
sys.exit(main())
"""
"""The main job as a process's own command, in one worker, whose first task does not end."""


@pytest.mark.parametrize(("number", "code"), SIGNALS[1:])
def test_a_signal_to_the_whole_group_is_told_of_once(
    number: int, code: int, tmp_path: Path
) -> None:
    """As a terminal sends it, that is closed: the processes that play end without a word."""
    with in_its_own_group("-c", HANG.format(longest=LONGEST), tmp_path) as process:
        assert process.stdout is not None
        assert "plays {<Handlers.SIG_DFL: 0>}\n" in iter(process.stdout.readline, "")
        os.killpg(process.pid, number)
        _, errors = process.communicate(timeout=LONGEST)
    assert (process.returncode, errors) == (code, "")
    assert json.loads((tmp_path / "latest/run.json").read_text())["verdict"] == "interrupted"
