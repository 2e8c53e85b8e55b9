"""Static inputs as data: one row per buffer a graph reads, and what its padding holds.

Where an engine's runner has a hand-written line in its padding branch, there is a
row here. Read off the engine's runners at the five changes; each bug is a
difference from one of these rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import torch

from reference.batch import MROPE_SECTIONS
from subjects.behaviour import Era

SEQ_LEN_FILL_VALUE = 1
"""Length of a padded row: it attends to one position, so that its softmax is defined."""

ENCODER_LEN_FILL_VALUE = 0


class Axis(StrEnum):
    """What a static input has one element per. SCALAR has one in all."""

    TOKEN = "token"
    MROPE = "3 x token"
    REQUEST = "request"
    SCALAR = "scalar"


class Policy(StrEnum):
    """What the padding branch does to a buffer before the head is copied.

    RESET fills it with the row's value. KEEP leaves its tail stale on purpose.
    FILL_ONCE filled it at allocation and leaves its tail stale since.
    """

    RESET = "reset"
    KEEP = "keep"
    FILL_ONCE = "fill once"


@dataclass(frozen=True)
class StaticInput:
    """One static input. `value` is what its policy fills in, and what it is allocated with."""

    name: str
    axis: Axis
    dtype: torch.dtype
    policy: Policy
    value: int = 0
    host: bool = False
    eras: frozenset[Era] = frozenset(Era)

    def shape(self, requests: int, tokens: int) -> tuple[int, ...]:
        """Return the shape of this input for a bucket of `requests` rows and `tokens` tokens."""
        return {
            Axis.TOKEN: (tokens,),
            Axis.MROPE: (MROPE_SECTIONS, tokens),
            Axis.REQUEST: (requests,),
            Axis.SCALAR: (1,),
        }[self.axis]

    @property
    def padding(self) -> str:
        """The policy in words."""
        return f"fill {self.value}" if self.policy is Policy.RESET else str(self.policy)


def reset(
    name: str, axis: Axis, dtype: torch.dtype, value: int = 0, *, host: bool = False
) -> StaticInput:
    """Return a row whose tail is filled with `value` whenever the batch is padded."""
    return StaticInput(name, axis, dtype, Policy.RESET, value, host)


def keep(name: str, axis: Axis, dtype: torch.dtype) -> StaticInput:
    """Return a row whose tail stays stale on purpose."""
    return StaticInput(name, axis, dtype, Policy.KEEP)


Contract = tuple[StaticInput, ...]

DECODE: Contract = (
    keep("input_ids", Axis.TOKEN, torch.int64),
    reset("positions", Axis.TOKEN, torch.int64),
    reset("req_pool_indices", Axis.REQUEST, torch.int64),
    reset("seq_lens", Axis.REQUEST, torch.int32, SEQ_LEN_FILL_VALUE),
    reset("seq_lens_cpu", Axis.REQUEST, torch.int32, SEQ_LEN_FILL_VALUE, host=True),
    reset("out_cache_loc", Axis.TOKEN, torch.int64),
    replace(reset("out_cache_loc_swa", Axis.TOKEN, torch.int32), eras=frozenset({Era.PRESET})),
    keep("mrope_positions", Axis.MROPE, torch.int64),
    reset("mamba_track_indices", Axis.REQUEST, torch.int64),
    reset("mamba_track_mask", Axis.REQUEST, torch.bool),
    StaticInput(
        "encoder_lens", Axis.REQUEST, torch.int32, Policy.FILL_ONCE, ENCODER_LEN_FILL_VALUE
    ),
    keep("num_token_non_padded", Axis.SCALAR, torch.int32),
    keep("global_num_tokens", Axis.SCALAR, torch.int32),
)

CONTRACTS: Mapping[str, Contract] = {"decode": DECODE}
"""The right contract of each runner."""

LISTED_CONVERSIONS: frozenset[tuple[str, torch.dtype, torch.dtype]] = frozenset(
    {
        ("seq_lens", torch.int64, torch.int32),
        ("seq_lens_cpu", torch.int64, torch.int32),
        ("encoder_lens", torch.int64, torch.int32),
        ("window_kv_indices", torch.int32, torch.int64),
        ("kv_indices", torch.int32, torch.int64),
    }
)
"""Every dtype conversion on copy into a static buffer that is legitimate: (name, from, to)."""


def contract(runner: str, era: Era) -> Contract:
    """Return the rows of `runner` that exist in `era`."""
    return tuple(row for row in CONTRACTS[runner] if era in row.eras)
