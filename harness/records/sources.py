"""A digest of this build's sources. Builds with the same digest behave alike."""

import hashlib
import sys

from paritybit.places import SOURCES

FOLDERS = ("harness", "reference", "subjects")
"""The packages that commands use."""


def digest() -> str:
    """Return a hash of the interpreter's version and of all source files."""
    found = hashlib.sha256(sys.version.encode())
    for folder in FOLDERS:
        for path in sorted((SOURCES / folder).rglob("*.py")):
            found.update(f"{path.relative_to(SOURCES)}\0".encode() + path.read_bytes() + b"\0")
    return found.hexdigest()
