"""The settings of the sanitizer, as JSON in the environment variable `PARITYBIT_WATCH`."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

TRIED = "tried: "
"""The prefix of the counts of comparisons of a check."""

NOT_TRIED = "not tried: "
"""The prefix of counts of comparisons that could not have failed: a check and a reason follow."""

VARIABLE = "PARITYBIT_WATCH"


@dataclass(frozen=True)
class Settings:
    """The settings of the sanitizer.

    - `out`: the folder of the journals.
    - `checks`: the names of the checks to run. None means all.
    - `every`: checks one forward in `every` on average. The ledger follows the writes of the rest.
    """

    out: str
    checks: tuple[str, ...] | None = None
    every: int = 1

    def text(self) -> str:
        """Return these settings as the value of the environment variable."""
        return json.dumps(asdict(self))

    @property
    def folder(self) -> Path:
        """The folder of the journals."""
        return Path(self.out)


def parsed(text: str) -> Settings:
    """Return the settings in a value of the environment variable.

    Raises ValueError if the value is malformed.
    """
    given = json.loads(text)
    match {"checks": None, "every": 1, **given} if isinstance(given, dict) else None:
        case {"out": str(out), "checks": None, "every": int(every)} if every > 0:
            return Settings(out, None, every)
        case {"out": str(out), "checks": [*names], "every": int(every)} if every > 0:
            return Settings(out, tuple(map(str, names)), every)
    raise ValueError(f"{VARIABLE} has no folder `out`, list `checks` or positive `every`: {text}")


def active() -> Settings | None:
    """Return the settings of this process, or None if the variable is not set.

    Raises ValueError if the variable is malformed.
    """
    text = os.environ.get(VARIABLE)
    return None if not text else parsed(text)
