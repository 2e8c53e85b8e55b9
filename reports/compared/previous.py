"""The comparison of a run with the previous one, for its page and the terminal."""

from dataclasses import dataclass

from paritybit.reports.compared.kinds import CHANGED, STAYS
from paritybit.reports.compared.runs import Change, Comparison

MOST = 50
"""The number of changes on a page. `command` shows all."""


@dataclass(frozen=True)
class Previous:
    """The previous run.

    - `name`: the name of its folder.
    - `page`: the path of its page, or ''.
    - `command`: the command that compares the runs.
    - `comparison`: None if the runs cannot be compared; `error` has the reason.
    """

    name: str
    page: str
    command: str
    comparison: Comparison | None
    error: str = ""

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        if self.comparison is None:
            return f"cannot be compared: {self.error}"
        return f"{self.comparison.verdict}: {self.comparison.message}"

    @property
    def changes(self) -> tuple[Change, ...]:
        """The changes, without unchanged findings and differences in details."""
        found = self.comparison.changes if self.comparison is not None else ()
        return tuple(change for change in found if change.kind not in {STAYS, CHANGED})

    @property
    def shown(self) -> tuple[Change, ...]:
        """The most severe changes, limited for a page."""
        return self.changes[:MOST]
