"""The server that processes are forked from: one for all, and none left behind."""

import os
import resource
import signal
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from paritybit.harness.machine.forks import Forked, preload, undisturbed
from paritybit.harness.machine.gpus import VISIBLE, listed_gpus

from properties.support.harness.command_line import python
from properties.support.harness.forked import WORK, answer_of, answers, ends, sleeps

SOON = 10.0


def asked(what: str, variables: Mapping[str, str] | None = None) -> Any:
    """Return what a forked process answers."""
    process = Forked(answers, variables=os.environ if variables is None else variables)
    process.pipe.send(what)
    return answer_of(process)


def test_a_process_has_the_variables_that_it_is_given_and_this_one_s_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it begins CUDA, which it pins to a GPU: the server has begun nothing."""
    monkeypatch.chdir(tmp_path)
    assert asked("variables", {VISIBLE: "3"}) == {VISIBLE: "3"}
    assert asked("folder") == str(tmp_path)


@pytest.mark.skipif(not torch.version.cuda, reason="this torch is built without CUDA")
def test_a_process_is_pinned_to_a_gpu_though_torch_was_imported_before() -> None:
    preload(["torch"])
    uuids = [uuid for _, uuid in listed_gpus() if uuid]
    if not uuids:
        pytest.skip("no GPU is listed here")
    for uuid in uuids:
        assert asked("GPUs", {**os.environ, VISIBLE: uuid}) == [uuid]


def test_what_is_preloaded_is_there_before_it_is_asked_for() -> None:
    """And what cannot be imported keeps nobody from anything."""
    preload(["no_such_module", "wave"])
    assert "wave" in asked("modules")


def test_a_process_ends_when_nobody_holds_its_pipe_any_more() -> None:
    process = Forked(sleeps, variables=os.environ)
    pid = answer_of(process)
    assert (process.pid, process.is_alive()) == (pid, True)
    process.pipe.close()
    process.join(SOON)
    assert process.exitcode == -signal.SIGKILL


def test_how_a_process_ended_is_told() -> None:
    one, other = Forked(ends, 7, variables=os.environ), Forked(sleeps, variables=os.environ)
    one.join(SOON)
    assert one.exitcode == 7
    other.kill()
    other.join(SOON)
    assert (other.exitcode, other.is_alive()) == (-signal.SIGKILL, False)
    other.kill()


def test_a_process_that_its_server_has_not_forked_yet_is_waited_for_so_long_and_no_longer() -> None:
    server = asked("parent")
    os.kill(server, signal.SIGSTOP)
    try:
        process = Forked(answers, variables=os.environ)
        process.join(0.1)
        assert process.is_alive()
    finally:
        os.kill(server, signal.SIGCONT)
    process.pipe.send("parent")
    assert answer_of(process) == server


def test_a_signal_while_a_process_is_heard_of_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a command that is ended just then would wait for ever for a process to end."""
    process = Forked(sleeps, variables=os.environ)
    pid = answer_of(process)
    read = os.read

    def read_and_hear(*words: int) -> bytes:
        said = read(*words)
        signal.raise_signal(signal.SIGINT)
        return said

    with monkeypatch.context() as heard, pytest.raises(KeyboardInterrupt):
        heard.setattr("paritybit.harness.machine.forks.os.read", read_and_hear)
        process.join(SOON)
    assert process._pid == pid  # Asked for, it would be waited for.
    process.kill()
    process.join(SOON)
    assert process.exitcode == -signal.SIGKILL


def test_signals_are_heard_again_though_one_came_as_they_were_held_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python raises what was heard before as soon as it has changed the mask."""
    change, before = signal.pthread_sigmask, signal.pthread_sigmask(signal.SIG_BLOCK, ())

    def change_and_raise(how: int, signals: Collection[int]) -> object:
        held_back = change(how, signals)
        if how == signal.SIG_BLOCK and signals:
            raise KeyboardInterrupt
        return held_back

    with monkeypatch.context() as heard, pytest.raises(KeyboardInterrupt):
        heard.setattr("paritybit.harness.machine.forks.signal.pthread_sigmask", change_and_raise)
        with undisturbed(signal.SIGINT):
            raise AssertionError
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_a_server_that_died_is_replaced() -> None:
    server = asked("parent")
    process = Forked(sleeps, variables=os.environ)
    answer_of(process)
    os.kill(server, signal.SIGKILL)
    assert process.exitcode is None or process.exitcode == 255
    deadline = time.monotonic() + SOON
    while (now := Forked(answers, variables=os.environ)).pid is None:
        assert time.monotonic() < deadline
    now.pipe.send("parent")
    assert answer_of(now) != server


FROM_HERE = """
import sys
import time
import paritybit.harness.machine.forks as forks
from properties.support.harness.forked import answers, sleeps
import wave
held = open(wave.__file__)
forks.serve_from_here()
process = forks.Forked(answers, variables={})
process.pipe.send("parent")
server = process.pipe.recv()
process.pipe.send("modules")
assert "wave" in process.pipe.recv()
process.pipe.send("files")
assert held.name not in process.pipe.recv()
process.pipe.send("work")
process.pipe.recv()
sleeping = forks.Forked(sleeps, variables={})
print(server, process.pid, sleeping.pipe.recv(), time.process_time(), flush=True)
"""
"""A process whose server is a fork of it. It ends while one of that server's still sleeps."""


def of_children() -> float:
    """Return the processor time of all ended children of this process, in seconds."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def test_a_server_forked_from_here_has_what_is_imported_here_and_none_of_its_files() -> None:
    """And it ends with it, and all that it has forked: their processor time is then counted."""
    before = of_children()
    ran = python("-c", FROM_HERE, forked=False)
    assert ran.returncode == 0, ran.stderr
    *words, own = ran.stdout.split()
    assert of_children() - before > float(own) + WORK
    pids = list(map(int, words))
    assert len(pids) == 3
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


COMMAND = """
import sys
import threading
import torch
from paritybit import __main__ as command
from paritybit.harness.machine import forks
kept = forks.serve_from_here
def serve_from_here():
    kept()
    print("threads", threading.active_count(), "began CUDA", torch.cuda.is_initialized())
forks.serve_from_here = serve_from_here
sys.argv = ["paritybit", "regress", "--device", "cpu", "--out", "/dev/null/out"]
sys.exit(command.main())
"""
"""A command of a process's own, which is refused as soon as it looks at its words."""


def test_a_command_serves_forks_before_it_does_anything_else() -> None:
    ran = python("-c", COMMAND)
    assert (ran.returncode, ran.stdout) == (2, "threads 1 began CUDA False\n")
