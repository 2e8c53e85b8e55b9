"""From red to root cause: what differed first, which index led there, and who left it.

Found by witnessing the forward and by changing one thing at a time, not from knowledge
of any bug: an element is to blame if, with the value that a just-captured runner has
there, the index that was read is another.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from harness.explain.finders import Finder
from harness.explain.first_difference import (
    Difference,
    Index,
    Side,
    address_of,
    first_difference,
    read_again,
)
from harness.explain.proof import prove
from harness.explain.provenance import StaticWrite
from harness.explain.recorded import Element, RecordedForward, Run, record_forward
from harness.lockstep.bits import bits, form
from harness.lockstep.pair import Pair
from harness.schedules.schedule import Schedule
from reference.config import SPECULATION, Kind, Role
from reference.model import Output
from subjects.contracts import LISTED_CONVERSIONS, Axis
from subjects.pool import TRANSLATE

MOST_CANDIDATES = 64
"""Elements that are tried, one by one, for what led to an index."""


@dataclass(frozen=True)
class Explanation:
    """Why one property was violated, as JSON data but for its place in the play.

    `step` is the place in the schedule. `blame` is on the inputs, on captured state, or on
    the build. `third_arm` says what the captured function gave when it was run eagerly
    through the same static buffers. `failed` says why the step gave nothing, if it did not.
    """

    property: str
    step: int
    runner: str | None
    blame: str
    bucket: int | None = None
    live_size: int | None = None
    third_arm: str | None = None
    difference: dict[str, Any] | None = None
    index: dict[str, Any] | None = None
    slot: dict[str, Any] | None = None
    site: dict[str, Any] | None = None
    failed: str | None = None
    static_inputs: list[dict[str, Any]] = field(default_factory=list)
    slots: list[dict[str, Any]] = field(default_factory=list)


def explain(
    pair: Pair, schedule: Schedule, property_id: str, forward: int, find: Finder
) -> dict[str, Any] | None:
    """Return why `property_id` is first violated at a forward, as JSON data.

    `forward` counts the schedule's forwards from 0. Returns None where nothing was found that
    would explain it.
    """
    with torch.inference_mode():
        recorded = record_forward(pair, schedule, forward)
        found = find(recorded)
        if found is None:
            return None
        facts = Explanation(
            property=property_id,
            step=recorded.forward_id.step,
            runner=recorded.forward_id.runner,
            bucket=recorded.bucket,
            live_size=recorded.live_size,
            failed=recorded.run.failed,
            static_inputs=static_inputs(recorded),
            slots=slot_maps(recorded),
            **found,
        )
    return _proved(facts)


def explain_refusal(trial_runner: str, property_id: str, refused: str) -> dict[str, Any]:
    """Return why an engine could not be captured, as JSON data."""
    site = _build("BufferPool.get", "subjects/buffers.py", refused)
    return _proved(Explanation(property_id, 0, trial_runner, **site))


def _proved(facts: Explanation) -> dict[str, Any]:
    """Return an explanation with its proof, as JSON data."""
    data = asdict(facts)
    return {**data, "proof": prove(data)}


def diverged_cause(recorded: RecordedForward) -> dict[str, Any] | None:
    """Explain worlds that have parted: the graph's ops against the eager world's."""
    pair = recorded.pair
    left = Side(pair.eager_pools, recorded.eager_before, recorded.eager_calls)
    return _differing(recorded, left, live_alone=True)


def history_cause(recorded: RecordedForward) -> dict[str, Any] | None:
    """Explain a replay that depends on the runner's history: its ops against the twin's."""
    left = Side(recorded.pair.graph_pools, recorded.graph_before, recorded.fresh_calls)
    return _differing(recorded, left, live_alone=False)


def _differing(recorded: RecordedForward, left: Side, *, live_alone: bool) -> dict[str, Any] | None:
    """Return the first difference of the subject from another run, and what led to it."""
    pools = recorded.pair.graph_pools
    right = Side(pools, recorded.graph_before, recorded.run.calls)
    difference = first_difference(left, right)
    if difference is None:
        return None
    found = difference.index
    # Further runs write the tensors of these calls again: read them first.
    direct = _direct(recorded, found) if found is not None else None
    third = _third_arm(recorded) if live_alone and recorded.runner is not None else None
    captured = third == "as the eager world"
    index = None
    if found is not None:
        index = _baked(recorded, found) if captured else _origin(recorded, found, direct)
    return {
        "blame": "captured state" if captured else "inputs",
        "third_arm": third,
        "difference": _told(difference, len(recorded.forward_id.rows)),
        "index": index,
        "slot": _slot(recorded, difference),
    }


def _third_arm(recorded: RecordedForward) -> str:
    """Say whose bits the captured function gives when it runs eagerly."""
    third = recorded.again(captured=False)
    if _agrees(recorded, third, recorded.run.storage, recorded.run.output):
        return "as the graph"
    agrees = _agrees(recorded, third, recorded.eager_storage, recorded.eager_output)
    return "as the eager world" if agrees else "as neither"


def _agrees(recorded: RecordedForward, run: Run, storage: Tensor, output: Output | None) -> bool:
    """Whether a run left KV as `storage`, the reserved slots apart, and gave `output`, if any."""
    different = (bits(run.storage) != bits(storage)) & recorded.pair.compared
    if output is None:
        return not different.any()
    return (
        not different.any()
        and form(run.output) == form(output)
        and all(torch.equal(bits(run.output[name]), bits(output[name])) for name in output)
    )


def _direct(recorded: RecordedForward, index: Index) -> tuple[str, int] | None:
    """Return the static element that an index was read from, if it was read from one."""
    tensor, element = address_of(index, recorded.run.calls[index.call])
    storage, place = tensor.untyped_storage()._cdata, int(tensor.storage_offset()) + element
    for name, buffer in _static(recorded).items():
        first = int(buffer.storage_offset())
        inside = first <= place < first + buffer.numel()
        if buffer.untyped_storage()._cdata == storage and inside:
            return name, place - first
    return None


def _static(recorded: RecordedForward) -> dict[str, Tensor]:
    """Return the static buffers of the runner that replayed."""
    return dict(recorded.runner.static_buffers()) if recorded.runner is not None else {}


def _origin(
    recorded: RecordedForward, index: Index, direct: tuple[str, int] | None
) -> dict[str, Any] | None:
    """Return the static element that led to an index, found by changing one at a time.

    First those that are stale: a just-captured runner has other bits there, and this forward
    did not write them. Then the one the index was read from, then any of its value.
    """
    for name, element, stale, value in _candidates(recorded, index, direct):
        patch: Element = (name, element, value)
        changed = read_again(index, recorded.again((patch,)).calls, recorded.pair.graph_pools)
        if changed != index.value:
            return _index(recorded, index, name, element, stale=stale)
    return None


def _candidates(
    recorded: RecordedForward, index: Index, direct: tuple[str, int] | None
) -> Iterator[tuple[str, int, bool, Tensor]]:
    """Yield static elements, with whether they are stale and the value to try instead."""
    for name, element in stale_elements(recorded):
        yield name, element, True, recorded.fresh[name].flatten()[element]
    right = 0 if index.right is None else index.right
    places = [] if direct is None else [direct]
    for name, values in recorded.static.items():
        if not values.dtype.is_floating_point and values.dtype is not torch.bool:
            same = (values.flatten() == index.value).nonzero().flatten().tolist()
            places += [(name, element) for element in same]
    for name, element in list(dict.fromkeys(places))[:MOST_CANDIDATES]:
        yield name, element, False, torch.tensor(right, dtype=recorded.static[name].dtype)


def stale_elements(recorded: RecordedForward) -> list[tuple[str, int]]:
    """Return the static elements that this forward did not write and a fresh runner has other."""
    found = []
    for name, buffer in _static(recorded).items():
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


def _plain(values: Tensor, element: int) -> int:
    return int(values.flatten()[element])


def _index(
    recorded: RecordedForward, index: Index, name: str, element: int, *, stale: bool
) -> dict[str, Any]:
    """Return an index, the static element that led to it and who left that, as JSON data."""
    write = recorded.ledger.of(_static(recorded)[name])[element]
    return {
        "buffer": name,
        "element": element,
        "value": _plain(recorded.static[name], element),
        "right": _plain(recorded.fresh[name], element) if stale else index.right,
        "stale": stale,
        **_read(index),
        "left_by": {
            "step": write.forward_id.step,
            "runner": write.forward_id.runner,
            "row": element,
            "request": _request(recorded, write, name, element),
            "how": write.how,
        },
    }


def _baked(recorded: RecordedForward, index: Index) -> dict[str, Any]:
    """Return an index that no static element led to: the graph has it from its capture."""
    left_by = {"step": -1, "runner": recorded.forward_id.runner, "row": index.row, "request": None}
    return {
        "buffer": None,
        "element": None,
        "value": index.value,
        "right": index.right,
        "stale": True,
        **_read(index),
        "left_by": {**left_by, "how": "capture"},
    }


def _read(index: Index) -> dict[str, Any]:
    """Return what an op read, and where."""
    return {"row": index.row, "key": index.key, "read": index.value, "read_right": index.right}


def _request(recorded: RecordedForward, write: StaticWrite, name: str, element: int) -> int | None:
    """Return the request whose value an element was, by the axis of its buffer."""
    runner = recorded.runner
    row = runner.inputs.rows.get(name) if runner is not None else None
    if row is None or write.how != "copied":
        return None
    forward_id = write.forward_id
    owners: dict[Axis, Sequence[int]] = {
        Axis.TOKEN: forward_id.rows,
        Axis.REQUEST: forward_id.requests,
        Axis.DRAFT_SLOT: [each for each in forward_id.requests for _ in range(SPECULATION.slots)],
    }
    found = owners.get(row.axis, ())
    return found[element] if element < len(found) else None


def _told(difference: Difference, rows: int) -> dict[str, Any]:
    """Return a difference as JSON data; `rows` of the op's rows are live."""
    row = difference.index.row if difference.index is not None else difference.row
    return {
        "op": difference.op,
        "model": _name(difference.model),
        "layer": difference.layer,
        "kind": _name(difference.kind),
        "tensor": difference.tensor,
        "row": row,
        "live": row is not None and row < rows,
        "slot": difference.slot,
        "head": difference.head,
        "element": difference.element,
        "eager_bits": difference.left_bits,
        "graph_bits": difference.right_bits,
    }


