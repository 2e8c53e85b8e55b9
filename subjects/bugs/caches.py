"""Caches with stale entries: keyed by an address, or owners of what a graph reads."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.model import Output
from paritybit.subjects.bugs.bug import Bug, pull
from paritybit.subjects.bugs.expected import DECODE, PREFILL, seen
from paritybit.subjects.key_lists import Lists
from paritybit.subjects.parts import Part
from paritybit.subjects.runners.base import GraphRunner
from paritybit.subjects.runners.prefill import PrefillRunner
from paritybit.subjects.toggles import LocationScheme
from torch import Tensor

FAMILY = "cache that outlives what it holds"

MOST_SCALARS = 4
"""Capacity of the cache of device scalars."""


class CachesScalars(PrefillRunner):
    """A runner whose device scalars are owned only by a least-recently-used cache.

    A capture that hits the cache records the scalar's address. An eviction frees a block, and the
    next tensor of its size is allocated there, so each new entry takes the place of the evicted
    one. Replays run no host code, so the entries that graphs read are never used again and are
    evicted first.
    """

    def capture_all(self) -> None:
        """Capture every bucket. The warm-up of each fills the cache."""
        self.blocks = torch.zeros(MOST_SCALARS, dtype=torch.int32, device=self.target.device)
        self.places: OrderedDict[int, int] = OrderedDict()
        super().capture_all()

    def scalar(self, value: int) -> Tensor:
        """Return a count for the model, int32 [1], from the cache."""
        if value not in self.places:
            full = len(self.places) == MOST_SCALARS
            place = self.places.popitem(last=False)[1] if full else len(self.places)
            self.blocks[place] = value
            self.places[value] = place
        self.places.move_to_end(value)
        place = self.places[value]
        return self.blocks[place : place + 1]

    def launch(self, batch: ForwardBatch | None, bucket: int, *, captured: bool = True) -> Output:
        """Run the graphs. The eager attention between them looks up its own scalar."""
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
    """A runner that caches a plan by the host address of its lengths.

    All steps use one staging buffer, so the address is the same for different lengths.
    """

    plans: Mapping[tuple[int, int], Lists] = {}

    def list_rows(self, bucket: int, lists: Callable[..., Lists]) -> None:
        """Write the key lists of a bucket's rows, cached by the address of the lengths."""
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
        """The plans made since the capture."""
        return self.plans

    @state.setter
    def state(self, state: Any) -> None:
        self.plans = state


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
        expected=seen("logits_parity", PREFILL),
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
        expected=seen("logits_parity", DECODE),
        parts={Part.RUNNER: PlansByHostAddress},
        needs=("seq_lens_cpu",),
        modes=frozenset({Mode.DECODE}),
    ),
)
