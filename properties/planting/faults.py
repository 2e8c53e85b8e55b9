"""The tables of faults, and copies of engines with a fault."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paritybit.compat import tomllib
from paritybit.engines.hunks import linked_copy

FOLDER = Path(__file__).parent
TABLES = tuple(sorted(FOLDER.glob("*.toml")))


@dataclass(frozen=True)
class Edit:
    """`old` becomes `new` in `file`, which has it once or, with `everywhere`, at least once."""

    file: str
    old: str
    new: str
    everywhere: bool = False

    def made_in(self, text: str) -> str:
        """Return a text with the edit. Raises ValueError if it does not apply or compile."""
        count = text.count(self.old)
        if not count or (count > 1 and not self.everywhere):
            raise ValueError(f"{self.file} has {self.old!r} {count} times, expected 1")
        changed = text.replace(self.old, self.new)
        if self.file.endswith(".py"):
            try:
                compile(changed, self.file, "exec", dont_inherit=True)
            except SyntaxError as error:
                raise ValueError(f"{self.file} does not compile: {error}") from error
        return changed


@dataclass(frozen=True)
class Fault:
    """A row of a table; see the package for its fields. `family` is its `class` there."""

    name: str
    engine: str
    why: str
    edits: tuple[Edit, ...]
    beside: str = ""
    family: str = ""
    settings: str = ""
    ranks: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    found: str | None = None
    missed: str | None = None
    harmless: bool = False
    explore: str | None = None
    thread: str | None = None
    function: str | None = None
    needs: str | None = None
    harm: str | None = None
    named: str | None = None
    commit: str | None = None

    @property
    def source(self) -> str:
        """The folder, among those of releases, that holds the engine."""
        return "+".join(filter(None, (self.engine.replace("==", "-"), self.beside)))

    @property
    def served(self) -> str:
        """The settings and the ranks, as text."""
        return " ".join(filter(None, (self.settings, self.ranks)))

    @property
    def watched(self) -> bool:
        """Whether `paritybit watch` is run on it."""
        return self.harmless or self.found is not None or self.missed is not None

    def changed(self, source: Path) -> Mapping[str, str]:
        """Return the files of an engine's folder that the fault changes, with the fault.

        Raises ValueError if the fault does not apply.
        """
        files: dict[str, str] = {}
        for edit in self.edits:
            text = files.get(edit.file) or (source / edit.file).read_text(encoding="utf-8")
            files[edit.file] = edit.made_in(text)
        return files


def read(table: Path) -> tuple[Fault, ...]:
    """Return the faults of a table, in its order."""
    data = tomllib.loads(table.read_text(encoding="utf-8"))
    rows = data.pop("fault")
    return tuple(_fault({**data, **row}) for row in rows)


def _fault(row: dict[str, Any]) -> Fault:
    edits = row.pop("edit", None) or [{name: row.pop(name) for name in ("file", "old", "new")}]
    family = row.pop("class", "")
    return Fault(**row, family=family, edits=tuple(Edit(**edit) for edit in edits))


def plant(fault: Fault | None, source: Path, target: Path) -> None:
    """Copy the folder that holds an engine's package, with a fault or unchanged.

    Unchanged files and folders are symbolic links. Raises ValueError if the fault does not apply,
    OSError if `target` cannot be written.
    """
    linked_copy(source, target, {} if fault is None else fault.changed(source))
