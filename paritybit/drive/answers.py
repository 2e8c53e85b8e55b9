"""Whether the answers of an engine are what their requests asked for.

A grammar and a logit processor each allow a class of tokens, so an answer shows whether they were
applied to its rows, and when.
"""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paritybit.drive.engine import LikelyStep
from paritybit.drive.models import VOCABULARY
from paritybit.drive.script import Sampling
from paritybit.watch import journal
from paritybit.watch.journal import Finding

CHECK = "wrong row"

CLASSES = 4

END_OF_TEXT = 1
"""The token at which texts end."""

WORD = 32
"""The number of tokens in a word of a mask."""

LENGTHS = (8, 9, 9, 9, 9)
"""The lengths of the stop strings of a request."""

LIKELIEST = 8
"""The number of the likeliest tokens of each step that are compared."""


class Late(Future[Any]):
    """A compiled grammar that is there after some polls, whatever a thread would take."""

    def __init__(self, made: object, polls: int = 0) -> None:
        super().__init__()
        self.polls = polls
        self.set_result(made)

    def done(self) -> bool:
        """Return whether it is there."""
        self.polls -= 1
        return self.polls < 0


def text_of(tokens: Sequence[int]) -> str:
    """Return the text of tokens: one to four bits of each, so strings span tokens by chance.

    The token at which texts end has none.
    """
    return "".join(f"{token % 16:b}" for token in tokens if token != END_OF_TEXT)


def strings_of(asked: Sampling) -> tuple[str, ...]:
    """Return the stop strings that three of four requests have in place of their stop tokens."""
    stops = asked.stop_token_ids or ()
    if not stops or stops[0] % 4 == 0:
        return ()
    text = text_of(stops * max(LENGTHS))
    return tuple(text[5 * at :][:length] for at, length in enumerate(LENGTHS))


