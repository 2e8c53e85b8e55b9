"""The cell of the index tables that led to an index, and since which step it holds its value.

It is found by giving the graph world's tables the values of the eager world's, and running again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from paritybit.reference.pool import Tables
from torch import Tensor

TABLES = ("req_to_token", "full_to_swa_index_mapping")
"""The names of the index tables, in storage order."""

MOST_CELLS = 64
"""The maximum number of cells to try."""


def both(tables: Tables) -> tuple[Tensor, Tensor]:
    """Return the index tables in the order of TABLES."""
    return tables.req_to_token, tables.full_to_swa_index_mapping


class TableLedger:
    """Tracks since which step each cell of some tables has held its value."""

    def __init__(self, tables: Tables) -> None:
        self.tables = both(tables)
        self._held = [table.clone() for table in self.tables]
        self._since = [torch.full_like(table, -1, dtype=torch.int64) for table in self.tables]

    def follow(self, step: int) -> None:
        """Credit all changes to a step."""
        for table, held, since in zip(self.tables, self._held, self._since, strict=True):
            since[table != held] = step
            held.copy_(table)

    def since(self, cell: "Cell") -> int:
        """Return the step since which a cell has held its value, CAPTURE if always."""
        return int(self._since[cell.table].view(-1)[cell.place])


@dataclass(frozen=True)
class Cell:
    """A cell of table number `table` of TABLES, flat index, and the value to try."""

    table: int
    place: int
    value: int


def differing_cells(graph: Sequence[Tensor], eager: Sequence[Tensor]) -> list[Cell]:
    """Return the cells of the graph world's tables that differ, with the eager world's values."""
    return [
        Cell(number, place, int(right.view(-1)[place]))
        for number, (held, right) in enumerate(zip(graph, eager, strict=True))
        for place in (held != right).flatten().nonzero().flatten().tolist()
    ]


def place_of(cell: Cell, table: Tensor) -> tuple[int, ...]:
    """Return where a cell is in its table."""
    return divmod(cell.place, table.shape[1]) if table.dim() > 1 else (cell.place,)
