"""8-bit KV with wrong scales."""

import torch
from paritybit.reference.batch import Mode
from paritybit.reference.config import Feature
from paritybit.reference.ops import Ops
from paritybit.subjects.bugs.bug import Bug, pull
from paritybit.subjects.bugs.captured_state import unrecorded
from paritybit.subjects.parts import Part
from paritybit.subjects.toggles import LocationScheme
from torch import Tensor

FAMILY = "quantised keys and values"


class ScalesOfCapture(Ops):
    """Ops that compute scales outside of what a graph records."""

    def scale_of(self, heads: Tensor) -> Tensor:
        """Return the scale of each head. A graph keeps using the one from its capture."""
        with unrecorded(heads.device):
            return super().scale_of(heads).clone()


class StoresUnrecorded(Ops):
    """Ops that do not record the store into quantised KV in a graph."""

    def store_kv(
        self, cache: Tensor, loc: Tensor, loc_dtype: torch.dtype, key: Tensor, value: Tensor
    ) -> None:
        """Store without recording it in a graph."""
        with unrecorded(key.device):
            super().store_kv(cache, loc, loc_dtype, key, value)


class NoScales(Ops):
    """Ops that store without scales."""

    def scale_of(self, heads: Tensor) -> Tensor:
        """Return a scale of one for each head."""
        return torch.ones_like(heads[..., :1])


class ReadsNarrowHeads(Ops):
    """Ops that compute strides as if heads had no scale."""

    def dequantised(self, heads: Tensor) -> Tensor:
        """Return the values of heads, read with strides that ignore the scales."""
        shape = heads.shape
        narrow = shape[-1] - 1
        strides = [shape[1] * shape[2] * narrow, shape[2] * narrow, narrow, 1]
        return super().dequantised(heads.as_strided(shape, strides))


def quantised_bug(
    name: str,
    thread: str,
    mechanism: str,
    ops: type,
    *modes: Mode,
) -> Bug:
    """Return a bug that shows if K and V are quantised."""
    return Bug(
        name=name,
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=thread,
        mechanism=mechanism,
        parts={Part.OPS: ops},
        modes=frozenset(modes),
        needs=("seq_lens_cpu",),
        features=frozenset({Feature.QUANTISED}),
        at_capture=True,
    )


BUGS = (
    quantised_bug(
        "scale_of_capture",
        pull("vllm-project/vllm", 25513),
        "The scales of K and V are computed once, from the dummy batch of the capture. "
        "Replays quantise every batch by them.",
        ScalesOfCapture,
        Mode.DECODE,
        Mode.DRAFT_EXTEND,
    ),
    quantised_bug(
        "quantised_store_unrecorded",
        "https://github.com/vllm-project/vllm/issues/50881",
        "The path that stores quantised KV is not safe under graphs: a replay does not run it. "
        "Eager execution is correct.",
        StoresUnrecorded,
        Mode.TARGET_VERIFY,
    ),
    quantised_bug(
        "scales_never_passed",
        "https://github.com/sgl-project/sglang/issues/18818",
        "The scales are loaded, but the call that stores K and V does not pass them on. "
        "Everything is quantised by a scale of one.",
        NoScales,
        Mode.DECODE,
    ),
    quantised_bug(
        "scale_slot_stride",
        "https://github.com/ovg-project/kvcached/issues/424",
        "Each head is one scale longer in memory than its dimension, but the strides are "
        "computed from the dimension. Reads begin in another head.",
        ReadsNarrowHeads,
        Mode.DECODE,
    ),
)
