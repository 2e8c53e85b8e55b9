"""Where the packages of this build lie, and where paritybit keeps large files.

A checkout has `harness/`, `reference/`, `subjects/`, `reports/` and `docs/` next to `paritybit/`;
an installed package has them inside it.
"""

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
"""The folder of the package `paritybit`."""

IMPORT_FOLDER = PACKAGE.parent
"""The folder that must be on `sys.path` to import `paritybit`."""

SOURCES = PACKAGE if (PACKAGE / "harness").is_dir() else PACKAGE.parent
"""The folder that holds `harness/`, `reference/`, `subjects/`, `reports/` and `docs/`."""

PAGES = SOURCES / "docs"
"""The folder of the documents."""

OWN_ENGINE = PAGES / "own-engine.md"
"""The page that says how to connect an engine."""

KNOWN_FINDINGS = "paritybit-known.json"
"""The file of an engine's tree that lists its known findings."""


def cache_folder() -> Path:
    """Return the folder in the user's cache for large files that can be made again.

    As XDG specifies, a relative `XDG_CACHE_HOME` is ignored. A user without a home folder, as in
    some containers, gets a folder that cannot be created.
    """
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if named.is_absolute():
        return named / "paritybit"
    try:
        home = Path.home()
    except RuntimeError:
        home = Path(os.devnull)
    return home / ".cache" / "paritybit"
