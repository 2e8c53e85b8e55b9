"""What the environment says about watching: `PARITYBIT_WATCH` holds JSON, or is not set."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

VARIABLE = "PARITYBIT_WATCH"


@dataclass(frozen=True)
class Settings:
    """`out` is the folder of the journals. `checks` selects by name; None means all.

    Every `every`-th forward is checked; the ledger follows the writes of the others.
    """

    out: str
    checks: tuple[str, ...] | None = None
    every: int = 1

    def text(self) -> str:
        """Return the value of the environment variable that gives these settings."""
        return json.dumps(asdict(self))

    @property
    def folder(self) -> Path:
        """The folder of the journals."""
        return Path(self.out)


def parsed(text: str) -> Settings:
    """Return the settings that a value of the environment variable states.

    Raises ValueError if it states none.
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
    """Return this process's settings, or None if nothing is to be watched.

    Raises ValueError if the variable is malformed.
    """
    text = os.environ.get(VARIABLE)
    return None if not text else parsed(text)
