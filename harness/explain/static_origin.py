"""The element of the static inputs that led to an index that an op read wrongly.

Elements are changed one at a time, with a replay for each. An element is to blame if, with another
value there, another index is read. No knowledge of any bug is used.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from paritybit.harness.explain.facts import CAPTURE, IndexOrigin, TableCell, Writer
from paritybit.harness.explain.first_difference import Index, address_of, read_again
from paritybit.harness.explain.origins.tables import MOST_CELLS, TABLES, differing_cells, place_of
from paritybit.harness.explain.provenance import StaticWrite
from paritybit.harness.explain.recorded import RecordedForward, Run
from paritybit.harness.lockstep.bits import bits
from paritybit.subjects.contracts import Axis
from torch import Tensor

AXES = frozenset({Axis.REQUEST, Axis.TOKEN})
"""Axes of static inputs with one element per request or per token."""

RESERVED = 0
"""The reserved row or slot, where padding must lead. Eager code has no padding."""

MOST_CANDIDATES = 64
"""The maximum number of elements to try for an index."""


def element_read(recorded: RecordedForward, index: Index) -> tuple[str, int] | None:
    """Return the static element that an index was read from, if any.

    Call this before the forward is run again, because that overwrites the tensors of its ops.
    """
    if index.value is None:
        return None
    tensor, element = address_of(index, recorded.run.calls[index.call])
    return element_at(static_buffers(recorded), tensor, int(tensor.storage_offset()) + element)


def element_at(buffers: Mapping[str, Tensor], tensor: Tensor, place: int) -> tuple[str, int] | None:
    """Return the buffer and its element at a place of a tensor's storage, if any."""
    storage = tensor.untyped_storage()._cdata
    for name, buffer in buffers.items():
        first = int(buffer.storage_offset())
        inside = first <= place < first + buffer.numel()
        if buffer.untyped_storage()._cdata == storage and inside:
            return name, place - first
    return None


def static_buffers(recorded: RecordedForward) -> dict[str, Tensor]:
    """Return the static buffers of the runner that replayed."""
    return dict(recorded.runner.static_buffers()) if recorded.runner is not None else {}


def origin(
    recorded: RecordedForward,
    index: Index,
    read_from: tuple[str, int] | None,
    *,
    stale: bool,
    own: bool,
) -> IndexOrigin | None:
    """Return the static element that led to an index, by changing one element at a time.

    Candidates are tried in this order:

    - with `stale`: elements that this forward did not write and that differ in a freshly captured
      runner
    - elements of a request or token that differ from the batch
    - with `own`: the element that the index was read from, then any element with its value

    An element that gives the right index precedes one that only gives another.
    """
    another = None
    for tried in _candidates(recorded, index, read_from, stale=stale, own=own):
        run = recorded.again(((tried.name, tried.element, tried.value),))
        if not _is_evidence(recorded, run, index):
            continue
        read = read_again(index, run.calls, recorded.pair.graph_pools)
        right = RESERVED if index.right is None and tried.guessed else index.right
        exactly = tried.guessed or index.value is None
        if read == index.value or (exactly and read != right):
            continue
        if index.right is None or read == index.right:
            return _shown(recorded, index, tried)
        another = another or tried
    return None if another is None else _shown(recorded, index, another)


def _shown(recorded: RecordedForward, index: Index, found: "Candidate") -> IndexOrigin:
    """Return an index with the element to blame, and its right value if known."""
    right = int(found.value) if found.stale or found.guessed else index.right
    return origin_at(recorded, index, found.name, found.element, stale=found.stale, right=right)


@dataclass(frozen=True)
class Candidate:
    """An element that may have led to an index, and the value to try instead.

    If it is `guessed`, it is to blame only if the index is then right.
    """

    name: str
    element: int
    stale: bool
    value: Tensor
    guessed: bool = False


def cell_origin(recorded: RecordedForward, index: Index) -> TableCell | None:
    """Return the cell of the index tables that led to an index, or None."""

    def fixed(run: Run) -> bool:
        if not _is_evidence(recorded, run, index):
            return False
        read = read_again(index, run.calls, recorded.pair.graph_pools)
        return read != index.value and index.right in (None, read)

    return cell_to_blame(recorded, fixed)


def cell_to_blame(recorded: RecordedForward, fixed: Callable[[Run], bool]) -> TableCell | None:
    """Return the cell of the index tables that alone makes a run right, with its right value.

    Only cells that differ between the worlds' tables are tried, first all of them together.
    """
    cells = differing_cells(recorded.tables, recorded.eager_tables)
    if not cells or not fixed(recorded.again(cells=cells)):
        return None
    for cell in cells[:MOST_CELLS]:
        if fixed(recorded.again(cells=[cell])):
            table = recorded.tables[cell.table]
            value = int(table.view(-1)[cell.place])
            since = recorded.cells.since(cell)
            place = place_of(cell, table)
            return TableCell(TABLES[cell.table], place, value, cell.value, since)
    return None


