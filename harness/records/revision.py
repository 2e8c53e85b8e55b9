"""Which commit of this tree is in use, and where people find it. Imports no torch."""

import os
import re
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

from paritybit.places import SOURCES

COMMIT_VARIABLE = "PARITYBIT_COMMIT"
"""Names the commit where the tree is a copy without its git folder."""

REPOSITORY_VARIABLE = "PARITYBIT_REPOSITORY"
"""Names the repository's address there."""

SCP_LIKE = re.compile(r"(?:[^@/:]+@)?([\w.-]+):(?!//)(.+)")
"""An address of a remote as `git` alone takes it: its host, after a user, and its path."""

REMOTE_SCHEMES = ("https", "http", "ssh", "git")

PUBLIC_HOST = re.compile(r"[\w.-]+\.[a-z]{2,}(?::\d+)?")
"""The host of a remote that others may find too: it has a name, and is not this machine."""


def revision() -> tuple[str | None, bool | None]:
    """Return the commit of this tree, and whether the tree differs from it; None where unknown."""
    named = os.environ.get(COMMIT_VARIABLE)
    if named:
        return named, None
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return None, None
    return commit, bool(_git("status", "--porcelain"))


def repository() -> str | None:
    """Return the address at which people find this tree's commits; None where it is not known.

    It names no user, no password and no path of this machine.
    """
    remote = os.environ.get(REPOSITORY_VARIABLE) or _git("remote", "get-url", "origin") or ""
    scp_like = SCP_LIKE.fullmatch(remote)
    address = urlsplit(f"ssh://{scp_like[1]}/{scp_like[2]}" if scp_like else remote)
    host = address.netloc.rpartition("@")[2]
    if address.scheme != "https":  # The port of another scheme is not that of its pages.
        host = host.partition(":")[0]
    path = address.path.strip("/").removesuffix(".git")
    if address.scheme not in REMOTE_SCHEMES or not PUBLIC_HOST.fullmatch(host) or not path:
        return None
    return f"https://{host}/{path}"


def commit_of(folder: Path) -> str | None:
    """Return the commit of a source tree in a folder; None for one that git does not keep."""
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
