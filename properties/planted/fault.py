"""What a planted fault is, and whether it still applies to a text."""

import ast
from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """One mistake: `old`, which `file` has exactly once, is replaced by `new`.

    `tests` are pytest's arguments, of which at least one test must fail: files or tests of
    them, and perhaps `-k` with words joined by `and` and `or`. `why` says in a sentence what
    the mistake is.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    why: str

    @property
    def part(self) -> str:
        """The part of the house that it is planted in: the folder of its file."""
        return self.file.rpartition("/")[0] or "conftest"

    def planted_in(self, text: str) -> str | None:
        """Return the text of the file with the fault; None if it does not apply.

        What no longer compiles is no fault that a test must catch.
        """
        if text.count(self.old) != 1 or self.old == self.new:
            return None
        changed = text.replace(self.old, self.new)
        try:
            ast.parse(changed)
        except SyntaxError:
            return None
        return changed
