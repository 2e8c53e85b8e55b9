"""A run beside the one before it, as its page and the terminal tell it."""

from dataclasses import dataclass

from paritybit.reports.compared.kinds import CHANGED, STAYS
from paritybit.reports.compared.runs import Change, Comparison

MOST = 50
"""Changes that a page names: `command` shows them all."""


@dataclass(frozen=True)
class Previous:
    """The run before this one: the name of its folder, its page, and what differs.

    `page` is '' where there is none to link to. `comparison` is None where the two cannot be
    compared, and `error` says why. `command` compares them.
    """

    name: str
    page: str
    command: str
    comparison: Comparison | None
    error: str = ""

    @property
    def sentence(self) -> str:
        """What it comes to."""
        if self.comparison is None:
            return f"cannot be compared: {self.error}"
        return f"{self.comparison.verdict}: {self.comparison.message}"

    @property
    def changes(self) -> tuple[Change, ...]:
        """What became otherwise: not what stays as it was, nor what only looks different."""
        found = self.comparison.changes if self.comparison is not None else ()
        return tuple(change for change in found if change.kind not in {STAYS, CHANGED})

    @property
    def shown(self) -> tuple[Change, ...]:
        """The gravest of them, as many as a page names."""
        return self.changes[:MOST]
