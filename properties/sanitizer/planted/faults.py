"""The table of planted faults, read from `faults.toml`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paritybit.compat import tomllib

TABLE = Path(__file__).with_name("faults.toml")
TABLES = tuple(sorted(TABLE.parent.glob("faults*.toml")))
"""The tables, one per engine."""

RELEASE = "0.5.23"


@dataclass(frozen=True)
class Fault:
    """One mistake: `old`, which `file` has exactly once, is replaced by `new`.

    `also` are further edits of the file, each with its `old` and `new`.
    `file` is relative to the folder that holds the engine's package. `needs` are the settings
    without which the changed line never runs, such as a page size above 1; none means any leg.
    `environment` is set in the engine's processes. `thread` is a public report that resembles
    the fault. `why` says which law it breaks.
    """

    name: str
    family: str
    file: str
    old: str
    new: str
    why: str
    release: str = RELEASE
    needs: tuple[str, ...] = ()
    thread: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    also: Sequence[Mapping[str, str]] = ()

    @property
    def engine(self) -> str:
        """The engine's package."""
        return self.file.partition("/")[0]

    def planted_in(self, text: str) -> str:
        """Return the file's text with the fault.

        Raises ValueError if `old` is not there exactly once or the result does not compile.
        """
        changed = text
        for edit in ({"old": self.old, "new": self.new}, *self.also):
            count = text.count(edit["old"])
            if count != 1:
                raise ValueError(
                    f"{self.name}: {self.file} has the old text {count} times, expected 1"
                )
            changed = changed.replace(edit["old"], edit["new"])
        try:
            compile(changed, self.file, "exec", dont_inherit=True)
        except SyntaxError as error:
            raise ValueError(f"{self.name}: {error}") from error
        return changed


def read(table: Path = TABLE) -> tuple[Fault, ...]:
    """Return the faults of a table, in its order."""
    faults = tomllib.loads(table.read_text(encoding="utf-8"))["fault"]
    return tuple(
        Fault(
            family=entry.pop("class"),
            needs=tuple(entry.pop("needs", ())),
            environment=entry.pop("environment", {}),
            **entry,
        )
        for entry in faults
    )
