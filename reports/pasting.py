"""Replaying a case without its file: the same command, with the case as a here-document.

Knows shells and JSON. Does not know markup, and replays nothing.
"""

import re
import shlex
from contextlib import suppress
from pathlib import PurePosixPath

LONGEST = 6000
"""Characters of a case that is small enough to be pasted into a shell."""

END = "EOF"
"""The line that ends a here-document. No case has it: its lines begin with a mark or a space."""


def opening(command: str, case_file: str, case: str) -> str:
    """Return the line that opens a here-document of a case; `command` replays its file.

    '' for a case that is too long, that a shell or a terminal would not take as it stands, or
    that the command does not name.
    """
    plain = re.fullmatch(r"[ -~\n]*", case) is not None and END not in case.splitlines()
    with suppress(ValueError):  # Of a record that was edited: quotes that do not close.
        words = shlex.split(command)
        ours = ["/dev/stdin" if word.endswith(case_file) else word for word in words]
        if plain and len(case) <= LONGEST and ours != words:
            return f"{shlex.join(ours)} <<'{END}'"
    return ""


def pastable(case: str) -> str:
    """Return the text of a case without exclamation marks, which in JSON stand in strings alone.

    An interactive shell may take one for its history, in a here-document too.
    """
    return case.replace("!", "\\u0021")


def file_name(case_file: str) -> str:
    """Return what a case is called when it is downloaded."""
    return PurePosixPath(case_file).name
