"""Errors that end a command, and the sentences that report them.

This module imports nothing of paritybit, so that a failing import is reported like other errors.
"""

import re
import sys
import tempfile
import traceback
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module

LONGEST_VALUE = 200
"""The maximum number of characters that a message quotes from a wrong value."""

MOST_LISTED = 12
"""The maximum number of valid names that a message lists."""

NEAREST = 3
"""The number of valid names that a message suggests if there are more."""


HIDDEN = "***"

SECRET = re.compile(
    r"(?:key|token|secret|password|passwd|credentials?|auth|authorization)$", re.IGNORECASE
)
"""The ends of the names of options and variables whose values nothing shows or records."""

INSIDE = re.compile(
    rf"""(?P<before>{SECRET.pattern[:-1]}["']?\s*[=:]\s*["']?(?:(?:bearer|basic)\s+)?)[^\s"'&;,}}]+"""
    r"""|(?P<user>:/+)[^/@\s"']+(?=@)""",
    re.IGNORECASE,
)
"""Secrets in a text: the value of such a name, and the user of an address."""


class MalformedError(ValueError):
    """A malformed command line or file. The message says what is valid.

    Any other ValueError is an internal error.
    """


class UnknownNameError(MalformedError):
    """An unknown name. The message lists valid ones."""


class CannotRunError(Exception):
    """A valid request that cannot run here. The message says what is missing."""


class NoVerdictError(Exception):
    """An internal error, so there is no verdict. The message is its traceback."""


class DeviceError(BaseException):
    """The device can no longer be used. `finding` is whether that is a finding.

    It is not an Exception, so that no handler catches it and continues with a lost device.
    """

    finding: bool


def shorten(text: str) -> str:
    """Return a text shortened for a message."""
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def quote(value: object) -> str:
    """Return the repr of a value, shortened for a message."""
    return shorten(repr(value))


def printable(text: str) -> str:
    """Return a text on one line with control characters escaped."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def without_secrets(text: str) -> str:
    """Return a text with HIDDEN in place of what INSIDE finds."""
    return INSIDE.sub(lambda found: f"{found['before'] or found['user']}{HIDDEN}", text)


def require_known(what: str, name: str, names: Iterable[str], command: str = "") -> None:
    """Raise UnknownNameError unless `name` is one of `names`.

    The message lists all names if they are few, else the NEAREST ones, and the command for all.
    """
    valid = list(names)
    if name in valid:
        return
    difflib = import_module("difflib")  # Imported late, because only a wrong name needs it.
    near = difflib.get_close_matches(name[:LONGEST_VALUE], valid, NEAREST, 0.0)
    few = len(valid) <= MOST_LISTED
    hint = f"valid: {', '.join(valid)}" if few else f"the nearest names are {', '.join(near)}"
    hint += f" ({command} has all)" if command and not few else ""
    raise UnknownNameError(f"unknown {what} {quote(name)}; {hint}")


def headline(error: str) -> str:
    """Return the line of a traceback that names the error, or the first line of a message."""
    lines = error.strip().splitlines() or ["unknown error"]
    frames = [place for place, line in enumerate(lines) if line.startswith("  File ")]
    rest = lines[frames[-1] + 1 :] if frames else lines
    return next((line for line in rest if not line.startswith(" ")), lines[-1])


def report_error(reason: object, code: int) -> int:
    """Print to stderr why a command ends early, and return its exit code."""
    with suppress(OSError):  # If stderr is closed or full, the exit code must do.
        sys.stderr.write(f"paritybit: {printable(without_secrets(str(reason)))}\n")
        sys.stderr.flush()
    return code


def no_verdict(error: BaseException) -> str:
    """Return the message for an internal error that ends a command."""
    return f"no verdict: {save_tracebacks([''.join(traceback.format_exception(error))])}"


def keep(text: str, kind: str) -> str:
    """Write a text to a temporary file that stays, and return its path, or why there is none."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix=f"paritybit-{kind}-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            file.write(text)
    except OSError as error:
        return f"which could not be written ({error.strerror}): {text}"
    return file.name


def save_tracebacks(errors: Iterable[str]) -> str:
    """Write tracebacks to a file, and return a sentence that names the file.

    If the file cannot be written, the sentence has the tracebacks.
    """
    different = list(dict.fromkeys(error.rstrip() for error in errors))
    more = f", and {len(different) - 1} more" if len(different) > 1 else ""
    where = keep("\n\n".join(different) + "\n", "error")
    return f"internal error: {shorten(headline(different[0]))}{more}; full traceback: {where}"
