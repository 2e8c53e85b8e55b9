"""The settings of the sanitizer, as JSON in the environment variable `PARITYBIT_WATCH`."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

TRIED = "tried: "
"""The prefix of the counts of comparisons of a check."""

NOT_TRIED = "not tried: "
"""The prefix of counts of comparisons that could not have failed: a check and a reason follow."""

TAKEN, ELAPSED = "microseconds of the sanitizer", "microseconds of the engine"
"""The counts of the time that the sanitizer took, and of the whole time between forwards."""

RANKS_DISAGREE = "ranks disagree"
"""The check of the digests of several ranks, after the fact."""

AGREEING: Mapping[str, Sequence[str]] = {
    "tp": ("rows", "lengths", "slots", "tokens", "positions", "lists", "bucket"),
    "cp": ("rows", "lengths", "slots", "tokens", "positions", "lists", "bucket"),
    "pp": ("rows", "lengths", "positions"),
    "dcp": ("rows", "lengths", "tokens", "positions", "bucket"),
}
"""The parts of a forward in which the ranks along an axis agree. A digest has a hash for each of
the first ones, in this order."""

VARIABLE = "PARITYBIT_WATCH"


@dataclass(frozen=True)
class Settings:
    """The settings of the sanitizer.

    - `out`: the folder of the journals.
    - `checks`: the names of the checks to run. None means all.
    - `every`: checks one forward in `every` on average. The ledger follows the writes of the rest.
    - `overhead`: if it is positive, chooses the forwards so that the sanitizer takes about this
      percentage of the time. `every` is then more than 1.
    - `key`: a secret of the run, for digests of tokens that nobody can guess. The ranks of an
      engine are compared only with one.
    """

    out: str
    checks: tuple[str, ...] | None = None
    every: int = 1
    overhead: float = 0.0
    key: str = ""

    def text(self) -> str:
        """Return these settings as the value of the environment variable."""
        return json.dumps(asdict(self))

    @property
    def folder(self) -> Path:
        """The folder of the journals."""
        return Path(self.out)


def parsed(text: str) -> Settings:
    """Return the settings in a value of the variable. Raises ValueError if it is malformed."""
    given = json.loads(text)
    match {**asdict(Settings("")), **given} if isinstance(given, dict) else None:
        case {
            "out": str(out),
            "checks": None | [*_] as names,
            "every": int(every),
            "overhead": int(overhead) | float(overhead),
            "key": str(key),
        } if out and every > bool(overhead):
            checks = None if names is None else tuple(map(str, names))
            return Settings(out, checks, every, float(overhead), key)
    raise ValueError(f"{VARIABLE} has no folder `out`, list `checks` or positive `every`: {text}")


def active() -> Settings | None:
    """Return the settings of this process, or None without any. Raises ValueError as `parsed`."""
    text = os.environ.get(VARIABLE)
    return None if not text else parsed(text)
