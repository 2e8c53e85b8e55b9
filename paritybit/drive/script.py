"""Request scripts: the requests that a whole engine serves, as data.

The same script gives the same batches. A script is JSON. Its prompts consist of parts of named
*texts*, so the script shows which requests share a prefix, and how long the prefix is. Texts are
generated: the same name gives the same tokens.
"""

import json
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from paritybit.drive.models import VOCABULARY

FIRST_TOKEN = 3
"""Tokens below this number are special."""

MOST_TEXTS = 256
"""The number of generated texts that are kept."""

Setting = str | int | bool | None


@dataclass(frozen=True)
class Part:
    """The `length` tokens of a text that begin at `start`."""

    text: str
    length: int
    start: int = 0

    def tokens(self) -> tuple[int, ...]:
        """Return the tokens."""
        return _tokens(self.text, self.start + self.length)[self.start :]


@lru_cache(maxsize=MOST_TEXTS)
def _tokens(text: str, length: int) -> tuple[int, ...]:
    chance = random.Random(text)
    return tuple(chance.randrange(FIRST_TOKEN, VOCABULARY) for _ in range(length))


@dataclass(frozen=True)
class Sampling:
    """How the tokens of a request are sampled, by the names of most engines.

    None means the engine's default. `logit_bias` has what is added to the logits of tokens.
    """

    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    min_tokens: int | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None

    def given(self) -> dict[str, Any]:
        """Return the parameters that differ from the engine's default, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}


RANGES: Mapping[str, tuple[float, float]] = {
    "top_k": (1, VOCABULARY),
    "top_p": (0.01, 1),
    "min_p": (0, 1),
    "repetition_penalty": (0.1, 2),
    "frequency_penalty": (-2, 2),
    "presence_penalty": (-2, 2),
    "seed": (0, 2**31),
}
"""The smallest and the largest values of parameters of sampling that engines accept."""


@dataclass(frozen=True)
class Planned:
    """A planned request.

    - `prompt`: the parts of its prompt.
    - `tokens`: the number of tokens to generate.
    - `arrives`, `aborted`: when it arrives and is aborted, in polls of the scheduler since its wave
      began.
    - `follows`: the name of an earlier request of the wave. The prompt is then the conversation of
      that request, followed by `prompt`. It arrives `arrives` polls after that request has ended.
    - `adapter`: the number of a LoRA adapter.
    - `priority`: one of PRIORITIES.
    - `sampling`: parameters of sampling, besides the temperature.

    The name of an aborted request must not be a prefix of another name, because engines abort all
    requests whose names have the prefix.
    """

    name: str
    prompt: tuple[Part, ...]
    tokens: int
    arrives: int = 0
    aborted: int | None = None
    follows: str | None = None
    temperature: float = 0.0
    adapter: int | None = None
    priority: int | None = None
    sampling: Sampling | None = None

    @property
    def length(self) -> int:
        """The number of tokens of the prompt, without the conversation that it follows."""
        return sum(part.length for part in self.prompt)

    def ids(self) -> list[int]:
        """Return the tokens of the prompt, without the conversation that it follows."""
        return [token for part in self.prompt for token in part.tokens()]


ACTIONS = ("flush", "weights", "recapture", "pause", "retract", "preempt", "sleep")
"""The actions of an operator.

