"""Change an engine harmlessly, one change at a time, and see that `watch` ends as without it.

A script: `python -m properties.sanitizer.planted.harmless --source FOLDER`. FOLDER holds a release
of an engine, as `paritybit engine` leaves it. Exits with 0 if no change of that engine has another
exit code than the release itself.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paritybit.compat import tomllib
from properties.sanitizer.planted.plant import plant
from properties.support.places import ROOT, say

TABLE = Path(__file__).with_name("harmless.toml")


@dataclass(frozen=True)
class Edit:
    """`old`, which `file` has once, or with `everywhere` at least once, is replaced by `new`."""

    file: str
    old: str
    new: str
    everywhere: bool = False

    def made_in(self, text: str) -> str:
        """Return a text with the edit. Raises ValueError where `old` is not there as it should."""
        count = text.count(self.old)
        if not count or (count > 1 and not self.everywhere):
            raise ValueError(f"{self.file} has {self.old!r} {count} times")
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Change:
    """A harmless change of an engine: its name, what it is, and its edits."""

    name: str
    why: str
    edits: tuple[Edit, ...]

    @property
    def engine(self) -> str:
        """The engine's package. A file of its metadata lies in a folder with a version."""
        folders = (edit.file.partition("/")[0] for edit in self.edits)
        return next(name for name in folders if "-" not in name)

    def files(self, source: Path) -> Mapping[str, str]:
        """Return the files of a release that it changes, with the change. Raises ValueError."""
        found: dict[str, str] = {}
        for edit in self.edits:
            before = found.get(edit.file) or (source / edit.file).read_text(encoding="utf-8")
            found[edit.file] = edit.made_in(before)
        return found

    def made(self, source: Path, target: Path) -> None:
        """Copy a release with the change."""
        changed = self.files(source)
        plant(None, source, target)
        for name, text in changed.items():
            (target / name).unlink()  # The link, not the file that it shares with the source.
            (target / name).write_text(text, encoding="utf-8")


def read() -> Iterator[Change]:
    """Yield the changes of the table."""
    for entry in tomllib.loads(TABLE.read_text(encoding="utf-8"))["change"]:
        edits = tuple(Edit(**edit) for edit in entry["edit"])
        yield Change(entry["name"], entry["why"], edits)


def watched(engine: Path, out: Path, words: Sequence[str]) -> tuple[int, str]:
    """Watch an engine, and return the exit code and the last line."""
    command = [sys.executable, "-m", "paritybit", "watch", "--engine", str(engine)]
    command += ["--device", "cpu", "--out", str(out), *words]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = (ended.stdout + ended.stderr).splitlines()
    return ended.returncode, lines[-1] if lines else ""


def main() -> int:
    """Try all changes, or those that are named; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--seconds", type=int, default=40)
    parser.add_argument("--settings", default="", help="settings to serve, or all")
    parser.add_argument("--only", default="", help="changes to try, or all")
    parser.add_argument("--out", type=Path, default=Path("paritybit-out/harmless"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    words, source = ["--seconds", str(options.seconds)], options.source.resolve()
    words += ["--settings", options.settings] if options.settings else []
    usual, line = watched(source, options.out / "unchanged", words)
    say(f"unchanged: {usual}: {line}")
    differing = 0
    for change in read():
        if options.only and change.name not in options.only.split(","):
            continue
        if not (source / change.engine).is_dir():
            continue
        with tempfile.TemporaryDirectory(prefix="paritybit-", dir=options.out) as folder:
            change.made(source, Path(folder) / source.name)
            code, line = watched(Path(folder) / source.name, options.out / change.name, words)
        differing += code != usual
        say(f"{change.name}: {code}: {line}")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
