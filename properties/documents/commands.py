"""The commands of the documents: what each block of them needs, and a folder in which it runs.

The first line of a block of commands is ```` ```sh NEEDS ````. The suite runs blocks that need
nothing. `python -m properties.documents.commands engine` runs those that need an engine, and
`engine README.md` those of one page. The blocks of a page run in one folder.
"""

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from paritybit.engines import fetch
from properties.documents.made import documents
from properties.support.places import ROOT

NEEDS = {
    "engine": "an engine that is downloaded, and minutes",
    "index": "a package index",
    "minutes": "minutes",
    "hours": "hours, and engines that are downloaded",
    "docker": "Docker",
    "gpu": "a GPU",
    "yours": "something of the reader: a server, a source tree or its history",
}
"""What a block may need."""

PROVIDED = ("engine", "index", "minutes")
"""What the command of this module has."""

STARTS = r"(?:\$ +)?(?:paritybit|make|git|pip|python3?|docker|cp|uv|pytest)\b"
"""How the line of a command begins."""

JUDGING = ("watch", "replay", "shrink", "report", "explore", "releases")
"""The commands of paritybit that exit with 1 for a finding, which is a result."""

TREE = "sglang==0.5.23"
"""The engine whose source tree is the current folder of a block that needs an engine."""


@dataclass(frozen=True)
class Block:
    """A block of code: its page, its language, what it needs, and its lines."""

    page: str
    language: str
    needs: tuple[str, ...]
    lines: tuple[str, ...]

    @property
    def name(self) -> str:
        """The page and the first line."""
        return f"{self.page}: {self.lines[0]}"


BLOCK = re.compile(r"^ *```([^\n]*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


def blocks() -> Iterator[Block]:
    """Yield the blocks of code of the README, of `docs/` and of the reports."""
    for path in documents():
        text, page = path.read_text(encoding="utf-8"), str(path.relative_to(ROOT))
        for head, body in BLOCK.findall(text):
            language, *needs = head.split() or [""]
            yield Block(page, language, tuple(needs), tuple(body.splitlines()))


def shell(needs: Sequence[str] = ()) -> list[Block]:
    """Return the blocks of commands that need exactly these."""
    return [one for one in blocks() if one.language == "sh" and one.needs == tuple(needs)]


def accepted(line: str) -> tuple[int, ...]:
    """Return the exit codes with which a command does what its page says."""
    judging = re.match(rf"paritybit (?:{'|'.join(JUDGING)})\b", line)
    return (0, 1) if judging else (0,)


def environment(scratch: Path) -> dict[str, str]:
    """Return an environment in which `paritybit` is this checkout, and `pip` that of a new one."""
    programs = scratch / "programs"
    programs.mkdir()
    for name, words in {"paritybit": "-m paritybit", "python": ""}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        (programs / name).chmod(0o755)
    paths = f"{programs}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": paths, "PYTHONPATH": str(ROOT), "PARITYBIT": f"file://{ROOT}"}


def failures(page: Sequence[Block], folder: Path, given: dict[str, str]) -> Iterator[str]:
    """Run the blocks of a page in a folder, and yield each line that fails, with its output."""
    for line in (line for block in page for line in block.lines):
        print(f"$ {line}", flush=True)
        done = subprocess.run(
            ["bash", "-c", line], cwd=folder, env=given, capture_output=True, text=True, check=False
        )
        print(f"  {done.returncode}", flush=True)
        if done.returncode not in accepted(line):
            yield f"{line}\n{done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}"


def prepare(needs: str, scratch: Path, given: dict[str, str]) -> Path:
    """Return a folder for a page whose blocks need this."""
    if needs == "engine":  # Reports name cases of this checkout.
        (folder := scratch / "tree").mkdir()
        for path in (*fetch.find(TREE).package.parent.iterdir(), ROOT / "reports"):
            (folder / path.name).symlink_to(path)
        return folder
    if needs == "index":
        home = scratch / "environment"
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        (packages,) = home.glob("lib/*/site-packages")  # Torch need not be installed again.
        (packages / "here.pth").write_text(sysconfig.get_path("purelib"))
        given["PATH"] = f"{home}/bin{os.pathsep}{given['PATH']}"
    return ROOT


def main(wanted: Sequence[str]) -> int:
    """Run the blocks that need one of these, on these pages or on all. Return 1 after a failure."""
    pages = {word for word in wanted if word.endswith(".md")}
    kinds = [word for word in wanted if word in PROVIDED]
    if not kinds or len(kinds) + len(pages) < len(wanted):
        print(f"usage: python -m properties.documents.commands {'|'.join(PROVIDED)} [PAGE.md ...]")
        return 2
    failed = list[str]()
    for needs in kinds:
        chosen = [one for one in shell([needs]) if not pages or one.page in pages]
        for page in dict.fromkeys(one.page for one in chosen):
            with tempfile.TemporaryDirectory() as name:
                scratch = Path(name)
                given = environment(scratch)
                folder = prepare(needs, scratch, given)
                mine = [one for one in chosen if one.page == page]
                failed += failures(mine, folder, given)
    print("\n\n".join(failed) or "all commands ran")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
