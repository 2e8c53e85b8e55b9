"""Rows with drafts: stand-ins for vLLM's kernels of recurrent layers."""

from typing import Any

import torch
from torch import Tensor

from paritybit.drive.stand_ins.convolutions import convolved, convolved_once
from paritybit.drive.vllm import states

HEADS, GROUPS, SIZE, STATE, CHANNELS, WIDTH = 4, 2, 3, 5, 6, 4
BOUNDS = torch.tensor([0, 3, 4, 4])
"""Two rows with three tokens and one, and a padded row."""

SLOTS = torch.tensor([[5, 2, 7], [1, 4, 3], [0, 0, 0]])
ACCEPTED = torch.tensor([2, 1, 1])
STEPS = [(0, 2, 5), (1, 5, 2), (2, 2, 7), (3, 1, 1)]
"""Each token, the slot of the state before it, and that of the state after it."""


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_a_scan_leaves_a_state_after_each_draft() -> None:
    x, dt = drawn(4, HEADS, SIZE), drawn(4, HEADS, 1).expand(-1, -1, SIZE)
    decay, skip = -drawn(HEADS, SIZE, STATE).exp(), drawn(HEADS, SIZE)
    b, c, bias = drawn(4, GROUPS, STATE), drawn(4, GROUPS, STATE + 1)[..., 1:], drawn(HEADS, SIZE)
    pool, out = drawn(8, HEADS, SIZE, STATE), torch.zeros(4, HEADS, SIZE)
    alone, right = pool.clone(), torch.zeros_like(out)
    states.scan_step(
        pool, x, dt, decay, b, c, skip, bias, ACCEPTED, BOUNDS,
        state_batch_indices=SLOTS, dst_state_batch_indices=SLOTS, out=out, dt_softplus=True,
    )  # fmt: skip
    for at, before, after in STEPS:
        mine = slice(at, at + 1)
        alone[after] = alone[before]
        states.scan_step(
            alone, x[mine], dt[mine], decay, b[mine], c[mine], skip, bias,
            state_batch_indices=torch.tensor([after]), out=right[mine], dt_softplus=True,
        )  # fmt: skip
    torch.testing.assert_close(out, right)
    torch.testing.assert_close(pool, alone)


def test_a_gated_delta_net_leaves_a_state_after_each_draft() -> None:
    q, k = drawn(1, 4, GROUPS, SIZE), drawn(1, 4, GROUPS, SIZE + 1)[..., 1:]
    v, pool = drawn(1, 4, HEADS, STATE), drawn(8, HEADS, STATE, SIZE)
    decay, a, b, bias = drawn(HEADS), drawn(4, HEADS), drawn(4, HEADS + 0).flip(0), drawn(HEADS)
    alone = pool.clone()
    out = states.delta_rows(decay, a, b, bias, q, k, v, pool, SLOTS, BOUNDS, None, True, ACCEPTED)
    right = []
    for at, before, after in STEPS:
        one, (qs, ks, vs) = slice(at, at + 1), (given[:, at : at + 1] for given in (q, k, v))
        alone[after] = alone[before]
        given = decay, a[one], b[one], bias, qs, ks, vs, alone, torch.tensor([after])
        right.append(states.delta_rows(*given, torch.tensor([0, 1]), None, True))
    torch.testing.assert_close(out, torch.cat(right, 1))
    torch.testing.assert_close(pool, alone)


def test_a_convolution_keeps_the_inputs_of_all_drafts() -> None:
    kept, drafts = WIDTH - 1, 2
    weight, bias, pool = drawn(CHANNELS, WIDTH), drawn(CHANNELS), drawn(8, CHANNELS, kept + drafts)
    x, before = drawn(4, CHANNELS), pool.clone()
    more: Any = {"num_accepted_tokens": ACCEPTED, "query_start_loc": BOUNDS, "pad_slot_id": 0}
    out = convolved_once(x, pool, weight, bias, "silu", conv_state_indices=SLOTS, **more)
    for first, end, slot, count in ((0, 3, 5, 2), (3, 4, 1, 1)):
        mine = before[slot : slot + 1, :, count - 1 : count - 1 + kept].clone()
        zero, held = torch.tensor([0]), torch.tensor([True])
        given: Any = {"query_start_loc": torch.tensor([0, end - first]), "cache_indices": zero}
        given |= {"has_initial_state": held, "conv_states": mine}
        right = convolved(x[first:end].T, weight, bias, **given)
        torch.testing.assert_close(out[first:end], right.T)
        # The state after the last draft is that of a prompt with all tokens.
        last = end - first - 1
        torch.testing.assert_close(pool[slot, :, last : last + kept], mine[0])
    others = [at for at in range(8) if at not in (1, 5)]
    assert torch.equal(pool[others], before[others])


def test_a_prompt_begins_with_the_first_inputs_of_a_state_with_room_for_drafts() -> None:
    weight, pool = drawn(CHANNELS, WIDTH), drawn(2, CHANNELS, WIDTH + 1)
    narrow, x = pool[..., : WIDTH - 1].clone(), drawn(CHANNELS, 2)
    given: Any = {"query_start_loc": torch.tensor([0, 2]), "cache_indices": torch.tensor([1])}
    given["has_initial_state"] = torch.tensor([True])
    rest = pool[..., WIDTH - 1 :].clone()
    out = [convolved(x, weight, conv_states=one, **given) for one in (pool, narrow)]
    assert torch.equal(*out)
    assert torch.equal(pool[..., : WIDTH - 1], narrow)
    assert torch.equal(pool[..., WIDTH - 1 :], rest)
