"""Judges one replay of a CUDA graph in a test, without a connector."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paritybit.launch.schema import finding_of
from paritybit.launch.words import text_of
from paritybit.testing.arguments import (
    KV,
    Slots,
    groups_of,
    owned_of,
    require_inputs,
)
from paritybit.watch.checks import CHECKS
from paritybit.watch.facts import Forward, Group, Replay, Row, StaticInput
from paritybit.watch.journal import Finding, Journal
from paritybit.watch.observations import Captured
from paritybit.watch.replays.relations import NAMES
from paritybit.watch.settings import Settings
from paritybit.watch.watcher import Watcher

Outputs = Mapping[str, Tensor] | Sequence[Tensor] | Tensor | None

GRAPH = "the graph"
"""The name of the graph in reports."""


@dataclass
class InMemory(Journal):
    """A journal that keeps findings, and what could not be judged, in place of a file."""

    found: list[Finding] = field(default_factory=list)
    unsure: list[str] = field(default_factory=list)

    def write(self, kind: str, **fields: Any) -> None:
        """Write nothing."""

    def finding(self, finding: Finding) -> None:
        """Keep a finding."""
        self.found.append(finding)

    def undecided(self, what: str) -> None:
        """Keep what could not be judged."""
        self.unsure.append(what)


class UndecidedError(RuntimeError):
    """Something could not be judged. The message has the reason."""


def check_replay(
    *,
    replay: Callable[[], Outputs],
    kv: KV,
    owned_slots: Slots,
    static_inputs: Sequence[StaticInput] = (),
    run_eager: Callable[[], Outputs] | None = None,
    reserved_slots: Collection[int] = (0,),
    captured: Mapping[str, Tensor] = {},
    block_size: int | None = None,
) -> None:
    """Replay a graph, and raise AssertionError if it violates an invariant of its KV cache.

    The graph is replayed several times. Afterwards, its outputs and KV are as after the first run.

    - It changes only `owned_slots` and `reserved_slots`, and writes each owned slot.
    - A second run from the same state gives the same outputs and KV.
    - Other valid values in the padded part of an input do not change them.
    - `run_eager` gives the same outputs and KV, up to the variation of eager runs.
    - Each input is the tensor that was captured, has its `dtype`, and holds what is `expected`.

    The arguments:

    - `replay` replays the graph once, and returns the live part of its outputs: a tensor, a
      sequence, a mapping, or None for no output. It may fill the inputs first. Integers such as
      tokens must be equal in all runs: return logits if rounding may change a token.
    - `kv` are the KV tensors of shape [slots, ...]: one, a sequence, or a sequence per group by
      name. With `block_size`, their shape is [blocks, block_size, ...], and slots are numbered
      across blocks.
    - `owned_slots` are the slots that the live rows write, as integers of any shape: one tensor, or
      one per group by name.
    - `static_inputs` are the tensors that the graph reads at fixed addresses. Entries from `live`
      to `size` are padding. They are changed if `valid` has the values that they may have.
    - `run_eager` computes the same without the graph, with the same KV tensors.
    - `reserved_slots` are the slots that padding may write.
    - `captured` has, by name, the tensors that were captured, if they differ from the inputs.

    Raises AssertionError with a report of each violation, UndecidedError if the replay could not be
    judged, and ValueError if an argument is wrong or there is nothing to judge.
    """
    __tracebackhide__ = True  # pytest then shows the report and the line of the test.
    groups = groups_of(kv, reserved_slots, block_size)
    owned = owned_of(owned_slots, groups)
    require_inputs(static_inputs, captured, groups)
    known = dict[str, Captured]()
    for one in static_inputs:
        tensor, safe = captured.get(one.name, one.tensor), torch.zeros_like(one.tensor)
        known[one.name] = Captured(tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), safe)
    tensors = [one for group in groups for layer in group.layers for one in layer.tensors]
    devices = {one.device for one in tensors}
    graph = graph_of(replay, run_eager, static_inputs, devices)
    # A tensor that was made in inference mode can only be changed there.
    changed = [*tensors, *(one.tensor for one in static_inputs)]
    made_there = any(tensor.is_inference() for tensor in changed)
    with torch.inference_mode() if made_there else nullcontext():
        synchronize(devices)
        journal = judged(graph, groups, owned, known, static_inputs)
    if journal.found:
        raise AssertionError("\n\n".join(map(report, journal.found)))
    if journal.unsure:
        raise UndecidedError("; ".join(journal.unsure))


def report(finding: Finding) -> str:
    """Return the report of a finding."""
    found = finding_of(asdict(finding))
    return f"ERROR: paritybit: {text_of(found)}\n  invariant: {CHECKS[found.check].invariant}"


def graph_of(
    replay: Callable[[], Outputs],
    run_eager: Callable[[], Outputs] | None,
    static_inputs: Sequence[StaticInput],
    devices: Collection[torch.device],
) -> Replay:
    """Return a replay that waits for the devices."""
    outputs: dict[str, Tensor] = {}

    def ran(function: Callable[[], Outputs]) -> dict[str, Tensor]:
        result = function()
        synchronize(devices)
        return named(result)

    def run() -> None:
        found = ran(replay)
        outputs.clear()
        outputs.update(found)

    return Replay(
        GRAPH,
        GRAPH,
        max((one.live for one in static_inputs), default=1),
        max((one.size for one in static_inputs), default=1),
        # Their values are judged below: `replay` may be what fills them.
        [replace(one, expected=None) for one in static_inputs],
        run,
        outputs=lambda: dict(outputs),
        eager=None if run_eager is None else partial(ran, run_eager),
    )


def judged(
    graph: Replay,
    groups: Sequence[Group],
    owned: Mapping[str, Tensor],
    known: Mapping[str, Captured],
    given: Sequence[StaticInput],
) -> InMemory:
    """Judge a replay that writes the owned slots, and return the journal."""
    journal = InMemory(Path())
    watcher = Watcher(groups, engine="test", release="", journal=journal, settings=Settings(""))
    watcher.captures[graph.graph] = dict(known)
    watcher.relations.streak, watcher.relations.few = 1, False
    watcher.relations.names = NAMES[:-1]  # It is not known what the replay reads.
    watcher.begin(Forward("test", (row_of(owned),)))
    before = [one for one in given if stale(one)]
    watcher.replay(graph)
    watcher.judge_inputs(GRAPH, [replace(one, dtype=None) for one in before if stale(one)])
    watcher.end()
    return journal


def stale(static: StaticInput) -> bool:
    """Return whether the live part of an input differs from its expected values."""
    if static.expected is None:
        return False
    live = static.tensor.narrow(static.axis, 0, static.live)
    return not torch.equal(live, static.expected.to(live.device, live.dtype))


def synchronize(devices: Collection[torch.device]) -> None:
    """Wait for all streams of devices."""
    for device in devices:
        if device.type != "cpu":
            torch.get_device_module(device).synchronize(device)


def row_of(owned: Mapping[str, Tensor]) -> Row:
    """Return one row that computes all owned slots and reads nothing."""
    longest = max(len(slots) for slots in owned.values())
    filled = {
        name: torch.cat((slots, slots.new_full((longest - len(slots),), -1)))
        for name, slots in owned.items()
    }
    return Row("test", [None] * longest, 0, longest, filled)


def named(outputs: Outputs) -> dict[str, Tensor]:
    """Return outputs by name, in floats if all are integers, so that they are compared."""
    if outputs is None:
        return {"no output": torch.empty(0)}
    if isinstance(outputs, Tensor):
        found = {"output": outputs}
    elif isinstance(outputs, Mapping):
        found = dict(outputs)
    else:
        found = {f"output {number}": tensor for number, tensor in enumerate(outputs)}
    if any(tensor.is_floating_point() for tensor in found.values()):
        return found
    return {key: tensor.to(torch.float64) for key, tensor in found.items()}