def _name(value: Role | Kind | None) -> str | None:
    return None if value is None else str(value)


def _slot(recorded: RecordedForward, difference: Difference) -> dict[str, Any] | None:
    """Return the slot that a difference is about: the one changed, or the one read wrongly."""
    index = difference.index
    slot = difference.slot if difference.slot is not None else index.value if index else None
    if slot is None or difference.model is None or difference.kind is None:
        return None
    write = recorded.written.of(difference.model, difference.kind, slot)
    return {
        "model": str(difference.model),
        "kind": str(difference.kind),
        "slot": slot,
        "owner": recorded.owner_of(difference.kind, slot),
        "written_by": None
        if write is None
        else {
            "step": write.forward_id.step,
            "runner": write.forward_id.runner,
            "row": write.row,
            "live": write.request is not None,
            "request": write.request,
        },
    }


def warning_site(recorded: RecordedForward) -> dict[str, Any] | None:
    """Explain a warning: the site in the engine's code that logged it."""
    site = next((each for each in recorded.sites if each.functions), None)
    if site is None:
        return None
    message = f"{site.message}; called by {' in '.join(site.functions[-2:-4:-1])}"
    return _build(site.functions[-1], site.file, message) | {"blame": "call site"}


def dtype_cause(recorded: RecordedForward) -> dict[str, Any] | None:
    """Explain a broken index contract: the first store location that its bytes do not say."""
    for number, call in enumerate(recorded.run.calls):
        if call.name == "store_kv":
            loc, dtype = call.inputs[1], call.inputs[2]
            if loc.dtype != dtype:
                read = loc.view(dtype)[: loc.numel()].tolist()
                right = loc.tolist()
                row = next((i for i in range(len(read)) if read[i] != right[i]), 0)
                index = Index(number, row, None, read[row], right[row])
                direct = _direct(recorded, index)
                found = _index(recorded, index, *direct, stale=False) if direct else None
                message = (
                    f"the locations are {loc.dtype} and the store reads {dtype}: row 1 is read"
                    " from the upper half of element 0"
                )
                return _build("store_kv", "reference/ops.py", message) | {"index": found}
    runner = recorded.runner
    if runner is None:
        return None
    unlisted = sorted(runner.conversions - LISTED_CONVERSIONS, key=str)
    if not unlisted:
        return None
    name, source, destination = unlisted[0]
    message = f"{name} is copied from {source} into {destination}, which no list allows"
    return _build("StaticInputs.populate", "subjects/buffers.py", message)


