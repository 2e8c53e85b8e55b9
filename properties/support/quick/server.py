"""Forks a process for each Python command that is asked for; see `quick`."""

import atexit
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

COMMANDS = ("paritybit.harness.cli", "paritybit.harness.cli.watch")
"""Packages whose modules are the commands."""

REWRITTEN = ("hypothesis", "_hypothesis_globals", "paritybit")
"""Modules whose assertions pytest rewrites as it imports them."""

AS_IT_STARTS = ("PYTHON", "TRITON", "TORCH")
"""How the variables begin that are read as an interpreter starts, or as modules are imported."""

HEEDED = ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")
"""Variables that a fork heeds although an interpreter reads them as it starts."""

BY_TORCH = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
"""Variables that torch and triton set themselves as they are used."""

UNBUFFERED = "-u"
"""The option with which execnet starts the workers of pytest."""


def main() -> None:
    """Serve the socket at the path given; stdin is closed when nobody is left to ask."""
    variables = started_with(os.environ)
    gc.disable()
    for name in ("hypothesis", "pytest", *commands()):
        importlib.import_module(name)
    for name in REWRITTEN:
        sys.modules[name].__doc__ = "PYTEST_DONT_REWRITE"  # Else it warns that it is too late.
    gc.enable()
    gc.freeze()
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(sys.argv[1])
    listening.listen(64)
    os.write(1, b"ready\n")
    while True:
        ready, _, _ = select.select([listening.fileno(), 0], [], [])
        if 0 in ready:
            reap()
            return
        client, _ = listening.accept()
        reap()
        if os.fork() == 0:
            listening.close()
            serve(client, variables)
        client.close()


def reap() -> None:
    """Take note of the forks that have ended, so that their processor time is counted."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def commands() -> Iterator[str]:
    """Yield the modules of the commands, which import all that these need."""
    for package in COMMANDS:
        for found in pkgutil.iter_modules(importlib.import_module(package).__path__):
            yield f"{package}.{found.name}"


def started_with(variables: Any) -> dict[str, str]:
    """Return the variables that are read only as an interpreter starts.

    A fork heeds those of HEEDED, and the folders after those of this tree. Those of BY_TORCH do not
    matter.
    """
    kept = {name: text for name, text in variables.items() if name.startswith(AS_IT_STARTS)}
    for name in (*HEEDED, *BY_TORCH):
        kept.pop(name, None)
    kept["PYTHONPATH"] = kept.get("PYTHONPATH", "").split(os.pathsep)[0]
    return kept


def serve(client: socket.socket, variables: dict[str, str]) -> NoReturn:
    """Run the command of a client in a fork, pass signals on to it, and tell how it ended."""
    size, files, _, _ = socket.recv_fds(client, 8, 3)
    text = b""
    while len(text) < int.from_bytes(size, "big"):
        text += client.recv(1 << 16)
    asked = json.loads(text)
    child = os.fork()
    if child == 0:
        client.close()
        become(asked, files, variables)
    for file in (*files, 0, 1):  # Who reads a stream waits for the end of all that hold it.
        os.close(file)
    ends = os.pidfd_open(child)
    poller = select.poll()
    for file in (ends, client.fileno()):
        poller.register(file, select.POLLIN)
    while ends not in (ready := [file for file, _ in poller.poll()]):
        if client.fileno() in ready:
            heard = client.recv(1)
            with suppress(ProcessLookupError):
                os.killpg(child, heard[0] if heard else signal.SIGKILL)
            if not heard:
                poller.unregister(client)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(OSError):
        client.sendall(code.to_bytes(2, "big", signed=True))
    os._exit(0)


def become(asked: dict[str, Any], files: list[int], variables: dict[str, str]) -> NoReturn:
    """Be the process of a command: have its streams, folder and variables, and run its words."""
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    by_option = asked["words"][0] == UNBUFFERED
    words = asked["words"][by_option:]
    open_streams(unbuffered=by_option or bool(asked["variables"].get("PYTHONUNBUFFERED")))
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["variables"])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN if number in asked["ignored"] else signal.SIG_DFL)
    if started_with(os.environ) != variables or not (words[0] in {"-c", "-m"} or is_script(words)):
        os.execv(sys.executable, [sys.executable, *asked["words"]])
    if signal.SIGINT not in asked["ignored"]:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    end(run, words)


def end(run: Callable[..., None], *words: object) -> NoReturn:
    """Run a function, then what is to run at the end of Python, and end as Python would.

    Taking down all modules, which is left out, takes as long as most commands.
    """
    code = 0
    try:
        run(*words)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            sys.stderr.write(f"{ended.code}\n")
    except BaseException as error:
        sys.excepthook(*sys.exc_info())
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    if code < 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF)


def open_streams(*, unbuffered: bool) -> None:
    """Let the streams of Python be those of this process, as an interpreter opens them."""
    streams: Any = sys
    streams.stdin = streams.__stdin__ = os.fdopen(0, closefd=False)
    stdout = os.fdopen(1, "wb", buffering=0 if unbuffered else -1, closefd=False)
    streams.stdout = streams.__stdout__ = io.TextIOWrapper(
        stdout, line_buffering=os.isatty(1), write_through=unbuffered
    )
    streams.stderr = streams.__stderr__ = os.fdopen(
        2, "w", buffering=1, errors="backslashreplace", closefd=False
    )


def is_script(words: list[str]) -> bool:
    """Whether the first word is a file to run."""
    return not words[0].startswith("-")


def run(words: list[str]) -> None:
    """Run Python's words as the interpreter does: `-m MODULE`, `-c CODE` or a script."""
    further = os.environ.get("PYTHONPATH", "").split(os.pathsep)[1:]
    sys.path[1:2] = [sys.path[1], *filter(None, further)]
    kind, what = (words[0], words[1]) if words[0] in {"-c", "-m"} else ("", words[0])
    if kind == "-c":
        sys.path[0], sys.argv = "", ["-c", *words[2:]]
        exec(compile(what, "<string>", "exec"), vars(sys.modules["__main__"]))
    elif kind == "-m":
        sys.path[0], sys.argv = str(Path.cwd()), ["-m", *words[2:]]
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        sys.path[0], sys.argv = str(Path(what).resolve().parent), words
        runpy.run_path(what, run_name="__main__")
