"""A digest of this build's sources: two builds that have the same digest do the same."""

import hashlib
import sys

from paritybit.places import SOURCES

FOLDERS = ("harness", "reference", "subjects")
"""The packages that carry out what a command asks for."""


def digest() -> str:
    """Return a hash of the interpreter's version and of every source file."""
    found = hashlib.sha256(sys.version.encode())
    for folder in FOLDERS:
        for path in sorted((SOURCES / folder).rglob("*.py")):
            found.update(f"{path.relative_to(SOURCES)}\0".encode() + path.read_bytes() + b"\0")
    return found.hexdigest()