def off_path_cause(recorded: RecordedForward) -> dict[str, Any] | None:
    """Explain a graph that is not the era's: the first op that its capture should not hold."""
    runner, bucket = recorded.runner, recorded.bucket
    if runner is None or bucket is None:
        return None
    operations = runner.operations(bucket)
    wanted = runner.translations(recorded.pair.trial.scheme)
    places = [place for place, name in enumerate(operations) if name == TRANSLATE]
    if len(places) <= wanted:
        return None
    place = places[wanted]
    message = (
        f"op {place} of {len(operations)} in the graph is a translation, the first of"
        f" {len(places) - wanted} too many; the next store is number"
        f" {operations[:place].count('store_kv')}"
    )
    return _build(TRANSLATE, "subjects/pool.py", message)


def _build(function: str, file: str, message: str) -> dict[str, Any]:
    """Return what is said of a fault that no bit of this forward shows."""
    return {"blame": "build", "site": {"function": function, "file": file, "message": message}}


def static_inputs(recorded: RecordedForward) -> list[dict[str, Any]]:
    """Return the replay's static inputs that are one number an element, as JSON data."""
    runner, bucket = recorded.runner, recorded.bucket
    if runner is None or bucket is None:
        return []
    stale = stale_elements(recorded)
    found = []
    for row in runner.inputs.contract:
        if row.width is not None or row.axis is Axis.MASK:
            continue
        buffer = runner.inputs.buffers[row.name]
        view = runner.view(row.name, bucket)
        columns = view.shape[-1]
        shown = torch.arange(buffer.numel()).view(buffer.shape)[..., :columns].flatten().tolist()
        writes = recorded.ledger.of(buffer)
        values = recorded.static[row.name].flatten().tolist()
        copied = [
            writes[i].how == "copied"
            and writes[i].forward_id.forward == recorded.forward_id.forward
            for i in shown[:columns]
        ]
        found.append(
            {
                "name": row.name,
                "dtype": str(buffer.dtype).removeprefix("torch."),
                "axis": str(row.axis),
                "padding": row.padding,
                "live": sum(copied),
                "values": [int(values[i]) for i in shown],
                "left_by": [writes[i].forward_id.step for i in shown],
                "stale": [at for at, i in enumerate(shown) if (row.name, i) in stale],
            }
        )
    return found


