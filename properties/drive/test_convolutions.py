"""Short convolutions in torch: a prompt gives the same whole, in parts, and token by token."""

from typing import Any

import torch

from paritybit.drive.stand_ins.convolutions import convolved, convolved_once

CHANNELS, WIDTH, TOKENS = 4, 3, 7


def convolution(inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return what a convolution gives at each position of [channels, T] inputs."""
    padded = torch.nn.functional.pad(inputs, (WIDTH - 1, 0))
    places = range(inputs.shape[1])
    return torch.stack([(padded[:, at : at + WIDTH] * weight).sum(1) for at in places], 1)


def test_states_carry_what_later_tokens_need() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(CHANNELS, WIDTH, generator=generator)
    first, second = (torch.randn(CHANNELS, TOKENS, generator=generator) for _ in range(2))
    states = torch.full((4, CHANNELS, WIDTH - 1), 9.0)  # What earlier requests left.
    slots = torch.tensor([2, 1])
    cuts: dict[str, Any] = {"query_start_loc": torch.tensor([0, 3, 5]), "cache_indices": slots}
    fresh: dict[str, Any] = {"has_initial_state": torch.tensor([False, False])}
    given = torch.cat((first[:, :3], second[:, :2]), 1)
    parts = [convolved(given, weight, conv_states=states, activation=None, **cuts, **fresh)]
    given = torch.cat((first[:, 3:5], second[:, 2:5]), 1)
    cuts["query_start_loc"] = torch.tensor([0, 2, 5])
    held: dict[str, Any] = {"has_initial_state": torch.tensor([True, True])}
    parts.append(convolved(given, weight, conv_states=states, activation=None, **cuts, **held))
    steps = [
        convolved_once(
            torch.stack((first[:, at], second[:, at], second[:, at])),
            states,
            weight,
            conv_state_indices=torch.tensor([[2], [1], [-1]]),  # sglang's tensor has one axis.
        )
        for at in (5, 6)
    ]
    right = convolution(first, weight), convolution(second, weight)
    found = (
        torch.cat((parts[0][:, :3], parts[1][:, :2], *(step[0][:, None] for step in steps)), 1),
        torch.cat((parts[0][:, 3:], parts[1][:, 2:], *(step[1][:, None] for step in steps)), 1),
    )
    for one, other in zip(found, right, strict=True):
        torch.testing.assert_close(one, other)
    assert bool((states[[0, 3]] == 9).all())
