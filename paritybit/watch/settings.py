"""The settings of the sanitizer, as JSON in the environment variable `PARITYBIT_WATCH`."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

TRIED = "tried: "
"""The prefix of the counts of comparisons of a check."""

NOT_TRIED = "not tried: "
"""The prefix of the counts of trials that could not have failed: a check and a reason follow."""

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
    data = json.loads(text)
    if not isinstance(data, dict) or not isinstance(data.get("out"), str):
        raise ValueError(f"{VARIABLE} is not an object with a folder `out`")
    checks, every = data.get("checks"), data.get("every", 1)
    named = checks is None or isinstance(checks, list)
    if not named or not all(isinstance(name, str) for name in checks or ()):
        raise ValueError(f"{VARIABLE}: `checks` is not a list of names")
    if not isinstance(every, int) or every < 1:
        raise ValueError(f"{VARIABLE}: `every` is not a positive integer")
    return Settings(data["out"], None if checks is None else tuple(checks), every)


def active() -> Settings | None:
    """Return the settings of this process, or None if the variable is not set.

    Raises ValueError if the variable is malformed.
    """
    text = os.environ.get(VARIABLE)
    return None if not text else parsed(text)
