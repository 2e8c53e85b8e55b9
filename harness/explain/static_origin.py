"""Which element of the static inputs led to an index that an op read wrongly.

Found by changing one element at a time and replaying: an element is to blame if, with
another value there, the index that was read is another. Knows no bug.
"""

from collections.abc import Iterator, Sequence
from typing import cast

import torch
from torch import Tensor

from harness.explain.facts import CAPTURE, How, IndexOrigin, Writer
from harness.explain.first_difference import Index, address_of, read_again
from harness.explain.provenance import StaticWrite
from harness.explain.recorded import RecordedForward, Run
from harness.lockstep.bits import bits
from reference.config import SPECULATION
from subjects.contracts import Axis

MOST_CANDIDATES = 64
"""Elements that are tried, one by one, for what led to an index."""


def element_read(recorded: RecordedForward, index: Index) -> tuple[str, int] | None:
    """Return the static element that an index was read from, if it was read from one.

    To be asked before the forward is run again, which writes the tensors of its ops anew.
    """
    tensor, element = address_of(index, recorded.run.calls[index.call])
    storage, place = tensor.untyped_storage()._cdata, int(tensor.storage_offset()) + element
    for name, buffer in static_buffers(recorded).items():
        first = int(buffer.storage_offset())
        inside = first <= place < first + buffer.numel()
        if buffer.untyped_storage()._cdata == storage and inside:
            return name, place - first
    return None


def static_buffers(recorded: RecordedForward) -> dict[str, Tensor]:
    """Return the static buffers of the runner that replayed."""
    return dict(recorded.runner.static_buffers()) if recorded.runner is not None else {}


def origin(
    recorded: RecordedForward, index: Index, read_from: tuple[str, int] | None
) -> IndexOrigin | None:
    """Return the static element that led to an index, found by changing one at a time.

    First those that are stale: a just-captured runner has other bits there, and this forward
    did not write them. Then the one the index was read from, then any of its value.
    """
    for name, element, stale, value in _candidates(recorded, index, read_from):
        run = recorded.again(((name, element, value),))
        if not _is_evidence(recorded, run, index):
            continue
        if read_again(index, run.calls, recorded.pair.graph_pools) != index.value:
            return origin_at(recorded, index, name, element, stale=stale)
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
    recorded: RecordedForward, index: Index, read_from: tuple[str, int] | None
) -> Iterator[tuple[str, int, bool, Tensor]]:
    """Yield static elements, with whether they are stale and the value to try instead."""
    for name, element in stale_elements(recorded):
        yield name, element, True, recorded.fresh[name].flatten()[element]
    right = 0 if index.right is None else index.right
    places = [] if read_from is None else [read_from]
    for name, values in recorded.static.items():
        if not values.dtype.is_floating_point and values.dtype is not torch.bool:
            same = (values.flatten() == index.value).nonzero().flatten().tolist()
            places += [(name, element) for element in same]
    for name, element in list(dict.fromkeys(places))[:MOST_CANDIDATES]:
        yield name, element, False, torch.tensor(right, dtype=recorded.static[name].dtype)


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
    recorded: RecordedForward, index: Index, name: str, element: int, *, stale: bool
) -> IndexOrigin:
    """Return an index with the static element that led to it and who left that."""
    write = recorded.ledger.of(static_buffers(recorded)[name])[element]
    right = _number(recorded.fresh[name], element) if stale else index.right
    request = _request(recorded, write, name, element)
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
        left_by=Writer(write.forward_id.step, write.forward_id.runner, element, request),
        how=cast(How, write.how),
    )


def captured_origin(recorded: RecordedForward, index: Index) -> IndexOrigin:
    """Return an index that no static element led to: the graph has it from its capture."""
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


def _request(recorded: RecordedForward, write: StaticWrite, name: str, element: int) -> int | None:
    """Return the request whose value an element was, by the axis of its buffer."""
    runner = recorded.runner
    row = runner.inputs.rows.get(name) if runner is not None else None
    if row is None or write.how != "copied":
        return None
    turn = write.forward_id
    draft_slots = [request for request in turn.requests for _ in range(SPECULATION.slots)]
    requests: dict[Axis, Sequence[int]] = {
        Axis.TOKEN: turn.rows,
        Axis.REQUEST: turn.requests,
        Axis.DRAFT_SLOT: draft_slots,
    }
    found = requests.get(row.axis, ())
    return found[element] if element < len(found) else None
