"""Processes that are forked from one server, which has imported what they need and done no more.

The server touches no device, plays nothing and has one thread. Whoever was forked from it has
its further processes forked there too, so that what takes seconds to import is imported once.
It ends with the process that started it, and with all that it has forked.
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

KERNELS = (
    "paritybit.reference.triton_ops",
    "paritybit.harness.lockstep.scale.kernel",
    "paritybit.harness.checks.device.questions",
    "paritybit.reference.kernels.tables",
    "paritybit.subjects.listing.device",
    "paritybit.subjects.listing.drafts",
    "paritybit.subjects.listing.paths",
    "paritybit.reference.kernels.known",
)
"""What processes that use a GPU import as well. `known` is last: it hashes the others' kernels."""

FORK, IMPORT, END = b"f", b"i", b"e"
"""What the server can be asked: to fork a process, to import modules first, to end all of them."""

GARBAGE = 50_000, 20, 20
"""When forked processes look for garbage: a captured engine is 30,000 objects and stays.

By Python's own numbers that takes an eighth of their time.
"""

NUMBER = struct.Struct("q")
STOPPING = signal.SIGINT, signal.SIGTERM, signal.SIGHUP

FORK_SECONDS = 120.0
"""How long a server may take to fork a process: it may have to import much before."""

END_SECONDS = 60.0
"""How long a server may take to end with all that it has forked: a driver can hold a process."""

LOST = 255
"""The exit code of a process whose server died before it."""


class _Server:
    """Where this process asks for forks: the socket to its server, once it has one."""

    asked: socket.socket | None = None


@contextmanager
def undisturbed(*signals: signal.Signals) -> Iterator[None]:
    """Hold SIGINT, or other signals, back until the end; a process started in here hears none."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:  # What was heard just before may be raised as soon as signals are held back.
        signal.pthread_sigmask(signal.SIG_BLOCK, signals or {signal.SIGINT})
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_asker(pipe: Connection) -> None:
    """Let this process end at once when the other end of a pipe is closed, whatever it does.

    Whoever asked for this process holds that end, and the system closes it when that is no more,
    however it ended and even before this is called.
    """
    poller = select.poll()
    poller.register(pipe.fileno(), 0)  # For nothing that is sent: a closed end is told always.
    threading.Thread(target=_end_after, args=(poller,), daemon=True).start()


def _end_after(poller: select.poll) -> None:
    """Wait until a pipe is closed, and end this process: nobody reads what it does."""
    poller.poll()
    os.kill(os.getpid(), signal.SIGKILL)


class Forked:
    """A process forked from the server, in which `run` is given an end of a pipe and `words`.

    `run` is a function of a module and `words` can be pickled. The process has `variables` as its
    environment, hears no SIGINT, and ends when `pipe`, the other end, is closed. It can be
    waited for and ended as one of `multiprocessing`.
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
        with suppress(OSError):  # It has died already: whoever reads from it is told so.
            self.pipe.send_bytes(given)

    def __del__(self) -> None:
        """Close what tells how the process ended."""
        with suppress(AttributeError, OSError):
            os.close(self._status)

    @property
    def pid(self) -> int | None:
        """The number of the process, once it is forked; None if its server is gone, or hangs."""
        if self._pid is None and self._exit_code is None and wait([self._status], FORK_SECONDS):
            self._hear()
        return self._pid

    @property
    def exitcode(self) -> int | None:
        """How the process ended, as of `multiprocessing`; None as long as it runs."""
        self.join(0)
        return self._exit_code

    def is_alive(self) -> bool:
        """Whether the process has not ended yet."""
        return self.exitcode is None

    def kill(self) -> None:
        """End the process at once, whatever it does: if it is not forked yet, once it is."""
        if self.pid is not None and self.exitcode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def join(self, seconds: float) -> None:
        """Wait so many seconds at most until the process has ended."""
        deadline = time.monotonic() + seconds
        while self._exit_code is None:
            if not wait([self._status], max(0.0, deadline - time.monotonic())):
                return
            self._hear()

    def _hear(self) -> None:
        """Take note of what the server says next: the process's number, then how it ended.

        No signal may come between reading and noting it: what comes next would be taken for the
        number of the process, which then could neither be ended nor be waited for.
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
        """Return the next number that the server says of the process; None if it is gone."""
        said = b""
        while len(said) < NUMBER.size:
            more = os.read(self._status, NUMBER.size - len(said))
            if not more:
                return None
            said += more
        number: int = NUMBER.unpack(said)[0]
        return number


def preload(modules: Iterable[str]) -> None:
    """Have the server import modules, where there are such, before it forks the next process."""
    names, ours = os.pipe()
    try:
        os.write(ours, " ".join(modules).encode())
        os.close(ours)
        _ask(IMPORT, names)
    finally:
        os.close(names)


def serve_from_here() -> None:
    """Let this process's server be a fork of it: what it has imported is not imported again.

    It must have done nothing else: where it has other threads, the server is started afresh, when
    it is first asked.
    """
    if _Server.asked is not None or threading.active_count() > 1:
        return
    ours, theirs = socket.socketpair()
    sys.stdout.flush()  # What waits to be written is written once.
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
    """Point every open file of this process, but `kept`, stdout and stderr, at /dev/null.

    They belong to the process that this one was forked from, which must be able to close them for
    good. Objects here that still hold their numbers can go on writing to them and close them.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in [int(file.name) for file in Path("/dev/fd").iterdir()]:
        if number not in {1, 2, kept, nothing}:
            os.dup2(nothing, number, inheritable=number == 0)


