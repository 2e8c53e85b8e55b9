"""Copy an engine's folder with one fault planted. Unchanged files are hard links."""

import os
import shutil
from pathlib import Path

from properties.sanitizer.planted.faults import Fault


def plant(fault: Fault | None, source: Path, target: Path) -> None:
    """Copy the folder that holds the engine's package, with a fault or with none.

    Raises ValueError if the fault does not apply, OSError if `target` cannot be written.
    """
    changed = None
    if fault is not None:
        changed = fault.planted_in((source / fault.file).read_text(encoding="utf-8"))
    shutil.copytree(source, target, copy_function=_link)
    if fault is not None and changed is not None:
        file = target / fault.file
        file.unlink()  # The link, not the file that it shares with the source.
        file.write_text(changed, encoding="utf-8")


def _link(source: str, target: str) -> None:
    """Link a file, or copy it where the file system cannot link it."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
