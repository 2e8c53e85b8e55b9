"""Indices of the wrong width: in static inputs, in raw pointers, and in 32-bit offsets.

In a real pool, the offset of a high slot, in elements or bytes, needs more than 31 bits. The small
pool models the slots around the first such slot: half of its slots lie below it. A wrapped offset
is 2^32 too low and reaches other KV of the real pool. Here it maps to a slot of the small pool,
modulo its size.
"""

import torch
from paritybit.reference.batch import Mode
from paritybit.reference.config import Kind
from paritybit.subjects.bugs.bug import THREAD, Bug
from paritybit.subjects.bugs.expected import COMPILED, DECODE, KINDS, PREFILL, VERIFY, seen
from paritybit.subjects.key_lists import Lists, StaticLists
from paritybit.subjects.parts import Part
from paritybit.subjects.pool import SubjectPool
from paritybit.subjects.toggles import LocationScheme
from torch import Tensor

FAMILY = "index dtype"

OVERFLOW = "offset that overflows 32 bits"

SIGNED_LIMIT = 2**31
"""The first offset that int32 cannot hold."""

PAGE_BYTES = 64 * 656
"""Bytes of a page of 64 tokens with their scales."""


def reached(index: Tensor, stride: int, count: int) -> Tensor:
    """Return which of `count` slots, or pages, a kernel reaches that multiplies in 32 bits.

    `index` is the correct slot or page, and `stride` its factor. The result is int64.
    """
    first = max(0, SIGNED_LIMIT // stride - count // 2)
    offset = (index.to(torch.int32) + first) * stride  # Overflows.
    return ((offset // stride - first) % count).long()


class StoresPagesIn32Bits(SubjectPool):
    """A store that multiplies a page number by the page's bytes in 32 bits."""

    def location(self, kind: Kind, loc: Tensor) -> Tensor:
        """Return the slots that the store reaches."""
        slots, sizes = super().location(kind, loc), self.pool.sizes
        page = slots // sizes.page_size
        page = reached(page, PAGE_BYTES, sizes.slots(kind) // sizes.page_size)
        return (page * sizes.page_size + slots % sizes.page_size).to(slots.dtype)


class CopiesWindowAsWords(StaticLists):
    """Metadata whose window indices are int64, copied by a kernel that reads int32."""

    def write(self, values: Lists) -> None:
        """Copy every list. For the window's, copy as many words as it has slots."""
        window = values["window_kv_indices"]
        words = window.long().view(torch.int32)[: window.shape[0]]
        super().write({**values, "window_kv_indices": words})


BUGS = (
    Bug(
        name="swa_int64",
        family=FAMILY,
        scheme=LocationScheme.PRESET,
        thread=THREAD.format(23552) + ", fixed by " + THREAD.format(24743),
        mechanism=(
            "out_cache_loc_swa is int64 while the pool's SWA locations are int32. The "
            "copy converts, but a store kernel with a fixed ABI reads every second "
            "half-word."
        ),
        expected=seen("index_contract", DECODE, VERIFY, PREFILL),
        rows={"out_cache_loc_swa": {"dtype": torch.int64}},
        in_shared=True,
    ),
    Bug(
        name="shared_buffer_dtype",
        family=FAMILY,
        scheme=LocationScheme.PRESET,
        thread="https://github.com/sgl-project/sglang (shared static buffers, from 0.5.11 on)",
        mechanism=(
            "One runner wants positions as int32, but the shared buffer of that name is "
            "int64, so the shared buffer pool refuses to be built. A runner with its own "
            "buffers converts on every copy instead."
        ),
        expected=seen("index_contract", *KINDS),
        rows={"positions": {"dtype": torch.int32}},
    ),
    Bug(
        name="window_indices_width",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=THREAD.format(11452),
        mechanism=(
            "A kernel copies the window's KV indices through a raw pointer and assumes "
            "another integer width. Every second key is a half-word, which points at the "
            "reserved slot."
        ),
        expected=seen("logits_parity", DECODE),
        parts={Part.METADATA: CopiesWindowAsWords},
        needs=("seq_lens_cpu",),
        modes=frozenset({Mode.DECODE}),
    ),
    Bug(
        name="page_store_int32",
        family=OVERFLOW,
        scheme=LocationScheme.MEMO,
        thread=THREAD.format(39948),
        mechanism=(
            "The store multiplies a page number by the bytes per page in 32 bits. Once "
            "the allocator hands out high pages, their KV goes to the wrong place."
        ),
        expected=seen("kv_parity", DECODE, COMPILED),
        parts={Part.POOL: StoresPagesIn32Bits},
        modes=frozenset({Mode.DECODE}),
    ),
)
