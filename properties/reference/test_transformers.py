"""The float64 oracle against `transformers`: another library's models with equal weights.

The property `dense_agreement` compares the eager path with the oracle. The library is the optional
extra `oracle`. It knows neither our recurrent states, nor encoder lengths, nor positions of several
sections, so requests here bring tokens alone.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from paritybit.reference.config import ModelConfig
from paritybit.reference.model import Decoder
from paritybit.reference.oracle import dense_logits
from torch import Tensor

from properties.reference.transformers_models import (
    COUNTERPARTS,
    InFloat64,
    library_model,
    missing,
)

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"no independent oracle: {missing()}")

ORACLE_BOUND, EAGER_BOUND = 1e-12, 5e-5
"""Largest |ours - theirs| / (1 + |theirs|) of a logit: of the oracle, and of a float32 path."""

REQUESTS = 2
CPU = torch.device("cpu")

of_every_model = pytest.mark.parametrize("name", COUNTERPARTS)


@cache
def ours(name: str, device: str = "cpu") -> Decoder:
    """Return our model, with nothing but tokens in its input."""
    model = Decoder(COUNTERPARTS[name].config, torch.float32, torch.device(device))
    model.encoder_table.zero_()
    return model


@cache
def theirs(name: str) -> Any:
    """Return the library's model with the weights of ours."""
    return library_model(COUNTERPARTS[name], ours(name))


def drawn(config: ModelConfig) -> Tensor:
    """Return requests as long as a context, int64 [requests, max_context]."""
    shape = REQUESTS, config.max_context
    return torch.randint(config.vocab, shape, generator=torch.Generator().manual_seed(1))


def of_oracle(model: Decoder, tokens: Tensor) -> Tensor:
    """Return the oracle's logits, float64 [requests, L, vocab]."""
    return torch.stack([dense_logits(model, row, 0, 0, tracked=False) for row in tokens])


@cache
def of_library(name: str) -> Tensor:
    """Return the library's logits of whole requests, float64 [requests, max_context, vocab]."""
    model, tokens = theirs(name), drawn(ours(name).config)  # Our weights are drawn in float32.
    with InFloat64():
        logits: Tensor = model(input_ids=tokens, use_cache=False).logits
    assert logits.dtype == torch.float64
    return logits


def off_by(found: Tensor, wanted: Tensor) -> float:
    """Return the largest |found - wanted| / (1 + |wanted|)."""
    return float(((found.double() - wanted).abs() / (1 + wanted.abs())).max())


@of_every_model
def test_the_oracle_agrees_after_every_token_of_a_whole_prompt(name: str) -> None:
    """Over four windows or more."""
    config = ours(name).config
    assert config.max_context >= 4 * config.window
    found = of_oracle(ours(name), drawn(config))
    assert off_by(found, of_library(name)) <= ORACLE_BOUND


OTHER: dict[str, Callable[[ModelConfig], ModelConfig]] = {
    "a key more in the window": lambda config: replace(config, window=config.window + 1),
    "a key less in the window": lambda config: replace(config, window=config.window - 1),
}
"""Decoders that differ a little."""


@pytest.mark.parametrize("change", OTHER)
@of_every_model
def test_another_decoder_does_not_agree(name: str, change: str) -> None:
    """Else the agreement would prove nothing: beyond the bound of float32 even."""
    config = OTHER[change](ours(name).config)
    other = Decoder(config, torch.float32, CPU)
    other.encoder_table.zero_()
    assert off_by(of_oracle(other, drawn(config)), of_library(name)) > EAGER_BOUND