def _is_evidence(recorded: RecordedForward, run: Run, index: Index) -> bool:
    """Whether a run with a changed element shows what was read for `index`.

    If only the changed run fails, the value merely cannot be used. If the forward itself fails too,
    the op's arguments count if the op was reached.
    """
    if run.failed is not None and recorded.run.failed is None:
        return False
    return index.call < len(run.calls)


def _candidates(
    recorded: RecordedForward,
    index: Index,
    read_from: tuple[str, int] | None,
    *,
    stale: bool,
    own: bool,
) -> Iterator[Candidate]:
    """Yield the elements that may have led to an index. Fractions never become indices."""
    for name, element in stale_elements(recorded) if stale else []:
        if not recorded.fresh[name].is_floating_point():
            value = recorded.fresh[name].flatten()[element]
            yield Candidate(name, element, stale=True, value=value)
    yield from of_batch(recorded)
    if not own or index.value is None:
        return
    right = 0 if index.right is None else index.right
    places = [] if read_from is None else [read_from]
    for name, values in recorded.static.items():
        if not values.dtype.is_floating_point and values.dtype is not torch.bool:
            same = (values.flatten() == index.value).nonzero().flatten().tolist()
            places += [(name, element) for element in same]
    for name, element in list(dict.fromkeys(places))[:MOST_CANDIDATES]:
        value = torch.tensor(right, dtype=recorded.static[name].dtype)
        yield Candidate(name, element, stale=False, value=value)


def of_batch(recorded: RecordedForward) -> Iterator[Candidate]:
    """Yield the integer elements of a bucket's requests and tokens that have unexpected values.

    A live element must equal that of the eager world's batch, and a padded one must be 0.
    """
    runner, bucket, batch = recorded.runner, recorded.bucket, recorded.planned.eager.batch
    if runner is None or bucket is None:
        return
    for row in runner.inputs.contract:
        held = recorded.static[row.name]
        if row.axis not in AXES or row.width is not None or held.is_floating_point():
            continue
        right = torch.zeros_like(held)
        live = batch.value(row.name) if batch is not None else None
        if live is not None and live.dim() == 1 and len(live) <= len(right):
            right[: len(live)] = live
        for element in (held != right).nonzero().flatten().tolist():
            value = right[element]
            yield Candidate(row.name, element, stale=False, value=value, guessed=True)


def stale_elements(recorded: RecordedForward) -> list[tuple[str, int]]:
    """Return the elements that this forward did not write and a fresh runner differs in."""
    found = []
    for name, buffer in static_buffers(recorded).items():
        if recorded.fresh[name].shape != buffer.shape:
            continue
        other = (bits(recorded.static[name]) != bits(recorded.fresh[name])).flatten()
        if other.any():
            writes = recorded.ledger.of(buffer)
            found += [
                (name, element)
                for element in other.nonzero().flatten().tolist()
                if writes[element].forward_id.forward < recorded.forward_id.forward
            ]
    return found


def origin_at(
    recorded: RecordedForward,
    index: Index,
    name: str,
    element: int,
    *,
    stale: bool,
    right: int | None,
) -> IndexOrigin:
    """Return an index with its static element, who wrote it, and its right value."""
    write = recorded.ledger.of(static_buffers(recorded)[name])[element]
    return IndexOrigin(
        buffer=name,
        element=element,
        value=_number(recorded.static[name], element),
        right=right,
        stale=stale,
        row=index.row,
        key=index.key,
        read=index.value,
        read_right=index.right,
        left_by=writer_of(recorded, write, name, element),
        how=write.how,
    )


def captured_origin(recorded: RecordedForward, index: Index) -> IndexOrigin:
    """Return an index that no static element led to, so the graph has it from its capture."""
    assert index.value is not None
    return IndexOrigin(
        buffer=None,
        element=None,
        value=index.value,
        right=index.right,
        stale=True,
        row=index.row,
        key=index.key,
        read=index.value,
        read_right=index.right,
        left_by=Writer(CAPTURE, recorded.forward_id.runner, index.row, None),
        how="capture",
    )


def _number(values: Tensor, element: int) -> int:
    return int(values.flatten()[element])


def writer_of(recorded: RecordedForward, write: StaticWrite, name: str, element: int) -> Writer:
    """Return who wrote an element of a static input last."""
    row = recorded.runner.inputs.rows.get(name) if recorded.runner is not None else None
    turn, axis = write.forward_id, "list" if row is None else str(row.axis)
    return Writer(turn.step, turn.runner, element, request_of(recorded, write, name, element), axis)


def request_of(
    recorded: RecordedForward, write: StaticWrite, name: str, element: int
) -> int | None:
    """Return the request whose value an element was, by the axis of its buffer."""
    runner = recorded.runner
    row = runner.inputs.rows.get(name) if runner is not None else None
    if row is None or write.how != "copied":
        return None
    turn = write.forward_id
    slots = recorded.pair.config.speculation.slots
    draft_slots = [request for request in turn.requests for _ in range(slots)]
    requests: dict[Axis, Sequence[int]] = {
        Axis.TOKEN: turn.rows,
        Axis.REQUEST: turn.requests,
        Axis.DRAFT_SLOT: draft_slots,
    }
    found = requests.get(row.axis, ())
    return found[element] if element < len(found) else None
