"""Grammars and logit processors of requests, as sglang's objects."""

import json
import pickle
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from paritybit.drive import answers
from paritybit.drive.answers import WORD, outside, report


class SglangGrammar(answers.Grammar):
    """A mixin for the engine's class. A mask is int32 [rows, words]."""

    def accept_token(self, token: int) -> None:
        """Go on after a token. Reports one that is not allowed, and raises ValueError for it."""
        if not self.first([token]):
            text = f"token {token} is not allowed as number {len(self.tokens)}"
            report(f"a grammar is not applied: {text}", what="a grammar is not applied")
            raise ValueError(text)
        self.tokens.append(token)
        self.current_token = token  # The engine asks whether a resumed request has one.

    def copy(self) -> "SglangGrammar":
        """Return the grammar of another request."""
        return type(self)(self.number)

    def allocate_vocab_mask(self, vocab_size: int, batch_size: int, device: Any) -> Tensor:
        """Return a mask that allows everything."""
        return torch.full((batch_size, vocab_size // WORD), -1, dtype=torch.int32)

    def fill_vocab_mask(self, vocab_mask: Tensor, idx: int) -> None:
        """Allow only the next tokens in a row."""
        vocab_mask[idx] = self.bits

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
    """A logit processor. Each row has a class of tokens."""

    def __call__(self, logits: Tensor, parameters: Sequence[Any]) -> Tensor:
        """Forbid the tokens outside of the class of each row of logits [rows, vocabulary]."""
        for row, given in zip(logits, parameters, strict=True):
            if given is None:
                report("a logit processor is applied to a request without one")
            else:
                row.masked_fill_(outside(given["class"], len(row), row.device), -torch.inf)
        return logits


def processor(number: int) -> str:
    """Return a logit processor as the text that the engine loads. It applies each on its own."""
    return json.dumps({"callable": pickle.dumps(Processor).hex(), "number": number % 2})
