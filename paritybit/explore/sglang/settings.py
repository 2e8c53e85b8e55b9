"""What the stand-ins around an engine answer, as its file declares: one rank, and what is off."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paritybit.engines.bags import declared_in, settings

DECLARED = declared_in(Path(__file__).with_name("declared.toml"))

SUBGROUPS = frozenset(DECLARED["subgroups"])
"""What an engine's resolved configuration is divided into."""

GROUPS: tuple[str, ...] = tuple(DECLARED["groups"])
"""The names that a process group may have in the engine."""

ATTENTION = settings(DECLARED["attention"])
"""Attention's own parallel sizes, by the names they may have."""

SIZES = settings(DECLARED["sizes"])
"""The sizes of one rank, by the names they may have."""

SERVER = {**DECLARED["off"]["parallel"], **settings(DECLARED["server"])}
"""What is off of a server's settings."""

OFF: Mapping[str, Mapping[str, Any]] = {
    **DECLARED["off"],
    "server_args": SERVER,
    "config": SERVER,
}
"""By stand-in, the names that an engine may ask for and that are off."""
