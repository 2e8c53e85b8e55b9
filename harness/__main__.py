"""One command line, from its words to an exit code and, where it fails, one sentence.

Modules that take long to import, or may fail to, are imported late, where a failure is reported.
"""

import argparse
import errno
import gc
import importlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType, ModuleType

from harness.cli.exit_codes import CANNOT_RUN, FINDING, INTERRUPTED, MALFORMED, TERMINATED
from harness.errors import (
    LONGEST_VALUE,
    CannotRunError,
    DeviceError,
    MalformedError,
    NoVerdictError,
    cut,
    kept,
    no_verdict,
    refused,
)
from harness.machine.forks import serve_from_here
from harness.machine.mps import private_daemon

STDOUT_IS_BROKEN = frozenset({errno.EPIPE, errno.ENOSPC, errno.EIO})
"""Errors of no file in particular: files that are written say which they are."""


class Stop:
    """The signal that asked this process to stop, if one did: Ctrl-C or SIGTERM."""

    received: int | None = None

    def hear(self, number: int, _: FrameType | None) -> None:
        """Stop what goes on as Ctrl-C does, so that what has ended until then is kept.

        A second SIGTERM is not heard: a process in a group may be sent it twice at once.
        """
        if number == self.received == signal.SIGTERM:
            return
        self.received = number
        raise KeyboardInterrupt


@contextmanager
def listening(stop: Stop) -> Iterator[None]:
    """Let `stop` hear within what asks this process to stop, unless that is ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, stop.hear)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; an error is reported in one sentence.

    Without `arguments` the command line is this process's own, and nothing else was run in it.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    stop = Stop()
    with listening(stop):
        try:
            code = carried_out(words, own=arguments is None)
        except KeyboardInterrupt:
            code = refused("interrupted", INTERRUPTED)
        except SystemExit:
            raise
        except BaseException as error:
            # What a signal interrupts in an import may raise anything in its place.
            code = (
                refused(no_verdict(error), CANNOT_RUN)
                if stop.received is None
                else refused("interrupted", INTERRUPTED)
            )
    return TERMINATED if stop.received == signal.SIGTERM and code == INTERRUPTED else code


def carried_out(words: Sequence[str], *, own: bool) -> int:
    """Run a command line, flush what it printed, and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = answered(words, own=own)
        sys.stdout.flush()
    except OSError as error:
        if error.errno not in STDOUT_IS_BROKEN or error.filename is not None:
            raise
        # What is left of it goes nowhere, or the interpreter would complain as it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return refused(f"stdout takes no more: {error.strerror}", CANNOT_RUN)
    return code


def answered(words: Sequence[str], *, own: bool) -> int:
    """Run the command of a command line and return its exit code, whatever error it raised.

    `own` says that the command line is this process's own, which may then serve forks from here.
    """
    try:
        options = importlib.import_module("harness.cli.parser").parser().parse_args(words)
        options.typed = words
        imported("harness.cli.names").check_names(options)
        module, function = options.run
        with sharing_gpus(options):
            run = getattr(imported(module), function)
            if own and hasattr(options, "workers"):
                serve_from_here()
            code: int = run(options)
    except MalformedError as error:
        return refused(shortened(str(error), words), MALFORMED)
    except OSError as error:
        if error.filename not in {str(Path(word)) for word in words}:
            raise
        return refused(shortened(f"{error.filename}: {error.strerror}", words), MALFORMED)
    except CannotRunError as error:
        return refused(shortened(str(error), words), CANNOT_RUN)
    except NoVerdictError as error:
        return refused(f"no verdict: {kept([str(error)])}", CANNOT_RUN)
    except DeviceError as error:
        code = FINDING if error.finding else CANNOT_RUN
        return refused(f"the device was lost: {error}", code)
    return code


def imported(module: str) -> ModuleType:
    """Import a module, looking for no garbage meanwhile: what is imported stays."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        if collects:
            gc.enable()


def sharing_gpus(options: argparse.Namespace) -> AbstractContextManager[None]:
    """Return what starts the MPS daemon that a command line asks for, and stops it."""
    if not getattr(options, "mps", False):
        return nullcontext()
    asked, options.device = options.device, "cuda"  # What is to share GPUs runs on none else.
    return private_daemon(asked or "auto")


def shortened(message: str, words: Sequence[str]) -> str:
    """Return a message that repeats no word of the command line at length."""
    for word in words:
        if len(word) > LONGEST_VALUE:
            message = message.replace(repr(word), cut(repr(word))).replace(word, cut(word))
    return message


if __name__ == "__main__":
    sys.exit(main())