`flush` empties the cache, `weights` updates the weights, and `recapture` captures the graphs again.
`pause` and `retract` pause the engine; `retract` also retracts its requests, as `preempt` does
without a pause. `sleep` releases the memory until the engine wakes up.
"""


@dataclass(frozen=True)
class Action:
    """One of `ACTIONS`, `at` polls after its wave began, or as soon as possible after that.

    A pause or a sleep ends `lasts` polls later. An engine must be idle or paused when its cache is
    emptied, its weights are updated or its graphs are captured. It must be idle to sleep.
    """

    what: str
    at: int = 0
    lasts: int = 0


@dataclass(frozen=True)
class Wave:
    """Requests and actions until the engine is idle again.

    With `flush`, the cache is emptied at the end.
    """

    requests: tuple[Planned, ...] = ()
    flush: bool = False
    actions: tuple[Action, ...] = ()


@dataclass(frozen=True)
class Script:
    """The settings of an engine, by name, and the waves that it serves."""

    settings: dict[str, Setting]
    waves: tuple[Wave, ...]

    @property
    def requests(self) -> int:
        """The number of requests."""
        return sum(len(wave.requests) for wave in self.waves)


LARGEST = 1 << 20
"""The largest number in the settings of a script."""

MOST_ADAPTERS = 8

PRIORITIES = (0, 20, 40)
"""The priorities of requests. sglang retracts a request for one that is higher by more than 10."""

MOST_REQUESTS, MOST_TOKENS, MOST_POLLS = 100_000, 100_000, 1_000_000
"""The most requests of a script, the most tokens of a request, and the latest poll."""


def planned_of(data: Mapping[str, Any]) -> Planned:
    """Return a planned request from the JSON data that `write` wrote."""
    prompt, sampling = tuple(Part(**part) for part in data["prompt"]), data["sampling"]
    own = {"prompt": prompt, "sampling": None if sampling is None else Sampling(**sampling)}
    return Planned(**{**data, **own})


def wave_of(data: Mapping[str, Any]) -> Wave:
    """Return a wave from the JSON data that `write` wrote."""
    requests = tuple(map(planned_of, data["requests"]))
    return Wave(requests, data["flush"], tuple(Action(**one) for one in data["actions"]))


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
            if one.priority not in (None, *PRIORITIES):
                raise ValueError(f"{where}: the priority is one of {PRIORITIES}")
            if not 0 <= one.temperature <= 2:
                raise ValueError(f"{where}: the temperature is between 0 and 2")
            require_sampling(one, where)
            before.add(one.name)
            require_unicode(one, where)


def require_sampling(one: Planned, where: str) -> None:
    """Raise ValueError unless all engines accept the parameters of sampling of a request."""
    given = {} if one.sampling is None else one.sampling.given()
    for name, (least, most) in RANGES.items():
        if name in given and not least <= given[name] <= most:
            raise ValueError(f"{where}: {name} is between {least} and {most}")
    if not 0 <= given.get("min_tokens", 0) <= one.tokens:
        raise ValueError(f"{where}: min_tokens is between 0 and its number of tokens")
    for token, bias in given.get("logit_bias", {}).items():
        if token not in map(str, range(VOCABULARY)) or not abs(bias) <= 100:
            raise ValueError(f"{where}: logit_bias adds at most 100 to the logits of tokens")


def require_unicode(one: Planned, where: str) -> None:
    """Raise ValueError if the name or the prompt of a request has half of a surrogate pair."""
    try:
        "".join([one.name, *(part.text for part in one.prompt)]).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{where}: its name and prompt must be valid Unicode") from error


def require_actions(wave: Wave, number: int) -> None:
    """Raise ValueError unless each action and each adapter of a wave is valid."""
    for action in wave.actions:
        if action.what not in ACTIONS:
            raise ValueError(f"an action of wave {number} is none of {', '.join(ACTIONS)}")
        if any(not 0 <= at <= MOST_POLLS for at in (action.at, action.lasts)):
            raise ValueError(f"an action of wave {number} is at a poll that is out of range")
    for one in wave.requests:
        if one.adapter is not None and not 0 < one.adapter <= MOST_ADAPTERS:
            raise ValueError(f"an adapter of wave {number} is not between 1 and {MOST_ADAPTERS}")


def write(script: Script, path: Path) -> None:
    """Write a script atomically, for the process of an engine to read."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(asdict(script)), encoding="utf-8")
    part.replace(path)


def read(path: Path) -> Script:
    """Return the script of a file that `write` wrote."""
    data = json.loads(path.read_text(encoding="utf-8"))
    return Script(data["settings"], tuple(map(wave_of, data["waves"])))
