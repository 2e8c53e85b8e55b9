"""Whether the answers of an engine are what their requests asked for.

A grammar and a logit processor each allow a class of tokens, so an answer shows whether they were
applied to its rows, and when.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from paritybit.drive.script import Sampling
from paritybit.watch import journal
from paritybit.watch.journal import Finding

CHECK = "wrong row"

CLASSES = 4

END_OF_TEXT = 1
"""The token at which texts end."""

WORD = 32
"""The number of tokens in a word of a mask."""


class Grammar:
    """The grammar of a request: its next token belongs to the next class.

    It never ends, because some requests go on after the end of a text. The engine's object for it
    is a subclass.
    """

    def __init__(self, number: str) -> None:
        super().__init__()
        self.number = number
        self.tokens: list[int] = []

    @property
    def allowed(self) -> int:
        """The class of the next token."""
        return (int(self.number) + len(self.tokens)) % CLASSES

    @property
    def bits(self) -> int:
        """A word of the mask for the next token, which has a bit per token."""
        word = sum(1 << bit for bit in range(self.allowed, WORD, CLASSES))
        return word - (word >> WORD - 1 << WORD)  # As a signed number.

    def accept_token(self, token: int) -> None:
        """Go on after a token. Raises ValueError for one that is not allowed."""
        if token % CLASSES != self.allowed:
            raise ValueError(f"token {token} is not allowed as number {len(self.tokens)}")
        self.tokens.append(token)

    def rollback(self, count: int) -> None:
        """Go back by some tokens."""
        del self.tokens[len(self.tokens) - count :]


@dataclass
class Answer:
    """What an engine returns for a request.

    - `prompt`: its prompt, with the conversation that it follows.
    - `most`: the number of tokens that it asks for.
    - `asked`: its parameters of sampling, without those that the engine does not have.
    - `stops`: the tokens that end it.
    - `tokens`: its output, and `likely`: the tokens whose log-likelihoods were returned.
    - `aborted`: whether it was to be aborted.
    """

    prompt: Sequence[int]
    most: int
    asked: Sampling = field(default_factory=Sampling)
    stops: Collection[int] = ()
    tokens: list[int] = field(default_factory=list)
    likely: list[int] = field(default_factory=list)
    aborted: bool = False

    def wrong(self, *, cut: bool = False, forced: bool = False) -> Iterator[str]:
        """Yield what is not as asked.

        With `cut`, the engine may have ended the output early. With `forced`, it accepts whatever
        is drafted.
        """
        asked, tokens = self.asked, self.tokens
        least = 0 if cut else self.most
        if tokens and tokens[-1] in self.stops:
            least = 0 if forced else asked.min_tokens or 0
        if not least <= len(tokens) <= self.most:
            yield f"it has {len(tokens)} tokens, and asked for {least} to {self.most}"
        if not set(self.stops).isdisjoint(tokens[:-1]):
            yield "it goes on after a token that was to end it"
        if asked.grammar is not None:
            grammar = Grammar(str(asked.grammar))
            try:
                for token in tokens:
                    grammar.accept_token(token)
            except ValueError as error:
                yield f"its grammar was not applied: {error}"
        if asked.processor is not None:
            mine = asked.processor % CLASSES
            other = [at for at, one in enumerate(tokens) if one // CLASSES % CLASSES != mine]
            if other:
                yield f"its logit processor was not applied to token {other[0]}"
        if asked.likelihoods is not None:
            first = len(self.prompt) if asked.likelihoods < 0 else asked.likelihoods
            if self.likely != [*self.prompt[first:], *tokens]:
                yield "its log-likelihoods are those of other tokens"

    def judge(self, name: str, *, cut: bool = False, forced: bool = False) -> None:
        """Report what is not as the request of this name asked, unless it was to be aborted."""
        for text in () if self.aborted else self.wrong(cut=cut, forced=forced):
            report(f"request {name} is not answered as asked: {text}")


def report(text: str) -> None:
    """Write a finding to the journal of this process."""
    lines = journal.of_process()
    if lines is not None:
        forward = lines.counts.get("forwards", 0)
        lines.finding(Finding(CHECK, text, f"{CHECK} | - | not as asked", forward))
