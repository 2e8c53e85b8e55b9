"""The declared settings for sglang: a single rank, and values that are off."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paritybit.engines.bags import declared_in, settings

DECLARED = declared_in(Path(__file__).with_name("declared.toml"))

SUBGROUPS = frozenset(DECLARED["subgroups"])
"""The subgroups of the engine's configuration."""

GROUPS: tuple[str, ...] = tuple(DECLARED["groups"])
"""The names that a process group may have in the engine."""

ATTENTION = settings(DECLARED["attention"])
"""The parallel sizes of attention, by their possible names."""

SIZES = settings(DECLARED["sizes"])
"""The sizes of a single rank, by their possible names."""

SERVER = {**DECLARED["off"]["parallel"], **settings(DECLARED["server"])}
"""The server settings that are off."""

OFF: Mapping[str, Mapping[str, Any]] = {
    **DECLARED["off"],
    "server_args": SERVER,
    "config": SERVER,
}
"""For each bag, the names that an engine may read and that are off."""
