"""The fork server, a process that has imported all modules and forks other processes.

The server uses no device, plays nothing and has one thread. Its forks ask the same server for their
own processes, so slow modules are imported only once. It ends with the process that started it, and
ends all its forks.
"""

import atexit
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, NoReturn

from paritybit.places import IMPORT_FOLDER

KERNELS = ("paritybit.reference.cuda_ops",)
"""Further modules for processes that use a GPU."""

FORK, IMPORT, END = b"f", b"i", b"e"
"""Requests to the server: fork a process, import modules, end all processes."""

GARBAGE = 50_000, 20, 20
"""Thresholds of the garbage collector where tasks run.

A captured engine has 30,000 permanent objects. With Python's default thresholds, the collector
takes an eighth of the time.
"""

NUMBER = struct.Struct("q")
STOPPING = signal.SIGINT, signal.SIGTERM, signal.SIGHUP

FORK_SECONDS = 120.0
"""The time limit in seconds for a server to fork a process. It may have to import first."""

END_SECONDS = 60.0
"""The time limit in seconds for a server to end with its forks. A driver can delay a process."""

LOST = 255
"""The exit code of a process whose server died first."""


class _Server:
    """The socket from this process to its server, or None if it has none yet."""

    asked: socket.socket | None = None


@contextmanager
def undisturbed(*signals: signal.Signals) -> Iterator[None]:
    """Block SIGINT, or other signals, in this context and in processes started in it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:  # A signal that arrived just before may be raised once signals are blocked.
        signal.pthread_sigmask(signal.SIG_BLOCK, signals or {signal.SIGINT})
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_asker(pipe: Connection) -> None:
    """End this process as soon as the other end of a pipe is closed.

    The process that asked for this one holds that end. The system closes it when that process
    ends in any way, even before this call.
    """
    poller = select.poll()
    poller.register(pipe.fileno(), 0)  # No data events; a hangup is always reported.
    threading.Thread(target=_end_after, args=(poller,), daemon=True).start()


def _end_after(poller: select.poll) -> None:
    """Wait until a pipe is closed, then end this process, because no one reads its results."""
    poller.poll()
    os.kill(os.getpid(), signal.SIGKILL)


class Forked:
    """A process forked from the server. It calls `run` with one end of a pipe and `words`.

    `run` is a module-level function, and `words` can be pickled. The process has `variables` as its
    environment, ignores SIGINT, and ends when `pipe`, the other end, is closed. It has the methods
    of a `multiprocessing` process.
    """

    def __init__(self, run: Callable[..., None], *words: Any, variables: Mapping[str, str]) -> None:
        place = dict(variables), str(Path.cwd()), list(sys.path)
        given = pickle.dumps((place, pickle.dumps((run, words))))
        self.pipe, theirs = Pipe()
        self._status, status = os.pipe()
        self._pid: int | None = None
        self._exit_code: int | None = None
        try:
            _ask(FORK, theirs.fileno(), status)
        finally:
            theirs.close()
            os.close(status)
        with suppress(OSError):  # It has died already, which the reader will notice.
            self.pipe.send_bytes(given)

    def __del__(self) -> None:
        """Close the pipe with the exit code."""
        with suppress(AttributeError, OSError):
            os.close(self._status)

    @property
    def pid(self) -> int | None:
        """The process id. Waits for the fork. None if the server is gone or hangs."""
        if self._pid is None and self._exit_code is None and wait([self._status], FORK_SECONDS):
            self._hear()
        return self._pid

    @property
    def exitcode(self) -> int | None:
        """The exit code as in `multiprocessing`, or None while the process runs."""
        self.join(0)
        return self._exit_code

    def is_alive(self) -> bool:
        """Whether the process has not ended yet."""
        return self.exitcode is None

    def kill(self) -> None:
        """Kill the process. If it is not forked yet, wait for the fork first."""
        if self.pid is not None and self.exitcode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def join(self, seconds: float) -> None:
        """Wait until the process has ended, or until a timeout in seconds."""
        deadline = time.monotonic() + seconds
        while self._exit_code is None:
            if not wait([self._status], max(0.0, deadline - time.monotonic())):
                return
            self._hear()

    def _hear(self) -> None:
        """Record the next answer of the server: first the process id, then the exit code.

        Signals are blocked between reading and recording. Otherwise the exit code could be taken
        for the process id.
        """
        with undisturbed(*STOPPING):
            said = self._said()
            if said is None:
                self._exit_code = LOST
            elif self._pid is None:
                self._pid = said
            else:
                self._exit_code = said

    def _said(self) -> int | None:
        """Return the next number from the server, or None if the server is gone."""
        said = b""
        while len(said) < NUMBER.size:
            more = os.read(self._status, NUMBER.size - len(said))
            if not more:
                return None
            said += more
        number: int = NUMBER.unpack(said)[0]
        return number


def preload(modules: Iterable[str]) -> None:
    """Make the server import modules before the next fork. Missing modules are ignored."""
    names, ours = os.pipe()
    try:
        os.write(ours, " ".join(modules).encode())
        os.close(ours)
        _ask(IMPORT, names)
    finally:
        os.close(names)


def collect_rarely() -> None:
    """Let the garbage collector skip all present objects, and run rarely from now on."""
    gc.freeze()  # Imported objects are never garbage.
    gc.set_threshold(*GARBAGE)


@contextmanager
def few_collections() -> Iterator[None]:
    """Collect garbage in this context as rarely as in a fork."""
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    collect_rarely()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if not frozen:
            gc.unfreeze()


def serve_from_here() -> None:
    """Make a fork of this process its server, so nothing is imported twice.

    This process must only have imported modules. Both then collect garbage rarely. If it has other
    threads, a new server is started at the first request instead.
    """
    collect_rarely()
    if _Server.asked is not None or threading.active_count() > 1:
        return
    ours, theirs = socket.socketpair()
    sys.stdout.flush()  # Otherwise both processes would write the buffer.
    sys.stderr.flush()
    with theirs, undisturbed():
        pid = os.fork()
        if pid == 0:
            try:
                _let_go_of_all_but(theirs.fileno())
                for number in (signal.SIGTERM, signal.SIGHUP):
                    if signal.getsignal(number) is not signal.SIG_IGN:
                        signal.signal(number, signal.SIG_DFL)
                serve(theirs)
            finally:
                os._exit(1)
    _keep(ours, pid)


def _let_go_of_all_but(kept: int) -> None:
    """Redirect each open file except `kept`, stdout and stderr to /dev/null.

    The files belong to the parent process, which must be able to close them for good. Objects here
    that still have their numbers can write to them and close them.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in [int(file.name) for file in Path("/dev/fd").iterdir()]:
        if number not in {1, 2, kept, nothing}:
            os.dup2(nothing, number, inheritable=number == 0)