class Grammar:
    """The grammar of a request: the class of its next token depends on all tokens before.

    Branches of a draft therefore have different masks. It never ends, because some requests go on
    after the end of a text.
    """

    def __init__(self, number: str) -> None:
        super().__init__()
        self.number = number
        self.tokens: list[int] = []

    def first(self, tokens: list[int]) -> list[int]:
        """Return the first of the next tokens, up to one that is not allowed."""
        expected = int(self.number) + sum(one // CLASSES for one in self.tokens)
        for at, one in enumerate(tokens):
            if (one - expected) % CLASSES:
                return tokens[:at]
            expected += one // CLASSES
        return tokens

    @property
    def bits(self) -> int:
        """A word of the mask for the next token, which has a bit per token."""
        word = sum(1 << bit for bit in range(WORD) if self.first([bit]))
        return word - (word >> WORD - 1 << WORD)  # As a signed number.

    def rollback(self, count: int) -> None:
        """Go back by some tokens."""
        del self.tokens[len(self.tokens) - count :]


def outside(mine: int, size: int, device: object = None) -> Tensor:
    """Return which tokens are outside of the class of a logit processor, bool [size].

    CLASSES tokens in a row have one class, so some of them are also in the class of a grammar.
    """
    groups = torch.arange(size, device=device) // CLASSES  # type: ignore[call-overload]
    found: Tensor = groups % CLASSES != mine % CLASSES
    return found


CLOSE = 1e-3
"""The largest difference of equal log-likelihoods, also relative to them."""


class Likely(NamedTuple):
    """Log-likelihoods at a place: of the `token` there, of the `likeliest` ones, and of `others`.

    `value` is that of the token, or None without one. `best`: the likeliest token was to be taken.
    """

    token: int
    value: float | None
    likeliest: Mapping[int, float] = {}
    others: Mapping[int, float] = {}
    best: bool = False

    def wrong(self, most: int, asked: Collection[int]) -> Iterator[str]:
        """Yield what is wrong if `most` likeliest tokens, and others, were `asked` for."""
        if self.value is None:
            return
        if len(self.likeliest) != most or self.others.keys() != {*asked}:
            yield "it has log-likelihoods of other tokens than it asked for"
        least = min(self.likeliest.values(), default=0)
        mine = self.token, min(self.value, least)  # None is likelier than those listed.
        known = dict([mine, *self.likeliest.items()])
        for token, value in ((self.token, self.value), *self.others.items()):
            right = known.get(token, min(value, least))
            if not math.isclose(value, right, rel_tol=CLOSE, abs_tol=CLOSE):
                yield f"the log-likelihood of token {token} is {value:.4g}, not {right:.4g}"
        if self.best and most and self.value < max(self.likeliest.values()) - CLOSE:
            yield f"token {self.token} was taken, and another one is likelier"


NUMBER = "the number of tokens"
"""What ends an answer to which nothing else puts an end."""


@dataclass
class Answer:
    """What an engine returns for a request.

    - `prompt`: its prompt, with the conversation that it follows.
    - `most`: the number of tokens that it asks for.
    - `asked`: its parameters of sampling that the engine applies.
    - `stops`: the tokens that end it, and `strings`: the texts that do so after `min_tokens`.
      With `kept`, its text has what ends it.
    - `tokens`, `text`: its output.
    - `reason`: what ended it, as the engine says: a token, a string or NUMBER, or None for unknown.
    - `ranked`: the log-likelihoods at each place. It asked for those of so many `likeliest` tokens,
      and of `others`. A `greedy` answer has the likeliest tokens.
    - `counts`: the engine's numbers of tokens: of its prompt, and of its output.
    - `drafted`: the positions in its output of tokens that may be drafts.
    - `aborted`: whether it was to be aborted.
    - `given`, `copies`: the lists that the engine delivered last, and what they were then.
      `altered` says whether an earlier one has changed.
    - `recorded`: the tokens that the engine's scheduler has, if they are known.
    - `before`: the positions in its prompt of tokens that a greedy request got.
    """

    prompt: Sequence[int]
    most: int
    asked: Sampling = field(default_factory=Sampling)
    stops: Collection[int] = ()
    strings: Sequence[str] = ()
    kept: bool = False
    tokens: list[int] = field(default_factory=list)
    text: str | None = None
    reason: str | int | None = None
    drafted: Collection[int] = ()
    aborted: bool = False
    ranked: list[Likely] = field(default_factory=list)
    likeliest: int = 0
    others: Collection[int] = ()
    greedy: bool = False
    counts: dict[str, int] = field(default_factory=dict)
    given: Sequence[Sequence[Any]] = ()
    copies: list[list[Any]] = field(default_factory=list)
    altered: bool = False
    recorded: Sequence[int] | None = None
    before: range = range(0)

    def deliver(self, *lists: Sequence[Any]) -> None:
        """Note lists that the engine delivers, and must not change later."""
        self.altered = self.changed()
        self.given, self.copies = lists, [[*one] for one in lists]

    def changed(self) -> bool:
        """Return whether a list has changed since the engine delivered it."""
        return self.altered or [[*one] for one in self.given] != self.copies

    @property
    def steps(self) -> list[LikelyStep]:
        """The tokens with log-likelihoods, and the likeliest ones at their places."""
        return [
            LikelyStep(one.token, sorted(one.likeliest.items(), key=lambda pair: -pair[1]))
            for one in self.ranked
            if one.value is not None
        ]

    def ends(self, count: int) -> Mapping[str | int, str]:
        """Return what may end it after so many tokens, each with the text that it then has."""
        text, before = text_of(self.tokens[:count]), text_of(self.tokens[: count - 1])
        found: dict[str | int, str] = {}
        for one in self.strings if count > (self.asked.min_tokens or 0) else ():
            at = text.find(one, max(0, len(before) - len(one) + 1))
            if at >= 0:
                found[one] = text[: at + len(one) * self.kept]
        last = self.tokens[count - 1]
        if not found and last in self.stops:
            found[last] = text if self.kept else before
        return found

    def ended(self) -> Iterator[str]:
        """Yield what is wrong with its end."""
        found = [self.ends(at + 1) for at in range(len(self.tokens))]
        if any(found[:-1]):
            yield "it goes on after a token that was to end it"
        right: Mapping[str | int, str] = found[-1] if found else {}
        # Some releases count the tokens before they look for a stop.
        if not right or len(self.tokens) == self.most:
            right = {**right, NUMBER: text_of(self.tokens)}
        if self.reason is None:
            return
        if self.reason not in right:
            yield f"it is said to end with {self.reason!r}, not with {next(iter(right))!r}"
        elif self.text not in (None, right[self.reason]):
            yield f"its text is {self.text!r}, and that of its tokens is {right[self.reason]!r}"

    def delivered(self) -> Iterator[str]:
        """Yield what is wrong with how its tokens were delivered."""
        if self.changed():
            yield "the engine changed what it had delivered"
        if self.recorded is not None and [*self.recorded][: len(self.tokens)] != self.tokens:
            yield "its tokens are not those that the scheduler recorded"

    def wrong(self, *, cut: bool = False) -> Iterator[str]:
        """Yield what is not as asked. With `cut`, the engine may have ended the output early."""
        asked, tokens, least = self.asked, self.tokens, 0 if cut else self.most
        first = asked.min_tokens or 0
        if tokens and self.ends(len(tokens)):
            least = 0 if len(tokens) - 1 in self.drafted else first
        if not least <= len(tokens) <= self.most:
            yield f"it has {len(tokens)} tokens, and asked for {least} to {self.most}"
        yield from chain(self.ended(), self.delivered())
        lengths = len(self.prompt), len(tokens)
        if self.counts and (*self.counts.values(),) != lengths:
            yield f"its prompt and output have {self.counts} tokens, not {lengths}"
        free = [(at, token) for at, token in enumerate(tokens) if at not in self.drafted]
        allowed = asked.allowed_token_ids
        if allowed is not None and (other := [at for at, token in free if token not in allowed]):
            yield f"token {other[0]} is not allowed"
        words = [list(word) for word in asked.bad_words or ()]
        if any(tokens[at + 1 - len(word) : at + 1] == word for at, _ in free for word in words):
            yield "it has a bad word"
        if asked.grammar is not None:
            count = len(Grammar(str(asked.grammar)).first(tokens))
            if count < len(tokens):
                yield f"its grammar was not applied to token {count}"
        if asked.processor is not None:
            wrong = outside(asked.processor, VOCABULARY)
            if other := [at for at, token in free if wrong[token]]:
                yield f"its logit processor was not applied to token {other[0]}"
        likely = [one.token for one in self.ranked]
        if asked.likelihoods is not None and (likely or not cut):
            first = len(self.prompt) if asked.likelihoods < 0 else asked.likelihoods
            right = [*self.prompt[first:], *tokens]
            if len(likely) != len(right):
                yield f"it has {len(likely)} log-likelihoods, and asked for {len(right)}"
            elif likely != right:
                yield "its log-likelihoods are those of other tokens"
        ranked = (one.wrong(self.likeliest, self.others) for one in self.ranked)
        yield from islice(chain.from_iterable(ranked), 1)

    def judge(self, name: str, *, cut: bool = False) -> None:
        """Report what is wrong with the answer to a request, unless it was to be aborted."""
        for text in () if self.aborted else self.wrong(cut=cut):
            what = re.sub(r"'.*?'|\d+", "N", text)
            report(f"request {name} is not answered as asked: {text}", what=what)


def report(text: str, check: str = CHECK, what: str = "not as asked") -> None:
    """Write a finding to the journal of this process. `what` is its kind."""
    lines = journal.of_process()
    if lines is not None:
        forward = lines.counts.get("forwards", 0)
        lines.finding(Finding(check, text, f"{check} | - | {what}", forward))