def slot_maps(recorded: RecordedForward) -> list[dict[str, Any]]:
    """Return who owns each slot of each sub-pool, and which ones differ, as JSON data."""
    pair = recorded.pair
    different = (bits(recorded.eager_storage) != bits(recorded.run.storage)) & pair.compared
    changed = bits(recorded.graph_before) != bits(recorded.run.storage)
    pairs = zip(
        pair.graph_pools.arenas_of(different), pair.graph_pools.arenas_of(changed), strict=True
    )
    maps = []
    for (role, kind, differing), (_, _, written) in pairs:
        owners = [-1] * pair.graph_pools.sizes.slots(kind)
        for owner in recorded.owners:
            for slot in owner.slots(kind):
                owners[slot] = owner.serial
        for span in recorded.spans:
            for slot in span.full_slots if kind is Kind.FULL else span.swa_slots:
                owners[slot] = recorded.serial_at(span.row)
        maps.append(
            {
                "model": str(role),
                "kind": str(kind),
                "owners": owners,
                "live": list(recorded.forward_id.requests),
                "written": _slots_of(written),
                "differs": _slots_of(differing),
                "page_size": pair.trial.page_size,
            }
        )
    return maps


def _slots_of(arena: Tensor) -> list[int]:
    """Return the slots in which a bool arena is true anywhere."""
    slots: list[int] = arena.any(dim=(0, 1, 3, 4)).nonzero().flatten().tolist()
    return slots
