"""What the states of recurrent layers hold when a forward begins: those of exactly its tokens."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from paritybit.connectors.following import expected
from paritybit.connectors.hooking import maybe
from paritybit.connectors.vllm.pools import VllmPool
from paritybit.connectors.vllm.requests import Request
from paritybit.watch.bits import Checksums
from paritybit.watch.facts import Row, StaticInput

MOST = 10_000
"""The number of states that are remembered."""


class States:
    """The checksums of states after forwards, by the tokens that each depends on.

    Several forwards may compute a state, with other bits.
    """

    def __init__(self, pool: VllmPool) -> None:
        self.parts = [
            (number, group.layers[0].name, Checksums(group)) for number, group in pool.states
        ]
        self.known: dict[int, list[list[int]]] = {}
        self.rows: Sequence[tuple[Request, Row]] = ()

    def inputs(self, rows: Sequence[tuple[Request, Row]], metadata: Any) -> Iterator[StaticInput]:
        """Yield which states the kernels get for rows, and which prompts go on from theirs."""
        for number, layer, _ in self.parts:
            given, slots = metadata[layer], [one.blocks[number][-1] for one, _ in rows]
            right: dict[str, list[int]] = {
                "state_indices_tensor_d": slots[: given.num_decodes],
                "state_indices_tensor_p": slots[given.num_decodes :],
                "has_initial_states_p": [row.cached > 0 for _, row in rows[given.num_decodes :]],
            }
            for name, values in right.items():
                held = maybe(given, name)
                if values and held is not None:
                    yield expected(f"{name} {number}", held.flatten()[: len(values)], values)

    def begin(self, rows: Sequence[tuple[Request, Row]]) -> StaticInput:
        """Return the checksums of the states from which the rows of a forward start."""
        self.rows = rows
        given, right = list[int](), list[int]()
        for request, row in rows:
            made = self.known.get(key(row, row.cached), [])
            if row.cached == request.state[0]:
                made = [*made, request.state[1]]
            if row.cached and made:
                given += (held := self.held(request))
                right += held if held in made else made[-1]
        return expected("states", torch.tensor(given, dtype=torch.int64), right)

    def end(self) -> None:
        """Remember the states that the forward has computed."""
        if len(self.known) > MOST:
            self.known.clear()
        for request, row in self.rows:
            end = row.cached + row.computed
            request.state = end, self.held(request)
            if None not in row.tokens[:end]:
                self.known.setdefault(key(row, end), []).append(request.state[1])

    def held(self, request: Request) -> list[int]:
        """Return the checksums of the state of a request in each group."""
        blocks = [(sums, request.blocks[number][-1:]) for number, _, sums in self.parts]
        return [int(sums.of(torch.tensor(last))) for sums, last in blocks]


def key(row: Row, end: int) -> int:
    """Return what stands for everything that a state depends on."""
    return hash((row.space, *row.tokens[:end]))
