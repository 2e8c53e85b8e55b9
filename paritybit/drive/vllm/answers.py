"""Grammars and letters of requests, as vLLM's objects."""

import importlib
from typing import Any

import torch
from torch import Tensor

from paritybit.drive import answers
from paritybit.drive.models import VOCABULARY

NAME = "paritybit"
"""The name of the grammar backend."""

POLLS = 3
"""How often the engine asks for a grammar before it is there."""


class VllmGrammar(answers.Grammar):
    """A mixin for the engine's class. A mask is int32 [rows, words]."""

    validate_tokens = answers.Grammar.first

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """Go on after tokens. Returns whether all of them are allowed."""
        right = self.first(tokens)
        self.tokens += right
        return right == tokens

    def fill_bitmask(self, bitmask: Tensor, batch_index: int) -> None:
        """Allow only the next tokens in a row."""
        bitmask[batch_index] = self.bits


class Compiler:
    """The engine's grammar backend, and the executor in which it compiles."""

    def __init__(self) -> None:
        types: Any = importlib.import_module("vllm.v1.structured_output.backend_types")
        unused = {"is_terminated": lambda one: False, "reset": None}
        self.grammar: Any = type("Classes", (VllmGrammar, types.StructuredOutputGrammar), unused)

    def submit(self, compiles: Any, request: Any) -> answers.Late:
        """Return the grammar of a request, later."""
        return answers.Late(compiles(request), POLLS)

    def compile_grammar(self, kind: object, number: str, stop_token_ids: object = None) -> Any:
        """Return the grammar of a request."""
        return self.grammar(number)

    def allocate_token_bitmask(self, rows: int) -> Tensor:
        """Return a mask that allows everything."""
        return torch.full((rows, VOCABULARY // answers.WORD), -1, dtype=torch.int32)


def tokenizer() -> Any:
    """Return a tokenizer with the texts of tokens."""
    tokenizers: Any = importlib.import_module("tokenizers")
    transformers: Any = importlib.import_module("transformers")
    words = [f"{token},{answers.text_of([token])}" for token in range(VOCABULARY)]
    model = tokenizers.models.WordLevel(dict(zip(words, range(VOCABULARY), strict=True)), words[0])
    made = tokenizers.Tokenizer(model)
    made.add_special_tokens([words[answers.END_OF_TEXT]])
    made.decoder = tokenizers.decoders.Sequence(
        [
            tokenizers.decoders.Replace(tokenizers.Regex("[0-9]*,"), ""),
            tokenizers.decoders.Fuse(),
        ]
    )
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made)
