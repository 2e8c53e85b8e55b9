"""A toy engine for `check_replay`: decode with paged attention, from static buffers and eagerly."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from paritybit.testing import StaticInput, check_replay

SLOTS, WIDTH, ROWS, CONTEXT = 32, 8, 4, 6

NAMES = ("ids", "lengths", "loc", "table")

Batch = Mapping[str, Tensor]


class Toy:
    """Two layers of attention over the slots that a table lists for each row.

    `kv` has K and V of each layer, [SLOTS, WIDTH]. A batch of `live` rows is replayed at ROWS rows.
    Slots that its table does not list belong to others. `prepare` copies the batch into the
    buffers, and `graph` calls `compute` on these alone. A test puts another function in their
    place.
    """

    def __init__(self, live: int = 2, dtype: torch.dtype = torch.float32) -> None:
        generator = torch.Generator().manual_seed(live)
        self.live = live
        self.prepare: Callable[[], object] = self.fill
        self.graph: Callable[[], object] = self.run
        self.compute: Callable[[Batch], Tensor] = self.forward
        self.kv = [torch.randn(SLOTS, WIDTH, generator=generator).to(dtype) for _ in range(4)]
        self.embedding = torch.randn(64, WIDTH, generator=generator).to(dtype)
        self.batch: Batch = {
            "ids": torch.arange(5, 5 + live),
            "lengths": torch.arange(3, 3 + live),
            "loc": torch.arange(24, 24 + live, dtype=torch.int32),
            "table": torch.zeros(live, CONTEXT, dtype=torch.int64),
        }
        for row, last in enumerate((self.batch["lengths"] - 1).tolist()):
            self.batch["table"][row, :last] = torch.arange(1, last + 1) + 5 * row
            self.batch["table"][row, last] = self.batch["loc"][row]
        self.buffers = {name: zeros_like(value) for name, value in self.batch.items()}
        self.captured = dict(self.buffers)
        self.output = torch.zeros(ROWS, WIDTH, dtype=dtype)

    def fill(self) -> None:
        """Copy the batch, and reset the padded rows."""
        self.fill_some()

    def fill_some(self, names: Collection[str] = NAMES, reset: Collection[str] = NAMES) -> None:
        """Copy some values of the batch, and reset the padded rows of some."""
        for name in reset:
            self.buffers[name][self.live :] = 0
        for name in names:
            self.buffers[name][: self.live] = self.batch[name]

    def run(self) -> None:
        """Compute all rows of the bucket from the buffers that it was captured with."""
        self.output.copy_(self.compute(self.captured))

    def forward(self, given: Batch) -> Tensor:
        """Write K and V of each row, and attend to its slots."""
        hidden = self.embedding[given["ids"]]
        for layer in range(0, len(self.kv), 2):
            keys, values = self.kv[layer : layer + 2]
            keys[given["loc"].long()] = hidden
            values[given["loc"].long()] = hidden * 2
            scores = (keys[given["table"]] * hidden[:, None]).sum(-1)
            beyond = torch.arange(CONTEXT)[None] >= given["lengths"][:, None].clamp(min=1)
            weights = scores.masked_fill(beyond, float("-inf")).softmax(-1)
            hidden = (weights[..., None] * values[given["table"]]).sum(1)
        return hidden

    def replay(self) -> Tensor:
        """Prepare, replay, and return the live part of the output."""
        self.prepare()
        self.graph()
        return self.output[: self.live]

    def eager(self) -> Tensor:
        """Compute the same from the batch alone."""
        return self.compute(self.batch)

    def inputs(self) -> list[StaticInput]:
        """Return the buffers, and what is known of each."""
        ranges = {"ids": (0, 64), "lengths": (0, CONTEXT), "table": (0, SLOTS)}
        return [
            StaticInput(
                name,
                buffer,
                self.live,
                ROWS,
                valid=ranges.get(name),
                source=f"toy_graph.py:{name}",
                expected=self.batch[name],
                writes="kv" if name == "loc" else None,
                dtype=self.batch[name].dtype,
            )
            for name, buffer in self.buffers.items()
        ]

    def check(self, **changes: Any) -> None:
        """Check a replay, with some arguments changed."""
        given: dict[str, Any] = {
            "replay": self.replay,
            "run_eager": self.eager,
            "kv": self.kv,
            "static_inputs": self.inputs(),
            "owned_slots": self.batch["loc"],
            "captured": self.captured,
        }
        check_replay(**{**given, **changes})


def zeros_like(value: Tensor) -> Tensor:
    """Return a buffer for all rows of the bucket."""
    return value.new_zeros((ROWS, *value.shape[1:]))
