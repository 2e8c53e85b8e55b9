"""The commit of this tree and its public address. Imports no torch."""

import os
import re
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

from paritybit.places import SOURCES

COMMIT_VARIABLE = "PARITYBIT_COMMIT"
"""The environment variable with the commit, for a copy of the tree without its git folder."""

REPOSITORY_VARIABLE = "PARITYBIT_REPOSITORY"
"""The environment variable with the repository's address, for such a copy."""

SCP_LIKE = re.compile(r"(?:[^@/:]+@)?([\w.-]+):(?!//)(.+)")
"""The scp-like address of a git remote: optional user, host and path."""

REMOTE_SCHEMES = ("https", "http", "ssh", "git")

PUBLIC_HOST = re.compile(r"[\w.-]+\.[a-z]{2,}(?::\d+)?")
"""A host that others may reach: it has a name, and is not this machine."""


def revision() -> tuple[str | None, bool | None]:
    """Return the commit of this tree, and whether the tree differs from it. None if unknown."""
    named = os.environ.get(COMMIT_VARIABLE)
    if named:
        return named, None
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return None, None
    return commit, bool(_git("status", "--porcelain"))


def repository() -> str | None:
    """Return the public address of this tree's commits, or None if unknown.

    It has no user, no password and no path of this machine.
    """
    remote = os.environ.get(REPOSITORY_VARIABLE) or _git("remote", "get-url", "origin") or ""
    scp_like = SCP_LIKE.fullmatch(remote)
    address = urlsplit(f"ssh://{scp_like[1]}/{scp_like[2]}" if scp_like else remote)
    host = address.netloc.rpartition("@")[2]
    if address.scheme != "https":  # The port of another scheme does not serve pages.
        host = host.partition(":")[0]
    path = address.path.strip("/").removesuffix(".git")
    if address.scheme not in REMOTE_SCHEMES or not PUBLIC_HOST.fullmatch(host) or not path:
        return None
    return f"https://{host}/{path}"


def commit_of(folder: Path) -> str | None:
    """Return the commit of a source tree in a folder, or None without a git repository."""
    return _git("rev-parse", "HEAD", root=folder)


def _git(*arguments: str, root: Path = SOURCES) -> str | None:
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
