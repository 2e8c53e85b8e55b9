"""All bugs by name: those in this engine's history, then those of other engines."""

from collections.abc import Mapping

from paritybit.subjects.bugs import captures, historical, padding, races, windows
from paritybit.subjects.bugs.bug import Bug

FIRST = tuple(bug.name for bug in historical.BUGS)
"""The bugs in this engine's history."""

FILES = historical, padding, windows, captures, races

BUGS: Mapping[str, Bug] = {bug.name: bug for file in FILES for bug in file.BUGS}
"""All bugs by name, in the order of a trial's bugs."""
