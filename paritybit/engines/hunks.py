"""The differences between two trees of an engine, as hunks of a diff that can be undone."""

import ast
import filecmp
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

from paritybit.engines import fetch
from paritybit.engines.packages import Package


@dataclass(frozen=True)
class Hunk:
    """Changed lines of a file such as `sglang/srt/utils.py`, in place of the `base` lines.

    `start` and `stop` are indices from 0 on. They are equal if the change only removed lines.
    `function` is the function with the lines, or ''.
    """

    file: str
    start: int
    stop: int
    base: tuple[str, ...]
    function: str

    @property
    def source(self) -> str:
        """The file and the first line, such as `sglang/srt/utils.py:12`."""
        return f"{self.file}:{self.start + 1}"


def changed_files(package: Path, base: Path) -> list[Path]:
    """Return the Python files of a package that differ in another tree of it."""
    names = (file.relative_to(package) for file in package.rglob("*.py"))
    pairs = ((name, package / name, base / name) for name in names)
    return sorted(
        name
        for name, mine, other in pairs
        if other.is_file() and not mine.samefile(other) and not filecmp.cmp(mine, other, False)
    )


def hunks_of(package: Path, base: Path) -> list[Hunk]:
    """Return the differences of the UTF-8 files that two trees of a package have."""
    found = list[Hunk]()
    for name in changed_files(package, base):
        try:
            mine, other = (lines_of(folder / name) for folder in (package, base))
        except UnicodeDecodeError:
            continue
        file = f"{package.name}/{name.as_posix()}"
        for what, first, last, start, stop in SequenceMatcher(
            None, other, mine, autojunk=False
        ).get_opcodes():
            if what != "equal":
                function = function_at(mine, start if stop > start else start - 1)
                found.append(Hunk(file, start, stop, tuple(other[first:last]), function))
    return found


def lines_of(file: Path) -> list[str]:
    """Return the lines of a file with their ends."""
    return file.read_text(encoding="utf-8").splitlines(keepends=True)


def function_at(lines: Sequence[str], index: int) -> str:
    """Return the qualified name of the innermost function or class with a line, or ''."""
    try:
        node: ast.AST | None = ast.parse("".join(lines))
    except (SyntaxError, ValueError):
        return ""
    names = list[str]()
    while node is not None:
        names += [node.name] if isinstance(node, DEFINITIONS) else []
        inner = [one for one in ast.iter_child_nodes(node) if isinstance(one, BLOCKS)]
        above = (one for one in inner if first_line(one) <= index + 1)
        node = max(above, key=first_line, default=None)
    return ".".join(names)


DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
BLOCKS = (ast.stmt, ast.excepthandler, ast.match_case)


def first_line(node: ast.AST) -> int:
    """Return the first line of a statement with its decorators, from 1 on."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([getattr(node, "lineno", 0), *(one.lineno for one in decorators)])


def undo(home: Path, hunks: Iterable[Hunk]) -> dict[str, str]:
    """Return the files below `home` that some hunks changed, with the lines from before."""
    texts: dict[str, list[str]] = {}
    for hunk in sorted(hunks, key=lambda one: one.start, reverse=True):
        lines = texts.setdefault(hunk.file, lines_of(home / hunk.file))
        lines[hunk.start : hunk.stop] = hunk.base
    return {name: "".join(lines) for name, lines in texts.items()}


def nearest(package: Path, kind: Package) -> fetch.EngineFolder | None:
    """Return the downloaded release of an engine that differs in the fewest files, or None."""
    folders = sorted(fetch.folder().glob(f"{kind.name}-*/{kind.name}"))
    releases = [one for one in folders if (one / kind.marker).is_dir()]
    base = min(releases, key=lambda one: len(changed_files(package, one)), default=None)
    if base is None:
        return None
    return fetch.EngineFolder(base.parent.name.replace("-", " ", 1), base)


def linked_copy(source: Path, target: Path, changed: Mapping[str, str]) -> None:
    """Make a folder of links to what is in another one, except for some files.

    `changed` has their text by their path. Raises OSError if `target` cannot be written.
    """
    _link(source.resolve(), target, [Path(name).parts for name in changed])
    for name, text in changed.items():
        (target / name).write_text(text, encoding="utf-8")


def _link(source: Path, target: Path, without: Sequence[tuple[str, ...]]) -> None:
    target.mkdir(parents=True)
    for found in source.iterdir():
        below = [rest for first, *rest in without if first == found.name]
        if below and found.is_dir():
            _link(found, target / found.name, [tuple(rest) for rest in below])
        elif not below and found.name != "__pycache__":
            (target / found.name).symlink_to(found)