def _ask(kind: bytes, *files: int) -> None:
    """Send the server a request with open files. Starts a server if there is none."""
    for lost in (False, True):
        if _Server.asked is None or lost:
            _start()
            assert _Server.asked is not None
        with suppress(BrokenPipeError, ConnectionResetError):  # It has died. A new one is started.
            asked = _Server.asked
            mine = [asked.fileno()] if kind == FORK else []
            socket.send_fds(asked, [kind], [*files, *mine])
            return
    raise ConnectionError("the fork server died while starting")


def _start() -> None:
    """Start a new server. It imports this tree, independent of the current folder."""
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.set_inheritable(True)
        words = f"from paritybit.harness.machine.forks import main; main({theirs.fileno()})"
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-c", words],
            {**os.environ, "PYTHONPATH": str(IMPORT_FOLDER), "PYTHONSAFEPATH": "1"},
            file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)],
            setsigmask={signal.SIGINT},
        )
    _keep(ours, pid)


def _keep(asked: socket.socket, pid: int) -> None:
    """Use this server from now on, and wait for its end when this process ends.

    The CPU time of its processes then counts as that of this process's children.
    """
    _Server.asked = asked
    atexit.register(_end, asked, pid)


def _end(asked: socket.socket, pid: int) -> None:
    """End a server with all its forks, and wait for it up to a time limit."""
    with undisturbed(), suppress(OSError):
        asked.sendall(END)
        if wait([asked], END_SECONDS):  # Its end of the socket closes when it ends.
            os.waitpid(pid, 0)


def main(number: int) -> None:
    """Serve on the socket with a file descriptor that this process has inherited."""
    asked = socket.socket(fileno=number)
    asked.set_inheritable(False)
    serve(asked)


def serve(asked: socket.socket) -> None:
    """Fork processes on request. Ends this process when all clients are gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    collect_rarely()
    woken, wakes = os.pipe()
    for end in (woken, wakes):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes)
    statuses: dict[int, int] = {}
    while True:
        ready = wait([asked, woken])
        if woken in ready:
            os.read(woken, 1 << 16)
            _tell_ends(statuses)
        if asked not in ready:
            continue
        kind, files, _, _ = socket.recv_fds(asked, 1, 3)
        if kind == IMPORT:
            _import(files[0])
        elif kind == FORK:
            pipe, status, server = files
            gc.freeze()  # Imported objects are never garbage, so the collector skips them.
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for number in (asked.detach(), woken, wakes, status, *statuses.values()):
                    os.close(number)
                _become(pipe, server)
            statuses[pid] = status
            with suppress(BrokenPipeError):  # The client is gone.
                os.write(status, NUMBER.pack(pid))
            os.close(pipe)
            os.close(server)
        else:
            _end_all(statuses)


def _end_all(pids: Iterable[int]) -> NoReturn:
    """End all forks of this process, and this process."""
    forked = list(pids)
    for pid in forked:
        os.kill(pid, signal.SIGKILL)
    for pid in forked:
        os.waitpid(pid, 0)
    os._exit(0)


def _tell_ends(statuses: dict[int, int]) -> None:
    """Send the exit codes of ended processes to their clients."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            status = statuses.pop(ended[0])
            with suppress(BrokenPipeError):
                os.write(status, NUMBER.pack(os.waitstatus_to_exitcode(ended[1])))
            os.close(status)


def _import(file: int) -> None:
    """Import the modules that a file names. An import that fails here fails again when needed."""
    gc.disable()  # Imported objects stay.
    with open(file, encoding="utf-8") as names:
        for name in names.read().split():
            with suppress(Exception):
                importlib.import_module(name)
    gc.enable()


def _become(pipe_file: int, server_file: int) -> None:
    """Run as the requested process until its function returns."""
    code = 1
    try:
        pipe = Connection(pipe_file)
        _Server.asked = socket.socket(fileno=server_file)
        end_with_asker(pipe)
        (variables, folder, path), called = pickle.loads(pipe.recv_bytes())
        os.environ.clear()
        os.environ.update(variables)
        os.chdir(folder)
        sys.path[:] = path
        run, words = pickle.loads(called)
        run(pipe, *words)
        code = 0
    except EOFError:
        pass  # The client is gone.
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