def _ask(kind: bytes, *files: int) -> None:
    """Ask the server for something, of which files are part; start one if there is none."""
    for lost in (False, True):
        if _Server.asked is None or lost:
            _start()
            assert _Server.asked is not None
        with suppress(BrokenPipeError, ConnectionResetError):  # It has died: another is started.
            asked = _Server.asked
            mine = [asked.fileno()] if kind == FORK else []
            socket.send_fds(asked, [kind], [*files, *mine])
            return
    raise ConnectionError("the fork server died while starting")


def _start() -> None:
    """Start a server afresh, which imports this tree whatever the folder here holds."""
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
    """Ask this server from now on, and wait for its end as this process ends.

    So what its processes have used of the processor is counted as used by this one's children.
    """
    _Server.asked = asked
    atexit.register(_end, asked, pid)


def _end(asked: socket.socket, pid: int) -> None:
    """End a server and wait a while until it has, with all that it has forked."""
    with undisturbed(), suppress(OSError):
        asked.sendall(END)
        if wait([asked], END_SECONDS):  # Its end of the socket is closed as it ends.
            os.waitpid(pid, 0)


def main(number: int) -> None:
    """Serve on the socket of a number, which this process was started with."""
    asked = socket.socket(fileno=number)
    asked.set_inheritable(False)
    serve(asked)


def serve(asked: socket.socket) -> None:
    """Fork a process for each that is asked for; end this one when nobody is left to ask."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.set_threshold(*GARBAGE)
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
            gc.freeze()  # What was imported is never garbage: the collector passes over it.
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for number in (asked.detach(), woken, wakes, status, *statuses.values()):
                    os.close(number)
                _become(pipe, server)
            statuses[pid] = status
            with suppress(BrokenPipeError):  # Whoever asked is gone.
                os.write(status, NUMBER.pack(pid))
            os.close(pipe)
            os.close(server)
        else:
            _end_all(statuses)


def _end_all(pids: Iterable[int]) -> NoReturn:
    """End processes that were forked from this one, and this one."""
    forked = list(pids)
    for pid in forked:
        os.kill(pid, signal.SIGKILL)
    for pid in forked:
        os.waitpid(pid, 0)
    os._exit(0)


def _tell_ends(statuses: dict[int, int]) -> None:
    """Tell those who asked for them how processes have ended."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            status = statuses.pop(ended[0])
            with suppress(BrokenPipeError):
                os.write(status, NUMBER.pack(os.waitstatus_to_exitcode(ended[1])))
            os.close(status)


def _import(file: int) -> None:
    """Import the modules that a file names. One that fails here fails where it is needed."""
    gc.disable()  # What is imported stays.
    with open(file, encoding="utf-8") as names:
        for name in names.read().split():
            with suppress(Exception):
                importlib.import_module(name)
    gc.enable()


def _become(pipe_file: int, server_file: int) -> None:
    """Be the process that was asked for, until its function returns."""
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
        pass  # Whoever asked for it is gone.
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
