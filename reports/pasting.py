"""Shell commands that replay a case without its file, as a here-document."""

import re
import shlex
from contextlib import suppress
from pathlib import PurePosixPath

LONGEST = 6000
"""The length limit of a case that can be pasted into a shell."""

END = "EOF"
"""The line that ends a here-document. No case contains it."""


def opening(command: str, case_file: str, case: str) -> str:
    """Return the first line of a here-document with a case. `command` replays the case's file.

    Returns '' if the case is too long, if it has characters that a shell or terminal could change,
    or if the command does not name the file.
    """
    plain = re.fullmatch(r"[ -~\n]*", case) is not None and END not in case.splitlines()
    with suppress(ValueError):  # An edited record can have unclosed quotes.
        words = shlex.split(command)
        ours = ["/dev/stdin" if word.endswith(case_file) else word for word in words]
        if plain and len(case) <= LONGEST and ours != words:
            return f"{shlex.join(ours)} <<'{END}'"
    return ""


def pastable(case: str) -> str:
    """Return the text of a case with exclamation marks escaped.

    An interactive shell may expand them from its history, even in a here-document. In JSON they
    only occur in strings.
    """
    return case.replace("!", "\\u0021")


def file_name(case_file: str) -> str:
    """Return the file name of a downloaded case."""
    return PurePosixPath(case_file).name
