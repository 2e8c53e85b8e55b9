"""Why a command ends as it does, in one sentence; what is no verdict keeps its traceback in a file.

Imports nothing of ours, so that an import that fails elsewhere is reported like any other error.
"""

import sys
import tempfile
import traceback
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from pathlib import Path

LONGEST_VALUE = 200
"""So many characters at most are repeated of a value that is wrong."""

MOST_LISTED = 12
"""A message about an unknown name lists so many valid ones at most."""

NEAREST = 3
"""So many of the valid names it suggests where there are more."""

PLURALS = {
    "bug": "bugs",
    "runner": "runners",
    "preset": "presets",
    "shape": "shapes",
    "property": "properties",
}
"""What `paritybit list` calls each kind of names."""


class MalformedError(ValueError):
    """A command line or a file that no build could make sense of. The message says what is valid.

    Any other ValueError is an error of ours.
    """


class UnknownNameError(MalformedError):
    """A name that no build has. The message lists valid ones."""


class CannotRunError(Exception):
    """Well-formed, but cannot run here. The message says what is missing."""


class NoVerdictError(Exception):
    """An error of ours left no verdict. The message is its traceback, with no absolute path."""


class DeviceError(BaseException):
    """The device can no longer be used; `finding` says whether that is a finding.

    It is no Exception, so that no handler catches it and goes on with a dead device.
    """

    finding: bool


def cut(text: str) -> str:
    """Return a text for a message, cut short."""
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def quoted(value: object) -> str:
    """Return any value for a message, as Python writes it, cut short."""
    return cut(repr(value))


def printable(text: str) -> str:
    """Return a text on one line, with what would steer a terminal escaped."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def known(what: str, name: str, names: Iterable[str]) -> None:
    """Raise UnknownNameError unless `name` is one of `names`.

    The message lists all names where they are few, else the NEAREST ones.
    """
    valid = list(names)
    if name in valid:
        return
    if len(valid) <= MOST_LISTED:
        hint = f"{meant(name, valid)}; valid: {', '.join(valid)}"
    else:
        nearest = closest(name, valid, NEAREST, 0.0)
        hint = f"; the nearest names are {', '.join(nearest)}"
        if what in PLURALS:
            hint += f" ('paritybit list {PLURALS[what]}' prints all)"
    raise UnknownNameError(f"unknown {what} {quoted(name)}{hint}")


def meant(name: str, names: Iterable[str]) -> str:
    """Return a question after the likeliest of `names` for a message; nothing if none is like."""
    likeliest = closest(name, list(names), 1)
    return f" (did you mean {likeliest[0]}?)" if likeliest else ""


def closest(name: str, names: list[str], most: int, cutoff: float = 0.6) -> list[str]:
    """Return so many of `names` at most that are like `name`, the likeliest first."""
    difflib = import_module("difflib")  # Only a wrong name needs it.
    near: list[str] = difflib.get_close_matches(name[:LONGEST_VALUE], names, most, cutoff)
    return near


def headline(error: str) -> str:
    """Return the one line of a traceback that says what was raised, or an error's first line."""
    lines = error.strip().splitlines() or ["unknown error"]
    frames = [place for place, line in enumerate(lines) if line.startswith("  File ")]
    rest = lines[frames[-1] + 1 :] if frames else lines
    return next((line for line in rest if not line.startswith(" ")), lines[-1])


def refused(reason: object, code: int) -> int:
    """Say on stderr, in one sentence, why a command ends early; return its exit code."""
    with suppress(OSError):  # Whoever closed it, or filled its disk, has the exit code.
        sys.stderr.write(f"paritybit: {printable(str(reason))}\n")
        sys.stderr.flush()
    return code


def no_verdict(error: BaseException) -> str:
    """Return the sentence about an error of ours that ends a command."""
    return f"no verdict: {kept([''.join(traceback.format_exception(error))])}"


def kept(errors: Iterable[str]) -> str:
    """Return one sentence about tracebacks, each a text, and write them to a file that it names.

    What could not be written stands in the sentence itself.
    """
    different = list(dict.fromkeys(error.rstrip() for error in errors))
    more = f", and {len(different) - 1} more" if len(different) > 1 else ""
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="paritybit-error-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            file.write("\n\n".join(different) + "\n")
    except OSError as error:
        where = f"which could not be written ({error.strerror}): {' | '.join(different)}"
    else:
        where = str(Path(file.name))
    first = cut(headline(different[0]))
    return f"internal error: {first}{more}; full traceback: {where}"
