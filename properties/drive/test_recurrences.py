"""The states of Mamba2 and of gated delta nets: stand-ins for sglang's kernels."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from paritybit.drive.sglang import states
from paritybit.drive.sglang.stand_ins import ON_A_CPU
from paritybit.drive.stand_ins.recurrences import gates

HEADS, GROUPS, SIZE, STATE = 4, 2, 3, 5
LENGTHS = (7, 4)
BOUNDS = torch.tensor([0, 7, 11])
PAST = 11
"""The number of tokens of both prompts."""


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def scanned(initial: Tensor | None, **more: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the outputs of two prompts, the states before chunks of 4, the last, and tracked."""
    out = torch.zeros(1, PAST, HEADS, SIZE)
    held = states.scanned_prompts(
        drawn(1, PAST, HEADS, SIZE),
        drawn(1, PAST, HEADS),
        -drawn(HEADS).exp(),
        drawn(1, PAST, GROUPS, STATE),
        drawn(1, PAST, GROUPS, STATE + 0).flip(1),
        4,
        D=drawn(HEADS),
        dt_bias=drawn(HEADS),
        initial_states=initial,
        cu_seqlens=BOUNDS,
        dt_softplus=True,
        out=out,
        state_dtype=torch.float32,
        return_track_states=True,
        **more,
    )
    return out[0], *held


def test_a_scan_takes_the_steps_of_decoding_from_the_states_of_its_slots() -> None:
    initial = drawn(2, HEADS, SIZE, STATE)
    out, before, last, tracked = scanned(
        initial, track_seq_idx=torch.tensor([0, 1]), track_end_locs=torch.tensor([3, 10])
    )
    pool = torch.zeros(6, HEADS, SIZE, STATE)
    slots, kept = torch.tensor([5, 2, -1]), []
    pool[slots[:2]] = initial
    for step in range(max(LENGTHS)):
        live = torch.tensor([step < length for length in (*LENGTHS, 0)])
        places = torch.tensor([step, min(7 + step, PAST - 1), 0])
        row = torch.full((3, HEADS, SIZE), 9.0)
        wide = (3, HEADS, SIZE)
        states.scan_step(
            pool,
            drawn(1, PAST, HEADS, SIZE)[0, places],
            drawn(1, PAST, HEADS)[0, places][..., None].expand(wide),
            (-drawn(HEADS).exp())[:, None, None].expand(HEADS, SIZE, STATE),
            drawn(1, PAST, GROUPS, STATE)[0, places],
            drawn(1, PAST, GROUPS, STATE).flip(1)[0, places],
            D=drawn(HEADS)[:, None].expand(HEADS, SIZE),
            dt_bias=drawn(HEADS)[:, None].expand(HEADS, SIZE),
            dt_softplus=True,
            state_batch_indices=torch.where(live, slots, -1),
            out=row,
        )
        torch.testing.assert_close(row[live], out[places[live]])
        assert (row[~live] == 0).all()
        kept.append(pool[slots[:2]].clone())
    torch.testing.assert_close(pool[slots[:2]], last)
    torch.testing.assert_close(tracked[0], torch.stack((kept[2][0], kept[2][1])))
    # Chunks of the batch begin at tokens 0, 4 and 8: the latter is the second prompt's.
    torch.testing.assert_close(before[0], torch.stack((initial[0], kept[3][0], kept[0][1])))


def test_a_scan_without_states_begins_with_zeros() -> None:
    zeros = torch.zeros(2, HEADS, SIZE, STATE)
    for one, other in zip(scanned(None)[:3], scanned(zeros)[:3], strict=True):
        assert torch.equal(one, other)


def test_a_gated_delta_net_takes_the_steps_of_decoding() -> None:
    """A value head has the query and the key of its group. Each prompt has a state per chunk."""
    length, heads = states.CHUNK + 3, HEADS
    q, k = (drawn(1, length, GROUPS, STATE + n)[..., :STATE] for n in (0, 1))
    v, a, b = drawn(1, length, heads, SIZE), drawn(length, heads), drawn(length, heads).flip(0)
    decay, bias = drawn(heads), drawn(heads).flip(0)
    pool = drawn(4, heads, SIZE, STATE)
    steps, slots = pool.clone(), torch.tensor([3])
    out, _, before = states.delta_prompts(
        q,
        k,
        v,
        gates(decay, a, bias)[None],
        b.sigmoid()[None],
        initial_state=pool,
        initial_state_indices=slots,
        cu_seqlens=torch.tensor([0, length]),
        use_qk_l2norm_in_kernel=True,
    )
    at_chunk = None
    for at in range(length):
        at_chunk = steps[3].clone() if at == states.CHUNK else at_chunk
        packed = torch.cat([one[0, at].flatten() for one in (q, k, v)])
        made = torch.full((2, 1, heads, SIZE), 9.0)
        states.delta_packed(
            torch.stack((packed, packed)),
            a[[at, at]],
            b[[at, at]],
            decay,
            bias,
            STATE**-0.5,
            steps,
            made,
            torch.tensor([3, -1]),
            use_qk_l2norm_in_kernel=True,
        )
        torch.testing.assert_close(made[0, 0], out[0, at])
        assert (made[1] == 0).all()
    torch.testing.assert_close(steps, pool)
    torch.testing.assert_close(before[0, 1], at_chunk)


def test_states_of_a_new_pool_are_not_zero_by_luck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of padding are what the engine made them."""

    class MambaPool:
        def __init__(self, size: int) -> None:
            parts = [torch.zeros(2, size, 3), torch.zeros(2, size, 0)]
            self.mamba_cache = SimpleNamespace(conv=parts, temporal=torch.zeros(2, size, 1))

    module: Any = ModuleType("sglang.srt.mem_cache.memory_pool")
    module.MambaPool = MambaPool
    for name in ("sglang", "sglang.srt", "sglang.srt.mem_cache"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    (spoil,) = (one for one in ON_A_CPU if one.what.startswith("states in new memory"))
    assert spoil.install() is None
    held = MambaPool(4).mamba_cache
    for part in (held.conv[0], held.temporal):
        assert part[:, :, 0].tolist() == [[0, 1, 1, 1]] * 2
