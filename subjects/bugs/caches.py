"""Caches that give what is no longer so: keyed by an address, or owners of what a graph reads."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.model import Output
from paritybit.subjects.bugs.bug import Bug, pull
from paritybit.subjects.key_lists import Lists
from paritybit.subjects.parts import Part
from paritybit.subjects.protocol import KeyLists
from paritybit.subjects.runners.base import GraphRunner
from paritybit.subjects.runners.prefill import PrefillRunner
from paritybit.subjects.toggles import LocationScheme
from torch import Tensor

FAMILY = "cache that outlives what it holds"

MOST_SCALARS = 4
"""How many entries the cache of device scalars has room for."""


class CachesScalars(PrefillRunner):
    """A runner whose device scalars are owned by a cache of those used last, and by it alone.

    A graph whose capture hits the cache has recorded the address. A block that an eviction frees
    is the next to be allocated for a tensor of its size, so that each new entry lies where the
    evicted one did. Replays run no host code: the entries that graphs read are never used again,
    and are the first to go.
    """

    def capture_all(self) -> None:
        """Capture every bucket; the warm-up of each fills the cache."""
        self.blocks = torch.zeros(MOST_SCALARS, dtype=torch.int32, device=self.target.device)
        self.places: OrderedDict[int, int] = OrderedDict()
        super().capture_all()

    def scalar(self, value: int) -> Tensor:
        """Return a count as the model reads it, int32 [1], from the cache."""
        if value not in self.places:
            full = len(self.places) == MOST_SCALARS
            place = self.places.popitem(last=False)[1] if full else len(self.places)
            self.blocks[place] = value
            self.places[value] = place
        self.places.move_to_end(value)
        place = self.places[value]
        return self.blocks[place : place + 1]

    def launch(self, batch: ForwardBatch | None, bucket: int, *, captured: bool = True) -> Output:
        """Run the graphs; the eager attention between them looks up a scalar of its own."""
        if batch is not None:
            self.scalar(batch.live_tokens)
        return super().launch(batch, bucket, captured=captured)

    @property
    def state(self) -> Any:
        """The cache."""
        return tuple(self.places.items()), self.blocks.clone()

    @state.setter
    def state(self, state: Any) -> None:
        self.places = OrderedDict(state[0])
        self.blocks.copy_(state[1])


class PlansByHostAddress(GraphRunner):
    """A runner that keeps the plan it made for the lengths at an address of the host.

    They lie in one staging buffer, step after step, so that the address is that of others.
    """

    plans: Mapping[tuple[int, int], Lists] = {}

    def list_rows(self, bucket: int, lists: Callable[..., Lists]) -> None:
        """Write the key lists of a bucket's rows, those that are known for the lengths' address."""
        if bucket not in self.captured:
            super().list_rows(bucket, lists)
            return
        lengths = self.view("seq_lens_cpu", bucket)
        key = lengths.data_ptr(), lengths.numel()

        def known(*args: Any) -> Lists:
            if key not in self.plans:
                self.plans = {**self.plans, key: lists(*args)}
            return self.plans[key]

        super().list_rows(bucket, known)

    @property
    def state(self) -> Any:
        """The plans that were made since the capture."""
        return self.plans

    @state.setter
    def state(self, state: Any) -> None:
        self.plans = state


class DescribesByAddress(PrefillRunner):
    """A runner that keeps the descriptor it made for the locations at an address, by their number.

    The object it described is gone, and another lies there.
    """

    descriptors: Mapping[tuple[int, int], KeyLists] = {}

    def fresh_keys(self, batch: ForwardBatch) -> KeyLists:
        """Return the keys that are known for the address of the locations of a batch's tokens."""
        key = self.inputs.buffers["out_cache_loc"].data_ptr(), batch.live_tokens
        if key not in self.descriptors:
            self.descriptors = {**self.descriptors, key: super().fresh_keys(batch)}
        return self.descriptors[key]

    @property
    def state(self) -> Any:
        """The descriptors that were made since the capture."""
        return self.descriptors

    @state.setter
    def state(self, state: Any) -> None:
        self.descriptors = state


BUGS = (
    Bug(
        name="scalar_evicted",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread="https://github.com/ROCm/aiter/issues/5193",
        mechanism=(
            "Only a least-recently-used cache owns a device scalar. A capture that hits "
            "the cache records the scalar's address. Replays run no host code, so the "
            "entry is soon evicted and its memory holds another scalar."
        ),
        parts={Part.RUNNER: CachesScalars},
        modes=frozenset({Mode.EXTEND}),
    ),
    Bug(
        name="plan_by_host_address",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=pull("openxla/xla", 40419),
        mechanism=(
            "The engine looks up a plan by the host address of the buffer it was made "
            "from. When the buffer is rewritten at the same address, the engine reuses "
            "the plan of an earlier batch."
        ),
        parts={Part.RUNNER: PlansByHostAddress},
        needs=("seq_lens_cpu",),
        modes=frozenset({Mode.DECODE}),
    ),
    Bug(
        name="descriptor_by_address",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=pull("cupy/cupy", 7814),
        mechanism=(
            "The engine looks up attention descriptors by tensor address. When a new "
            "tensor of the same length is allocated at the address of a freed one, it "
            "gets the old tensor's descriptor."
        ),
        parts={Part.RUNNER: DescribesByAddress},
        modes=frozenset({Mode.EXTEND}),
    ),
)
