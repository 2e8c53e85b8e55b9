"""Carries out the instructions of the container file, without a container.

A script: `python -m properties.support.container`. An environment of its own stands for the image's
Python, a clean folder for its root, and an empty folder for its HOME.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

from properties.support.places import ROOT

CONTAINERFILE = ROOT / "Containerfile"


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Yield the instructions of a container file: a name and its words."""
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if line.strip() and not line.startswith("#"):
            name, _, words = line.partition(" ")
            yield name, words


def copy(words: str, into: Path) -> None:
    """Copy files and folders of this tree, as COPY does."""
    *sources, target = words.split()
    for source in sources:
        place = into / target
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, place, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(ROOT / source, place / source if target == "./" else place)


def main() -> int:
    """Carry out all instructions; return the exit code of the first command that fails."""
    with tempfile.TemporaryDirectory(prefix="paritybit-") as scratch:
        root, home = Path(scratch, "root"), Path(scratch, "home")
        for folder in (root, home):
            folder.mkdir()
        venv.create(Path(scratch, "environment"), with_pip=True)
        path = os.pathsep.join([f"{scratch}/environment/bin", "/usr/bin", "/bin"])
        pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        place = root
        for name, words in instructions(CONTAINERFILE.read_text(encoding="utf-8")):
            sys.stdout.write(f"--- {name} {words}\n")
            sys.stdout.flush()
            if name == "WORKDIR":
                place = root / words.lstrip("/")
                place.mkdir(parents=True, exist_ok=True)
            elif name == "COPY":
                copy(words, place)
            elif name == "RUN":
                code = subprocess.run(
                    ["/bin/sh", "-c", words],
                    cwd=place,
                    env={**pip, "PATH": path, "HOME": str(home)},
                    check=False,
                ).returncode
                if code:
                    return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
