"""Which element of the static inputs led to an index that an op read wrongly.

Found by changing one element at a time and replaying: an element is to blame if, with
another value there, the index that was read is another. Knows no bug.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from paritybit.harness.explain.facts import CAPTURE, How, IndexOrigin, TableCell, Writer
from paritybit.harness.explain.first_difference import Index, address_of, read_again
from paritybit.harness.explain.origins.tables import MOST_CELLS, TABLES, differing_cells, place_of
from paritybit.harness.explain.provenance import StaticWrite
from paritybit.harness.explain.recorded import RecordedForward, Run
from paritybit.harness.lockstep.bits import bits
from paritybit.subjects.contracts import Axis
from torch import Tensor

AXES = frozenset({Axis.REQUEST, Axis.TOKEN})
"""Axes of static inputs whose elements are one request's or one token's."""

RESERVED = 0
"""The row or slot that belongs to nobody: what padding is to lead to, which eager code lacks."""

MOST_CANDIDATES = 64
"""Elements that are tried, one by one, for what led to an index."""


def element_read(recorded: RecordedForward, index: Index) -> tuple[str, int] | None:
    """Return the static element that an index was read from, if it was read from one.

    To be asked before the forward is run again, which writes the tensors of its ops anew.
    """
    if index.value is None:
        return None
    tensor, element = address_of(index, recorded.run.calls[index.call])
    return element_at(static_buffers(recorded), tensor, int(tensor.storage_offset()) + element)


def element_at(buffers: Mapping[str, Tensor], tensor: Tensor, place: int) -> tuple[str, int] | None:
    """Return which element of which buffer lies at a place of a tensor's storage, if one does."""
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
    """Return the static element that led to an index, found by changing one at a time.

    First those that are `stale`, unless they cannot be to blame: a just-captured runner has
    other bits there, and this forward did not write them. Then those of a request or token that
    are not as the batch has them. Then, with `own`, the one the index was read from, then any of
    its value. An element that gives the right index goes before one that merely gives another.
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
    """Return an index with the element to blame: what was tried there is right, or is not known."""
    right = int(found.value) if found.stale or found.guessed else index.right
    return origin_at(recorded, index, found.name, found.element, stale=found.stale, right=right)


@dataclass(frozen=True)
class Candidate:
    """An element that may have led to an index, and the value to try instead.

    One that is `guessed` is to blame only if the index is then the right one.
    """

    name: str
    element: int
    stale: bool
    value: Tensor
    guessed: bool = False


def cell_origin(recorded: RecordedForward, index: Index) -> TableCell | None:
    """Return the cell of the index tables that led to an index; None if none did."""

    def mended(run: Run) -> bool:
        if not _is_evidence(recorded, run, index):
            return False
        read = read_again(index, run.calls, recorded.pair.graph_pools)
        return read != index.value and index.right in (None, read)

    return cell_to_blame(recorded, mended)


def cell_to_blame(recorded: RecordedForward, mended: Callable[[Run], bool]) -> TableCell | None:
    """Return the cell of the index tables with whose right value alone a run is mended.

    Those are tried in which the tables of both worlds differ: at first all of them together.
    """
    cells = differing_cells(recorded.tables, recorded.eager_tables)
    if not cells or not mended(recorded.again(cells=cells)):
        return None
    for cell in cells[:MOST_CELLS]:
        if mended(recorded.again(cells=[cell])):
            table = recorded.tables[cell.table]
            value = int(table.view(-1)[cell.place])
            since = recorded.cells.since(cell)
            place = place_of(cell, table)
            return TableCell(TABLES[cell.table], place, value, cell.value, since)
    return None


def _is_evidence(recorded: RecordedForward, run: Run, index: Index) -> bool:
    """Whether a run with an element changed shows what was read for `index`.

    A run that fails, though the forward itself does not, shows only that the other value cannot
    be used. Where the forward fails as well, what the op was given counts, if it was reached.
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
    """Yield the elements that may have led to an index; no index is made of a fraction."""
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
    """Yield the whole numbers of a bucket's requests and tokens that are not what they may be.

    That is what the eager world's batch has of a live one, and 0 of a padded one.
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
    """Return the static elements that this forward did not write and a fresh runner has other."""
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
    """Return an index with the static element that led to it, who left that, and what is right."""
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
        how=written_as(write),
    )


def written_as(write: StaticWrite) -> How:
    """Return how an element was written."""
    return cast(How, write.how)


def captured_origin(recorded: RecordedForward, index: Index) -> IndexOrigin:
    """Return an index that no static element led to: the graph has it from its capture."""
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
