"""Request scripts: the requests that a whole engine serves, as data.

The same script gives the same batches. Its prompts consist of parts of named *texts*, so the script
shows which requests share a prefix. Texts are generated: the same name gives the same tokens.
"""

import random
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from paritybit.drive.models import IMAGE, VOCABULARY
from paritybit.harness.records.files import write_whole

FIRST_TOKEN = 3
"""Tokens below this number are special."""

MOST_TEXTS = 256
"""The number of generated texts that are kept."""

LARGEST = 1 << 20
"""The largest number in the settings of a script."""

MOST_ADAPTERS, MOST_EXTRAS, MOST_SPACES = 8, 4, 4

PRIORITIES = (0, 20, 40)
"""The priorities of requests. sglang retracts a request for one that is higher by more than 10."""

MOST_REQUESTS, MOST_TOKENS, MOST_POLLS = 100_000, 100_000, 1_000_000
"""The most requests of a script, the most tokens of a request, and the latest poll."""

Setting = str | int | bool | None

Text = Annotated[str, Meta(pattern=r"^[^\ud800-\udfff]*$")]
Count = Annotated[int, Meta(ge=1, le=MOST_TOKENS)]
Poll = Annotated[int, Meta(ge=0, le=MOST_POLLS)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Tokens = tuple[Annotated[int, Meta(ge=0, lt=VOCABULARY)], ...]


@dataclass(frozen=True)
class Part:
    """The `length` tokens of a text that begin at `start`, or an image that shows the text.

    The hash of an image is that of what it shows, unless `image` is another text.
    """

    text: Text
    length: Count
    start: Annotated[int, Meta(ge=0, lt=MOST_TOKENS)] = 0
    image: Text | None = None

    def tokens(self) -> tuple[int, ...]:
        """Return the tokens. Those of an image are all IMAGE."""
        if self.image is not None:
            return (IMAGE,) * self.length
        return _tokens(self.text, self.start + self.length)[self.start :]


@lru_cache(maxsize=MOST_TEXTS)
def _tokens(text: str, length: int) -> tuple[int, ...]:
    chance = random.Random(text)
    return tuple(chance.randrange(FIRST_TOKEN, VOCABULARY) for _ in range(length))


@dataclass(frozen=True)
class Sampling:
    """How the tokens of a request are sampled, by the names of most engines.

    None means the engine's default. The last token of each of the `bad_words` is forbidden after
    the others. `grammar` and `processor` are the numbers of a grammar and of a logit processor.
    Log-likelihoods are returned from the position `likelihoods` of the prompt on, or with -1, for
    the output alone. With `hidden_states`, those of its tokens are returned. With `ignore_eos`, no
    token ends the request. All engines accept the values in these ranges.
    """

    top_k: Annotated[int, Meta(ge=1, le=VOCABULARY)] | None = None
    top_p: Annotated[float, Meta(ge=0.01, le=1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.1, le=2)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    seed: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    stop_token_ids: Tokens | None = None
    allowed_token_ids: Tokens | None = None
    bad_words: tuple[Tokens, ...] | None = None
    grammar: Annotated[int, Meta(ge=1, le=MOST_EXTRAS)] | None = None
    processor: Annotated[int, Meta(ge=1, le=MOST_EXTRAS)] | None = None
    likelihoods: Annotated[int, Meta(ge=-1, lt=MOST_TOKENS)] | None = None
    hidden_states: bool | None = None
    ignore_eos: bool | None = None

    def given(self) -> dict[str, Any]:
        """Return the parameters that differ from the engine's default, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class Planned:
    """A planned request.

    - `tokens`: the number of tokens to generate.
    - `arrives`, `aborted`: when it arrives and is aborted, in polls of the scheduler since its wave
      began.
    - `while_moving`: the abort waits until KV of the request is copied from or to elsewhere.
    - `follows`: the name of an earlier request of the wave. The prompt is then the conversation of
      that request, followed by `prompt`. Both numbers of polls count from the end of that request.
    - `adapter`, `space`: the numbers of a LoRA adapter, and of a namespace of the prefix cache.
    - `session`: the number of a session, which the engine keeps until its last request has ended.
      A request that follows another one of its session continues what the engine has kept.

    The name of an aborted request must not be a prefix of another name, because engines abort all
    requests whose names have the prefix.
    """

    name: Text
    prompt: Annotated[tuple[Part, ...], Meta(min_length=1)]
    tokens: Count
    arrives: Poll = 0
    aborted: Poll | None = None
    follows: str | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] = 0.0
    adapter: Annotated[int, Meta(ge=1, le=MOST_ADAPTERS)] | None = None
    space: Annotated[int, Meta(ge=1, le=MOST_SPACES)] | None = None
    session: Annotated[int, Meta(ge=1, le=MOST_REQUESTS)] | None = None
    priority: Annotated[int, Meta(ge=0, le=40, multiple_of=20)] | None = None
    sampling: Sampling | None = None
    while_moving: bool = False

    @property
    def length(self) -> int:
        """The number of tokens of `prompt`."""
        return sum(part.length for part in self.prompt)

    def ids(self) -> list[int]:
        """Return the tokens of `prompt`."""
        return [token for part in self.prompt for token in part.tokens()]


ACTIONS = ("flush", "weights", "sleep", "adapters", "recapture", "pause", "retract", "preempt")
"""The actions of an operator.

`flush` empties the cache, `weights` updates the weights, with `sleep` the
engine sleeps and wakes up, `adapters` loads all adapters again under
their names with other weights, and `recapture` captures the graphs again.
`retract` is a pause that also retracts the requests, as `preempt` does without a pause.
"""


@dataclass(frozen=True)
class Action:
    """One of ACTIONS, `at` polls after its wave began, or as soon as possible after that.

    A pause ends `lasts` polls later. All but pauses and `preempt` need an idle engine. `flush`,
    `weights` and `recapture` may also happen during a pause.
    """

    what: Annotated[str, Meta(pattern=f"^({'|'.join(ACTIONS)})$")]
    at: Poll = 0
    lasts: Poll = 0


@dataclass(frozen=True)
class Wave:
    """Requests and actions until the engine is idle.

    With `flush`, the cache is emptied then. A `brief` wave shows what an action has left, and is
    none of those that a row has to serve.

    At the poll `left`, the run ended: all requests are aborted, and no further wave follows.
    """

    requests: tuple[Planned, ...] = ()
    flush: bool = False
    actions: tuple[Action, ...] = ()
    brief: bool = False
    left: Poll | None = None


@dataclass(frozen=True)
class Script:
    """The settings of an engine, by name, and the waves that it serves."""

    settings: dict[str, Setting]
    waves: tuple[Wave, ...]

    @property
    def requests(self) -> int:
        """The number of requests."""
        return sum(len(wave.requests) for wave in self.waves)


def require_sense(script: Script) -> None:
    """Raise ValueError unless each request of a script can be served."""
    msgspec.convert(msgspec.to_builtins(script), Script)  # The types of fields limit their values.
    if script.requests > MOST_REQUESTS:
        raise ValueError(f"the script has more than {MOST_REQUESTS:,} requests")
    for number, wave in enumerate(script.waves):
        before: set[str] = set()
        for one in wave.requests:
            where = f"request {one.name!r} of wave {number}"
            if one.name in before:
                raise ValueError(f"{where} is there twice")
            if one.follows is not None and one.follows not in before:
                raise ValueError(f"{where} follows a request that is not before it")
            if one.length > MOST_TOKENS:
                raise ValueError(f"{where}: a prompt has at most {MOST_TOKENS:,} tokens")
            given = {} if one.sampling is None else one.sampling.given()
            if given.get("min_tokens", 0) > one.tokens:
                raise ValueError(f"{where}: min_tokens is at most its number of tokens")
            if not {*given.get("logit_bias", ())} <= {*map(str, range(VOCABULARY))}:
                raise ValueError(f"{where}: logit_bias has a token that the model lacks")
            before.add(one.name)


def write(script: Script, path: Path) -> None:
    """Write a script atomically, for another process to read."""
    write_whole(path, msgspec.json.encode(script).decode())


def read(path: Path) -> Script:
    """Return the script of a file that `write` wrote."""
    return msgspec.json.decode(path.read_bytes(), type=Script)
