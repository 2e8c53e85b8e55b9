"""One command line, from its words to an exit code and, where it fails, one sentence.

Modules that take long to import, or may fail to, are imported late, where a failure is reported.
"""

import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from paritybit.harness.cli.exit_codes import (
    CANNOT_RUN,
    FINDING,
    INTERRUPTED,
    MALFORMED,
    STOPPED,
)
from paritybit.harness.errors import (
    LONGEST_VALUE,
    CannotRunError,
    DeviceError,
    MalformedError,
    NoVerdictError,
    no_verdict,
    report_error,
    save_tracebacks,
    shorten,
)
from paritybit.harness.machine.stopping import Stop, listening
from paritybit.harness.machine.streams import taken_over
from paritybit.places import cache_folder


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Without `arguments`, it is this process's own."""
    own = arguments is None
    # Hypothesis otherwise makes a folder `.hypothesis` where the command runs.
    os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(cache_folder() / "hypothesis"))
    words = sys.argv[1:] if arguments is None else list(arguments)
    stop = Stop()
    with listening(stop):
        try:
            code = execute(words, stop, own=own)
        except KeyboardInterrupt:
            code = report_error("interrupted", INTERRUPTED)
        except SystemExit:
            raise
        except BaseException as error:
            # What a signal interrupts in an import may raise anything in its place.
            code = (
                report_error(no_verdict(error), CANNOT_RUN)
                if stop.received is None
                else report_error("interrupted", INTERRUPTED)
            )
    # After a Ctrl-C within an exec(), `python -m` ends by SIGINT whatever this returns, unless
    # another exec() has ended since.
    exec("")
    if own:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # All is done; what ends is the interpreter.
    return STOPPED.get(stop.received, INTERRUPTED) if code == INTERRUPTED else code


def execute(words: Sequence[str], stop: Stop, *, own: bool) -> int:
    """Run a command line, flush what it printed, and return its exit code."""
    raw = taken_over() if own else None
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    code = exit_code_of(words, stop)
    sys.stdout.flush()
    if raw is not None and raw.lost is not None and code != INTERRUPTED:
        code = FINDING if code == FINDING else CANNOT_RUN
        return report_error(f"cannot write to stdout: {raw.lost.strerror}", code)
    return code


def exit_code_of(words: Sequence[str], stop: Stop) -> int:
    """Run the command of a command line and return its exit code, whatever error it raised."""
    try:
        require_folder()
        app = importlib.import_module("paritybit.harness.cli.app")
        code: int = app.run(app.Line(words, stop))
    except MalformedError as error:
        return report_error(shorten_words(str(error), words), MALFORMED)
    except CannotRunError as error:
        return report_error(shorten_words(str(error), words), CANNOT_RUN)
    except NoVerdictError as error:
        return report_error(f"no verdict: {save_tracebacks([str(error)])}", CANNOT_RUN)
    except DeviceError as error:
        code = FINDING if error.finding else CANNOT_RUN
        return report_error(f"the device was lost: {error}", code)
    return code


def require_folder() -> None:
    """Raise CannotRunError if the current folder was deleted. torch would end the process."""
    try:
        Path.cwd()
    except OSError as error:
        raise CannotRunError(f"the current folder cannot be used: {error.strerror}") from error


def shorten_words(message: str, words: Sequence[str]) -> str:
    """Return a message that repeats no word of the command line at length."""
    for word in words:
        if len(word) > LONGEST_VALUE:
            message = message.replace(repr(word), shorten(repr(word))).replace(word, shorten(word))
    return message


if __name__ == "__main__":
    sys.exit(main())
