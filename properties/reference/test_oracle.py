"""The dense oracle against the same decoder written a second time, in numpy, a head at a time."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from paritybit.reference.config import PRESETS, Kind, draft_config
from paritybit.reference.model import Model
from paritybit.reference.oracle import dense_draft_logits, dense_logits
from torch import Tensor

BOUND = 1e-12
"""Largest |found - wanted| / (1 + |wanted|) that two ways of float64 arithmetic may differ by."""

CPU = torch.device("cpu")
MROPE_DELTA, ENCODER_LEN = 3, 2

Array = NDArray[np.float64]

every_preset = pytest.mark.parametrize("preset", PRESETS)


def array(weight: Tensor) -> Array:
    """Return a weight as float64 numbers."""
    return weight.double().numpy()


def normed(row: Array, weight: Tensor) -> Array:
    """Return one token's row after RMSNorm."""
    scaled: Array = row / math.sqrt(math.fsum(x * x for x in row) / len(row) + 1e-6)
    return scaled * array(weight)


def turned(head: Array, place: Callable[[int], int], theta: float) -> Array:
    """Return one head of one token after RoPE; pair p of it is at position `place(p)`."""
    half = len(head) // 2
    found = np.empty_like(head)
    for pair in range(half):
        angle = place(pair) / math.pow(theta, pair / half)
        cosine, sine = math.cos(angle), math.sin(angle)
        first, second = head[pair], head[pair + half]
        found[pair] = first * cosine - second * sine
        found[pair + half] = first * sine + second * cosine
    return found


def activated(gate: Array, activation: str) -> Array:
    """Return an MLP's gate after its activation: the tanh form of GELU, or SiLU."""
    if activation == "gelu":
        inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
        return np.asarray(0.5 * gate * (1 + np.tanh(inner)))
    return np.asarray(gate / (1 + np.exp(-gate)))


def attended(query: Array, keys: list[Array], values: list[Array], sink: float | None) -> Array:
    """Return one head's attention to the keys that it sees."""
    scores = [float(query @ key) / math.sqrt(len(query)) for key in keys]
    most = max([*scores, *([] if sink is None else [sink])])
    weights = [math.exp(score - most) for score in scores]
    total = math.fsum([*weights, *([] if sink is None else [math.exp(sink - most)])])
    mixed = sum((w * value for w, value in zip(weights, values, strict=True)), 0 * values[0])
    return np.asarray(mixed / total)


def decoded(model: Model, rows: list[Array], mrope_delta: int) -> Array:
    """Return the logits of every token from the rows that enter the first layer."""
    config = model.config
    for kind, layer in zip(config.layers, model.layers, strict=True):
        shape, theta = config.shape(kind), config.rope_theta(kind)
        dim, kv_heads, window = shape.head_dim, shape.kv_heads, config.window
        keys: list[list[Array]] = []
        values: list[list[Array]] = []
        for token, row in enumerate(rows):
            heads = (array(layer.qkv) @ normed(row, layer.input_norm)).reshape(-1, dim)

            def place(pair: int, token: int = token, kind: Kind = kind, dim: int = dim) -> int:
                return token + (3 * pair // (dim // 2)) * mrope_delta * (kind is Kind.FULL)

            roped = [turned(head, place, theta) for head in heads[: config.heads + kv_heads]]
            keys.append(roped[config.heads :])
            values.append(list(heads[config.heads + kv_heads :]))
            first = max(0, token - window + 1) if kind is Kind.SWA else 0
            mixed = []
            for head, query in enumerate(roped[: config.heads]):
                group = head // (config.heads // kv_heads)
                seen = (
                    [key[group] for key in keys[first:]],
                    [value[group] for value in values[first:]],
                )
                sink = None if layer.sinks is None else float(layer.sinks[head])
                mixed.append(attended(query, *seen, sink))
            hidden = row + array(layer.output) @ np.concatenate(mixed)
            gate, up = np.split(array(layer.gate_up) @ normed(hidden, layer.mlp_norm), 2)
            rows[token] = hidden + array(layer.down) @ (activated(gate, config.activation) * up)
    return np.stack([array(model.head) @ normed(row, model.final_norm) for row in rows])


def off_by(found: Tensor, wanted: Array) -> float:
    """Return the largest |found - wanted| / (1 + |wanted|)."""
    return float((np.abs(found.numpy() - wanted) / (1 + np.abs(wanted))).max())


def request(model: Model) -> Tensor:
    """Return the tokens of a request of three windows."""
    length = 3 * model.config.window
    return torch.randint(model.config.vocab, (length,), generator=torch.Generator().manual_seed(2))


def states_after(model: Model, tokens: Tensor) -> list[Array]:
    """Return a request's recurrent state after each token, taken in one at a time.

    A token leaves the decayed share of the state before it and adds half of its embedding.
    """
    state, found = np.zeros(model.config.hidden), []
    for token in tokens.tolist():
        state = array(model.decay) * state + 0.5 * array(model.embedding)[token]
        found.append(state)
    return found


@every_preset
@pytest.mark.parametrize("tracked", [False, True])
def test_the_oracle_agrees_with_the_decoder_written_a_second_time(
    preset: str, tracked: bool
) -> None:
    """Whether the recurrent state enters the input or not."""
    model = Model(PRESETS[preset], torch.float32, CPU)
    tokens = request(model)
    rows = [
        array(model.embedding)[token] + array(model.encoder_table)[ENCODER_LEN] + tracked * state
        for token, state in zip(tokens.tolist(), states_after(model, tokens), strict=True)
    ]
    found = dense_logits(model, tokens, MROPE_DELTA, ENCODER_LEN, tracked=tracked)
    assert off_by(found, decoded(model, rows, MROPE_DELTA)) <= BOUND


@every_preset
def test_the_oracle_of_a_draft_agrees_with_the_decoder_written_a_second_time(preset: str) -> None:
    model = Model(draft_config(PRESETS[preset]), torch.float32, CPU, 1)
    tokens = request(model)
    states = torch.randn(
        len(tokens), model.config.hidden, generator=torch.Generator().manual_seed(3)
    )
    rows = [
        array(model.embedding)[token] + array(model.fusion) @ normed(state, model.hidden_norm)
        for token, state in zip(tokens.tolist(), array(states), strict=True)
    ]
    found = dense_draft_logits(model, tokens, states)
    assert off_by(found, decoded(model, rows, 0)) <= BOUND
