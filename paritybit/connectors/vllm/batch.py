"""What an engine passes to its model and its kernels for a forward, with recurrent states."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.following import expected, offsets, padding
from paritybit.connectors.hooking import NotRecognisedError, maybe
from paritybit.connectors.vllm.pools import GROUP, VllmPool
from paritybit.connectors.vllm.requests import Request
from paritybit.watch.bits import Checksums
from paritybit.watch.facts import Forward, IndexList, Row, StaticInput
from paritybit.watch.reading import ranges

NEEDED = ("block_table", "seq_lens", "query_start_loc", "slot_mapping")


@dataclass(frozen=True)
class VllmBatch:
    """The inputs of one forward, with the metadata of each group. Sizes are requests and tokens."""

    ids: Tensor
    positions: Tensor
    metadata: tuple[Any, ...]
    live: tuple[int, int]
    padded: tuple[int, int]

    def lists(self, pool: VllmPool, group: str) -> IndexList:
        """Return the block tables of all groups, concatenated by row, with padded rows last."""
        rows = self.live[0]
        tables = [one.block_table for one in self.metadata]
        lines = [*(table[:rows] for table in tables), *(table[rows:] for table in tables)]
        lengths = [one.seq_lens[: len(one.block_table)] for one in self.metadata]
        counts = torch.cat([*(n[:rows] for n in lengths), *(n[rows:] for n in lengths)])
        widths = torch.tensor([line.shape[1] for line in lines for _ in range(len(line))])
        return IndexList(
            "block_table",
            group,
            torch.cat([line.flatten() for line in lines]),
            widths.cumsum(0) - widths,
            -(-counts.long() // pool.page),
            exact=False,
            page=pool.page,
        )

    def by_row(self, names: Sequence[str], counts: Mapping[str, int]) -> dict[str, list[int]]:
        """Return the token ids that the model gets for each request, in order."""
        parts = self.ids[: self.live[1]].split([counts[name] for name in names])
        return {name: part.tolist() for name, part in zip(names, parts, strict=True)}

    def inputs(self) -> list[StaticInput]:
        """Return the inputs of the model and of the attention kernels."""
        rows, tokens = self.live
        given = {"input_ids": (self.ids, tokens), "positions": (self.positions, tokens)}
        for number, one in enumerate(self.metadata):
            given[f"seq_lens {number}"] = one.seq_lens, rows
            given[f"query_start_loc {number}"] = one.query_start_loc, rows + 1
            given[f"block_table {number}"] = one.block_table, rows
            given[f"slot_mapping {number}"] = one.slot_mapping, tokens
        return [
            StaticInput(name, tensor, live, len(tensor), writes=GROUP if "slot" in name else None)
            for name, (tensor, live) in given.items()
        ]

    def tails(self) -> list[StaticInput]:
        """Return the padding of inputs that kernels read. A padded row has no token and no keys."""
        (rows, tokens), found = self.live, list[StaticInput]()
        for number, one in enumerate(self.metadata):
            starts, lengths = one.query_start_loc, one.seq_lens
            found += padding(f"query_start_loc {number}", starts[rows + 1 :], tokens, starts)
            found += padding(f"seq_lens {number}", lengths[rows:], 0, lengths)
        return found

    def to_judge(self, forward: Forward, config: Any) -> list[StaticInput]:
        """Return the inputs with the values that rows imply, and those that padding may have."""
        valid = {
            "input_ids": (0, int(config.get_vocab_size())),
            # Those of a draft grow with each of its steps.
            "positions": (0, max(1, int(config.max_model_len) // 2)),
        }
        right, inputs = self.expected(forward), self.inputs()
        for static in inputs:
            static.expected, static.valid = right.get(static.name), valid.get(static.name)
        return inputs

    def expected_positions(self, forward: Forward) -> Tensor:
        """Return the positions of all live tokens, int64 [tokens]."""
        rows = forward.rows[: self.live[0]]
        return ranges([(row.cached, row.cached + row.computed) for row in rows])

    def expected(self, forward: Forward) -> dict[str, Tensor]:
        """Return the values of inputs that the rows of a forward imply, by name."""
        count, rows = self.live[0], forward.rows
        ends = torch.tensor([row.cached + row.computed for row in rows[:count]])
        starts = torch.tensor(offsets(row.computed for row in rows[:count]))
        found = {"positions": self.expected_positions(forward)}
        for number in range(len(self.metadata)):
            found[f"seq_lens {number}"], found[f"query_start_loc {number}"] = ends, starts
            mine = rows[number * count : (number + 1) * count]
            parts = [next(iter(row.slots.values()))[row.cached :] for row in mine]
            found[f"slot_mapping {number}"] = torch.cat(parts)
        return found


def of_runner(
    runner: Any, metadata: Any, pool: VllmPool, given: Any, live: tuple[int, int]
) -> VllmBatch:
    """Return the batch of a runner, or the newer one's that is given. Raises NotRecognisedError."""
    if not isinstance(metadata, dict) or any(one.layer not in metadata for one in pool.targets):
        raise NotRecognisedError("attention metadata that is not by layer")
    mine = tuple(metadata[one.layer] for one in pool.targets)
    lacking = [name for name in NEEDED if not isinstance(maybe(mine[0], name), Tensor)]
    if lacking:
        kind = type(mine[0]).__name__
        raise NotRecognisedError(f"a {kind} without {', '.join(lacking)}")
    source = runner if given is None else given
    size = int(mine[0].num_actual_tokens)
    ids, positions = (
        (buffer if isinstance(buffer, Tensor) else buffer.gpu)[:size]
        for buffer in (source.input_ids, source.positions)
    )
    return VllmBatch(ids, positions, mine, live, (len(mine[0].seq_lens), size))


# States of recurrent layers.

MOST = 10_000
"""The number of states that are remembered."""


class VllmStates:
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
