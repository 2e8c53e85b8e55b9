"""One replay of a CUDA graph, judged in a test.

It needs no connector: the test says which tensors are KV, which slots the replay may write, and
which inputs are padded.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paritybit.testing.outcome import UndecidedError, reports
from paritybit.watch.facts import Forward, Group, Layer, Replay, Row, StaticInput
from paritybit.watch.journal import Finding, Journal
from paritybit.watch.observations import Captured
from paritybit.watch.settings import Settings
from paritybit.watch.watcher import Watcher

KV = Mapping[str, Sequence[Tensor]] | Sequence[Tensor]
Slots = Mapping[str, Tensor] | Tensor
Outputs = Mapping[str, Tensor] | Sequence[Tensor] | Tensor | None

ONE_GROUP = "kv"
"""The name of the group where the KV tensors are not named."""


@dataclass
class InMemory(Journal):
    """A journal that writes no file: it keeps what was found, and what could not be judged."""

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


def check_replay(
    *,
    replay: Callable[[], Outputs],
    kv: KV,
    owned_slots: Slots,
    static_inputs: Sequence[StaticInput] = (),
    run_eager: Callable[[], Outputs] | None = None,
    reserved_slots: Collection[int] = (0,),
    padding: Mapping[str, Tensor] = {},
) -> None:
    """Replay a graph, and raise an AssertionError if it breaks a law of its KV cache.

    It is run several times; afterwards all that it may change is as the first run left it.

    - It changes only `owned_slots` and `reserved_slots`, and writes each owned slot.
    - A second run from the same state gives the same outputs and KV.
    - Other valid values in the padded part of an input change neither.
    - `run_eager` gives the same outputs and KV, up to the variation of eager runs.

    The arguments:

    - `replay` replays the graph once, and returns the live part of its outputs: a tensor, a
      sequence or a mapping. None means that it has none.
    - `kv` are the KV tensors, each [slots, ...]: one sequence, or one per group by name.
    - `owned_slots` are the slots that the live rows write, integers of any shape: one tensor, or
      one per group by name.
    - `static_inputs` are the tensors that the graph reads at fixed addresses. Their padded part is
      from `live` to `size`; it is changed where `valid` says which values it may have.
    - `run_eager` computes the same without the graph, over the same tensors.
    - `reserved_slots` are those that padding may write.
    - `padding` holds, by name, what the padded part of an input may safely be; zeros by default. An
      input is named as the cause of a stray write if these values alone make it go away.

    Raises AssertionError with a report of each violation, UndecidedError if the replay could not be
    judged, and ValueError if there is nothing to judge.
    """
    groups = groups_of(kv, reserved_slots)
    owned = owned_of(owned_slots, groups)
    journal = judged(graph_of(replay, run_eager, static_inputs), groups, owned, padding)
    if journal.found:
        raise AssertionError(reports(asdict(finding) for finding in journal.found))
    if journal.unsure:
        raise UndecidedError("; ".join(journal.unsure))


def graph_of(
    replay: Callable[[], Outputs],
    run_eager: Callable[[], Outputs] | None,
    static_inputs: Sequence[StaticInput],
) -> Replay:
    """Return a replay whose outputs are what it returned last."""
    outputs: dict[str, Tensor] = {}

    def run() -> object:
        result = replay()
        outputs.clear()
        outputs.update(named(result))
        return result

    return Replay(
        replay,
        "graph",
        max((one.live for one in static_inputs), default=1),
        max((one.size for one in static_inputs), default=1),
        static_inputs,
        run,
        outputs=lambda: dict(outputs),
        eager=None if run_eager is None else lambda: named(run_eager()),
    )


def judged(
    graph: Replay,
    groups: Sequence[Group],
    owned: Mapping[str, Tensor],
    padding: Mapping[str, Tensor],
) -> InMemory:
    """Return what the sanitizer says of a replay that writes the owned slots."""
    journal = InMemory(Path())
    watcher = Watcher(groups, engine="test", release="", journal=journal, settings=Settings(""))
    watcher.captures[graph.graph] = {one.name: at_capture(one, padding) for one in graph.inputs}
    watcher.relations.streak = 1
    watcher.begin(Forward("test", (row_of(owned),)))
    watcher.replay(graph)
    watcher.end()
    return journal


def groups_of(kv: KV, reserved: Collection[int]) -> list[Group]:
    """Return the KV tensors as groups. Raises ValueError if there are none."""
    parts = kv if isinstance(kv, Mapping) else {ONE_GROUP: kv}
    groups = [
        Group(
            name,
            tuple(Layer(str(number), (tensor,)) for number, tensor in enumerate(tensors)),
            reserved=frozenset(reserved),
        )
        for name, tensors in parts.items()
    ]
    if not groups or not all(group.layers for group in groups):
        raise ValueError("kv holds no tensors")
    return groups


def owned_of(slots: Slots, groups: Sequence[Group]) -> dict[str, Tensor]:
    """Return the owned slots of each group, int64 [n]. Raises ValueError if there are none."""
    given = slots if isinstance(slots, Mapping) else {group.name: slots for group in groups}
    unknown = set(given) - {group.name for group in groups}
    if unknown:
        raise ValueError(f"owned_slots names groups that kv lacks: {', '.join(sorted(unknown))}")
    owned = {name: torch.as_tensor(mine).flatten().long().cpu() for name, mine in given.items()}
    if not any(len(mine) for mine in owned.values()):
        raise ValueError("owned_slots is empty: a replay without live rows shows nothing")
    reserved = groups[0].reserved
    if all(set(mine.tolist()) <= reserved for mine in owned.values()):
        raise ValueError("owned_slots are all reserved: nothing would be judged")
    return owned


def row_of(owned: Mapping[str, Tensor]) -> Row:
    """Return one row that computes all owned slots, and reads none."""
    longest = max(len(slots) for slots in owned.values())
    filled = {
        name: torch.cat((slots, slots.new_full((longest - len(slots),), -1)))
        for name, slots in owned.items()
    }
    return Row("test", [None] * longest, 0, longest, filled)


def at_capture(static: StaticInput, padding: Mapping[str, Tensor]) -> Captured:
    """Return a static input as it was captured: where it is now, with values that are safe."""
    tensor, safe = static.tensor, padding.get(static.name)
    value = torch.zeros_like(tensor) if safe is None else safe
    return Captured(tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), value)


def named(outputs: Outputs) -> dict[str, Tensor]:
    """Return outputs by name. A replay without any has an empty one."""
    if outputs is None:
        return {"no output": torch.empty(0)}
    if isinstance(outputs, Tensor):
        return {"output": outputs}
    if isinstance(outputs, Mapping):
        return dict(outputs)
    return {f"output {number}": tensor for number, tensor in enumerate(outputs)}
