"""Request scripts: what a whole engine is served, as data. The same script gives the same batches.

A script is JSON. Its prompts are made of parts of named *texts*, so that it says which requests
share a prefix, and how long that is. Texts are generated: the same name gives the same tokens.
"""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from paritybit.drive.models import VOCABULARY

FIRST_TOKEN = 3
"""Tokens below are special ones."""

Setting = str | int | bool | None


@dataclass(frozen=True)
class Part:
    """So many tokens of a text, from the one at `start` on."""

    text: str
    length: int
    start: int = 0

    def tokens(self) -> tuple[int, ...]:
        """Return the tokens."""
        return _tokens(self.text, self.start + self.length)[self.start :]


@cache
def _tokens(text: str, length: int) -> tuple[int, ...]:
    chance = random.Random(text)
    return tuple(chance.randrange(FIRST_TOKEN, VOCABULARY) for _ in range(length))


@dataclass(frozen=True)
class Planned:
    """A request: its prompt, how many tokens it gets, and when it arrives and is aborted.

    `arrives` and `aborted` count polls since its wave began: how often the scheduler has asked for
    requests. `adapter` is the number of a LoRA adapter. With `follows`, the prompt is the whole
    conversation of that request of the wave, then `prompt`; it arrives `arrives` polls after that
    one ended. No name of a request that is aborted begins another name: an engine aborts every
    request whose name begins alike.
    """

    name: str
    prompt: tuple[Part, ...]
    tokens: int
    arrives: int = 0
    aborted: int | None = None
    follows: str | None = None
    temperature: float = 0.0
    adapter: int | None = field(default=None, metadata={"later": True})

    @property
    def length(self) -> int:
        """How many tokens the prompt has, what it follows apart."""
        return sum(part.length for part in self.prompt)

    def ids(self) -> list[int]:
        """Return the tokens of the prompt, what it follows apart."""
        return [token for part in self.prompt for token in part.tokens()]


ACTIONS = ("flush", "weights", "recapture", "pause", "retract", "sleep")
"""What may be done to an engine, besides requests.

Its cache is emptied; it gets other weights; it captures its graphs again; it pauses, and its
requests stay where they are or are retracted; its memory is released until it wakes up.
"""


@dataclass(frozen=True)
class Action:
    """One of `ACTIONS`, `at` so many polls after its wave began, or as soon as it is possible.

    Those that end again last so many polls more. An engine is idle, or pauses, when its cache is
    emptied, its weights are updated or its graphs are captured; it is idle when it falls asleep.
    """

    what: str
    at: int = 0
    lasts: int = 0


@dataclass(frozen=True)
class Wave:
    """Requests that are served, and actions that are done, before the engine becomes idle.

    With `flush` its cache is emptied then.
    """

    requests: tuple[Planned, ...] = ()
    flush: bool = False
    actions: tuple[Action, ...] = field(default=(), metadata={"later": True})


@dataclass(frozen=True)
class Script:
    """The settings of an engine by name, and the waves that it serves."""

    settings: dict[str, Setting]
    waves: tuple[Wave, ...]

    @property
    def requests(self) -> int:
        """How many requests there are."""
        return sum(len(wave.requests) for wave in self.waves)


LARGEST = 1 << 20
"""The largest number of a script's settings."""

MOST_ADAPTERS = 8

MOST_REQUESTS, MOST_TOKENS, MOST_POLLS = 100_000, 100_000, 1_000_000
"""The largest script, request and time that a script may ask for."""


def typed_json() -> Any:
    """Return what turns data into JSON data and back. To import it takes long."""
    return import_module("paritybit.harness.records.typed_json")


def wave_data(wave: Wave) -> Any:
    """Return a wave as JSON data."""
    return typed_json().to_json(wave)


def script_of(settings: Mapping[str, Setting], waves: Sequence[Any]) -> Script:
    """Return the script of settings and waves that are JSON data. Raises ValueError for others."""
    data = {"settings": dict(settings), "waves": waves}
    script: Script = typed_json().from_json(Script, data, "the script")
    require_sense(script)
    return script


def require_sense(script: Script) -> None:
    """Raise ValueError unless each request of a script can be served."""
    if script.requests > MOST_REQUESTS:
        raise ValueError(f"the script has more than {MOST_REQUESTS:,} requests")
    for number, wave in enumerate(script.waves):
        before: set[str] = set()
        require_actions(wave, number)
        for one in wave.requests:
            where = f"request {one.name!r} of wave {number}"
            if one.name in before:
                raise ValueError(f"{where} is there twice")
            if one.follows is not None and one.follows not in before:
                raise ValueError(f"{where} follows a request that is not before it")
            sizes = [size for part in one.prompt for size in (part.length, part.start + 1)]
            if not sizes or not all(0 < size <= MOST_TOKENS for size in sizes):
                raise ValueError(f"{where}: each part of a prompt has 1 to {MOST_TOKENS:,} tokens")
            if not 0 < one.tokens <= MOST_TOKENS or one.length > MOST_TOKENS:
                raise ValueError(
                    f"{where}: a prompt and a request have 1 to {MOST_TOKENS:,} tokens"
                )
            if any(not 0 <= at <= MOST_POLLS for at in (one.arrives, one.aborted or 0)):
                raise ValueError(f"{where}: a time is between 0 and {MOST_POLLS:,} polls")
            if not 0 <= one.temperature <= 2:
                raise ValueError(f"{where}: the temperature is between 0 and 2")
            before.add(one.name)


def require_actions(wave: Wave, number: int) -> None:
    """Raise ValueError unless each action of a wave, and each adapter, can be had."""
    for action in wave.actions:
        if action.what not in ACTIONS:
            raise ValueError(f"an action of wave {number} is none of {', '.join(ACTIONS)}")
        if any(not 0 <= at <= MOST_POLLS for at in (action.at, action.lasts)):
            raise ValueError(f"an action of wave {number} is at a poll that is out of range")
    for one in wave.requests:
        if one.adapter is not None and not 0 < one.adapter <= MOST_ADAPTERS:
            raise ValueError(f"an adapter of wave {number} is not between 1 and {MOST_ADAPTERS}")


def write(script: Script, path: Path) -> None:
    """Write a script for an engine's process to read. Who reads finds it whole."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(typed_json().to_json(script)), encoding="utf-8")
    part.replace(path)


def read(path: Path) -> Script:
    """Return the script of a file that `write` wrote."""
    data = json.loads(path.read_text(encoding="utf-8"))
    return script_of(data["settings"], data["waves"])
