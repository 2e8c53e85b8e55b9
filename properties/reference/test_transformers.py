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
from paritybit.reference.config import Kind, ModelConfig
from paritybit.reference.model import Model
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
def ours(name: str, device: str = "cpu") -> Model:
    """Return our model, with nothing but tokens in its input."""
    model = Model(COUNTERPARTS[name].config, torch.float32, torch.device(device))
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


def of_oracle(model: Model, tokens: Tensor) -> Tensor:
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


@of_every_model
def test_the_oracle_agrees_with_cached_decoding(name: str) -> None:
    """A prompt in chunks, then a token at a time, with keys dropped as they leave."""
    model, library = ours(name), theirs(name)
    config, tokens = model.config, drawn(model.config)
    counts = [3, config.window + 2, 1, config.window - 1]
    counts += [1] * (config.max_context - sum(counts))
    cache_of_keys: Any = None
    found = []
    with InFloat64():
        for part in tokens.split(counts, dim=1):
            output = library(input_ids=part, past_key_values=cache_of_keys, use_cache=True)
            cache_of_keys = output.past_key_values
            found.append(output.logits)
    for kind, layer in zip(config.layers, cache_of_keys.layers, strict=True):
        kept = config.max_context if kind is Kind.FULL else config.window - 1
        assert layer.keys.shape[-2] == kept
    assert off_by(of_oracle(model, tokens), torch.cat(found, 1)) <= ORACLE_BOUND


OTHER: dict[str, Callable[[ModelConfig], ModelConfig]] = {
    "a key more in the window": lambda config: replace(config, window=config.window + 1),
    "a key less in the window": lambda config: replace(config, window=config.window - 1),
    "RoPE of another base": lambda config: replace(
        config,
        full_rope_theta=1.001 * config.full_rope_theta,
        swa_rope_theta=1.001 * config.swa_rope_theta,
    ),
    "the other activation": lambda config: replace(
        config, activation="silu" if config.activation == "gelu" else "gelu"
    ),
}
"""Decoders that differ a little."""


@pytest.mark.parametrize("change", OTHER)
@of_every_model
def test_another_decoder_does_not_agree(name: str, change: str) -> None:
    """Else the agreement would prove nothing: beyond the bound of float32 even."""
    config = OTHER[change](ours(name).config)
    other = Model(config, torch.float32, CPU)
    other.encoder_table.zero_()
    assert off_by(of_oracle(other, drawn(config)), of_library(name)) > EAGER_BOUND


@pytest.mark.parametrize("name", [n for n, c in COUNTERPARTS.items() if c.config.sink_kinds])
def test_a_decoder_without_a_sink_does_not_agree(name: str) -> None:
    model = Model(ours(name).config, torch.float32, CPU)
    model.encoder_table.zero_()
    place = next(i for i, layer in enumerate(model.layers) if layer.sinks is not None)
    model.layers[place] = replace(model.layers[place], sinks=None)
    assert off_by(of_oracle(model, drawn(model.config)), of_library(name)) > EAGER_BOUND
