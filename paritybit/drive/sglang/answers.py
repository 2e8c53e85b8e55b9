"""Grammars and logit processors of requests, and whether answers are what their requests asked for.

Each allows a class of tokens, so an answer shows whether it was applied to its rows, and when.
"""

import json
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from paritybit.drive.models import VOCABULARY
from paritybit.drive.script import Planned, Sampling
from paritybit.watch import journal
from paritybit.watch.journal import Finding

CHECK = "wrong row"

CLASSES = 4

END_OF_TEXT = 1
"""The token at which texts end."""

WORD = 32
"""The number of tokens in a word of a mask."""


class Grammar:
    """The engine's object for the grammar of a request: its next token belongs to the next class.

    It never ends, because some requests go on after the end of a text.

    It is a mixin for the engine's class. A mask has a bit per token, int32 [rows, words].
    """

    def __init__(self, number: str) -> None:
        super().__init__()
        self.number = number
        self.tokens: list[int] = []

    @property
    def allowed(self) -> int:
        """The class of the next token."""
        return (int(self.number) + len(self.tokens)) % CLASSES

    def accept_token(self, token: int) -> None:
        """Go on after a token. Raises ValueError for one that is not allowed."""
        if token % CLASSES != self.allowed:
            raise ValueError(f"token {token} is not allowed as number {len(self.tokens)}")
        self.tokens.append(token)

    def rollback(self, count: int) -> None:
        """Go back by some tokens."""
        del self.tokens[len(self.tokens) - count :]

    def copy(self) -> "Grammar":
        """Return the grammar of another request."""
        return type(self)(self.number)

    def allocate_vocab_mask(self, vocab_size: int, batch_size: int, device: Any) -> Tensor:
        """Return a mask that allows everything."""
        return torch.full((batch_size, vocab_size // WORD), -1, dtype=torch.int32)

    def fill_vocab_mask(self, vocab_mask: Tensor, idx: int) -> None:
        """Allow only the next tokens in a row."""
        bits = sum(1 << bit for bit in range(self.allowed, WORD, CLASSES))
        vocab_mask[idx] = torch.tensor(bits).to(torch.int32)

    @staticmethod
    def move_vocab_mask(vocab_mask: Tensor, device: Any) -> Tensor:
        """Return the mask on a device."""
        return vocab_mask.to(device)

    @staticmethod
    def apply_vocab_mask(logits: Tensor, vocab_mask: Tensor) -> None:
        """Forbid tokens in logits [rows, vocabulary]."""
        bits = vocab_mask[:, :, None] >> torch.arange(WORD, device=vocab_mask.device) & 1
        logits.masked_fill_(bits.flatten(1)[:, : logits.shape[1]] == 0, -torch.inf)


class Processor:
    """A logit processor. Each row has a class of tokens, of groups of as many as there are classes.

    A grammar and a processor together thus allow tokens.
    """

    def __call__(self, logits: Tensor, parameters: Sequence[Any]) -> Tensor:
        """Forbid the tokens outside of the class of each row of logits [rows, vocabulary]."""
        groups = torch.arange(logits.shape[1], device=logits.device) // CLASSES
        for row, given in zip(logits, parameters, strict=True):
            if given is None:
                report("a logit processor is applied to a request without one")
            else:
                row.masked_fill_(groups % CLASSES != given["class"], -torch.inf)
        return logits


def processor(number: int) -> str:
    """Return a logit processor as the text that the engine loads. It applies each on its own."""
    return json.dumps({"callable": pickle.dumps(Processor).hex(), "number": number % 2})


@dataclass
class Answer:
    """What the engine returns for a request.

    - `prompt`: its prompt, with the conversation that it follows.
    - `tokens`: its output, and `likely`: the tokens whose log-likelihoods were returned.
    - `aborted`: whether it was to be aborted.
    """

    asked: Planned
    prompt: Sequence[int]
    tokens: list[int] = field(default_factory=list)
    likely: list[int] = field(default_factory=list)
    aborted: bool = False

    def hear(self, output: Any, index: int) -> None:
        """Note an output of the scheduler, which belongs to the request at `index`."""
        if output.output_ids is not None:
            self.tokens += map(int, output.output_ids[index])
        for given in (output.input_token_logprobs_idx, output.output_token_logprobs_idx):
            self.likely += (given and given[index]) or ()

    def wrong(self, *, cut: bool, forced: bool) -> Iterator[str]:
        """Yield what is not as asked.

        With `cut`, the engine may have ended the output early. With `forced`, it accepts whatever
        is drafted.
        """
        asked, tokens, most = self.asked.sampling or Sampling(), self.tokens, self.asked.tokens
        stops = set() if asked.ignore_eos else {END_OF_TEXT, *(asked.stop_token_ids or ())}
        least = 0 if cut else most
        if tokens and tokens[-1] in stops:
            least = 0 if forced else asked.min_tokens or 0
        if not least <= len(tokens) <= most:
            yield f"it has {len(tokens)} tokens, and asked for {least} to {most}"
        if not stops.isdisjoint(tokens[:-1]):
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
            prompt = [one if one < VOCABULARY - 1 else 0 for one in self.prompt[first:]]  # Clipped.
            if self.likely != [*prompt, *tokens]:
                yield "its log-likelihoods are those of other tokens"


def report(text: str) -> None:
    """Write a finding to the journal of this process."""
    lines = journal.of_process()
    if lines is not None:
        forward = lines.counts.get("forwards", 0)
        lines.finding(Finding(CHECK, text, f"{CHECK} | - | not as asked", forward))
